"""A receiver of alerts that cannot be read decides nothing: its alerts wait, and are sent once it can be."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, reset_tzpath

import pytest
from clocks_by_hand import START, HandClock

from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.pipeline import Policy
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.alerts.alerting import Announcer, Receivers, read_receivers
from supervisor.store.archive import Archive
from supervisor.store.outbox import QueuedAlert
from supervisor.store.store import NewAlert, Store
from tests.rigs.hanging_fs import HangingFs

DIGEST = Policy(digest=True)
AS_UTC = b"TZif" + bytes(16) + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + struct.pack(">iBB", 0, 0, 0) + b"UTC\0"
"""A file of a time zone."""
INCIDENT = NewAlert(id="msg_1", sink="phone", type="incident.opened", job="night", body=b"{}")


class House:
    """Receivers over a real record."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "address"
        self.clock = HandClock()
        self.store = Store.open(f"sqlite:///{folder / 'record.db'}", START, "boot")
        self.came: list[ev.AlertTried] = []
        self.receivers = Receivers(
            {"phone": WebhookSettings(url_file=str(self.file), min_severity="critical")},
            self.came.append,
            self.clock,
            lambda name: self.store.hasten_alerts(name, self.clock.now()),
        )
        self.announcer = Announcer(
            store=self.store,
            host="here",
            floors=lambda: self.receivers.floors,
            problems=lambda: self.receivers.problems,
        )

    def mend(self) -> None:
        self.file.write_text("https://hooks.example/T0\n")

    def read_again(self) -> None:
        self.receivers.read_again(lambda work: work())

    def send(self) -> None:
        self.announcer.send_due(self.receivers.sender, self.clock.now())

    def waiting(self) -> QueuedAlert:
        (alert,) = self.store.waiting_alerts()
        return alert


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_receiver_that_cannot_be_read_is_a_standing_problem(house: House) -> None:
    (problem,) = house.announcer.failing()
    assert problem == f"alerts.phone.url_file: {house.file} cannot be read: No such file or directory"
    assert house.receivers.hosts == {}


@pytest.mark.mounts
def test_a_receiver_whose_file_hangs_is_a_standing_problem_until_that_answers(far: HangingFs) -> None:
    (far.at / "address").write_text("https://hooks.example/T0\n")
    far.hang()
    configured = {"phone": WebhookSettings(url_file=str(far.at / "address"))}
    receivers = Receivers(configured, lambda _: None, HandClock(), lambda _: None)
    silent = f"alerts.phone.url_file: {far.at} does not answer within 1 s; it is read once it answers"
    assert receivers.problems == {"phone": silent}
    far.go_on()
    receivers.read_again(lambda work: work())
    assert receivers.problems == {}
    assert receivers.hosts == {"phone": "hooks.example"}


def test_a_pipe_in_the_place_of_a_receivers_file_is_not_waited_for(house: House) -> None:
    os.mkfifo(house.file)
    house.read_again()
    assert house.announcer.failing() == (f"alerts.phone.url_file: {house.file} is not a regular file",)


class CountedName(str):
    """A receiver's name that counts how often it is compared or looked up."""

    __slots__ = ()
    asked = 0

    def __eq__(self, other: object) -> bool:
        CountedName.asked += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        CountedName.asked += 1
        return str.__hash__(self)


def test_a_status_takes_no_longer_for_each_alert_where_many_wait(house: House) -> None:
    """A receiver that is down for days, and trainings with incidents: each waiting alert is looked at a few times."""
    for number in range(300):
        queued = replace(INCIDENT, id=f"msg_{number}", sink=CountedName("pager"))
        house.store.queue_alert(queued, START)
        house.announcer.tried(ev.AlertTried(at=START.plus(number), alert=queued.id, delivered=False, error=f"{number}"))
    CountedName.asked = 0
    problems = house.announcer.failing()
    assert problems[0] == "alerts.pager: 299; 300 not delivered yet"
    assert CountedName.asked < 10 * 300


def test_once_it_can_be_read_it_is_used_without_a_restart(house: House) -> None:
    house.mend()
    house.read_again()
    assert house.receivers.hosts == {"phone": "hooks.example"}
    assert house.announcer.failing() == ()


