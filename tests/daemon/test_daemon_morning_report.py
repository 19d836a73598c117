"""Morning reports are made of the record: once a day for each receiver, whatever the daemon did meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from clocks_by_hand import START, HandClock

from supervisor.alerts.pipeline import Policy
from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.readings import StepRecord
from supervisor.daemon.alerts.alerting import Announcer
from supervisor.daemon.alerts.morning_report import MorningReports, read_day
from supervisor.daemon.inbox import Inbox
from supervisor.store.archive import Archive
from supervisor.store.store import NewAlert, Store

T = TypeVar("T")
MORNING_S = 33_400.0
"""From START, 22:13:20 in UTC, to 07:30."""
DAY_S = 86_400.0
FLAG = RedFlag(rule="stall", severity=Severity.CRITICAL, at=START.plus(60.0), message="no step")
POLICY = Policy(report_at="07:30", zone=timezone.utc)


class DirectInbox(Inbox):
    """Does at once what it is asked."""

    def ask(self, question: Callable[[], T], limit_s: float = 5.0) -> T:
        return question()

    def later(self, work: Callable[[], Any]) -> None:
        work()


class Morning:
    """A record with one training, and the receivers that want a report of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "record.db"
        self.clock = HandClock()
        self.policies = {"phone": POLICY, "pager": Policy()}
        attempt = Attempt(number=1, launched_at=START, epoch=34, loss=2.19)
        self.jobs = [Job(name="night", since=START, phase=Phase.RUNNING, attempt=attempt)]
        self.begin()

    def begin(self) -> None:
        """Start the daemon, or start it again."""
        self.store = Store.open(f"sqlite:///{self.path}", self.clock.now(), "boot")
        self.archive = Archive(self.path)
        announcer = Announcer(
            store=self.store,
            host="box",
            floors=lambda: dict.fromkeys(self.policies, Severity.CRITICAL),
            policies=lambda: self.policies,
        )
        self.reports = MorningReports(
            clock=self.clock,
            inbox=DirectInbox(),
            archive=self.archive,
            host="box",
            jobs=lambda: self.jobs,
            policies=lambda: self.policies,
            queue=announcer.queue_report,
        )

    def record_night(self) -> None:
        records = tuple(
            StepRecord(at=START.plus(n * 60.0), step=n, epoch=29 + n // 30, loss=2.4 - n / 1000) for n in range(1, 61)
        )
        incident = Incident(id="night-1", job="night", attempt=1, flag=FLAG, decision="kill")
        old = replace(FLAG, at=START.plus(-2 * DAY_S))
        with self.store.turn(START):
            self.store.add_steps(ev.StepsMade(at=START, job="night", attempt=1, records=records, cursor=60))
            self.store.save_incident(replace(incident, resumed_at=START.plus(90.0), outcome="resumed"))
            self.store.save_incident(replace(incident, id="night-0", flag=old))
        self.store.flush(START.plus(10.0))

    def sent(self, later_s: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
        """Return receiver and data of the reports that are queued now."""
        self.clock.sleep(later_s)
        before = {alert.id for alert in self.store.waiting_alerts()}
        self.reports.look()
        queued = [alert for alert in self.store.waiting_alerts() if alert.id not in before]
        return [(alert.sink, json.loads(alert.body)["data"]) for alert in queued]


@pytest.fixture
def morning(tmp_path: Path) -> Morning:
    return Morning(tmp_path)


def test_a_receiver_with_a_time_is_sent_one_report_a_day(morning: Morning) -> None:
    assert morning.sent(MORNING_S - 60.0) == []
    assert [receiver for receiver, _ in morning.sent(60.0)] == ["phone"]
    assert morning.sent(60.0) == []
    assert [receiver for receiver, _ in morning.sent(DAY_S)] == ["phone"]


def test_a_restart_of_the_daemon_sends_no_second_report_of_the_day(morning: Morning) -> None:
    assert len(morning.sent(MORNING_S)) == 1
    morning.store.close(morning.clock.now())
    morning.begin()
    assert morning.sent(60.0) == []


def test_a_daemon_that_was_away_in_the_morning_sends_it_up_to_three_hours_late(morning: Morning) -> None:
    assert len(morning.sent(MORNING_S + 3 * 3600 - 60.0)) == 1
    assert morning.sent(DAY_S + 120.0) == []


def test_it_has_the_progress_and_the_incidents_of_the_day(morning: Morning) -> None:
    morning.record_night()
    ((_, data),) = morning.sent(MORNING_S)
    (training,) = data["trainings"]
    assert (training["epoch_before"], training["epoch"], training["steps"]) == (29, 34, 60)
    assert (training["incidents"], training["resumed"]) == (1, 1)
    assert training["loss_before"] == pytest.approx(2.395, abs=0.01)
    assert training["loss"] == pytest.approx(2.345, abs=0.01)
    assert data["well"] is True


def test_what_happened_before_a_late_report_is_in_the_next(morning: Morning) -> None:
    """The daemon was away in both mornings: what came between the reports is in one of them."""
    morning.record_night()
    assert len(morning.sent(MORNING_S + 2 * 3600)) == 1
    flag = replace(FLAG, at=morning.clock.now().plus(600.0))
    late = Incident(id="night-2", job="night", attempt=1, flag=flag, decision="kill")
    with morning.store.turn(flag.at):
        morning.store.save_incident(replace(late, resumed_at=flag.at, outcome="resumed"))
    morning.store.flush(flag.at.plus(1.0))
    ((_, data),) = morning.sent(DAY_S + 1800.0)
    assert data["trainings"][0]["incidents"] == 1


def test_a_training_that_waits_after_an_incident_is_not_well(morning: Morning) -> None:
    incident = Incident(id="night-1", job="night", attempt=1, flag=FLAG, decision="retry")
    morning.jobs = [replace(morning.jobs[0], phase=Phase.BACKOFF, incident=incident)]
    ((_, data),) = morning.sent(MORNING_S)
    assert (data["severity"], data["unresolved"], data["well"]) == ("warning", 1, False)


def test_a_receiver_of_some_trainings_reads_of_these_alone(morning: Morning) -> None:
    morning.policies = {"phone": replace(POLICY, jobs=("yolo*",))}
    morning.jobs.append(Job(name="yolo-2", since=START, phase=Phase.FAILED, reason="5 restarts"))
    ((_, data),) = morning.sent(MORNING_S)
    assert [training["job"] for training in data["trainings"]] == ["yolo-2"]
    assert (data["stopped"], data["well"]) == (1, False)


def test_what_could_not_be_delivered_is_counted_without_what_was_withdrawn(morning: Morning) -> None:
    for number, error in enumerate(("status 404", "status 500", "status 502")):
        alert = NewAlert(id=f"msg_{number}", sink="slack", type="flag.warning", job=None, body=b"{}")
        with morning.store.turn(START):
            morning.store.queue_alert(alert, START)
            at = START.plus(number)
            tried = ev.AlertTried(at=at, alert=alert.id, delivered=False, error=error, final=number == 0)
            morning.store.alert_tried(tried, lambda _id, _tries, tried: None if tried.final else 300.0)
    with morning.store.turn(START):
        morning.store.withdraw_alert("msg_2", "a newer reminder", START.plus(5.0))
    morning.store.flush(START.plus(10.0))
    ((_, data),) = morning.sent(MORNING_S)
    assert data["undelivered"] == [{"receiver": "slack", "count": 2, "error": "status 500"}]


def test_a_record_that_cannot_be_read_leaves_what_is_known_without_it(morning: Morning, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all, but some bytes" * 100)
    day = read_day(Archive(broken), morning.jobs, START.unix_s, morning.clock.now())
    assert day.unreadable is not None
    ((name, epoch),) = [(training.name, training.epoch) for training in day.trainings]
    assert (name, epoch) == ("night", 34)
