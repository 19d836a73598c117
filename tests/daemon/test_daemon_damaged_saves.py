"""Damaged saves that lie in a program's own search are found among real files, and nothing else is moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import AFTER_FAULT, TEXT, Checkpoint, ResumePoint, SetBack, Verdict
from supervisor.daemon.checkpoints.candidates import Search, find, fingerprint
from supervisor.daemon.checkpoints.damaged_saves import PROVEN_AT_MOST, move_damaged, move_unverified
from supervisor.runner.unexamined import UnexaminedError

BEGAN = 1_700_000_000


class Prover:
    """Proves what begins with "good", and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, path: Path) -> Checkpoint:
        self.asked.append(path.name)
        if path.read_bytes().startswith(b"good"):
            return replace(seen(path), verdict=Verdict.PROVEN)
        return replace(seen(path), verdict=Verdict.REJECTED, reason="truncated: it ends before its numbers do")


def seen(path: Path) -> Checkpoint:
    stat = fingerprint(path)
    assert stat is not None
    return Checkpoint(path=str(path), fingerprint=stat)


def save(path: Path, content: bytes, age: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (BEGAN + age, BEGAN + age))
    return path


def search(cwd: Path, **changes: object) -> Search:
    settings: dict[str, object] = {
        "known": (),
        "globs": ("weights/*.pt", "snapshots/*.pt"),
        "cwd": str(cwd),
        "fault_unix_s": None,
        "fault_step": None,
        "batches_per_epoch": None,
        "snapshots": str(cwd / "snapshots"),
        "died_unix_s": BEGAN + 1000.0,
    }
    return Search(**{**settings, **changes})  # type: ignore[arg-type]  # the changes are those of a test


def clear(
    asked: Search, prover: Prover | None = None, shared: Callable[[], frozenset[str]] = frozenset
) -> tuple[ResumePoint, list[Checkpoint]]:
    """Return the resume point with what is moved, and the verdicts that were reported for it."""
    judged: list[Checkpoint] = []
    point = find(asked, prover or Prover(), judged.append)
    reported: list[Checkpoint] = []
    known = replace(asked, known=(*asked.known, *judged))
    return move_damaged(known, point, prover or Prover(), reported.append, shared), reported


def test_the_damaged_newest_save_is_moved_and_a_link_and_what_another_job_names_stay(tmp_path: Path) -> None:
    good = save(tmp_path / "weights/ck_30.pt", b"good", 30)
    cut = save(tmp_path / "weights/ck_40.pt", b"cut", 40)
    (tmp_path / "weights/latest.pt").symlink_to(cut)
    point, _ = clear(search(tmp_path))
    assert point.stand_in == point.checkpoint
    assert point.checkpoint is not None
    assert (point.checkpoint.path, point.newer) == (str(good), (str(cut),))
    for stays in (search(tmp_path, died_unix_s=None), search(tmp_path, died_unix_s=BEGAN + 40.0)):
        assert clear(stays)[0].newer == ()
    assert clear(search(tmp_path, set_back=SetBack(now_unix_s=BEGAN, from_unix_s=BEGAN + 50)))[0].newer == ()
    assert clear(search(tmp_path), shared=lambda: frozenset({str(cut)}))[0].newer == ()
    assert clear(search(tmp_path, fault_unix_s=BEGAN + 35.0))[0].newer == (str(cut),)


def test_the_folder_of_a_damaged_save_is_moved_unless_it_is_that_of_a_run(tmp_path: Path) -> None:
    good = save(tmp_path / "weights/iter_30/model.pt", b"good", 30)
    cut = save(tmp_path / "weights/iter_40/model.pt", b"cut", 40)
    asked = search(tmp_path, globs=("weights/*/model.pt",))
    point, _ = clear(asked)
    assert (point.checkpoint is not None and point.checkpoint.path, point.newer) == (str(good), (str(cut.parent),))
    assert clear(asked, shared=lambda: frozenset({str(cut)}))[0].newer == (), "another job names what is in it"
    earlier = replace(seen(good), fingerprint=replace(seen(good).fingerprint, modified_ns=BEGAN * 10**9))
    assert clear(replace(asked, known=(earlier,)))[0].newer == (), "it was written before: a run that goes on"
    kept = seen(save(tmp_path / "g/1/model.pt", b"good", 35))
    of_cut = replace(kept, source=str(cut), verdict=Verdict.PROVEN)
    asked = replace(asked, generations=(of_cut,), generations_folder=str(tmp_path / "g"))
    assert (clear(asked)[0].stand_in, clear(asked)[0].newer) == (of_cut, (str(cut),)), "it is overwritten, and put back"


