"""Which checkpoint a retry resumes from."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.checkpoints import (
    Checkpoint,
    Fingerprint,
    Verdict,
    before_trouble,
    choose,
    newest_first,
    of_this_training,
    told_once,
)


def saved(
    path: str,
    at_s: float,
    *,
    step: int | None = None,
    epoch: int | None = None,
    verdict: Verdict | None = Verdict.PROVEN,
    reason: str | None = None,
) -> Checkpoint:
    fingerprint = Fingerprint(size_bytes=1, modified_ns=round(at_s * 1e9), inode=1)
    return Checkpoint(path=path, fingerprint=fingerprint, step=step, epoch=epoch, verdict=verdict, reason=reason)


def test_the_order_is_by_training_contained_then_by_time() -> None:
    unknown = saved("unknown", 99)
    old, new = saved("old", 20, epoch=1, step=100), saved("new", 10, epoch=2, step=200)
    same = saved("same", 30, epoch=1, step=100)
    assert newest_first([old, unknown, new, same]) == (new, same, old, unknown)


def test_the_newest_proven_one_is_chosen() -> None:
    point = choose([saved("a", 1, step=1), saved("b", 2, step=2), saved("c", 3, step=3, verdict=None)])
    assert point.possible
    assert point.checkpoint is not None
    assert point.checkpoint.path == "b"


def test_with_nothing_saved_it_begins_anew() -> None:
    point = choose([])
    assert (point.possible, point.checkpoint) == (True, None)


def test_with_nothing_proven_it_is_nowhere_and_says_why() -> None:
    point = choose(
        [
            saved("a", 1, step=1, verdict=Verdict.REJECTED, reason="zip is cut"),
            saved("b", 2, step=2, verdict=None),
            saved("c", 9, step=3),
        ],
        trouble_unix_s=5,
    )
    assert not point.possible
    assert point.checkpoint is None
    for words in ("a: zip is cut", "b: not proven", "c: saved after the trouble began"):
        assert words in point.reason


def test_one_saved_at_the_very_moment_of_the_trouble_is_spoilt() -> None:
    assert before_trouble([saved("a", 5)], 5.0, None) == ()
    assert len(before_trouble([saved("a", 4.9)], 5.0, None)) == 1


def test_one_that_holds_the_step_of_the_trouble_is_spoilt_whatever_its_date() -> None:
    assert before_trouble([saved("a", 1, step=10)], 5.0, 10) == ()
    assert len(before_trouble([saved("a", 1, step=9)], 5.0, 10)) == 1
    assert len(before_trouble([saved("a", 1)], 5.0, 10)) == 1


def test_nan_as_the_moment_of_the_trouble_spoils_all() -> None:
    assert before_trouble([saved("a", 1)], float("nan"), None) == ()


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


def test_a_save_that_was_taken_is_told_once() -> None:
    own, other = saved("/w/last.pt", 10, step=100), saved("/w/last.pt", 20, step=200)
    kept = replace(own, path="/s/000017/last.pt", source="/w/last.pt")
    assert told_once([own, kept, other]) == (other, kept)


def test_what_was_found_about_a_file_is_told_of_its_generation_until_that_is_judged_itself() -> None:
    own = saved("/w/last.pt", 10, step=100, verdict=Verdict.REJECTED, reason="NaN")
    kept = replace(own, path="/s/000017/last.pt", source="/w/last.pt", verdict=None, reason=None)
    proven = replace(kept, verdict=Verdict.PROVEN)
    assert told_once([own, kept]) == (replace(kept, verdict=Verdict.REJECTED, reason="NaN"),)
    assert told_once([own, proven]) == (proven,)


def test_a_snapshot_in_mid_epoch_is_further_than_the_checkpoint_of_the_epoch_before() -> None:
    """Of a loop that tells no epoch, too: steps are compared where both are known."""
    last = saved("last", 30, epoch=2, step=300)
    snapshot = saved("snapshot", 40, step=350)
    assert newest_first([last, snapshot]) == (snapshot, last)
    assert before_trouble([last, snapshot], 50.0, 320) == (last,)
