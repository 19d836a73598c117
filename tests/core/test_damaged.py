"""Which damaged saves of its own are moved out of the way of a program that goes on from the newest one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import (
    NOTHING_KNOWN,
    OTHER_FORMATS,
    Checkpoint,
    Fingerprint,
    ResumePoint,
    Verdict,
)
from supervisor.core.checkpoints.damaged import (
    WayCleared,
    accept_unverified,
    blame_newest,
    clear_way,
    group_saves,
    is_damaged,
    next_to_prove,
    reject_incomplete,
)
from supervisor.core.job import Phase
from supervisor.core.remedies.context import RemedyContext

from .stories import JOB, Life, life
from .test_start_failure import raises, waits_and_looks

CUT = "truncated: it ends before its numbers do"
DIED = 1000.0


def save(path: str, at: float, reason: str | None = None, *, proven: bool = True) -> Checkpoint:
    """A file that was written at that time: proven, rejected for a reason, or not proven yet."""
    verdict = Verdict.REJECTED if reason else Verdict.PROVEN if proven else None
    fingerprint = Fingerprint(size_bytes=1, modified_ns=round(at * 1e9), inode=1)
    return Checkpoint(path=path, fingerprint=fingerprint, verdict=verdict, reason=reason)


def generation(path: str, source: str, at: float) -> Checkpoint:
    return replace(save(f"/state/generations/{path}", at), source=source)


def clear(own: Iterable[Checkpoint], *kept: Checkpoint, before: float = DIED) -> WayCleared | None:
    files = tuple(own)
    return clear_way(group_saves(files), kept, before, {file.path: file.saved_unix_s for file in files})


def test_a_save_that_was_cut_short_is_moved_and_the_one_before_it_is_found() -> None:
    way = clear([save("/c/ck_30.pt", 30), save("/c/ck_40.pt", 40, CUT), save("/c/best.pt", 41)])
    assert way is not None
    assert (way.moved, way.stand_in.path) == (("/c/ck_40.pt",), "/c/ck_30.pt")


@pytest.mark.parametrize(
    "reason",
    [
        None,
        min(OTHER_FORMATS),
        "saved after the fault began",
        "changed while it was read",
        "all zero: 9 of 10 weight matrices",
        "the prover was killed by SIGSEGV",
        "unreadable: Input/output error",
        "could not be proved within 120 s",
        "stripped at the end of a training: it holds no optimizer state to resume from",
    ],
)
def test_what_is_not_known_to_be_damaged_stays(reason: str | None) -> None:
    newest = save("/c/ck_40.pt", 40, reason, proven=False)
    assert not is_damaged(newest)
    assert clear([save("/c/ck_30.pt", 30), newest]) is None


@pytest.mark.parametrize(
    "reason",
    [
        CUT,
        "empty",
        "optimizer.bin: truncated: it begins as a torch archive and has no end",
        "its pickle is damaged or cut short (8 bytes claimed, 2 left)",
        "not finite: tensor w (3 in all)",
        "incomplete: .metadata is missing",
        "no checkpoint: neither a torch file nor safetensors, and its first bytes are zero",
    ],
)
def test_what_a_kill_or_a_lost_machine_leaves_is_damaged(reason: str) -> None:
    assert is_damaged(save("/c/ck_40.pt", 40, reason))


def test_a_folder_without_weights_is_damaged_where_others_of_its_name_have_some() -> None:
    """The Trainer writes config.json first, and goes on from the newest folder that it finds."""
    kept, left = save("/c/checkpoint-30", 30), save("/c/checkpoint-40", 40, NOTHING_KNOWN)
    way = clear_way(reject_incomplete(group_saves([kept, left])), (), DIED, {})
    assert way is not None
    assert (way.moved, way.stand_in) == ((left.path,), kept)
    for others in ([save("/c/step-30", 30)], [save("/c/checkpoint-30", 30, NOTHING_KNOWN)]):
        saves = group_saves([*others, left])
        assert reject_incomplete(saves) == saves


@pytest.mark.parametrize("name", ["iter_{}/model.pt", "iter_{}/mp_rank_00/model.pt"])
def test_files_without_a_number_are_a_save_with_the_folder_that_has_one(name: str) -> None:
    """Megatron saves so, and a program that finds the newest folder needs the file in it."""
    own = [save(f"/c/{name.format(at)}", at, CUT if at == 80 else None) for at in (40, 60, 80)]
    way = clear(own)
    assert way is not None
    assert (way.moved, way.stand_in) == (("/c/iter_80",), own[1])
    assert [way.holds(file.path) for file in own] == [False, False, True]
    together = clear([*own, *(save(f"/c/iter_{at}/opt.pt", at) for at in (40, 60, 80))])
    assert together is not None
    assert together.moved == ("/c/iter_80",)
    spoilt = clear([own[0], replace(own[1], verdict=Verdict.REJECTED, reason=CUT), own[2]])
    assert spoilt is not None
    assert (spoilt.moved, spoilt.stand_in) == (("/c/iter_80", "/c/iter_60"), own[0])


def test_the_folder_of_a_run_whose_file_is_overwritten_is_no_save() -> None:
    files = (save("/c/train2/weights/last.pt", 30), save("/c/train3/weights/last.pt", 40, CUT))
    assert clear_way(group_saves(files, ["/c/train2/weights/last.pt"]), (), DIED, {}) is None
    best = (save("/c/train2/weights/best.pt", 30), save("/c/train3/weights/best.pt", 40, CUT))
    assert clear_way(group_saves(best, ["/c/train2/weights/last.pt"]), (), DIED, {}) is None, (
        "nor is what lies next to it"
    )


def test_what_was_written_since_the_program_died_may_be_being_written_by_another() -> None:
    files = [save("/c/ck_30.pt", 30), save("/c/ck_40.pt", 40, CUT)]
    assert clear(files, before=40.0) is None
    assert clear(files, before=40.5) is not None


def test_a_damaged_save_that_a_proven_one_follows_is_in_no_way() -> None:
    assert clear([save("/c/ck_30.pt", 30, CUT), save("/c/ck_40.pt", 40)]) is None


def test_without_a_proven_save_of_the_same_names_the_program_would_begin_again() -> None:
    assert clear([save("/c/best_30.pt", 30), save("/c/ck_40.pt", 40, CUT)]) is None
    assert clear([save("/c/ck_30.pt", 30, CUT), save("/c/ck_40.pt", 40, CUT)]) is None


def test_all_files_of_a_save_are_moved_and_all_of_the_one_before_have_to_be_proven() -> None:
    whole = [save("/c/model_30.pt", 30), save("/c/opt_30.pt", 31)]
    cut = [save("/c/model_40.pt", 40), save("/c/opt_40.pt", 41, CUT)]
    way = clear([*whole, *cut])
    assert way is not None
    assert (set(way.moved), way.stand_in.number) == ({"/c/model_40.pt", "/c/opt_40.pt"}, "30")
    assert clear([whole[0], *cut]) is None, "a part of it is missing"
    assert clear([whole[0], replace(whole[1], verdict=None), *cut]) is None


@pytest.mark.parametrize(
    ("names", "moves"),
    [
        (("/c/ck_30_rank0.pt", "/c/ck_30_rank1.pt", "/c/ck_40_rank0.pt"), False),
        (("/c/r0/ck_30.pt", "/c/r1/ck_40.pt", "/c/r0/ck_40.pt"), False),
        (("/c/epoch_2-step_30.ckpt", "/c/epoch_3-step_40.ckpt"), True),
        (("/c/epoch_2-loss_0.5.ckpt", "/c/epoch_3-loss_0.5.ckpt"), True),
        (("/c/ck-30", "/c/ck-40"), True),
    ],
)
def test_what_may_be_the_file_of_one_rank_stays(names: tuple[str, ...], moves: bool) -> None:
    """The others would go on from a later step than that rank."""
    *before, last = names
    files = [save(name, 30.0 + number) for number, name in enumerate(before)]
    way = clear([*files, save(last, 40, CUT)])
    assert (way is not None and way.moved == (last,)) is moves


def test_a_file_that_is_overwritten_is_replaced_by_its_newest_proven_generation() -> None:
    last = save("/c/last.pt", 40, CUT)
    kept = [generation("000001/last.pt", "/c/last.pt", 20), generation("000002/last.pt", "/c/last.pt", 30)]
    assert clear([last]) is None, "nothing would be found, and the training would begin again"
    assert clear([last, save("/c/best.pt", 30.1)], *kept) == WayCleared(moved=("/c/last.pt",), stand_in=kept[1])
    assert clear([last, save("/c/optimizer.pt", 39.9)], *kept) is None, "it would be read with an older part"
    assert clear([last], *(replace(item, verdict=None) for item in kept)) is None


def test_where_a_numbered_file_of_each_save_is_left_the_later_one_is_moved() -> None:
    """Poutyne overwrites checkpoint.ckpt, and leaves checkpoint_epoch_3.ckpt: it was given up with the first cut."""
    last, kept = save("/c/last.ckpt", 40, CUT), generation("000002/last.ckpt", "/c/last.ckpt", 30)
    epochs = [save(f"/c/epoch_{number}.ckpt", number * 10 - 0.1) for number in (2, 3, 4)]
    way = clear([last, *epochs], kept)
    assert way == WayCleared(moved=("/c/last.ckpt", "/c/epoch_4.ckpt"), stand_in=kept)
    assert clear([last, epochs[2]], kept) is None, "it is not known to be one of a series"


def test_the_files_of_one_save_that_are_overwritten_are_put_back_together() -> None:
    """WaveRNN was killed between its weights and the end of its optimizer's state."""
    own = [save("/c/optim.pyt", 40.5, CUT), save("/c/weights.pyt", 40), save("/c/config.pyt", 1)]
    optim, weights = generation("7/optim.pyt", "/c/optim.pyt", 30.5), generation("6/weights.pyt", "/c/weights.pyt", 30)
    newest = generation("8/weights.pyt", "/c/weights.pyt", 40)
    way = clear(own, optim, weights, newest)
    assert way == WayCleared(moved=("/c/optim.pyt", "/c/weights.pyt"), stand_in=optim, together=(weights,))
    assert clear(own, optim, newest) is None, "no weights are kept from the save of that optimizer"
    assert clear(own, optim, replace(weights, verdict=None)) is None


