"""What an incident cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.core.scale import Place, Scale

from .stories import JOB, START

FLAG = RedFlag(rule="stall", severity=Severity.CRITICAL, at=START.plus(60), message="no step")
INCIDENT = Incident(id="night-1", job=JOB, attempt=1, flag=FLAG, decision="stop", last_step=500, last_step_at=START)


def checkpoint(step: int | None) -> Checkpoint:
    return Checkpoint(path="a", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1), step=step)


def test_steps_beyond_the_checkpoint_are_lost() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    assert (again.outcome, again.lost_steps) == ("resumed", 50)


def test_from_the_beginning_all_are_lost() -> None:
    again = INCIDENT.relaunched(None)
    assert (again.outcome, again.lost_steps) == ("restarted", 500)


def test_what_cannot_be_known_is_unknown() -> None:
    assert INCIDENT.relaunched(checkpoint(None)).lost_steps is None


def test_the_last_step_is_the_trainings_only_where_it_counts_on_the_trainings_scale() -> None:
    assert INCIDENT.last_training_step == 500
    assert replace(INCIDENT, scale=Scale.ATTEMPT).last_training_step is None
    assert replace(INCIDENT, last_step=None).last_training_step is None


def test_a_checkpoint_ahead_of_the_record_loses_nothing() -> None:
    assert INCIDENT.relaunched(checkpoint(501)).lost_steps == 0


def test_it_is_closed_by_the_first_new_step_and_counts_from_the_last_old_one() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    assert not again.closed
    closed = again.stepping_again(START.plus(100))
    assert closed.closed
    assert closed.downtime_s == 100


def test_without_an_old_step_the_downtime_counts_from_the_flag() -> None:
    never = Incident(id="night-1", job=JOB, attempt=1, flag=FLAG, decision="stop")
    assert never.stepping_again(START.plus(100)).downtime_s == 40


def test_a_wall_clock_that_went_back_makes_no_negative_downtime() -> None:
    back = replace(INCIDENT, last_step_at=START.plus(10)).stepping_again(START)
    assert back.downtime_s == 0.0


@pytest.mark.parametrize("by_s", [-3600.0, 86_400.0])
def test_a_wall_clock_that_was_set_meanwhile_changes_no_downtime(by_s: float) -> None:
    at = START.plus(100)
    stepped = Moment(at.monotonic_s, at.unix_s + by_s)
    assert INCIDENT.stepping_again(stepped).downtime_s == 100
    assert INCIDENT.running_since(stepped).downtime_s == 100


def test_the_first_step_shows_whether_it_went_on_and_from_where() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    at = START.plus(100)
    went_on = again.stepping_again(at, Place(440), went_on=True)
    assert (went_on.outcome, went_on.lost_steps, went_on.confirmed) == ("resumed", 60, True)
    began_again = again.stepping_again(at, Place(0), went_on=False)
    assert (began_again.outcome, began_again.lost_steps, began_again.confirmed) == ("checkpoint_ignored", 500, False)
    unknown = again.stepping_again(at, Place(450))
    assert (unknown.outcome, unknown.lost_steps, unknown.confirmed) == ("resumed", 50, False)


def test_what_was_lost_is_known_from_the_launch_only_where_it_went_on() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    assert again.went_on_at(None, went_on=True).lost_steps == 50
    assert again.went_on_at(None, went_on=None).lost_steps is None
    assert again.went_on_at(None, went_on=False).lost_steps is None


def test_a_later_training_of_its_program_may_load_what_the_first_one_did_not() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    ignored = again.stepping_again(START.plus(100), Place(0), went_on=False)
    later = ignored.resumed_later(300)
    assert (later.outcome, later.lost_steps, later.confirmed) == ("resumed_later", 350, True)
    assert ignored.resumed_later(None).lost_steps == 500
    assert again.resumed_later(300) is again


def test_an_attempt_from_the_beginning_ignores_no_checkpoint() -> None:
    begun = INCIDENT.relaunched(None).went_on_at(Place(0), went_on=False)
    assert (begun.outcome, begun.lost_steps, begun.confirmed) == ("restarted", 500, False)


def test_an_incident_of_an_attempt_that_ended_before_its_first_step_is_overtaken_and_closed() -> None:
    again = INCIDENT.relaunched(checkpoint(450))
    assert not again.closed
    assert (again.overtaken().outcome, again.overtaken().closed) == ("overtaken", True)


def test_an_attempt_whose_steps_are_not_reported_ran_where_it_did_not_crash_at_its_start() -> None:
    again, ended = INCIDENT.relaunched(None, loads_itself=True), ExitStatus(at=START.plus(90), signal=9)
    crash = replace(INCIDENT.flag, rule="crash")
    ran = again.closed_by(crash, START.plus(10), ended)
    assert (ran.outcome, ran.resumed_at, ran.confirmed) == ("restarted", START.plus(10), False)
    assert again.closed_by(replace(crash, at_start=True), START.plus(10), ended).outcome == "overtaken"
    assert again.closed_by(crash, START.plus(10), None).outcome == "overtaken", "how it ended is not known"
    assert again.closed_by(replace(crash, rule="stall"), START.plus(10), ended).outcome == "overtaken"
