"""The morning report: once a day at its time, and it says at a glance whether a person is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.alerts.channel import KeptNotice, read_notice
from supervisor.alerts.message import Urgency, compose
from supervisor.alerts.pipeline import Pending, Policy, Situation, full_budget, plan
from supervisor.alerts.quiet import read_hours
from supervisor.alerts.report import Day, TrainingDay, build_report, find_since, report_day
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment

BERLIN = ZoneInfo("Europe/Berlin")
MORNING = Moment(1000.0, datetime(2026, 11, 22, 7, 30, tzinfo=BERLIN).timestamp())
YOLO = TrainingDay(
    name="yolo",
    phase="running",
    epoch_before=29,
    epoch=34,
    loss_before=2.31,
    loss=2.19,
    steps=1_204_882,
    effective=0.992,
    lost_s=118.0,
    incidents=3,
    resumed=3,
)
GIVEN_UP = TrainingDay(name="mnist", phase="failed", needs_person=True, reason="5 restarts in an hour", incidents=0)


def report(*trainings: TrainingDay, **other: object) -> KeptNotice:
    day = replace(Day(trainings=trainings), **other)  # type: ignore[arg-type]  # by name
    return read_notice("msg_1", build_report(day, "2026-11-22", MORNING, "gpubox").body())


@pytest.mark.parametrize(
    ("time", "due"), [("07:29", False), ("07:30", True), ("10:29", True), ("10:30", False), ("00:00", False)]
)
def test_it_is_due_from_its_time_on_for_three_hours(time: str, due: bool) -> None:
    at = datetime.fromisoformat(f"2026-11-22T{time}").replace(tzinfo=BERLIN).timestamp()
    assert report_day("07:30", BERLIN, at) == ("2026-11-22" if due else None)


@given(st.dates(datetime(2026, 1, 1).date(), datetime(2027, 12, 31).date()), st.integers(0, 20), st.integers(0, 59))  # noqa: DTZ001 - dates
def test_every_day_has_exactly_one_report_in_summer_time_too(date: object, hour: int, minute: int) -> None:
    begin = datetime.fromisoformat(f"{date}T00:00").replace(tzinfo=BERLIN).timestamp()
    seen = {report_day(f"{hour:02}:{minute:02}", BERLIN, begin + part * 600.0) for part in range(138)}
    assert seen == {None, str(date)} or seen == {str(date)}


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("report_at", ["07:30", "02:15", "00:00"])
def test_the_reports_of_a_year_leave_out_no_minute_and_tell_none_twice(zone: str, report_at: str) -> None:
    """Made in time, each begins where the one before ended, over both changes of the clock."""
    known, until = ZoneInfo(zone), None
    for day in range(366):
        noon = datetime(2026, 1, 1, 12, tzinfo=known) + timedelta(days=day)
        hour, minute = map(int, report_at.split(":"))
        made = noon.replace(hour=hour, minute=minute).timestamp()
        assert until in {None, find_since(report_at, known, made)}
        until = made


def test_a_time_that_no_calendar_has_is_no_time_of_a_report() -> None:
    assert report_day("07:30", BERLIN, 1e18) is None


def test_when_all_is_well_it_says_so_with_what_was_done() -> None:
    notice = report(YOLO)
    message = compose(notice, BERLIN)
    assert notice.severity is Severity.INFO
    assert message.urgency is Urgency.CALM
    assert message.title == "Report: no problems, trainings: 1 (gpubox)"
    assert message.lines == (
        "yolo: running, epoch 29 -> 34, loss 2.31 -> 2.19, 1,204,882 steps",
        "99.2% effective; incidents: 3, resumed by itself: 3; lost: 118 s",
    )


def test_what_needs_a_person_comes_first() -> None:
    message = compose(report(YOLO, GIVEN_UP), BERLIN)
    assert message.title == "Report: 1 of 2 STOPPED, needs you (gpubox)"
    assert message.urgency is Urgency.NORMAL
    assert message.lines[:2] == ("mnist: STOPPED, needs you (5 restarts in an hour)", "no incident")


def test_while_an_incident_is_open_not_all_is_well() -> None:
    waiting = TrainingDay(name="mnist", phase="backoff", reason="exit status 1", has_open_incident=True)
    notice = report(YOLO, waiting)
    message = compose(notice, BERLIN)
    assert notice.data["well"] is False
    assert message.title == "Report: 1 of 2 with an open incident (gpubox)"
    assert message.lines[0] == "mnist: backoff (exit status 1)"


def test_what_could_not_be_delivered_and_a_record_that_cannot_be_read_are_in_it() -> None:
    message = compose(report(YOLO, undelivered=[("slack", 2, "status 404")], unreadable="disk I/O error"), BERLIN)
    assert message.title == "Report: trainings: 1 (gpubox)"
    assert message.lines[-2:] == (
        "Not delivered: 2 alerts to slack (status 404)",
        "The record could not be read: disk I/O error",
    )


def test_nothing_is_reported_of_what_is_not_known() -> None:
    assert compose(report(TrainingDay(name="yolo", phase="pending"))).lines == ("yolo: pending",)


def test_the_longest_report_is_within_the_limit_of_a_notice() -> None:
    training = replace(GIVEN_UP, name="\U0001f600" * 500, reason="\U0001f600" * 500)
    undelivered = [("\U0001f600" * 500, 10**9, "\U0001f600" * 500)] * 50
    notice = report(*[training] * 500, undelivered=undelivered)
    assert "and 488 more: supervisorctl status" in compose(notice).lines


def pending(notice: KeptNotice) -> Pending:
    return Pending(id=notice.id, notice=notice, waited_s=0.0)


def test_it_is_a_message_of_its_own_and_waits_for_the_end_of_quiet_hours() -> None:
    warning = read_notice("msg_2", b'{"type": "flag.warning", "data": {"severity": "warning", "job": "yolo"}}')
    items, budget = [pending(report(YOLO)), pending(warning)], full_budget(MORNING)
    policy = Policy(digest=True, quiet=read_hours("22:30-07:30", [], BERLIN))
    early = MORNING.plus(-timedelta(minutes=1).total_seconds())
    assert plan(items, policy, budget, Situation(now=early)).messages == ()
    (message,) = plan(items, policy, budget, Situation(now=MORNING)).messages
    assert [item.id for item in message] == ["msg_1"]