def test_a_save_that_the_program_removed_before_it_wrote_the_next_is_put_back() -> None:
    kept = generation("000001/ck_30.pt", "/c/ck_30.pt", 30)
    cut = save("/c/ck_40.pt", 40, CUT)
    assert clear([cut], kept) == WayCleared(moved=("/c/ck_40.pt",), stand_in=kept)
    assert clear([cut], kept, generation("000002/opt_30.pt", "/c/opt_30.pt", 31)) is None, "its other part is gone"
    assert clear([cut, save("/c/ck_35.pt", 35, min(OTHER_FORMATS))], kept) is None, "that would be found first"


def test_of_two_files_that_need_a_generation_one_is_replaced() -> None:
    kept = [generation(f"00000{number}/{name}.pt", f"/{name}/last.pt", 30) for number, name in enumerate("ab")]
    way = clear([save("/a/last.pt", 40, CUT), save("/b/last.pt", 41, CUT)], *kept)
    assert way is not None
    assert (way.moved, way.stand_in) == (("/b/last.pt",), kept[1])


def test_no_more_is_proven_than_the_answer_hangs_on() -> None:
    files = [save(f"/c/ck_{number}.pt", number, proven=False) for number in range(10, 50, 10)]
    assert next_to_prove(group_saves(files)) == files[-1]
    files[-1] = save("/c/ck_40.pt", 40, CUT)
    assert next_to_prove(group_saves(files)) == files[-2]
    files[-2] = save("/c/ck_30.pt", 30)
    assert next_to_prove(group_saves(files)) is None


