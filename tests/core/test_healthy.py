"""Hours of trainings that are well, with all that looks like a fault and is none: no rule may act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.moments import Moment
from supervisor.core.rules import RULES
from tests.rigs.agreeing import Agreement
from tests.rigs.healthy import NIGHTS, Habits, Healthy, play

ALL_RULES = tuple(rule() for rule in RULES)
HOURS_OF_STEPS = 0.4
"""A short night at full pace; the benchmark plays 200 hours."""


def critical(flags: tuple[RedFlag, ...]) -> list[str]:
    return [f"{flag.rule}: {flag.message}" for flag in flags if flag.severity is Severity.CRITICAL]


@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_no_rule_acts_on_a_training_that_is_well(night: Habits) -> None:
    hours = HOURS_OF_STEPS * (4 if night.every_s > 0.3 else 1)
    often = replace(night, hours=hours, pause_every_s=120, shape_every_s=400, gasp_every_s=500, held_up_every_s=300)
    for event, flags in play(Healthy(often).events(), (*ALL_RULES, Agreement(ALL_RULES, every=200))):
        assert critical(flags) == [], event


def test_a_stream_is_made_by_its_seed_alone() -> None:
    habits = Habits(hours=0.02)
    assert list(Healthy(habits).events()) == list(Healthy(habits).events())
    assert list(Healthy(habits).events()) != list(Healthy(replace(habits, seed=2)).events())


def test_after_ten_minutes_a_stall_is_found_within_ten_seconds() -> None:
    training = Healthy(Habits(hours=0.25, first_batch_s=(5, 60), pause_every_s=120, pause_s=(0.5, 2)))
    began: list[Moment] = []

    def hurt() -> Iterator[ev.Event]:
        yield from training.events()
        began.append(training.now)
        yield from training.silence(60, busy=None, every_s=0.25)

    found = next((event.at, flags[0].rule) for event, flags in play(hurt(), ALL_RULES) if critical(flags))
    assert found[1] == "stall"
    assert 0 < found[0].seconds_since(began[0]) <= 10.0
