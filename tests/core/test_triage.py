"""What replays say together, and which of them are worth their time."""

from __future__ import annotations

from supervisor.core.triage import Finding, Replay, conclude, needed

CARD = Replay(name="device", seen=True, step=812, device="cuda:0", half=True, module="model.4.conv (Conv2d, float16)")


def told(*replays: Replay) -> Finding:
    return conclude(replays)


def replay(name: str, *, seen: bool | None, device: str = "cuda:0") -> Replay:
    return Replay(name=name, seen=seen, device=device)


def test_a_batch_that_is_wrong_by_itself_is_the_data_and_asks_for_no_more_replays() -> None:
    bad = Replay(
        name="device", seen=True, step=8, device="cuda:0", not_finite=("img",), files=("a", "b"), bad_files=("b",)
    )
    found = told(bad)
    assert (found.verdict, found.files) == ("data", ("b",))
    assert found.words == "the batch of step 8 is wrong by itself: img is not finite"
    assert needed((bad,)) is None


def test_labels_out_of_range_are_the_data_too() -> None:
    assert told(Replay(name="device", seen=True, step=8, out_of_range=("bboxes",), files=("a",))).verdict == "data"


def test_what_does_not_come_back_on_the_same_device_is_the_hardware() -> None:
    once = replay("device", seen=False)
    assert told(once).verdict == "hardware"
    assert needed((once,)) is None


def test_what_comes_back_in_half_precision_alone_is_numerics() -> None:
    assert needed((CARD,)) == "float32"
    single = replay("float32", seen=False)
    assert needed((CARD, single)) is None
    found = told(CARD, single)
    assert found.verdict == "numerics"
    assert "first in model.4.conv (Conv2d, float16)" in found.words


def test_what_comes_back_on_the_card_and_not_on_the_cpu_is_the_hardware() -> None:
    runs = (CARD, replay("float32", seen=True), replay("cpu", seen=False, device="cpu"))
    assert needed(runs[:2]) == "cpu"
    assert needed(runs) is None
    assert told(*runs).verdict == "hardware"


def test_what_comes_back_everywhere_is_the_data_or_the_model_as_another_batch_shows() -> None:
    first = Replay(name="device", seen=True, step=3, device="cpu", files=("a",))
    assert needed((first,)) == "other_batch"
    assert told(first, replay("other_batch", seen=False, device="cpu")).files == ("a",)
    assert told(first, replay("other_batch", seen=False, device="cpu")).verdict == "data"
    assert told(first, replay("other_batch", seen=True, device="cpu")).verdict == "numerics"
    unknown = replay("other_batch", seen=None)
    assert needed((first, unknown)) is None
    assert told(first, unknown).verdict == "data_or_numerics"


def test_a_replay_that_did_not_get_to_the_step_proves_nothing() -> None:
    broken = Replay(name="device", seen=None, problem="it ended with status 1 before the step")
    assert needed((broken,)) is None
    assert told(broken).verdict == "unknown"
    assert "ended with status 1" in told(broken).words
