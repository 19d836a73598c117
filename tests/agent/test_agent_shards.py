"""Weights that FSDP2 spreads over ranks: each rank writes its shard, and a manifest makes a generation of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH, Attempt, Attempts, Finished

from supervisor.agent import prove
from supervisor.core import attempt_files as at
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.runner.proving import Prover
from tests.conftest import interpreter
from tests.rigs.warm import RANKS, Warm, WarmInterpreter

pytestmark = [pytest.mark.train, pytest.mark.xdist_group("shards")]

HERE = Path(__file__).resolve().parent
FIRST, SECOND = "rank-00000.shard.pt", "rank-00001.shard.pt"
MANIFEST = "rocm-shards.json"


LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


class Launches(Attempts):
    """Launches of one training, each resumed from the newest generation."""

    def __init__(self, python: Path, folder: Path, warm: WarmInterpreter | None = None) -> None:
        super().__init__(python, folder, *([] if warm else LAUNCHER), HERE / "own_shards.py", warm=warm)

    def newest(self) -> Path | None:
        return max(self.snapshots.glob("step-????????????"), default=None)


def digests(finished: Finished) -> list[str]:
    return sorted(line for line in finished.output.splitlines() if line.startswith("DIGEST"))


def weights(finished: Finished) -> set[str]:
    """Return the digests of the complete weights and moments that the ranks ended with."""
    return {line.split()[1] for line in digests(finished)}


def test_spread_weights_killed_and_stopped_end_bit_for_bit_where_they_would_have(
    current_python: Path, tmp_path: Path, warm: Warm
) -> None:
    launched = Launches(current_python, tmp_path)
    ranks = Launches(current_python, tmp_path / "ranks", warm(current_python, *RANKS))
    alone = ranks.run_ranks(2)
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
    ranks.snapshots = launched.snapshots
    finished = ranks.run_ranks(2)
    assert digests(finished) == digests(alone)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Launches:
    """A training that has left its two newest generations, here and in a second folder."""
    folder = tmp_path_factory.mktemp("saved")
    python = interpreter("current")
    launched = Launches(python, folder, warm(python, *RANKS))
    elsewhere = str(folder / "elsewhere")
    finished = launched.run_ranks(
        2, "--epochs", "3", "--step-s", "0.1", every="0.2", ROCM_SUPERVISOR_SNAPSHOT_REPLICAS=elsewhere
    )
    assert launched.attempts[-1].failures() == [], finished.output
    return launched


@pytest.fixture
def copy(saved: Launches, tmp_path: Path) -> Path:
    """The newest generation, which may be spoilt; the one before it lies next to it."""
    for generation in saved.snapshots.glob("step-????????????"):
        shutil.copytree(generation, tmp_path / generation.name)
    return max(tmp_path.glob("step-*"))


def test_a_generation_is_proven_with_its_step_and_every_rank_and_lies_in_both_folders(saved: Launches) -> None:
    newest = saved.newest()
    assert newest is not None
    step = int(newest.name.removeprefix("step-"))
    found = Prover().prove(newest)
    assert (found.verdict, found.reason, found.step) == (Verdict.PROVEN, None, step)
    rows = {row[0]: row[2] for row in prove.prove(str(newest / MANIFEST))["profile"]["tensors"]}
    assert (rows["rank0of2.model.0.weight"], rows["rank1of2.model.0.weight"]) == ([19, 12], [18, 12])
    assert rows["rank1of2.optimizer.state.0.exp_avg"] == [18, 12]
    elsewhere = saved.folder / "elsewhere"
    assert not list(saved.snapshots.glob("*part*")) + list(elsewhere.glob("*part*"))
    twin = max(elsewhere.glob("step-*"))
    assert Prover().prove(twin).verdict is Verdict.PROVEN
    if twin.name == newest.name:
        assert [(twin / name).read_bytes() for name in (FIRST, SECOND, MANIFEST)] == [
            (newest / name).read_bytes() for name in (FIRST, SECOND, MANIFEST)
        ]


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / SECOND).read_bytes())
    data[data.index(b"/data/3") + 200] ^= 1
    (path / SECOND).write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path / FIRST, (path / FIRST).stat().st_size - 1)


def of_another_step(path: Path) -> None:
    shutil.copyfile(min(path.parent.glob("step-*")) / SECOND, path / SECOND)


def of_another_rank(path: Path) -> None:
    shutil.copyfile(path / FIRST, path / SECOND)


def missing(path: Path) -> None:
    (path / SECOND).unlink()


def without_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def with_the_manifest_of_another_step(path: Path) -> None:
    shutil.copyfile(min(path.parent.glob("step-*")) / MANIFEST, path / MANIFEST)


def with_a_shard_of_another_step_and_a_manifest_that_names_it(path: Path) -> None:
    """As somebody does who repairs a checkpoint by hand."""
    of_another_step(path)
    earlier = json.loads((min(path.parent.glob("step-*")) / MANIFEST).read_text())
    mine = json.loads((path / MANIFEST).read_text())
    mine["shards"][1] = earlier["shards"][1]
    (path / MANIFEST).write_text(json.dumps(mine))


def cut_manifest(path: Path) -> None:
    os.truncate(path / MANIFEST, 100)


def of_too_many(path: Path) -> None:
    shutil.copyfile(path / SECOND, path / "rank-00002.shard.pt")


HASH = "rank-00001.shard.pt does not have the hash in its manifest: damaged, or of another save"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip_a_bit, HASH),
        (cut, "rank-00000.shard.pt has "),
        (of_another_step, "rank-00001.shard.pt "),
        (of_another_rank, "rank-00001.shard.pt "),
        (missing, "incomplete: rank-00001.shard.pt is missing, of 2 shards"),
        (without_manifest, "incomplete: rocm-shards.json is missing"),
        (with_the_manifest_of_another_step, "rank-0000"),
        (with_a_shard_of_another_step_and_a_manifest_that_names_it, "rank-00001.shard.pt is {'rank': 1"),
        (cut_manifest, "its manifest is cut short or no JSON"),
        (of_too_many, "3 shards lie there, and its manifest names 2"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_shards_that_are_damaged_or_do_not_belong_together_are_rejected(
    copy: Path, spoil: Callable[[Path], None], why: str
) -> None:
    spoil(copy)
    found = Prover().prove(copy)
    assert found.verdict is Verdict.REJECTED
    assert (found.reason or "").startswith(why), found.reason


READS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from rocm_agent.snapshots import generation
folder = sys.argv[2]
try:
    generation.read_shard(torch, folder, generation.read_manifest(folder), 1)
except ValueError as error:
    print(error)
"""