def test_its_alerts_wait_with_the_reason_and_are_due_at_once_when_it_can_be_read(house: House) -> None:
    class Refusing(AlertSender):
        def offer(self, alert: object, covers: tuple[str, ...] = (), message: str | None = None) -> bool:
            raise AssertionError("nothing can be sent there")

    house.receivers.sender = Refusing({}, house.came.append, house.clock)
    house.store.queue_alert(INCIDENT, START)
    house.send()
    alert = house.waiting()
    assert alert.tries == 1
    assert alert.error is not None
    assert "cannot be read" in alert.error
    assert alert.due is not None
    house.mend()
    house.clock.sleep(1.0)
    house.read_again()
    assert [due.id for due in house.store.due_alerts(house.clock.now(), 10)] == [alert.id]


def test_reading_again_changes_nothing_where_nothing_changed(house: House) -> None:
    asked: list[Callable[[], None]] = []
    house.receivers.read_again(asked.append)
    assert asked == []
    house.mend()
    house.receivers.read_again(asked.append)
    assert len(asked) == 1


def test_a_reload_in_between_is_not_undone(house: House) -> None:
    asked: list[Callable[[], None]] = []
    house.mend()
    house.receivers.read_again(asked.append)
    others = {"desk": WebhookSettings(url="https://desk.example/")}
    house.receivers.replace(others, read_receivers(others))
    asked[0]()
    assert house.receivers.hosts == {"desk": "desk.example"}


def test_a_test_alert_is_tried_once(house: House) -> None:
    house.mend()
    house.read_again()
    first, second = (house.announcer.queue_test("phone", START) for _ in range(2))
    assert first != second
    tried = ev.AlertTried(at=START, alert=first, delivered=False, error="status 404")
    answer = house.store.alert_tried(tried, lambda *_: 5.0)
    assert answer is not None
    assert answer.state == "failed"


