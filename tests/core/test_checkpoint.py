"""Which checkpoint a retry resumes from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.checkpoints.checkpoint import (
    OTHER_FORMATS,
    Checkpoint,
    Fingerprint,
    Given,
    SetBack,
    Verdict,
    before_fault,
    choose,
    drop_captured_files,
    exact_before,
    given_between,
    inherit_verdict,
    merge_proof,
    newest_first,
    of_this_training,
)
from tests.rigs.declared import check_declared


def saved(
    path: str,
    at_s: float,
    *,
    step: int | None = None,
    epoch: int | None = None,
    verdict: Verdict | None = Verdict.PROVEN,
    reason: str | None = None,
    kind: str = "checkpoint",
) -> Checkpoint:
    fingerprint = Fingerprint(size_bytes=1, modified_ns=round(at_s * 1e9), inode=1)
    return Checkpoint(
        path=path, fingerprint=fingerprint, step=step, epoch=epoch, verdict=verdict, reason=reason, kind=kind
    )


def chosen(
    *checkpoints: Checkpoint, within_s: float = 60.0, steps: int = 0, older_than: Checkpoint | None = None
) -> str:
    """Return the path that is resumed from where snapshots are taken every `within_s`, or `steps`."""
    point = choose(checkpoints, given=Given(seconds=within_s, steps=steps), older_than=older_than)
    check_declared(point)
    assert point.possible
    assert point.checkpoint is not None
    return point.checkpoint.path


def test_the_order_is_by_training_contained_then_by_time() -> None:
    unknown = saved("unknown", 99)
    old, new = saved("old", 20, epoch=1, step=100), saved("new", 10, epoch=2, step=200)
    same = saved("same", 30, epoch=1, step=100)
    assert newest_first([old, unknown, new, same]) == (new, same, old, unknown)
    first, second = saved("first", 20, epoch=0), saved("second", 10, epoch=1)
    assert newest_first([first, second]) == (second, first), "the epoch counts before the date"


def test_one_of_an_unknown_step_comes_right_after_those_of_its_name_with_lower_numbers() -> None:
    """An attempt that counts its own steps alone saves on under the same pattern as those before it."""
    first, second = saved("model000020.pt", 20, step=21), saved("model000040.pt", 40, step=41)
    third, fourth = saved("model000060.pt", 70), saved("model000080.pt", 90)
    snapshot = saved("snapshot", 30, step=60)
    assert newest_first([third, first, fourth, second]) == (fourth, third, second, first)
    assert newest_first([third, snapshot, second]) == (snapshot, third, second), "a higher step is known to be later"
    assert chosen(first, second, third, fourth) == "model000080.pt"


@pytest.mark.parametrize(
    "unknown",
    [
        saved("model000020.pt", 90),
        saved("model000040.pt", 90),
        saved("model000060.pt", 30),
        saved("other000060.pt", 90),
        saved("model.pt", 90),
    ],
    ids=["lower number", "same number", "earlier", "other name", "no number"],
)
def test_a_name_places_nothing_where_number_and_time_do_not_agree(unknown: Checkpoint) -> None:
    known = saved("model000040.pt", 40, step=41)
    assert newest_first([unknown, known]) == (known, unknown)


def test_a_name_with_more_than_one_number_places_nothing() -> None:
    known, unknown = saved("e1-loss0.50.pt", 40, step=41), saved("e2-loss0.60.pt", 90)
    assert newest_first([unknown, known]) == (known, unknown)


def test_a_step_or_an_epoch_that_is_not_known_comes_before_the_very_first() -> None:
    unknown, first = saved("unknown", 9, epoch=7), saved("first", 1, epoch=0, step=0)
    assert newest_first([unknown, first]) == (first, unknown)
    within, ended = saved("within", 9, step=5), saved("ended", 1, step=5, epoch=0)
    assert newest_first([within, ended]) == (ended, within)


def test_the_newest_proven_one_is_chosen() -> None:
    point = choose([saved("a", 1, step=1), saved("b", 2, step=2), saved("c", 3, step=3, verdict=None)])
    assert point.possible
    assert point.checkpoint is not None
    assert point.checkpoint.path == "b"


def test_an_exact_state_is_chosen_before_an_inexact_one_that_is_at_most_an_interval_newer() -> None:
    exact, inexact = saved("exact", 100, step=24, epoch=3, kind="snapshot"), saved("last.pt", 160, step=30, epoch=4)
    assert chosen(exact, inexact) == "exact"
    assert chosen(exact, inexact, within_s=59.0) == "last.pt"
    assert chosen(exact, inexact, within_s=59.0, steps=6) == "exact", "of 6 steps' work, however long validation took"
    assert chosen(exact, inexact, within_s=59.0, steps=5) == "last.pt"
    assert chosen(exact, replace(inexact, verdict=Verdict.REJECTED), within_s=59.0) == "exact"
    assert chosen(replace(exact, verdict=Verdict.REJECTED), inexact) == "last.pt"


def test_the_exact_state_is_chosen_while_the_one_next_to_the_save_is_still_being_written() -> None:
    """A snapshot every half second, and three quick steps and a validation of two minutes between it and the save."""
    exact, inexact = saved("exact", 100, step=21, kind="snapshot"), saved("last.pt", 220, step=24, epoch=5)
    given = given_between(0.5, 1 / 0.45)
    point = choose((exact, inexact), given=given)
    assert (point.checkpoint, point.possible) == (exact, True)
    assert point.reason == "newest exact state: exact; last.pt is newer and not exact"
    ahead = replace(inexact, step=21 + given.steps + 1)
    assert choose((exact, ahead), given=given).checkpoint == ahead


def test_what_is_made_again_for_exactness_is_an_interval_and_a_minute() -> None:
    assert given_between(300.0, 2.0) == Given(seconds=360.0, steps=720)
    assert given_between(300.0, None) == Given(seconds=360.0, steps=0)


def test_of_the_same_step_the_exact_state_is_chosen_however_long_the_validation_took() -> None:
    exact, inexact = saved("exact", 100, step=30, epoch=3, kind="snapshot"), saved("last.pt", 9000, step=30, epoch=4)
    assert chosen(exact, inexact) == "exact"


def test_going_back_is_not_undone_by_an_exact_state() -> None:
    old, exact = saved("old", 100, step=10), saved("exact", 120, step=20, kind="snapshot")
    newest = saved("newest", 130, step=30)
    assert chosen(old, exact, newest, older_than=exact) == "old"


def test_with_nothing_saved_it_begins_again() -> None:
    point = choose([])
    assert (point.possible, point.checkpoint) == (True, None)


def test_with_nothing_proven_it_is_nowhere_and_says_why() -> None:
    point = choose(
        [
            saved("a", 1, step=1, verdict=Verdict.REJECTED, reason="zip is cut"),
            saved("b", 2, step=2, verdict=None),
            saved("c", 9, step=3),
        ],
        fault_unix_s=5,
    )
    assert not point.possible
    assert point.checkpoint is None
    rest = "c: saved after the fault began; b: not proven; a: zip is cut"
    assert point.reason == f"none of the saved checkpoints is proven ({rest})"


def of_format(path: str, at: float, reason: str) -> Checkpoint:
    return saved(path, at, verdict=Verdict.REJECTED, reason=reason)


def test_a_program_whose_own_format_nobody_knows_is_started_as_it_is_where_it_loads_that_by_itself() -> None:
    other = [of_format(f"model_{at}.ubj", at, reason) for at, reason in enumerate(sorted(OTHER_FORMATS))]
    point = choose(other, loads_itself=True)
    assert (point.possible, point.checkpoint, point.loads_itself) == (True, None, True)
    assert point.reason == (
        "started without a checkpoint: the format of what it saves cannot be verified, so the program has to load that "
        "by itself, and none of it is proven"
    )
    assert not choose(other, loads_itself=False).possible, "no file that is not proven is handed over"


def test_one_that_is_damaged_among_those_of_another_format_is_a_loss_to_be_reported() -> None:
    other = of_format("a.ubj", 1, min(OTHER_FORMATS))
    for reason in (
        "empty",
        "truncated",
        "no checkpoint: neither a torch file nor safetensors, and its first bytes are zero",
    ):
        point = choose([other, of_format("b.ubj", 2, reason)], loads_itself=True)
        assert not point.possible
        assert point.reason.endswith("by itself: move b.ubj away, then `supervisorctl start` the job")
    unproven = choose([other, saved("b", 2, verdict=None)], loads_itself=True)
    assert (unproven.possible, "move" in unproven.reason) == (False, False)
    assert "move" not in choose([other, of_format("b.ubj", 2, "empty")]).reason, (
        "it is handed a file, and none is proven"
    )
    assert "move" not in choose([of_format("b.ubj", 2, "empty")], loads_itself=True).reason, "nothing else is left"
    copy = replace(of_format("/kept/1/a.ubj", 2, "empty"), source="a.ubj")
    assert "move" not in choose([other, copy], loads_itself=True).reason, "the file itself may be sound by now"
    late = [other, of_format("b.ubj", 9, "empty")]
    assert "move" not in choose(late, fault_unix_s=5, loads_itself=True).reason, "what came after a fault is in doubt"


def test_with_nothing_proven_before_a_step_the_later_ones_are_named_so() -> None:
    point = choose([saved("a", 1, step=1, verdict=None), saved("b", 2, step=9)], fault_step=5)
    rest = "b: saved after the fault began; a: not proven"
    assert point.reason == f"none of the saved checkpoints is proven ({rest})"


def test_one_saved_at_the_very_moment_of_the_trouble_is_spoilt() -> None:
    assert before_fault([saved("a", 5)], 5.0, None) == ()
    assert len(before_fault([saved("a", 4.9)], 5.0, None)) == 1


def test_what_was_saved_before_the_clock_was_set_back_is_from_before_a_fault_since() -> None:
    """The clock was at 4000 when it was set back to 400; it is 500 now, and the fault began at 450."""
    set_back = SetBack(now_unix_s=500, from_unix_s=4000)
    before, spoilt, foreign = saved("before", 3990, step=3), saved("spoilt", 470, step=5), saved("foreign", 4001)
    assert before_fault([before, spoilt, foreign], 450, None, set_back) == (before,)
    assert before_fault([before, spoilt], 450, 3, set_back) == (), "it contains the step of the fault"
    point = choose([before, spoilt], 450, 4, set_back=set_back)
    assert (point.possible, point.checkpoint) == (True, before)


def test_a_fault_from_before_the_clock_was_set_back_is_compared_by_the_clock_of_then() -> None:
    set_back = SetBack(now_unix_s=500, from_unix_s=4000)
    clean, spoilt, later = saved("clean", 3980), saved("spoilt", 3990), saved("later", 450)
    assert before_fault([clean, spoilt], 3985, None, set_back) == (clean,)
    assert before_fault([spoilt, later], 3985, 4, set_back) == (later,), "by its time alone it is not known to be later"


def test_one_that_holds_the_step_of_the_trouble_is_spoilt_whatever_its_date() -> None:
    assert before_fault([saved("a", 1, step=10)], 5.0, 10) == ()
    assert len(before_fault([saved("a", 1, step=9)], 5.0, 10)) == 1
    assert len(before_fault([saved("a", 1)], 5.0, 10)) == 1


def test_nan_as_the_moment_of_the_trouble_spoils_all() -> None:
    assert before_fault([saved("a", 1)], float("nan"), None) == ()


def test_what_an_earlier_training_left_is_not_ours() -> None:
    old, new = saved("old", 1, step=900), saved("new", 11, step=10)
    assert of_this_training([old, new], 10.0) == (new,)
    assert of_this_training([old, new], None) == (old, new)
    assert choose([old, new], began_unix_s=10.0).checkpoint == new
    point = choose([old], began_unix_s=10.0)
    assert (point.possible, point.checkpoint) == (True, None)


def test_a_rewritten_file_is_another_checkpoint() -> None:
    assert saved("a", 1).key != saved("a", 2).key


def test_a_snapshot_in_mid_epoch_and_a_checkpoint_are_ordered_by_their_step() -> None:
    whole, later = saved("whole", 10, epoch=1, step=200), saved("later", 40, epoch=2, step=300)
    between = replace(saved("between", 20, epoch=1, step=230), kind="snapshot")
    no_epoch = replace(saved("no epoch", 30, step=260), kind="snapshot")
    assert newest_first([between, whole, later, no_epoch]) == (later, no_epoch, between, whole)


def test_of_two_that_are_alike_the_kept_one_is_chosen_and_named_by_its_file() -> None:
    own = saved("/w/last.pt", 10, step=100)
    kept = replace(own, path="/s/000017/last.pt", source="/w/last.pt")
    assert kept.is_of(own)
    point = choose([own, kept])
    assert point.checkpoint == kept
    assert point.reason == "newest proven checkpoint: /w/last.pt (generation 17)"


def test_a_save_that_was_taken_is_reported_once() -> None:
    own, other = saved("/w/last.pt", 10, step=100), saved("/w/last.pt", 20, step=200)
    kept = replace(own, path="/s/000017/last.pt", source="/w/last.pt")
    assert drop_captured_files([own, kept, other]) == (other, kept)


def test_what_was_found_about_a_file_is_reported_for_its_generation_until_that_is_judged_itself() -> None:
    own = saved("/w/last.pt", 10, step=100, verdict=Verdict.REJECTED, reason="NaN")
    kept = replace(own, path="/s/000017/last.pt", source="/w/last.pt", verdict=None, reason=None)
    proven = replace(kept, verdict=Verdict.PROVEN)
    assert drop_captured_files([own, kept]) == (replace(kept, verdict=Verdict.REJECTED, reason="NaN"),)
    assert drop_captured_files([own, proven]) == (proven,)


def test_a_snapshot_in_mid_epoch_is_further_than_the_checkpoint_of_the_epoch_before() -> None:
    """Of a loop that tells no epoch, too: steps are compared where both are known."""
    last = saved("last", 30, epoch=2, step=300)
    snapshot = saved("snapshot", 40, step=350)
    assert newest_first([last, snapshot]) == (snapshot, last)
    assert before_fault([last, snapshot], 50.0, 320) == (last,)


def test_the_step_of_a_proof_is_that_of_the_training_and_its_epoch_that_of_the_file() -> None:
    reported = saved("a", 1, step=500, epoch=5, verdict=None, kind="snapshot")
    read = saved("a", 1, step=100, epoch=4)
    merged = merge_proof(reported, read)
    assert (merged.step, merged.epoch, merged.kind, merged.verdict) == (500, 4, "snapshot", Verdict.PROVEN)
    silent = replace(reported, step=None)
    assert merge_proof(silent, read).step == 100
    assert merge_proof(reported, replace(read, epoch=None)).epoch == 5


def test_a_proof_of_a_generation_does_not_forget_what_it_is_of_and_what_keeps_it() -> None:
    generation = replace(saved("kept/000001/a", 1, verdict=None), source="a", kept_by="newest 3")
    proof = saved("kept/000001/a", 1)
    merged = merge_proof(generation, proof)
    assert (merged.verdict, merged.source, merged.kept_by) == (Verdict.PROVEN, "a", "newest 3")
    assert merge_proof(generation, replace(proof, kept_by="best")).kept_by == "best"


def test_a_proof_of_another_content_takes_nothing_of_what_was_known() -> None:
    proof = saved("a", 2)
    assert merge_proof(saved("a", 1, step=500, epoch=5, kind="snapshot"), proof) == proof


def test_a_generation_hands_its_file_the_verdict_and_no_step_that_the_file_has() -> None:
    file = saved("a", 1, step=500, verdict=None)
    generation = replace(file, path="kept/000001/a", source="a", step=100, epoch=4, verdict=Verdict.REJECTED)
    generation = replace(generation, reason="not finite")
    inherited = inherit_verdict(file, generation)
    assert (inherited.path, inherited.verdict, inherited.step, inherited.epoch) == ("a", Verdict.REJECTED, 500, 4)
    assert inherited.reason == "not finite"
    assert inherited.source is None
    assert inherit_verdict(replace(file, step=None), generation).step == 100
    judged = replace(file, verdict=Verdict.PROVEN)
    assert inherit_verdict(judged, generation) == judged
    other = replace(generation, source="b")
    assert inherit_verdict(file, other) == file


def test_nowhere_to_resume_from_is_reported_as_such() -> None:
    point = choose([saved("a", 1, step=1, verdict=Verdict.REJECTED)])
    assert (point.checkpoint, point.possible) == (None, False)
    assert point.reason == "none of the saved checkpoints is proven (a: rejected)"


def test_a_state_is_exact_by_its_steps_where_its_time_is_long_ago_and_by_its_time_where_a_step_is_not_known() -> None:
    snapshot = saved("s", 0, step=90, kind="snapshot")
    assert chosen(saved("a", 1000, step=100), snapshot, steps=10) == "s"
    assert chosen(saved("a", 1000, step=100), snapshot, steps=9) == "a"
    unknown = saved("t", 940, epoch=1, kind="snapshot")
    assert chosen(saved("a", 1000, step=100), unknown, steps=10**6) == "t"
    assert chosen(saved("a", 1001, step=100), unknown, steps=10**6) == "a"


def test_a_snapshot_of_no_step_reproduces_none_and_of_two_of_one_step_the_newer_is_taken() -> None:
    first, second = saved("first", 1, step=5, kind="snapshot"), saved("second", 2, step=5, kind="snapshot")
    assert exact_before([second, first, saved("none", 3, kind="snapshot")], 6) == second
    assert exact_before([first, second], 5) is None


@pytest.mark.parametrize(
    ("name", "number", "series"),
    [
        ("model_000025.pt", "25", "model_#.pt"),
        ("optim_000025_rank0.pt", "25", "optim_#_rank0.pt"),
        ("ep1-ba100-rank0.pt", "100", "ep#-ba#-rank0.pt"),
        ("model_world_size_2_rank_1.pt", None, "model_world_size_2_rank_1.pt"),
        ("latest-rank0.pt", None, "latest-rank0.pt"),
        ("frank7.pt", "7", "frank#.pt"),
    ],
)
def test_the_rank_in_a_name_is_no_number_of_a_save(name: str, number: str | None, series: str) -> None:
    """`--resume-from-step={number}` was given the rank, and found no file of step 0."""
    checkpoint = saved(f"/out/{name}", 1.0)
    assert (checkpoint.number, checkpoint.series[1]) == (number, series)


def test_a_part_of_a_rank_without_a_step_follows_the_save_before_it() -> None:
    before, after = saved("/out/optim_20_rank0.pt", 20.0, step=20), saved("/out/optim_40_rank0.pt", 40.0)
    other = saved("/out/model_30.pt", 30.0, step=30)
    assert newest_first([after, before, other]) == (other, after, before)
