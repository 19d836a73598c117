"""Weights that FSDP2 spreads over ranks: each rank writes its shard, and a manifest makes a generation of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from agent_by_hand import Attempts, Finished

from supervisor.core import attempt_files as at

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent


def launcher(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]


class Launches(Attempts):
    """Launches of one training, each resumed from the newest generation."""

    def __init__(self, python: Path, folder: Path, ranks: int = 2) -> None:
        super().__init__(python, folder, *launcher(ranks), HERE / "own_shards.py")

    def newest(self) -> Path | None:
        return max(self.snapshots.glob("step-????????????"), default=None)


def digests(finished: Finished) -> list[str]:
    return sorted(line for line in finished.output.splitlines() if line.startswith("DIGEST"))


def test_spread_weights_killed_and_stopped_end_bit_for_bit_where_they_would_have(
    current_python: Path, tmp_path: Path
) -> None:
    launched = Launches(current_python, tmp_path)
    alone = launched.run(every="0")
    assert len(digests(alone)) == 2, alone.output
    killed = launched.run("--die-after", "6", "--step-s", "0.05", DYING_RANK="1")
    assert (launched.attempts[-1].folder / "run/died").exists(), killed.output
    stopped = launched.run("--step-s", "0.02", command=at.COMMAND_SAVE_AND_STOP, every="0")
    assert digests(stopped) == []
    assert launched.attempts[-1].answer() == (at.ANSWER_SAVED, 5), launched.attempts[-1].failures()
    (reported,) = launched.attempts[-1].list_reports("checkpoint_saved")
    assert reported["requested"]
    assert f"Signal {signal.SIGTERM.value} (SIGTERM)" in stopped.output
    assert launched.attempts[-1].failures() == []
    (resumed,) = launched.attempts[-1].list_reports("resumed")
    assert reported["step"] > resumed["step"] > 0
    finished = launched.run(every="0")
    assert digests(finished) == digests(alone)