def test_a_receiver_whose_zone_does_not_exist_is_sent_what_is_critical_at_once_and_the_rest_by_the_hours_of_utc(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """22:13 UTC, so in its quiet hours."""
    phone = WebhookSettings(url="https://h.example/", time_zone="Mars/Phobos", quiet_hours="22:00-23:00")
    receivers = Receivers({"phone": phone}, lambda _: None, HandClock(), lambda _: None)
    evening = Evening(tmp_path)
    evening.announcer.policies = lambda: receivers.policies
    evening.announcer.problems = lambda: receivers.problems
    body = {"type": "job.gave_up", "data": {"severity": "critical", "job": "night"}}
    evening.warn(1)
    evening.store.queue_alert(replace(INCIDENT, type="job.gave_up", body=json.dumps(body).encode()), START)
    assert evening.send() == [("job.gave_up", ())]
    assert evening.send(3600.0) == [("flag.warning", ())]
    (warning,) = receivers.warnings.values()
    assert warning.startswith("alerts.phone.time_zone: 'Mars/Phobos' is not a time zone of this machine, so its")
    assert warning.endswith("in UTC; zones have names such as Europe/Berlin, and the package tzdata holds them")
    (logged,) = (record for record in caplog.records if record.message == "alerts.time_zone_unknown")
    assert getattr(logged, "fields") == {"receiver": "phone", "reason": warning}  # noqa: B009 - an extra of the record


def test_a_time_zone_that_has_become_known_is_taken_up_without_a_reload(tmp_path: Path) -> None:
    zones = tmp_path / "zoneinfo"
    receivers = Receivers(
        {"phone": WebhookSettings(url="https://h.example/", time_zone="Test/Late")},
        lambda _: None,
        HandClock(),
        lambda _: None,
    )
    (zones / "Test").mkdir(parents=True)
    (zones / "Test/Late").write_bytes(AS_UTC)
    try:
        reset_tzpath([*TZPATH, str(zones)])
        receivers.read_again(lambda work: work())
    finally:
        reset_tzpath()
    assert (receivers.warnings, str(receivers.policies["phone"].zone)) == ({}, "Test/Late")


class Pinged(AlertSender):
    """Keeps what it is asked to report."""

    def __init__(self) -> None:
        super().__init__({}, lambda _: None, HandClock())
        self.reported: list[str] = []

    def ping_due(self, status: str, now: Moment) -> None:
        self.reported.append(status)


def test_a_check_is_pinged_while_the_daemon_works_and_not_while_a_training_stands_given_up(house: House) -> None:
    sender, job = Pinged(), Job(name="night", since=START, phase=Phase.RUNNING)
    house.announcer.jobs = lambda: [job]
    house.announcer.send_due(sender, START)
    assert sender.reported == ["rocm-supervisor on here; alerts waiting: 0"]
    running, job = job, replace(job, phase=Phase.FAILED)
    give_up = de.GiveUp(at=START, job="night", attempt=1, reason="5 restarts", flag=None)
    house.announcer.decision(running, job, give_up)
    house.announcer.send_due(sender, START)
    assert len(sender.reported) == 1
    job = replace(job, phase=Phase.PENDING)
    house.announcer.send_due(sender, START)
    assert sender.reported[1:] == ["rocm-supervisor on here; alerts waiting: 1"]


def test_a_training_that_was_given_up_before_a_restart_of_the_daemon_still_stops_the_pings(tmp_path: Path) -> None:
    evening, sender = Evening(tmp_path), Pinged()
    with evening.store.turn(START):
        evening.store.save_job(Job(name="night", since=START, phase=Phase.FAILED))
    evening.store.close(START)
    again = Evening(tmp_path)
    (job,) = again.store.load_jobs(START)
    again.announcer.jobs = lambda: [job]
    again.announcer.send_due(sender, START)
    assert sender.reported == []


class Phone(AlertSender):
    """Keeps what is offered, and answers for nothing."""

    def __init__(self) -> None:
        super().__init__({}, lambda _: None, HandClock())
        self.offered: list[tuple[str, tuple[str, ...]]] = []
        self.written_into: dict[str, str | None] = {}
        """The message that each notice was to be written into, by its type."""

    def offer(self, alert: Any, covers: tuple[str, ...] = (), message: str | None = None) -> bool:
        kind = json.loads(alert.body)["type"]
        self.offered.append((kind, covers))
        self.written_into[kind] = message
        return True


class Evening:
    """An announcer to one receiver for people."""

    def __init__(self, folder: Path, policy: Policy = DIGEST) -> None:
        self.store = Store.open(f"sqlite:///{folder / 'evening.db'}", START, "boot")
        self.announcer = Announcer(
            store=self.store,
            host="here",
            floors=lambda: {"phone": Severity.WARNING},
            policies=lambda: {"phone": policy},
        )
        self.phone, self.now = Phone(), START

    def warn(self, count: int) -> None:
        for number in range(count):
            body = {"type": "flag.warning", "data": {"severity": "warning", "job": "night", "rule": "thermal"}}
            name = f"msg_{self.now.monotonic_s}_{number}"
            alert = NewAlert(id=name, sink="phone", type="flag.warning", job="night", body=json.dumps(body).encode())
            self.store.queue_alert(alert, self.now)

    def send(self, later_s: float = 0.0) -> list[tuple[str, tuple[str, ...]]]:
        self.now = self.now.plus(later_s)
        self.phone.offered.clear()
        self.announcer.send_due(self.phone, self.now)
        return list(self.phone.offered)


def test_warnings_are_sent_as_one_message_that_is_tried_for_each_of_them(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    evening.warn(30)
    assert evening.send() == []
    ((kind, covers),) = evening.send(21.0)
    assert (kind, len(covers)) == ("digest", 30)
    assert evening.send(1.0) == []
    for alert in covers:
        evening.announcer.tried(ev.AlertTried(at=evening.now, alert=alert, delivered=True, error=None))
    assert evening.store.waiting_alerts() == ()


def test_a_mute_holds_what_comes_outlives_a_restart_and_ends_by_itself(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    evening.announcer.mute(["phone"], START.unix_s + 7200.0)
    assert evening.announcer.muted_until("phone", START) == START.unix_s + 7200.0
    assert evening.announcer.list_mutes(START) == ("alerts.phone: muted for 120 min more; supervisorctl alerts unmute",)
    evening.warn(1)
    test = evening.announcer.queue_test("phone", START)
    assert [kind for kind, _ in evening.send(60.0)] == ["test"]
    evening.announcer.tried(ev.AlertTried(at=START, alert=test, delivered=True, error=None))
    evening.store.close(evening.now)
    again = Evening(tmp_path)
    assert again.announcer.muted_until("phone", START) is not None
    assert again.send(7199.0) == []
    assert [kind for kind, _ in again.send(30.0)] == ["flag.warning"]


def test_a_mute_made_before_the_clock_was_set_back_is_over(tmp_path: Path) -> None:
    evening = Evening(tmp_path)
    evening.announcer.mute(["phone"], START.unix_s + 7200.0)
    set_back = Moment(START.monotonic_s, START.unix_s - 86_400.0)
    assert evening.announcer.muted_until("phone", set_back) is None
    evening.announcer.mute(["phone"], START.unix_s)
    assert evening.announcer.muted_until("phone", START) is None


def test_a_receiver_that_asks_for_time_is_sent_nothing_else_meanwhile(tmp_path: Path) -> None:
    evening = Evening(tmp_path, Policy())
    evening.warn(2)
    first, second = (alert.id for alert in evening.store.waiting_alerts())
    assert len(evening.send()) == 2
    for alert, wait_s in ((first, 30.0), (second, None)):
        refused = ev.AlertTried(at=evening.now, alert=alert, delivered=False, error="429", retry_after_s=wait_s)
        evening.announcer.tried(refused)
    evening.now = evening.now.plus(1.0)
    evening.warn(1)
    assert evening.send(28.0) == []
    assert len(evening.send(2.0)) == 3


def test_a_pause_that_a_receiver_asked_for_outlives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    evening = Evening(tmp_path, Policy())
    evening.warn(1)
    ((_, _),) = evening.send()
    (alert,) = evening.store.waiting_alerts()
    refused = ev.AlertTried(at=START, alert=alert.id, delivered=False, error="429", retry_after_s=1800.0)
    evening.announcer.tried(refused)
    evening.store.close(evening.now)
    again = Evening(tmp_path, Policy())
    again.now = START.plus(1.0)
    again.warn(1)
    assert again.send(1797.0) == []
    assert len(again.send(500.0)) == 2


def test_a_restart_gives_no_receiver_more_messages(tmp_path: Path) -> None:
    def gave_up(evening: Evening, count: int) -> None:
        body = {"type": "job.gave_up", "data": {"severity": "critical", "job": "night"}}
        for number in range(count):
            name, content = f"msg_{evening.now.unix_s}_{number}", json.dumps(body).encode()
            alert = NewAlert(id=name, sink="phone", type="job.gave_up", job="night", body=content)
            evening.store.queue_alert(alert, evening.now)

    evening = Evening(tmp_path)
    gave_up(evening, 5)
    offered = evening.send()
    assert [covers for _, covers in offered] == [()] * 5
    for alert in evening.store.waiting_alerts():
        evening.announcer.tried(ev.AlertTried(at=START, alert=alert.id, delivered=True, error=None))
    evening.store.close(evening.now)
    again = Evening(tmp_path)
    again.now = START.plus(1.0)
    gave_up(again, 5)
    assert again.send() == []
    ((kind, covers),) = again.send(60.0)
    assert (kind, len(covers)) == ("digest", 5)


def test_limits_in_the_record_that_cannot_be_read_hold_nothing_back(tmp_path: Path) -> None:
    evening = Evening(tmp_path, Policy())
    for note in ("alerts paused until", "alerts budgets"):
        evening.store.set_note(note, "[")
    evening.warn(1)
    assert len(evening.send(30.0)) == 1


def test_a_pause_made_before_the_clock_was_set_back_is_over(tmp_path: Path) -> None:
    evening = Evening(tmp_path, Policy())
    evening.store.set_note("alerts paused until", json.dumps({"phone": START.unix_s + 86_400.0}))
    evening.warn(1)
    assert len(evening.send()) == 1


GIVEN_UP = Job(name="night", since=START, phase=Phase.FAILED, reason="5 restarts in an hour")
FLAG = RedFlag(rule="crash", severity=Severity.CRITICAL, at=START, message="exit status 1")
HOUR_S = 3600.0


class Night(Evening):
    """A training that was given up at START, and what the phone is sent of it."""

    def __init__(self, folder: Path, policy: Policy = DIGEST, job: Job = GIVEN_UP) -> None:
        super().__init__(folder, policy)
        self.job = job
        self.announcer.jobs = lambda: [self.job]

    def reminders(self, later_s: float) -> list[int]:
        """Return the numbers of the reminders that are sent this much later, all delivered."""
        self.send(later_s)
        waiting = self.store.waiting_alerts()
        for alert in waiting:
            self.announcer.tried(ev.AlertTried(at=self.now, alert=alert.id, delivered=True, error=None))
        return [json.loads(alert.body)["data"]["reminder"] for alert in waiting]


def test_a_training_that_stands_given_up_is_reported_again(tmp_path: Path) -> None:
    night = Night(tmp_path)
    assert night.reminders(HOUR_S - 1.0) == []
    assert night.reminders(1.0) == [1]
    assert night.reminders(60.0) == []
    assert night.reminders(3 * HOUR_S) == [2]
    assert night.reminders(20 * HOUR_S) == [3]
    assert night.reminders(72 * HOUR_S) == [6]


def test_reminders_go_on_over_a_restart_of_the_daemon(tmp_path: Path) -> None:
    night = Night(tmp_path)
    assert night.reminders(HOUR_S) == [1]
    night.store.close(night.now)
    again = Night(tmp_path)
    assert again.reminders(2 * HOUR_S) == []
    assert again.reminders(2 * HOUR_S) == [2]


def test_an_acknowledged_training_is_not_sent_again_until_it_is_given_up_again(tmp_path: Path) -> None:
    incident = Incident(id="night-3", job="night", attempt=3, flag=FLAG, decision="give_up", outcome="gave_up")
    night = Night(tmp_path, job=replace(GIVEN_UP, incident=incident))
    assert night.announcer.acknowledge("night-9") is None
    assert night.reminders(HOUR_S) == [1]
    assert night.announcer.acknowledge("night-3") == night.job
    night.store.close(night.now)
    again = Night(tmp_path, job=night.job)
    assert again.reminders(5 * HOUR_S) == []
    again.job = replace(again.job, since=again.now)
    assert again.reminders(HOUR_S) == [1]


def test_a_reminder_that_waits_is_withdrawn_once_it_is_acknowledged_or_the_training_started(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.announcer.mute(["phone"], START.unix_s + 86_400.0)
    assert night.send(HOUR_S) == []
    assert len(night.store.waiting_alerts()) == 1
    assert night.send(3 * HOUR_S) == []
    (newest,) = night.store.waiting_alerts()
    assert json.loads(newest.body)["data"]["reminder"] == 2
    night.job = replace(GIVEN_UP, phase=Phase.BACKOFF, since=night.now)
    assert night.send(1.0) == []
    assert night.store.waiting_alerts() == ()
    night.store.flush(night.now)
    states = [alert.state for alert in Archive(tmp_path / "evening.db").alerts()]
    assert states == ["withdrawn", "withdrawn"]


def test_a_receiver_without_remind_is_sent_no_reminder(tmp_path: Path) -> None:
    night = Night(tmp_path, Policy(remind=False))
    assert night.reminders(5 * HOUR_S) == []


def test_a_training_that_runs_cannot_be_acknowledged(tmp_path: Path) -> None:
    night = Night(tmp_path, job=replace(GIVEN_UP, phase=Phase.RUNNING))
    assert night.announcer.acknowledge("night") == night.job
    assert night.store.note("alerts acknowledged") is None


class Outage(Evening):
    """An incident of the training `night`, and the message that the phone shows of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Policy())
        self.number = 0

    def tell(self, kind: str, made: str | None = None, incident: str = "night-3") -> str | None:
        """Queue a notice, have it delivered as the message `made`, and return what it was to be written into."""
        self.number += 1
        body = {"type": kind, "data": {"severity": "critical", "job": "night", "incident": incident}}
        content, name = json.dumps(body).encode(), f"msg_{self.now.unix_s}_{self.number}"
        self.store.queue_alert(NewAlert(id=name, sink="phone", type=kind, job="night", body=content), self.now)
        assert self.send(30.0) == [(kind, ())]
        self.announcer.tried(ev.AlertTried(at=self.now, alert=name, delivered=True, error=None, message=made))
        return self.phone.written_into[kind]


def test_what_is_learned_of_an_incident_is_written_into_its_message_also_after_a_restart(tmp_path: Path) -> None:
    outage = Outage(tmp_path)
    assert outage.tell("incident.opened", "discord 7") is None
    assert outage.tell("incident.triaged", "discord 7") == "discord 7"
    outage.store.close(outage.now)
    again = Outage(tmp_path)
    again.now = again.now.plus(100.0)
    assert again.tell("incident.resumed", incident="night-4") is None
    assert again.tell("incident.resumed", "discord 7") == "discord 7"
    assert json.loads(again.store.note("alerts messages of open incidents") or "") == {}


def test_what_a_person_has_to_act_on_is_a_message_of_its_own(tmp_path: Path) -> None:
    outage = Outage(tmp_path)
    assert outage.tell("incident.opened", "discord 7") is None
    assert outage.tell("job.gave_up", "discord 8") is None
    assert outage.tell("incident.resumed") is None


def test_a_note_of_messages_that_cannot_be_read_keeps_nothing_back(tmp_path: Path) -> None:
    outage = Outage(tmp_path)
    outage.store.set_note("alerts messages of open incidents", '{"phone": [')
    assert outage.tell("incident.resumed", "discord 7") is None
