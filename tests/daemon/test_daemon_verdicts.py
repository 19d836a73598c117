"""A checkpoint is compared with what it can come from: with none of another training of the same script."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.core.checkpoints.tensor_stats import profile_of
from supervisor.core.job import Attempt, Job
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.verdicts import Proofs
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.generation_store import GenerationStore, Wanted
from supervisor.runner.proving import Proof, Prover
from supervisor.runner.unexamined import UnexaminedError

SIGNS = "+-" * 32
_HEAD = json.dumps({"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
SAFETENSORS = struct.pack("<Q", len(_HEAD)) + _HEAD + struct.pack("<4f", 1.0, -2.0, 3.0, -4.0)


BEGAN_UNIX_S = 1_600_000_000


class Shelf:
    """A job's store, into which weights are saved and proven; the prover's answer is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = GenerationStore(folder / "generations", reserve_bytes=0)
        self.answers: dict[str, object] = {}
        self.job: Job | None = None
        self.proofs = Proofs(self._examine, lambda job: self.job, lambda job: self.store)

    def _examine(self, path: Path) -> Proof:
        checkpoint = Checkpoint(path=str(path), fingerprint=fingerprint_of(path), verdict=Verdict.PROVEN)
        answer = self.answers[path.name]
        return Proof(checkpoint=checkpoint, profile=profile_of(answer), raw_profile=answer)

    def prove(self, step: int, signs: str, fit: int | None, *, saved_unix_s: int | None = None) -> Checkpoint:
        path = self.folder / f"step-{step}.pt"
        path.write_bytes(str(step).encode())
        saved_unix_s = saved_unix_s or BEGAN_UNIX_S + step
        os.utime(path, (saved_unix_s, saved_unix_s))
        row = ["state_dict.weight", "Float", [8, 8], 1.0, 0.0, 0, signs]
        self.answers[path.name] = {"tensors": [row], "optimizers": {}, "updates": None, "fit": fit}
        seen = Checkpoint(path=str(path), fingerprint=fingerprint_of(path), step=step)
        taken = self.store.take(Wanted(seen=seen, attempt=1, owner=os.geteuid()))
        return self.proofs.prove("job", Path(taken.path))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def turned(signs: str) -> str:
    return signs.translate(str.maketrans("+-", "-+"))


def test_weights_that_share_nothing_with_the_ones_before_are_refused(shelf: Shelf) -> None:
    assert shelf.prove(100, SIGNS, None).verdict is Verdict.PROVEN
    assert shelf.prove(200, turned(SIGNS), None).verdict is Verdict.REJECTED


def test_the_first_weights_of_a_further_training_of_the_script_are_compared_with_none_of_the_one_before(
    shelf: Shelf,
) -> None:
    assert shelf.prove(100, SIGNS, 1).verdict is Verdict.PROVEN
    assert shelf.prove(200, turned(SIGNS), 2).verdict is Verdict.PROVEN
    assert shelf.prove(300, SIGNS, 2).verdict is Verdict.REJECTED, "they are with those of their own"
    assert shelf.prove(400, turned(SIGNS), 2).verdict is Verdict.PROVEN


def test_a_checkpoint_whose_prover_the_kernel_kills_has_no_verdict_and_is_proven_by_the_next_search(
    tmp_path: Path,
) -> None:
    """Where memory is short both a training and what proves its checkpoints may be killed."""
    store, saved = GenerationStore(tmp_path / "generations", reserve_bytes=0), tmp_path / "state.safetensors"
    saved.write_bytes(SAFETENSORS)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -e {tmp_path}/room ] || kill -KILL $$\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    proofs = Proofs(Prover(python).examine, lambda job: None, lambda job: store)
    with pytest.raises(UnexaminedError, match="killed by SIGKILL; it is not rejected for that, but examined again"):
        proofs.prove("job", saved)
    (tmp_path / "room").touch()
    assert proofs.prove("job", saved).verdict is Verdict.PROVEN


def test_a_checkpoint_that_ends_each_of_its_provers_is_rejected_in_the_end_and_keeps_no_search(tmp_path: Path) -> None:
    store, saved = GenerationStore(tmp_path / "generations", reserve_bytes=0), tmp_path / "state.safetensors"
    saved.write_bytes(SAFETENSORS)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -KILL $$\n")
    python.chmod(0o755)
    proofs = Proofs(Prover(python).examine, lambda job: None, lambda job: store)
    for _ in range(2):
        with pytest.raises(UnexaminedError):
            proofs.prove("job", saved)
    rejected = proofs.prove("job", saved)
    assert (rejected.verdict, rejected.reason) == (Verdict.REJECTED, "the prover was killed by SIGKILL")
    os.utime(saved, (1, 1))
    with pytest.raises(UnexaminedError):
        proofs.prove("job", saved)  # another content


@pytest.mark.parametrize(("went_on", "verdict"), [(False, Verdict.PROVEN), (True, Verdict.REJECTED)])
def test_what_a_training_saves_that_started_over_in_spite_of_a_checkpoint_is_compared_with_none_of_before(
    shelf: Shelf, *, went_on: bool, verdict: Verdict
) -> None:
    shelf.prove(100, SIGNS, None)
    launched_at = Moment(unix_s=BEGAN_UNIX_S + 150.0, monotonic_s=0.0)
    attempt = Attempt(number=2, launched_at=launched_at, went_on=went_on)
    shelf.job = Job(name="job", since=launched_at, attempt=attempt, began_unix_s=float(BEGAN_UNIX_S))
    over = shelf.prove(101, turned(SIGNS), None, saved_unix_s=BEGAN_UNIX_S + 200)
    assert over.verdict is verdict
    continues = shelf.prove(102, SIGNS if went_on else turned(SIGNS), None, saved_unix_s=BEGAN_UNIX_S + 300)
    assert continues.verdict is Verdict.PROVEN
    if not went_on:
        foreign = shelf.prove(103, SIGNS, None, saved_unix_s=BEGAN_UNIX_S + 400)
        assert foreign.verdict is Verdict.REJECTED, "it is compared with its own"


def test_what_was_saved_before_such_a_start_is_compared_as_ever(shelf: Shelf) -> None:
    shelf.prove(100, SIGNS, None)
    launched_at = Moment(unix_s=BEGAN_UNIX_S + 500.0, monotonic_s=0.0)
    shelf.job = Job(name="job", since=launched_at, attempt=Attempt(number=2, launched_at=launched_at, went_on=False))
    assert shelf.prove(200, turned(SIGNS), None).verdict is Verdict.REJECTED