def test_after_a_fault_the_spoilt_saves_are_moved_where_none_with_numbers_is_found_then(tmp_path: Path) -> None:
    """A program that finds its newest save by itself went on from weights that were no numbers any more."""
    save(tmp_path / "weights/ck_30.pt", b"good", 30)
    spoilt = [str(save(tmp_path / f"weights/ck_{number}.pt", b"cut", number)) for number in (50, 60)]
    asked = search(tmp_path, fault_unix_s=BEGAN + 35.0)
    point, reported = clear(asked)
    assert point.stand_in == point.checkpoint
    assert set(point.newer) == set(spoilt)
    late = save(tmp_path / "weights/ck_40.pt", b"good", 40)
    point, reported = clear(asked)
    assert point.newer == (), "that one would be found, and is in doubt"
    assert [(item.path, item.verdict, item.reason) for item in reported if item.path == str(late)] == [
        (str(late), Verdict.REJECTED, AFTER_FAULT)
    ]


def test_a_generation_from_after_the_fault_takes_no_place(tmp_path: Path) -> None:
    last = save(tmp_path / "weights/last.pt", b"cut", 60)
    kept = [
        replace(seen(save(tmp_path / f"g/{age}/last.pt", b"good", age)), source=str(last), verdict=Verdict.PROVEN)
        for age in (30, 40)
    ]
    asked = search(tmp_path, generations=tuple(kept), generations_folder=str(tmp_path / "g"))
    assert clear(asked)[0].stand_in == kept[1]
    assert clear(replace(asked, fault_unix_s=BEGAN + 35.0))[0].stand_in == kept[0]


@pytest.mark.parametrize("of_last", [True, False])
def test_next_to_a_snapshot_the_newest_save_of_the_program_is_examined_too(tmp_path: Path, of_last: bool) -> None:
    """The Trainer loads its newest folder before the agent loads the snapshot."""
    good = save(tmp_path / "weights/ck_30.pt", b"good", 30)
    cut = save(tmp_path / "weights/ck_40.pt", b"cut", 40)
    snapshot = save(tmp_path / "snapshots/step-000000000045.pt", b"good", 45 if of_last else 25)
    point, _ = clear(search(tmp_path))
    assert (point.checkpoint is not None and point.checkpoint.path == str(snapshot)) is of_last
    assert (point.newer, point.stand_in and point.stand_in.path) == ((str(cut),), str(good))


def test_a_file_that_is_overwritten_is_replaced_by_the_generation_of_it(tmp_path: Path) -> None:
    last = save(tmp_path / "weights/last.pt", b"good", 10)
    kept = replace(
        seen(save(tmp_path / "generations/000001/last.pt", b"good", 10)), source=str(last), verdict=Verdict.PROVEN
    )
    save(last, b"cut", 40)
    asked = search(tmp_path, generations=(kept,), generations_folder=str(tmp_path / "generations"))
    point, _ = clear(asked)
    assert (point.checkpoint, point.newer, point.stand_in) == (kept, (str(last),), kept)
    save(tmp_path / "weights/optimizer.bin", b"good moments", 39)
    assert clear(asked)[0].newer == (), "a part of that save that no pattern names"


def test_a_copy_of_the_save_before_is_no_part_of_the_damaged_one(tmp_path: Path) -> None:
    """KataGo copies its last save to checkpoint_prev0.ckpt just before it writes the next one."""
    content = b"good" + bytes(range(250)) * 1000
    last = save(tmp_path / "weights/last.pt", content, 10)
    kept = replace(
        seen(save(tmp_path / "generations/000001/last.pt", content, 10)), source=str(last), verdict=Verdict.PROVEN
    )
    asked = search(tmp_path, generations=(kept,), generations_folder=str(tmp_path / "generations"))
    save(last, b"cut", 40)
    save(tmp_path / "weights/prev0.pt", content, 39)
    assert clear(asked)[0].stand_in == kept
    save(tmp_path / "weights/prev0.pt", content[:-1] + b"x", 39)
    assert clear(asked)[0].newer == ()


