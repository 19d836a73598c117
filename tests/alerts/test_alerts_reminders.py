"""A training that stands given up is reported again after 1 h, 4 h, then daily."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.alerts.channel import read_notice
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.payload import alert_id, remind
from supervisor.alerts.schedule import count_reminders
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment

HOUR_S = 3600.0
NIGHT = Moment(100.0, 1_763_164_800.0)
FLAG = RedFlag(rule="non_finite_loss", severity=Severity.CRITICAL, at=NIGHT, message="loss is nan")
INCIDENT = Incident(
    id="night-3", job="night", attempt=3, flag=FLAG, decision="give_up", outcome="gave_up", reason="5 restarts"
)
GIVEN_UP = Job(name="night", since=NIGHT, phase=Phase.FAILED, reason="5 restarts in an hour", incident=INCIDENT)


@pytest.mark.parametrize(
    ("hours", "count"),
    [(0, 0), (0.99, 0), (1, 1), (3.99, 1), (4, 2), (23.9, 2), (24, 3), (47.9, 3), (48, 4), (240, 12)],
)
def test_reminders_are_due_after_one_and_four_hours_then_daily(hours: float, count: int) -> None:
    assert count_reminders(hours * HOUR_S) == count


@given(st.floats(-1e6, 1e7), st.floats(0, 86_400))
def test_there_are_never_fewer_later_and_at_most_three_more_in_a_day(since_s: float, more_s: float) -> None:
    assert 0 <= count_reminders(since_s + more_s) - count_reminders(since_s) <= 3


def test_a_reminder_has_one_id_for_each_number_and_time_of_giving_up() -> None:
    first = remind(GIVEN_UP, 1, NIGHT.plus(HOUR_S), "box")
    again = remind(GIVEN_UP, 1, NIGHT.plus(2 * HOUR_S), "box")
    second = remind(GIVEN_UP, 2, NIGHT.plus(4 * HOUR_S), "box")
    assert alert_id(first, "phone") == alert_id(again, "phone") != alert_id(second, "phone")


def test_a_reminder_says_since_when_why_and_how_it_is_ended() -> None:
    notice = remind(GIVEN_UP, 2, NIGHT.plus(4 * HOUR_S), "box")
    kept = read_notice("msg_1", notice.body())
    assert (kept.type, kept.data["reminder"]) == ("job.gave_up", 2)
    message = compose(kept)
    assert message.title == "night STILL STOPPED, needs you: non finite loss"
    assert message.urgency is Urgency.URGENT
    assert message.lines[0].startswith("Given up at ")
    assert "5 restarts" in message.lines
    assert message.lines[-1] == "To stop these reminders: supervisorctl alerts ack night-3"


def test_a_training_that_was_given_up_without_an_incident_is_named_itself() -> None:
    job = Job(name="night", since=NIGHT, phase=Phase.FAILED, reason="no checkpoint is proven")
    kept = read_notice("msg_1", remind(job, 1, NIGHT.plus(HOUR_S), "box").body())
    assert "incident" not in json.loads(kept.content)["data"]
    assert compose(kept).lines[-1] == "To stop these reminders: supervisorctl alerts ack night"
