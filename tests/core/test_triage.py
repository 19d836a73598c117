"""What replays say together, and which of them are worth their time."""

from __future__ import annotations

import math

import pytest

from supervisor.core.triage.finding import Finding, Replay, conclude, needed, same_course

CARD = Replay(name="device", seen=True, step=812, device="cuda:0", half=True, module="model.4.conv (Conv2d, float16)")


def read_findings(*replays: Replay) -> Finding:
    return conclude(replays)


def replay(name: str, *, seen: bool | None, device: str = "cuda:0", course: bool | None = True) -> Replay:
    return Replay(name=name, seen=seen, device=device, same_course=course)


def test_a_batch_that_is_wrong_by_itself_is_the_data_and_asks_for_no_more_replays() -> None:
    bad = Replay(
        name="device", seen=True, step=8, device="cuda:0", not_finite=("img",), files=("a", "b"), bad_files=("b",)
    )
    found = read_findings(bad)
    assert (found.verdict, found.files) == ("data", ("b",))
    assert found.words == "the batch of step 8 is invalid: img is not finite"
    assert needed((bad,)) is None


def test_labels_out_of_range_are_the_data_too() -> None:
    assert (
        read_findings(Replay(name="device", seen=True, step=8, out_of_range=("bboxes",), files=("a",))).verdict
        == "data"
    )


def test_what_does_not_come_back_on_the_same_device_is_the_hardware() -> None:
    once = replay("device", seen=False)
    assert read_findings(once).verdict == "hardware"
    assert "restart" not in read_findings(once).in_vain, "what came once may not come again"
    assert needed((once,)) is None


@pytest.mark.parametrize(
    ("course", "why"), [(False, "its losses before that step differ"), (None, "too few earlier steps")]
)
def test_what_does_not_come_back_in_another_training_blames_nobody(course: bool | None, why: str) -> None:
    found = read_findings(replay("device", seen=False, course=course))
    assert found.verdict == "unknown"
    assert why in found.words
    assert (found.speaks_for, found.in_vain) == ((), ())


def test_a_replay_is_known_for_the_same_training_by_its_losses() -> None:
    made = {step: 4.0 + step / 10 for step in range(20)}
    assert same_course({step: made[step] * 1.001 for step in range(10, 15)}, made) is True
    assert same_course({10: made[10], 11: made[11] * 1.2, 12: made[12]}, made) is False
    assert same_course({10: made[10], 11: made[11], 99: 1.0}, made) is None, "too few steps in common"
    noisy = {step: 4.0 + (step * 7 % 5) / 5 for step in range(20)}
    assert same_course({step: item * (1.02 if step % 2 else 0.99) for step, item in noisy.items()}, noisy) is True
    assert same_course({step: noisy[(step + 2) % 20] for step in noisy}, noisy) is False, "other batches"
    assert same_course({step - 1: item for step, item in noisy.items()}, noisy) is True, (
        "recorded a step late on a card"
    )
    tiny = {1: 1e-7, 2: 0.5, 3: 0.4}
    assert same_course({1: 2e-7, 2: 0.5, 3: 0.4}, tiny) is True, "about nothing is about nothing"
    assert same_course({10: math.nan, 11: math.nan, 12: math.nan}, made) is None


def test_what_comes_back_in_half_precision_alone_is_numerics() -> None:
    assert needed((CARD,)) == "float32"
    single = replay("float32", seen=False)
    assert needed((CARD, single)) is None
    found = read_findings(CARD, single)
    assert (found.verdict, found.speaks_for[0]) == ("numerics", "amp_off")
    assert "first in model.4.conv (Conv2d, float16)" in found.words


def test_what_comes_back_on_the_gpu_and_not_on_the_cpu_is_the_hardware() -> None:
    runs = (CARD, replay("float32", seen=True), replay("other_batch", seen=True))
    assert needed(runs[:2]) == "other_batch"
    assert needed(runs) == "cpu", "last, for it takes the longest"
    all_of_them = (*runs, replay("cpu", seen=False, device="cpu"))
    assert needed(all_of_them) is None
    assert read_findings(*all_of_them).verdict == "hardware"
    assert "restart" in read_findings(*all_of_them).in_vain


def test_what_is_not_known_of_the_cpu_blames_neither_gpu_nor_model() -> None:
    late = Replay(name="cpu", seen=None, problem="it did not get to the step in time")
    single, other = replay("float32", seen=True), replay("other_batch", seen=True)
    found = read_findings(CARD, single, other, late)
    assert found.verdict == "unknown"
    assert "whether on the CPU as well is not known: it did not get to the step in time" in found.words
    assert read_findings(CARD, single, replay("other_batch", seen=False), late).verdict == "data", (
        "the batch is proof enough"
    )


def test_what_is_not_known_of_float32_leaves_the_precision_under_suspicion() -> None:
    other, cpu = replay("other_batch", seen=False), replay("cpu", seen=False, device="cpu")
    assert read_findings(CARD, replay("float32", seen=None), other, cpu).verdict == "unknown"
    assert needed((CARD, replay("float32", seen=None))) is None


def test_what_comes_back_everywhere_is_the_data_or_the_model_as_another_batch_shows() -> None:
    first = Replay(name="device", seen=True, step=3, device="cpu", files=("a",))
    assert needed((first,)) == "other_batch"
    assert read_findings(first, replay("other_batch", seen=False, device="cpu")).files == ("a",)
    assert read_findings(first, replay("other_batch", seen=False, device="cpu")).verdict == "data"
    assert read_findings(first, replay("other_batch", seen=True, device="cpu")).verdict == "numerics"
    unknown = replay("other_batch", seen=None)
    assert needed((first, unknown)) is None
    assert read_findings(first, unknown).verdict == "data_or_numerics"


def test_what_nobody_can_look_into_is_at_least_seen_to_come_back() -> None:
    plain = Replay(name="device", seen=True, step=3)
    assert needed((plain,)) is None
    assert read_findings(plain).verdict == "unknown"
    assert read_findings(plain).words.startswith("reproduced on the same device")


def test_a_replay_that_did_not_get_to_the_step_proves_nothing() -> None:
    broken = Replay(name="device", seen=None, problem="it ended with status 1 before the step")
    assert needed((broken,)) is None
    assert read_findings(broken).verdict == "unknown"
    assert "ended with status 1" in read_findings(broken).words