def test_numbered_files_that_are_copies_of_the_overwritten_one_are_a_series_all_the_same(tmp_path: Path) -> None:
    """Poutyne writes the same state into checkpoint.ckpt and checkpoint_epoch_3.ckpt."""
    for number in (2, 3):
        save(tmp_path / f"weights/epoch_{number}.pt", b"good" + bytes([number]), 10 * number)
    last = save(tmp_path / "weights/last.pt", b"cut", 31)
    kept = replace(
        seen(save(tmp_path / "g/1/last.pt", b"good" + bytes([2]), 21)), source=str(last), verdict=Verdict.PROVEN
    )
    point, _ = clear(search(tmp_path, generations=(kept,), generations_folder=str(tmp_path / "g")))
    assert (point.stand_in, point.newer) == (kept, (str(last), str(tmp_path / "weights/epoch_3.pt")))


def test_no_more_is_proven_than_a_bounded_number(tmp_path: Path) -> None:
    good = save(tmp_path / "weights/ck_1.pt", b"good", 1)
    for number in range(2, 40):
        save(tmp_path / f"weights/ck_{number}.pt", b"cut", number)
    first = replace(seen(good), verdict=Verdict.PROVEN)
    prover = Prover()
    point = ResumePoint(checkpoint=first, possible=True, reason="proven before")
    moved = move_damaged(search(tmp_path, known=(first,)), point, prover, lambda _: None, frozenset)
    assert len(prover.asked) == PROVEN_AT_MOST
    assert len(moved.newer) == PROVEN_AT_MOST


class OtherFormat(Prover):
    """Cannot verify what begins with "own"."""

    def __call__(self, path: Path) -> Checkpoint:
        judged = super().__call__(path)
        return replace(judged, reason=TEXT) if path.read_bytes().startswith(b"own") else judged


def clear_unverified(asked: Search, shared: Callable[[], frozenset[str]] = frozenset) -> ResumePoint:
    """Return the resume point of a program that loads its saves by itself, with what is moved."""
    judged: list[Checkpoint] = []
    point = find(asked, OtherFormat(), judged.append)
    return move_unverified(replace(asked, known=tuple(judged)), point, OtherFormat(), judged.append, shared)


def test_a_save_that_is_damaged_among_those_that_cannot_be_verified_is_moved(tmp_path: Path) -> None:
    own = save(tmp_path / "weights/a_30.pt", b"own", 30)
    cut = save(tmp_path / "weights/a_40.pt", b"cut", 40)
    asked = search(tmp_path, loads_itself=True, died_unix_s=None, ended_unix_s=BEGAN + 50.0)
    point = clear_unverified(asked)
    assert (point.possible, point.loads_itself, point.checkpoint) == (True, True, None)
    assert (point.newer, point.stand_in and point.stand_in.path) == ((str(cut),), str(own))
    for stays in (
        replace(asked, ended_unix_s=None),
        replace(asked, ended_unix_s=BEGAN + 40.0),
        replace(asked, loads_itself=False),
        replace(asked, fault_unix_s=BEGAN + 25.0),
    ):
        assert not clear_unverified(stays).possible
    assert not clear_unverified(asked, shared=lambda: frozenset({str(cut)})).possible


def test_a_program_that_cannot_start_with_its_newest_save_finds_the_one_before(tmp_path: Path) -> None:
    own = [save(tmp_path / f"weights/a_{number}.pt", b"own", number) for number in (20, 30, 40)]
    asked = search(tmp_path, loads_itself=True, died_unix_s=None, ended_unix_s=BEGAN + 60.0)
    assert clear_unverified(asked).newer == (), "it has not failed with it twice"
    point = clear_unverified(replace(asked, blamed_unix_s=BEGAN + 50.0))
    assert (point.newer, point.stand_in and point.stand_in.path) == ((str(own[2]),), str(own[1]))
    assert (point.possible, point.loads_itself, point.checkpoint) == (True, True, None)


def test_what_cannot_be_examined_for_now_is_not_moved_and_holds_up_no_search(tmp_path: Path) -> None:
    good = save(tmp_path / "weights/ck_30.pt", b"good", 30)
    save(tmp_path / "weights/ck_40.pt", b"cut", 40)
    point = ResumePoint(checkpoint=seen(good), possible=True, reason="proven before")

    def fails(path: Path) -> Checkpoint:
        raise UnexaminedError(f"{path}: the prover was killed by SIGKILL")

    assert move_damaged(search(tmp_path), point, fails, lambda _: None, frozenset) == point
