"""Heat, throttling, fan, power: what cards tell of themselves, held for a while."""

from __future__ import annotations

import pytest

from supervisor.core.flags import Severity
from supervisor.core.gpu_facts import IMPLAUSIBLE_C
from supervisor.core.rules.advisory.fan import Fan
from supervisor.core.rules.advisory.power import Power
from supervisor.core.rules.advisory.throttling import Throttling
from supervisor.core.rules.thermal import Thermal

from .long_stories import trained
from .stories import GPU, NAN, OTHER_GPU

ACTS = Thermal(act=True)


def test_heat_at_the_limit_for_the_hold_acts_and_may_save() -> None:
    flag = trained().card(30, edge_c=80.0, junction_c=112.0).check(ACTS)
    assert flag is not None
    assert (flag.severity, flag.can_save, flag.subject) == (Severity.CRITICAL, True, GPU)
    assert flag.message == f"{GPU}: junction at 112 C, 110 C or more for 30 s"


def test_heat_reports_by_default_and_below_the_limit() -> None:
    for timeline, rule in (
        (trained().card(30, junction_c=112.0), Thermal()),
        (trained().card(30, junction_c=101.0), ACTS),
    ):
        flag = timeline.check(rule)
        assert flag is not None
        assert flag.severity is Severity.WARNING


def test_heat_one_second_short_or_interrupted_or_elsewhere_is_none() -> None:
    assert trained().card(29, junction_c=112.0).check(ACTS) is None
    assert trained().card(20, junction_c=112.0).card(junction_c=90.0).card(20, junction_c=112.0).check(ACTS) is None
    assert trained().card(60, junction_c=112.0, gpu=OTHER_GPU).check(ACTS) is None


@pytest.mark.parametrize("celsius", [None, NAN, 0.0, IMPLAUSIBLE_C, 65535.0, -273.0])
def test_a_sensor_that_is_silent_or_broken_is_not_heat(celsius: float | None) -> None:
    assert trained().card(60, junction_c=celsius).check(ACTS) is None


def test_throttling_by_heat_is_reported_and_by_power_is_not() -> None:
    flag = trained().card(120, throttled_by=("power", "thermal_hotspot"), sclk_hz=900_000_000).check(Throttling())
    assert flag is not None
    assert flag.message == f"{GPU}: slowed down by thermal_hotspot for 120 s, core clock 900 MHz"
    assert flag.severity is Severity.WARNING
    assert trained().card(300, throttled_by=("power", "current")).check(Throttling()) is None


def test_throttling_that_is_short_interrupted_or_unknown_is_not() -> None:
    rule = Throttling()
    assert trained().card(119, throttled_by=("thermal",)).check(rule) is None
    timeline = trained().card(100, throttled_by=("thermal",)).card(throttled_by=()).card(100, throttled_by=("thermal",))
    assert timeline.check(rule) is None
    assert trained().card(300, throttled_by=None).check(rule) is None


def test_a_fan_that_stands_on_a_hot_gpu_is_reported() -> None:
    flag = trained().card(fan_rpm=1500, junction_c=60.0).silence(1).card(60, fan_rpm=0, junction_c=85.0).check(Fan())
    assert flag is not None
    assert flag.message == f"{GPU}: fan stopped for 60 s, junction at 85 C"


def test_the_heat_of_a_stopped_fan_is_that_of_the_newest_reading() -> None:
    timeline = trained().card(30, fan_rpm=1500, junction_c=60.0).silence(1).card(59, fan_rpm=0, junction_c=85.0)
    flag = timeline.silence(1).card(fan_rpm=0, junction_c=97.0).check(Fan())
    assert flag is not None
    assert flag.message == f"{GPU}: fan stopped for 60 s, junction at 97 C"


def test_a_fan_that_rests_never_was_or_is_silent_is_not() -> None:
    timeline = trained().card(fan_rpm=1500, junction_c=60.0).silence(1)
    assert timeline.card(120, fan_rpm=0, junction_c=55.0).check(Fan()) is None
    assert trained().card(120, fan_rpm=0, junction_c=90.0).check(Fan()) is None
    assert trained().card(fan_rpm=900).silence(1).card(120, fan_rpm=None, junction_c=90.0).check(Fan()) is None
    turned = trained().card(fan_rpm=900).silence(1).card(50, fan_rpm=0, junction_c=90.0)
    assert turned.card(fan_rpm=800, junction_c=90.0).card(50, fan_rpm=0, junction_c=90.0).check(Fan()) is None
    assert trained().card(fan_rpm=900).silence(1).card(59, fan_rpm=0, junction_c=90.0).check(Fan()) is None


def test_a_draw_above_the_cap_is_reported_when_it_lasts() -> None:
    flag = trained().card(60, power_w=190.0, power_cap_w=160.0).check(Power())
    assert flag is not None
    assert flag.message == f"{GPU}: draws 190 W for 60 s, its cap is 160 W"
    assert trained().card(59, power_w=190.0, power_cap_w=160.0).check(Power()) is None
    assert trained().card(60, power_w=180.0, power_cap_w=160.0).check(Power()) is None
    peaks = trained().card(40, power_w=190.0, power_cap_w=160.0).card(power_w=150.0, power_cap_w=160.0)
    assert peaks.card(40, power_w=190.0, power_cap_w=160.0).check(Power()) is None


def test_a_cap_that_fell_is_reported_and_one_that_was_always_low_is_not() -> None:
    flag = trained().card(5, power_cap_w=160.0).silence(1).card(60, power_cap_w=100.0).check(Power())
    assert flag is not None
    assert flag.message == f"{GPU}: its power cap fell from 160 to 100 W"
    assert trained().card(300, power_cap_w=100.0, power_w=90.0).check(Power()) is None
    assert trained().card(300, power_cap_w=None, power_w=300.0).check(Power()) is None
    assert trained().card(300, power_cap_w=0.0, power_w=300.0).check(Power()) is None