@pytest.fixture
def read(current_python: Path, tmp_path: Path, warm: Warm) -> Callable[[Path], Finished]:
    """Have a rank read its shard of a generation."""
    attempt = Attempt(tmp_path / "attempt", warm=warm(current_python, *RANKS))
    return lambda generation: attempt.run([current_python, "-c", READS, AGENT_PATH, generation])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip_a_bit, "damaged or of another save"),
        (of_another_step, "damaged or of another save"),
        (with_a_shard_of_another_step_and_a_manifest_that_names_it, "and the manifest wants"),
    ],
)
def test_a_rank_refuses_such_a_shard_itself(
    copy: Path, spoil: Callable[[Path], None], why: str, read: Callable[[Path], Finished]
) -> None:
    spoil(copy)
    finished = read(copy)
    assert finished.code == 0
    assert why in finished.output


def test_another_number_of_ranks_gets_the_same_weights_and_reports_what_is_lost(
    current_python: Path, saved: Launches, tmp_path: Path, warm: Warm
) -> None:
    newest = saved.newest()
    assert newest is not None
    launched = Launches(current_python, tmp_path, warm(current_python, *RANKS))
    shutil.copytree(newest, launched.snapshots / newest.name)
    same = launched.run_ranks(2, "--epochs", "0")
    assert launched.attempts[-1].list_reports("resumed")[0].get("lost") is None
    for ranks in (3, 1):
        other = launched.run_ranks(ranks, "--epochs", "0")
        assert weights(other) == weights(same), other.output
        (resumed,) = launched.attempts[-1].list_reports("resumed")
        assert resumed["lost"] == (
            f"2 processes left off and {ranks} go on: the place in the data is lost, and the epoch starts over"
        )


