"""Learned limits: far above what is seen, moved by no outlier, and unknown before enough was seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.readings import Stage
from supervisor.core.stats.learned_limits import ACCURACY, BOUNDS, FORGET_AFTER, Durations, Learned, setting_of

SECONDS = st.floats(0.001, 100_000)


def learned(stage: Stage, *many: float, times: int = 1) -> Learned:
    item = Learned()
    for _ in range(times):
        for seconds in many:
            item.add(stage, seconds)
    return item


@settings(deadline=None)
@given(seen=st.lists(SECONDS, min_size=1, max_size=300), spared=st.integers(0, 5))
def test_the_sketch_gives_the_order_statistic_to_within_its_accuracy(seen: list[float], spared: int) -> None:
    sketch = Durations()
    for seconds in seen:
        sketch.add(seconds)
    found = sketch.longest_but(spared)
    if spared >= len(seen):
        assert found is None
        return
    assert found == pytest.approx(sorted(seen, reverse=True)[spared], rel=ACCURACY + 1e-6)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, -math.inf, 1e9])
def test_what_is_no_duration_is_not_learned(nonsense: float) -> None:
    sketch = Durations()
    sketch.add(nonsense)
    assert (sketch.total, sketch.counts) == (0, {})


def test_too_little_is_unknown_and_never_zero() -> None:
    few = learned(Stage.STEP, 0.05, times=BOUNDS[Stage.STEP].least - 1)
    assert few.limit_s(Stage.STEP, 60.0) is None
    assert few.limit_s(Stage.VALIDATE, 3600.0) is None
    assert few.limit_s(None, 60.0) is None
    few.add(Stage.STEP, 0.05)
    assert few.limit_s(Stage.STEP, 60.0) is not None


def test_fast_steps_come_to_the_floor() -> None:
    assert learned(Stage.STEP, 0.05, times=10_800).limit_s(Stage.STEP, 60.0) == BOUNDS[Stage.STEP].floor_s


def test_one_outlier_and_two_move_nothing() -> None:
    item = learned(Stage.STEP, 0.5, times=2000)
    before = item.limit_s(Stage.STEP, 60.0)
    item.add(Stage.STEP, 59.0)
    item.add(Stage.STEP, 59.0)
    assert item.limit_s(Stage.STEP, 60.0) == before


def test_a_pause_that_keeps_coming_back_counts() -> None:
    item = learned(Stage.STEP, 0.05, times=10_000)
    for _ in range(4):
        item.add(Stage.STEP, 6.0)
    assert item.limit_s(Stage.STEP, 60.0) == pytest.approx(24.0, rel=ACCURACY)


def test_no_limit_is_longer_than_the_setting() -> None:
    assert learned(Stage.STEP, 30.0, times=2000).limit_s(Stage.STEP, 60.0) == 60.0
    assert learned(Stage.STEP, 0.05, times=2000).limit_s(Stage.STEP, 5.0) == 5.0


def test_a_validation_is_learned_from_three() -> None:
    item = learned(Stage.VALIDATE, 200.0, 210.0)
    assert item.limit_s(Stage.VALIDATE, 3600.0) is None
    item.add(Stage.VALIDATE, 220.0)
    assert item.limit_s(Stage.VALIDATE, 3600.0) == pytest.approx(840.0, rel=ACCURACY)


def test_who_rests_is_given_less_but_never_less_than_it_was_seen_to_take() -> None:
    quick, slow = learned(Stage.DATA_WAIT, 0.1, times=1000), learned(Stage.DATA_WAIT, 20.0, times=1000)
    assert quick.limit_s(Stage.DATA_WAIT, 180.0) == 60.0
    assert quick.limit_s(Stage.DATA_WAIT, 180.0, resting=True) == 15.0
    assert slow.limit_s(Stage.DATA_WAIT, 180.0, resting=True) == slow.limit_s(Stage.DATA_WAIT, 180.0)
    assert learned(Stage.DATA_WAIT, 0.1).limit_s(Stage.DATA_WAIT, 180.0, resting=True) is None
    assert learned(Stage.CHECKPOINT, 1.0, times=5).limit_s(Stage.CHECKPOINT, 900.0, resting=True) is None


def test_what_is_cached_is_not_learned() -> None:
    for stage in (Stage.SETUP, Stage.WARMUP, Stage.COMPILE):
        assert learned(stage, 1.0, times=2000).limit_s(stage, 600.0) is None


def test_what_was_rare_is_forgotten_in_time() -> None:
    sketch = Durations()
    for _ in range(5):
        sketch.add(50.0)
    for _ in range(4 * FORGET_AFTER):
        sketch.add(0.05)
    assert sketch.total < FORGET_AFTER
    assert sketch.longest_but(0) == pytest.approx(0.05, rel=ACCURACY)


@settings(deadline=None)
@given(seen=st.lists(st.tuples(st.sampled_from(list(BOUNDS)), SECONDS), max_size=50))
def test_it_comes_back_from_its_plain_form(seen: list[tuple[Stage, float]]) -> None:
    item = Learned()
    for stage, seconds in seen:
        item.add(stage, seconds)
    assert Learned.of_plain(item.plain()) == item


@pytest.mark.parametrize(
    "plain",
    [
        None,
        3,
        [],
        {"step": 3},
        {"step": {"x": 1}},
        {"step": {"1": "2"}},
        {"step": {"1": -5}},
        {"step": {"99999": 5000}},
        {"step": {"--5": 5000}},
        {"leap": {"1": 1}},
    ],
)
def test_whatever_is_not_of_that_form_is_unknown(plain: object) -> None:
    assert Learned.of_plain(plain).limit_s(Stage.STEP, 60.0) is None


def test_a_setting_is_named_by_all_that_changes_the_pace() -> None:
    plan: dict[str, object] = {"framework": "ultralytics", "model": "yolov8n.yaml", "batch": 4, "image_size": 640}
    assert setting_of(plan, "gfx1010") == "framework=ultralytics model=yolov8n.yaml batch=4 image_size=640 gpu=gfx1010"
    assert setting_of({**plan, "batch": 8}, "gfx1010") != setting_of(plan, "gfx1010")
    on_a_cpu = "framework=ultralytics model=yolov8n.yaml batch=4 image_size=640 device=cpu torch=2.12"
    assert setting_of({**plan, "device": "cpu", "torch": "2.12"}, None) == on_a_cpu
    assert len(setting_of({**plan, "model": "m" * 999}, None)) == 300