# --- of a format that cannot be verified -----------------------------------------------------------------------------

OTHER = min(OTHER_FORMATS)


def clear_unverified(own: Iterable[Checkpoint], blamed_before: float | None = None) -> WayCleared | None:
    files = tuple(own) if blamed_before is None else blame_newest(tuple(own), blamed_before)
    return clear_way(group_saves(map(accept_unverified, files)), (), DIED, {})


def test_the_save_before_a_damaged_one_may_be_of_a_format_that_cannot_be_verified() -> None:
    files = [save("/c/a_30.npz", 30, OTHER), save("/c/a_40.npz", 40, CUT)]
    way = clear_unverified(files)
    assert way is not None
    assert (way.moved, way.stand_in.path) == (("/c/a_40.npz",), "/c/a_30.npz")
    assert clear(files) is None, "none is handed to a program"


def test_of_saves_that_cannot_be_verified_all_files_of_the_newest_one_are_blamed() -> None:
    """TensorFlow ends each start with an index that was cut short, and says so; nothing else can tell."""
    parts = ("index", "data-00000-of-00001")
    files = [save(f"/c/ckpt-{number}.{part}", number, OTHER) for number in (9, 10, 11) for part in parts]
    way = clear_unverified([*files, save("/c/best.index", 10.5, OTHER)], DIED)
    assert way is not None
    assert set(way.moved) == {f"/c/ckpt-11.{part}" for part in parts}
    assert way.stand_in.number == "10"


def test_a_number_may_come_behind_what_looks_like_a_suffix() -> None:
    files = [save(f"/c/model.txt.snapshot_iter_{number}", number, OTHER) for number in (200, 225)]
    way = clear_unverified(files, DIED)
    assert way is not None
    assert (way.moved, way.stand_in.number) == (("/c/model.txt.snapshot_iter_225",), "200")


def test_what_was_saved_since_the_start_that_failed_is_not_blamed() -> None:
    files = [save(f"/c/a_{number}.npz", number, OTHER) for number in (20, 30, 40)]
    way = clear_unverified(files, 40.0)
    assert way is None, "it is the newest, and was not there"
    assert blame_newest(files, 20.0) == tuple(files)
    assert clear_unverified(files[:1], DIED) is None, "nothing would be found, and the training would begin again"


