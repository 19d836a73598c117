"""Single precision where half was asked for."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.rules.advisory.fp32_fallback import Fp32Fallback

from .long_stories import trained

RULE = Fp32Fallback()


def test_half_asked_and_single_used_is_reported_and_never_stopped() -> None:
    timeline = trained().says(
        ev.AgentEvent.PRECISION, asked="half", used="single", why="ultralytics' own check of AMP failed"
    )
    flag = timeline.check(RULE)
    assert flag is not None
    assert flag.severity is Severity.WARNING
    expected = "half precision was asked for, single is used (ultralytics' own check of AMP failed)"
    assert flag.message == expected


def test_what_was_asked_for_and_is_used_is_none() -> None:
    assert trained().says(ev.AgentEvent.PRECISION, asked="half", used="half").check(RULE) is None
    assert trained().says(ev.AgentEvent.PRECISION, asked="single", used="single").check(RULE) is None


def test_a_later_word_interrupts() -> None:
    timeline = trained().says(ev.AgentEvent.PRECISION, asked="half", used="single")
    assert timeline.says(ev.AgentEvent.PRECISION, asked="half", used="half").check(RULE) is None


def test_on_the_cpu_single_is_meant() -> None:
    timeline = (
        trained().says(ev.AgentEvent.PLAN, device="cpu").says(ev.AgentEvent.PRECISION, asked="half", used="single")
    )
    assert timeline.check(RULE) is None


def test_silence_and_nonsense_say_nothing() -> None:
    assert trained().check(RULE) is None
    assert trained().says(ev.AgentEvent.PRECISION, asked=16, used=None).check(RULE) is None
