"""Several ranks are saved together at one step, or not at all; none waits for another that does not come."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Attempts, Finished, wait_for

from supervisor.core import attempt_files as at
from tests.rigs.warm import RANKS, Warm, WarmInterpreter, WarmProgram

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent
BATCHES = 50
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


class Ranks:
    """Ranks that make a step when they are told to."""

    def __init__(self, python: Path, folder: Path, warm: WarmInterpreter) -> None:
        self.python, self.folder = python, folder
        self.snapshots = folder / "snapshots"
        self.snapshots.mkdir()
        self.attempt = Attempt(folder / "0", folder, warm)
        self.attempt.make_recorder()
        self.processes: list[subprocess.Popen[str] | WarmProgram] = []

    def start(self, ranks: int = 2, every: str = "0.01", **environment: str) -> None:
        ours = {at.ENV_SNAPSHOTS: str(self.snapshots), at.ENV_SNAPSHOT_EVERY: every, "OMP_NUM_THREADS": "1"}
        command = [self.python, HERE / "rank_by_hand.py"]
        for rank in range(ranks):
            world = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            self.processes.append(self.attempt.start(command, **{**ours, **world, **environment}))

    def begin(self) -> list[str]:
        return [self.line(rank) for rank in range(len(self.processes))]

    def step(self, *ranks: int, how: str = "step") -> None:
        """Have ranks make a step, and return once they have made it."""
        for rank in ranks:
            stdin = self.processes[rank].stdin
            assert stdin is not None
            stdin.write(f"{how}\n")
            stdin.flush()
        for rank in ranks:
            assert self.line(rank).startswith("at ")

    def line(self, rank: int) -> str:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return stdout.readline()

    def announced(self) -> int:
        """Return the step for which a save is announced, 0 before the first."""
        board = self.attempt.folder / "run/ranks.bin"
        return int.from_bytes(board.read_bytes()[:8], "little") & (1 << 44) - 1 if board.exists() else 0

    def announce(self) -> int:
        """Have all make steps until a save is announced; return the step of it."""
        before = self.announced()
        for _ in range(BATCHES // 2):
            self.step(*range(len(self.processes)))
            if self.announced() > before:
                break
        return self.announced()

    def there(self) -> list[str]:
        return sorted(path.name for path in self.snapshots.glob("step-*.pt"))

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.processes = []


@pytest.fixture
def ranks(current_python: Path, tmp_path: Path, warm: Warm) -> Iterator[Ranks]:
    made = Ranks(current_python, tmp_path, warm(current_python))
    yield made
    made.end()


def test_a_late_rank_completes_the_snapshot_and_until_then_there_is_none(ranks: Ranks) -> None:
    ranks.start()
    assert ranks.begin() == ["from 0 0 0\n"] * 2
    step = ranks.announce()
    ranks.step(0, 0, 0)
    assert ranks.there() == []
    ranks.step(1, 1)
    wait_for(lambda: ranks.attempt.list_reports("checkpoint_saved"))
    assert ranks.there() == [f"step-{step:012}.pt"]
    (reported,) = ranks.attempt.list_reports("checkpoint_saved")
    assert (reported["rank"], reported["step"], reported["kind"]) == (0, step, "snapshot")
    assert ranks.attempt.failures() == []

    ranks.end()
    ranks.start(1, **{at.ENV_RESUME_FROM: reported["paths"][0]})
    assert ranks.begin() == [f"from {step} 0 {2 * step}\n"]
    (resumed,) = ranks.attempt.list_reports("resumed")
    assert resumed["lost"].startswith("2 processes left off and 1 go on")
    for _ in range(BATCHES):
        ranks.step(0)  # the epoch from its beginning


def test_of_ranks_that_are_no_replicas_or_dead_nothing_is_saved_and_the_others_go_on(ranks: Ranks) -> None:
    ranks.start()
    ranks.begin()
    step = ranks.announce()
    ranks.step(1, how="otherwise")
    ranks.step(0, 0, 1)
    wait_for(lambda: ranks.attempt.list_reports("save_failed"))
    (failed,) = ranks.attempt.list_reports("save_failed")
    assert f"rank 1 does not hold what rank 0 holds after step {step}" in failed["error"]

    step = ranks.announce()
    ranks.processes[1].kill()
    ranks.processes[1].wait()
    ranks.step(0, 0, 0)
    wait_for(lambda: len(ranks.attempt.list_reports("save_failed")) == 2)
    assert "rank 1 is gone" in ranks.attempt.list_reports("save_failed")[1]["error"]
    assert ranks.there() == []
    assert ranks.attempt.records()[-1].step == step + 1


def test_ranks_of_several_machines_learn_that_they_are_not_saved(ranks: Ranks) -> None:
    ranks.attempt.command(at.COMMAND_SAVE, 7)
    ranks.start(2, LOCAL_WORLD_SIZE="1")
    ranks.begin()
    for _ in range(4):
        ranks.step(0, 1)
    (failed,) = ranks.attempt.list_reports("save_failed")
    assert failed["error"].startswith("1 of its 2 processes run on this machine")
    assert ranks.attempt.answer() == (at.ANSWER_CANNOT, 7)
    assert ranks.there() == []


def digests(finished: Finished) -> list[str]:
    return sorted(line for line in finished.output.splitlines() if line.startswith("DIGEST"))


def test_two_ranks_killed_and_stopped_end_bit_for_bit_where_they_would_have(
    current_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """With statistics of BatchNorm that DDP does not keep alike, and noise of each rank's own."""
    launched = Attempts(current_python, tmp_path, *LAUNCHER, HERE / "own_ranks.py")
    ranks = Attempts(current_python, tmp_path / "ranks", HERE / "own_ranks.py", warm=warm(current_python, *RANKS))
    alone = ranks.run_ranks(2)
    assert len(digests(alone)) == 2, alone.output
    killed = launched.run("--die-after", "6", "--step-s", "0.2", DYING_RANK="1")
    assert (launched.attempts[-1].folder / "run/died").exists(), killed.output
    reaped = [code for report in launched.attempts[-1].list_reports("reaped") for code in report["codes"].values()]
    assert reaped == [-signal.SIGKILL, -signal.SIGTERM], "torchrun's agent says so before it ends the other"
    (lost,) = [report for report in launched.attempts[-1].list_reports("trains") if "of" in report]
    assert (lost["ended"], lost["error"], lost["restarts"]) == (True, "SIGKILL", True), "not what torchrun ended"
    stopped = launched.run("--step-s", "0.02", command=at.COMMAND_SAVE_AND_STOP, every="0")
    assert digests(stopped) == []
    assert launched.attempts[-1].answer() == (at.ANSWER_SAVED, 5)
    (reported,) = launched.attempts[-1].list_reports("checkpoint_saved")
    assert reported["requested"]
    assert f"Signal {signal.SIGTERM.value} (SIGTERM)" in stopped.output
    assert launched.attempts[-1].failures() == []
    (resumed,) = launched.attempts[-1].list_reports("resumed")
    assert reported["step"] > resumed["step"] > 0
    ranks.snapshots = launched.snapshots
    finished = ranks.run_ranks(2)
    assert digests(finished) == digests(alone)
    assert ranks.attempts[-1].records(rank=1)[0].step == reported["step"] + 1
    assert list(launched.attempts[0].folder.glob("*.part.pt")) == []
