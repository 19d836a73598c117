"""A program that saves in several files is handed its own, next to which the others lie."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.daemon.checkpoints.saved_in_parts import hand_over_in_place
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.generation_store import GenerationStore, Wanted


def captured(folder: Path, name: str) -> Checkpoint:
    """A file that a training has saved, of which a generation is proven."""
    (folder / "out").mkdir(exist_ok=True)
    path = folder / "out" / name
    path.write_bytes(b"weights")
    seen = Checkpoint(path=str(path), fingerprint=fingerprint_of(path), step=41)
    store = GenerationStore(folder / "generations", reserve_bytes=0)
    return replace(store.take(Wanted(seen=seen, attempt=1, owner=os.geteuid())), verdict=Verdict.PROVEN)


def test_a_file_of_a_save_in_parts_is_handed_over_where_the_others_lie(tmp_path: Path) -> None:
    """guided-diffusion reads opt000040.pt from the folder of the model that it is given."""
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / "opt000040.pt").write_bytes(b"state")
    handed_over = hand_over_in_place(generation)
    assert (handed_over.path, handed_over.source) == (str(tmp_path / "out" / "model000040.pt"), None)
    assert (handed_over.step, handed_over.verdict) == (41, Verdict.PROVEN)
    assert generation.is_of(handed_over), "what it resumed from stays known"


@pytest.mark.parametrize("other", ["opt000020.pt", "sample000040.png", "notes.pt", "opt000040.pt/part.pt"])
def test_another_save_or_another_kind_of_file_is_none_of_its_parts(tmp_path: Path, other: str) -> None:
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / other).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / other).write_bytes(b"state")
    assert hand_over_in_place(generation) is generation


def test_a_file_without_a_number_is_handed_over_as_captured(tmp_path: Path) -> None:
    generation = captured(tmp_path, "last.pt")
    (tmp_path / "out" / "best.pt").write_bytes(b"weights")
    assert hand_over_in_place(generation) is generation


@pytest.mark.parametrize("remains", [None, b"weig", b"WEIGHTS"])
def test_a_file_that_is_not_any_more_what_was_proven_is_handed_over_as_captured(
    tmp_path: Path, remains: bytes | None
) -> None:
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / "opt000040.pt").write_bytes(b"state")
    path = tmp_path / "out" / "model000040.pt"
    path.unlink()
    if remains is not None:
        path.write_bytes(remains)
    assert hand_over_in_place(generation) is generation