def test_two_machines_save_into_a_folder_of_both_and_end_bit_for_bit(
    current_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """Each machine is a launcher of its own, with its own folder of the attempt."""
    ranks = warm(current_python, *RANKS)
    alone = Machines(ranks, tmp_path / "alone").run("--epochs", "2", every="0")
    machines = Machines(ranks, tmp_path / "together")
    killed = machines.run("--epochs", "2", "--die-after", "6", "--step-s", "0.3", every="0.5", DYING_RANK="1")
    assert (machines.folder / "1-1/run/died").exists(), killed.output
    assert not list((machines.folder / "1-0").glob("step-*"))
    finished = machines.run("--epochs", "2", every="0")
    assert (machines.folder / "2-0/run/agent.jsonl").read_text().count('"event": "resumed"') == 1
    assert digests(finished) == digests(alone)


class Machines:
    """Two launchers of one rank each, with replicas as DDP has them, and a folder that both reach."""

    def __init__(self, warm: WarmInterpreter, folder: Path) -> None:
        self.warm, self.folder, self.launches = warm, folder, 0
        self.all = folder / "all"
        self.all.mkdir(parents=True)

    def run(self, *options: str, every: str, **environment: str) -> Finished:
        self.launches += 1
        newest = max(self.all.glob("step-????????????"), default=None)
        meeting = self.folder / f"meeting-{self.launches}"
        processes = []
        for machine in range(2):
            attempt = Attempt(self.folder / f"{self.launches}-{machine}", warm=self.warm)
            attempt.make_recorder()
            ours = {
                at.ENV_SNAPSHOTS: str(attempt.folder), at.ENV_SNAPSHOT_EVERY: every, "OMP_NUM_THREADS": "1",
                at.ENV_REPLICAS: str(self.all), at.ENV_EPOCH: f"7.0.{self.launches}",
                at.ENV_RESUME_FROM: str(newest or ""), "RANK": str(machine), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1", "MEETING": str(meeting),
            }  # fmt: skip
            command: list[str | Path] = [self.warm.python, HERE / "own_shards.py", "--ddp", *options]
            processes.append(attempt.start(command, **ours, **environment))
        outputs = [process.communicate(timeout=600)[0] for process in processes]
        return Finished(max(abs(process.wait()) for process in processes), "".join(outputs))


def test_an_overtaken_launch_completes_nothing_and_a_later_one_is_not_its_litter(tmp_path: Path) -> None:
    sys.path.insert(0, str(AGENT_PATH))
    try:
        from rocm_agent.snapshots import generation  # noqa: PLC0415 - it lies outside of the packages
    finally:
        sys.path.remove(str(AGENT_PATH))
    generation.Fence(str(tmp_path), "12.0.1").raise_to_ours()
    cut_off, relaunched = generation.Fence(str(tmp_path), "12.0.1"), generation.Fence(str(tmp_path), "12.0.10")
    relaunched.raise_to_ours()
    with pytest.raises(generation.Incomplete, match=r"epoch 12\.0\.10 has begun, and this is epoch 12\.0\.1"):
        cut_off.check()
    for epoch in ("12.0.1", "12.0.10"):
        generation.make_draft(generation.draft_of(str(tmp_path), 4, epoch, 1))
    generation.prune(str(tmp_path), "12.0.1")
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000000004.12.0.10-1.rocm-supervisor-part"]
