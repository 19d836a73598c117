"""A receiver of alerts that cannot be read decides nothing: its alerts wait, and are sent once it can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, HandClock

from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.alerts.outbox import AlertSender
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.alerting import Announcer, Receivers, read_receivers
from supervisor.store.outbox import QueuedAlert
from supervisor.store.store import NewAlert, Store

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


def test_once_it_can_be_read_it_is_used_without_a_restart(house: House) -> None:
    house.mend()
    house.read_again()
    assert house.receivers.hosts == {"phone": "hooks.example"}
    assert house.announcer.failing() == ()


def test_its_alerts_wait_with_the_reason_and_are_due_at_once_when_it_can_be_read(house: House) -> None:
    class Refusing(AlertSender):
        def offer(self, alert: object) -> bool:
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


class Pinged(AlertSender):
    """Keeps what it is asked to report."""

    def __init__(self) -> None:
        super().__init__({}, lambda _: None, HandClock())
        self.reported: list[str] = []

    def ping_due(self, status: str, now: Moment) -> None:
        self.reported.append(status)


def test_a_check_is_pinged_while_the_daemon_works_and_not_while_a_training_stands_given_up(house: House) -> None:
    sender, running = Pinged(), Job(name="night", since=START, phase=Phase.RUNNING)
    house.announcer.send_due(sender, START)
    assert sender.reported == ["rocm-supervisor on here; alerts waiting: 0"]
    failed = replace(running, phase=Phase.FAILED)
    give_up = de.GiveUp(at=START, job="night", attempt=1, reason="5 restarts", flag=None)
    house.announcer.decision(running, failed, give_up)
    house.announcer.send_due(sender, START)
    assert len(sender.reported) == 1
    house.announcer.job(failed, replace(failed, phase=Phase.PENDING), START)
    house.announcer.send_due(sender, START)
    assert sender.reported[1:] == ["rocm-supervisor on here; alerts waiting: 1"]