# --- in the life of a job --------------------------------------------------------------------------------------------


def died_at_start(kind: str, message: str) -> Life:
    """It was killed after step 100, and the attempt that goes on has ended before its first step."""
    timeline = life()
    timeline.context = RemedyContext(loads_itself=True)
    timeline.training(100).saves("/c/ck_90.pt", 90).silence(1).exits(signal=9)
    return raises(waits_and_looks(timeline), kind, message)


def looks_with(timeline: Life, **found: object) -> de.Launch:
    """The search finds the save of step 90, and what is to be moved; return the launch."""
    assert timeline.job.retry is not None
    timeline.silence(timeline.job.retry.not_before.seconds_since(timeline.now) + 0.1)
    point = ResumePoint(checkpoint=timeline.saved[0], possible=True, reason="newest proven", **found)  # type: ignore[arg-type]  # of a test
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    launch = timeline.decisions[-1]
    assert isinstance(launch, de.Launch)
    return launch


@pytest.mark.parametrize(
    ("kind", "message", "asks"),
    [
        ("RuntimeError", "PytorchStreamReader failed reading zip archive", True),
        ("ModuleNotFoundError", "No module named 'timmm'", False),
        ("ConnectionError", "connection refused", False),
    ],
)
def test_only_a_start_that_a_file_may_have_ended_asks_for_damaged_saves(kind: str, message: str, asks: bool) -> None:
    timeline = died_at_start(kind, message)
    assert timeline.job.retry is not None
    launched_at = timeline.present().launched_at
    assert timeline.job.retry.died_unix_s == (launched_at.unix_s if asks else None)


@pytest.mark.parametrize(
    ("words", "code", "signal", "asks"),
    [
        ("", None, 6, True),
        ("", None, 11, True),
        ("", None, 9, False),
        ("", None, 15, False),
        ("Error: model-last.pt ends after 19881 bytes", 1, None, True),
        ("Error: could not connect to 10.0.0.1", 1, None, False),
    ],
)
def test_a_program_that_raises_no_exception_of_python_asks_for_damaged_saves_too(
    words: str, code: int | None, signal: int | None, asks: bool
) -> None:
    """One in C++: an exception that it does not catch ends it by SIGABRT, and else it exits with a status."""
    timeline = life()
    timeline.context = RemedyContext(loads_itself=True)
    timeline.training(100).saves("/c/ck_90.pt", 90).silence(1).exits(signal=9)
    timeline = waits_and_looks(timeline)
    timeline = (timeline.prints(words) if words else timeline).exits(code, signal=signal)
    assert timeline.job.retry is not None
    assert timeline.job.retry.died_unix_s == (timeline.present().launched_at.unix_s if asks else None)


def test_a_training_that_ends_after_steps_asks_for_none() -> None:
    timeline = life().training(100).saves("/c/ck_90.pt", 90).silence(1).exits(signal=9)
    assert timeline.job.retry is not None
    assert timeline.job.retry.died_unix_s is None


def test_what_was_moved_is_in_the_launch_the_incident_and_the_reason() -> None:
    timeline = died_at_start("RuntimeError", "PytorchStreamReader failed reading zip archive")
    stand_in = timeline.saved[0]
    launch = looks_with(timeline, newer=("/c/ck_100.pt",), stand_in=stand_in)
    assert launch.reason == "newest proven; moved aside, damaged and newer than it: /c/ck_100.pt"
    assert (launch.set_aside, launch.stand_in) == (("/c/ck_100.pt",), stand_in)
    assert timeline.present().stand_in == stand_in
    assert timeline.job.incident is not None
    assert timeline.job.incident.set_aside == ("/c/ck_100.pt",)


@pytest.mark.parametrize("moved", [True, False])
def test_a_save_that_cannot_be_moved_is_named_and_the_job_given_up(moved: bool) -> None:
    timeline = died_at_start("RuntimeError", "PytorchStreamReader failed reading zip archive")
    looks_with(timeline, newer=("/c/ck_100.pt",), stand_in=timeline.saved[0] if moved else None)
    failure = "rocm-supervisor: a checkpoint could not be moved aside: [Errno 13] Permission denied: '/c'"
    timeline.started().prints(failure).exits(78)
    assert (timeline.phase() is Phase.FAILED) is moved, "what set_newer_aside asks for is tried again"
    if moved:
        assert timeline.job.reason is not None
        assert (
            "/c/ck_100.pt: damaged, and it ends each start of the program, but it could not be" in timeline.job.reason
        )
        assert "Permission denied: '/c'" in timeline.job.reason
