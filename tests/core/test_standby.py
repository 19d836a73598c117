"""What stands by for the next attempt makes room for the present one, and for nobody's who does not go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.attempt import standby
from supervisor.core.job import Attempt, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import HostReading

STEPPED = Moment(100.0, 1_000_100.0)
LATER = STEPPED.plus(standby.AFTER_S)
GIB = 1 << 30
RUNNING = Job(
    name="one",
    since=STEPPED,
    phase=Phase.RUNNING,
    attempt=Attempt(number=1, launched_at=Moment(90.0, 1_000_090.0), first_step_at=STEPPED),
)


def host(available_gib: float | None, total_gib: float | None = 16) -> HostReading:
    available, total = (None if item is None else int(item * GIB) for item in (available_gib, total_gib))
    return HostReading(at=LATER, memory_available_bytes=available, memory_total_bytes=total)


def test_it_is_started_once_the_start_up_of_the_attempt_is_over() -> None:
    assert standby.may_start(RUNNING, host(8), LATER)
    assert not standby.may_start(RUNNING, host(8), STEPPED.plus(standby.AFTER_S - 0.1))
    assert standby.may_start(RUNNING, host(4), LATER), "a quarter of the memory is enough"


@pytest.mark.parametrize("phase", [item for item in Phase if item is not Phase.RUNNING])
def test_it_is_started_next_to_a_training_that_runs_and_at_no_other_time(phase: Phase) -> None:
    assert not standby.may_start(replace(RUNNING, phase=phase), host(8), LATER)


@pytest.mark.parametrize("short", [host(3.9), host(1.5, 4), host(None), host(8, None), None])
def test_it_is_not_started_where_memory_is_short_or_unknown(short: HostReading | None) -> None:
    assert not standby.may_start(RUNNING, short, LATER)


def test_it_makes_room_before_the_rule_about_memory_speaks() -> None:
    assert standby.why_none(RUNNING, host(2.5)) is None
    assert standby.why_none(RUNNING, host(2.3)) == "memory is low: 14% of it available, below 15%"


def test_it_stays_through_a_backoff_and_through_silent_sensors() -> None:
    assert standby.why_none(replace(RUNNING, phase=Phase.BACKOFF), host(8)) is None
    assert standby.why_none(RUNNING, None) is None


@pytest.mark.parametrize(
    "job",
    [
        replace(RUNNING, desired_state=DesiredState.STOP),
        replace(RUNNING, shutting_down=True),
        *(replace(RUNNING, phase=phase) for phase in (Phase.FINISHED, Phase.FAILED, Phase.STOPPED)),
    ],
)
def test_a_job_that_does_not_go_on_keeps_none(job: Job) -> None:
    assert standby.why_none(job, host(8)) == "the job is not to continue"
