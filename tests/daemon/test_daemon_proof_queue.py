"""Checkpoints are proven as they are saved: each content once, and never at the cost of the training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks_by_hand import until

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.core.events import CheckpointSeen
from supervisor.daemon.checkpoints.candidates import fingerprint
from supervisor.daemon.checkpoints.proof_queue import ProofQueue, Saved
from supervisor.daemon.clock import SystemClock


class FakeProver:
    """Proves everything: held.pt when it is let, broken.pt not at all.

    Of those that are pruned, let go.pt is gone when it is through, and early.pt before it can look.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def __call__(self, path: Path) -> Checkpoint:
        self.asked.append(path.name)
        if path.name == "broken.pt":
            raise OSError("no interpreter")
        assert path.name != "held.pt" or self.go.wait(120)
        if path.name == "early.pt":
            path.unlink()
            path.stat()
        stat = fingerprint(path)
        assert stat is not None
        if path.name == "let go.pt":
            path.unlink()
            return Checkpoint(path=str(path), fingerprint=stat, verdict=Verdict.REJECTED, reason="changed")
        return Checkpoint(path=str(path), fingerprint=stat, epoch=3, verdict=Verdict.PROVEN)


@pytest.fixture
def seen() -> list[CheckpointSeen]:
    return []


@pytest.fixture
def prover() -> FakeProver:
    return FakeProver()


@pytest.fixture
def watch(seen: list[CheckpointSeen]) -> Iterator[ProofQueue]:
    item = ProofQueue(SystemClock(), seen.append)
    item.start()
    yield item
    item.end()
    item.join(120)
    assert not item.is_alive()


def saved(
    path: Path, prove: FakeProver, content: bytes = b"state", step: int | None = None, epoch: int | None = None
) -> Saved:
    path.write_bytes(content)
    return Saved(job="one", attempt=1, path=path, prove=prove, step=step, epoch=epoch)


def test_what_was_saved_is_proven_with_what_the_training_reported_about_it(
    watch: ProofQueue, seen: list[CheckpointSeen], prover: FakeProver, tmp_path: Path
) -> None:
    watch.saved(saved(tmp_path / "a.pt", prover, epoch=2, step=30))
    until(lambda: len(seen) == 1, "the verdict")
    item = seen[0].checkpoint
    assert (seen[0].job, seen[0].attempt) == ("one", 1)
    assert (item.verdict, item.epoch, item.step) == (Verdict.PROVEN, 3, 30)


def test_a_path_saved_again_before_its_turn_is_proven_once_as_it_is_then(
    watch: ProofQueue, seen: list[CheckpointSeen], prover: FakeProver, tmp_path: Path
) -> None:
    watch.saved(saved(tmp_path / "held.pt", prover))
    until(lambda: prover.asked == ["held.pt"], "the first proof to begin")
    for step in (1, 2, 3):
        watch.saved(saved(tmp_path / "last.pt", prover, b"x" * step, step=step))
    prover.go.set()
    until(lambda: len(seen) == 2, "both verdicts")
    assert prover.asked == ["held.pt", "last.pt"]
    assert (seen[1].checkpoint.step, seen[1].checkpoint.fingerprint.size_bytes) == (3, 3)


def test_a_file_that_is_gone_again_and_a_prover_that_fails_end_nothing(
    watch: ProofQueue, seen: list[CheckpointSeen], prover: FakeProver, tmp_path: Path
) -> None:
    gone = saved(tmp_path / "gone.pt", prover)
    gone.path.unlink()
    watch.saved(gone)
    watch.saved(saved(tmp_path / "broken.pt", prover))
    watch.saved(saved(tmp_path / "b.pt", prover))
    until(lambda: len(seen) == 1, "the verdict of the last")
    assert Path(seen[0].checkpoint.path).name == "b.pt"


def test_of_a_file_that_was_pruned_while_it_was_read_nothing_is_reported(
    watch: ProofQueue,
    seen: list[CheckpointSeen],
    prover: FakeProver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch.saved(saved(tmp_path / "let go.pt", prover))
    watch.saved(saved(tmp_path / "early.pt", prover))
    watch.saved(saved(tmp_path / "next.pt", prover))
    until(lambda: bool(seen), "the verdict of the next")
    assert [Path(entry.checkpoint.path).name for entry in seen] == ["next.pt"]
    assert not caplog.records, "nothing is wrong"
