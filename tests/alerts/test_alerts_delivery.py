"""Alerts are delivered from the record: in the end, once, in the background, whatever the receiver does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receiver_by_hand import SECRET, Receiver, hang, receiver, status, webhook
from standardwebhooks import Webhook

from supervisor.alerts.channel import Answer, Channel, KeptNotice
from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.schedule import WAITS_S, next_try_s
from supervisor.alerts.settings import AlertSettings
from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment
from supervisor.store.archive import Archive
from supervisor.store.store import NewAlert, Store

START = Moment(1000.0, 1_763_600_000.0)
DEADLINE_S = 120.0


class Standing:
    """A clock that stands still."""

    def now(self) -> Moment:
        return START


class Running:
    """A clock of the real time of day, which the library of the standard insists on."""

    def now(self) -> Moment:
        return Moment(START.monotonic_s, time.time_ns() / 1e9)


@dataclass(frozen=True)
class One:
    id: str
    sink: str = "owner"
    body: bytes = b'{"type":"test"}'


@dataclass(frozen=True)
class Calling:
    """A channel that does what a test says."""

    answer: Callable[[KeptNotice], Answer]
    settings_type: ClassVar[type[AlertSettings]] = AlertSettings
    destination: str = "a test"

    @classmethod
    def from_settings(cls, name: str, settings: AlertSettings) -> Calling:
        raise NotImplementedError

    def render(self, notice: KeptNotice) -> bytes:
        return notice.content

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        return self.answer(notice)


@contextmanager
def sender(channels: Mapping[str, Channel]) -> Iterator[tuple[AlertSender, queue.Queue[AlertTried]]]:
    inbox: queue.Queue[AlertTried] = queue.Queue()
    running = AlertSender(channels, inbox.put, Running())
    running.start()
    try:
        yield running, inbox
    finally:
        running.stop(DEADLINE_S)


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def test_what_is_offered_is_delivered_and_reported(server: Receiver) -> None:
    with sender({"owner": webhook(server.port)}) as (running, inbox):
        assert running.offer(One("msg_1"))
        reported = inbox.get(timeout=DEADLINE_S)
    assert (reported.alert, reported.delivered, reported.error) == ("msg_1", True, None)
    Webhook(SECRET).verify(server.received[0].body, server.received[0].headers)


class Picturing(Calling):
    """A channel that takes pictures, and remembers what it was sent."""

    picture = True
    pictures: ClassVar[list[bytes | None]] = []

    def send(self, notice: KeptNotice, content: bytes, unix_s: float) -> Answer:
        self.pictures.append(None)
        return self.answer(notice)

    def send_with_picture(self, notice: KeptNotice, content: bytes, picture: bytes, unix_s: float) -> Answer:
        self.pictures.append(picture)
        return self.answer(notice)


def deliver_pictured(draw: Callable[[KeptNotice], bytes | None], *answers: Answer) -> list[bytes | None]:
    """Offer an alert until it is delivered; return the picture of each attempt."""
    waiting = list(answers)
    Picturing.pictures.clear()
    inbox: queue.Queue[AlertTried] = queue.Queue()
    running = AlertSender({"owner": Picturing(lambda _: waiting.pop(0))}, inbox.put, Running(), draw)
    running.start()
    while waiting:
        assert running.offer(One("msg_1"))
        inbox.get(timeout=DEADLINE_S)
    running.stop(DEADLINE_S)
    return list(Picturing.pictures)


def test_a_picture_goes_with_the_first_attempt_and_what_was_refused_with_it_is_sent_without() -> None:
    refused, taken = Answer(delivered=False, error="status 413"), Answer(delivered=True)
    assert deliver_pictured(lambda _: b"png", refused, taken) == [b"png", None]
    assert deliver_pictured(lambda _: None, taken) == [None]


def test_a_picture_that_cannot_be_drawn_keeps_no_alert_back(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: KeptNotice) -> bytes:
        raise ValueError("no room on the canvas")

    assert deliver_pictured(fail, Answer(delivered=True)) == [None]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "alert.picture_failed"
    ]


def test_an_alert_under_way_is_not_sent_a_second_time() -> None:
    entered, go_on = threading.Event(), threading.Event()
    sent: list[str] = []

    def slow(notice: KeptNotice) -> Answer:
        sent.append(notice.id)
        entered.set()
        go_on.wait(DEADLINE_S)
        return Answer(delivered=True)

    with sender({"owner": Calling(slow)}) as (running, inbox):
        assert running.offer(One("msg_1"))
        assert entered.wait(DEADLINE_S)
        assert not running.offer(One("msg_1"))
        go_on.set()
        inbox.get(timeout=DEADLINE_S)
        assert sent == ["msg_1"]


def test_a_receiver_that_hangs_delays_no_other_sink(server: Receiver) -> None:
    server.answers = [hang]
    with receiver() as other:
        channels = {"owner": webhook(server.port), "team": webhook(other.port)}
        with sender(channels) as (running, inbox):
            running.offer(One("msg_slow"))
            running.offer(One("msg_quick", sink="team"))
            assert inbox.get(timeout=DEADLINE_S).alert == "msg_quick"
            server.released.set()
            assert inbox.get(timeout=DEADLINE_S).alert == "msg_slow"


def test_a_sink_that_is_gone_from_the_configuration_is_a_final_answer() -> None:
    with sender({}) as (running, inbox):
        running.offer(One("msg_1", sink="former"))
        reported = inbox.get(timeout=DEADLINE_S)
    assert reported.final
    assert "former" in (reported.error or "")


def test_a_defect_in_sending_ends_neither_thread_nor_program(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: KeptNotice) -> Answer:
        raise ZeroDivisionError("s3cret")

    with sender({"owner": Calling(broken)}) as (running, inbox):
        for name in ("msg_1", "msg_2"):
            running.offer(One(name))
            reported = inbox.get(timeout=DEADLINE_S)
            assert (reported.alert, reported.delivered, reported.final) == (name, False, False)
            assert reported.error == "ZeroDivisionError while sending"
    assert "alert.attempt_failed" in caplog.text


def test_a_check_is_pinged_at_its_interval_between_alerts(caplog: pytest.LogCaptureFixture) -> None:
    pings: queue.Queue[str] = queue.Queue()

    class Check(Calling):
        ping_every_s = 60.0

        def ping(self, status: str, unix_s: float) -> Answer:
            pings.put(status)
            return Answer(delivered=status != "refused", error="status 404")

    def take(_: KeptNotice) -> Answer:
        return Answer(delivered=True)

    with sender({"owner": Calling(take), "check": Check(take)}) as (running, inbox):
        for later_s, status in ((0.0, "first"), (59.0, "too early"), (60.0, "refused"), (120.0, "last")):
            running.ping_due(status, START.plus(later_s))
        running.offer(One("msg_1", sink="check"))
        assert inbox.get(timeout=DEADLINE_S).delivered
    assert [pings.get_nowait() for _ in range(3)] == ["first", "refused", "last"]
    assert pings.empty()
    assert [record.message for record in caplog.records].count("alert.ping_failed") == 1


def test_stopping_waits_for_nobody_longer_than_it_may(server: Receiver) -> None:
    server.answers = [hang]
    inbox: queue.Queue[AlertTried] = queue.Queue()
    running = AlertSender({"owner": webhook(server.port, read_timeout_s=20.0)}, inbox.put, Standing())
    running.start()
    running.offer(One("msg_1"))
    running.offer(One("msg_2"))
    running.stop(0.2)
    assert inbox.empty()


def test_what_a_replaced_sender_did_not_send_is_reported_so_that_the_next_one_sends_it() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(_: KeptNotice) -> Answer:
        entered.set()
        go_on.wait(DEADLINE_S)
        return Answer(delivered=True)

    with sender({"owner": Calling(slow)}) as (running, inbox):
        running.offer(One("msg_1"))
        running.offer(One("msg_2"))
        assert entered.wait(DEADLINE_S)
        running.stop(0.0, replaced=True)
        go_on.set()
        results = [inbox.get(timeout=DEADLINE_S) for _ in range(2)]
    assert [(result.alert, result.delivered, result.final) for result in results] == [
        ("msg_1", True, False), ("msg_2", False, False)
    ]  # fmt: skip


def test_a_message_that_stands_for_several_alerts_is_reported_for_each() -> None:
    def refuse(_: KeptNotice) -> Answer:
        return Answer(delivered=False, error="status 500")

    with sender({"owner": Calling(refuse)}) as (running, inbox):
        assert running.offer(One("msg_digest"), covers=("msg_1", "msg_2"))
        results = [inbox.get(timeout=DEADLINE_S) for _ in range(2)]
    assert [(result.alert, result.error) for result in results] == [("msg_1", "status 500"), ("msg_2", "status 500")]


def test_the_whole_way_from_record_to_receiver(server: Receiver, tmp_path: Path) -> None:
    """The receiver fails twice; the daemon is restarted in between; the alert arrives once."""
    server.answers = [status(503, Retry_After="40"), status(500)]
    now = START
    store = open_store(tmp_path, now)
    with store.turn(now):
        assert store.queue_alert(alert("msg_1"), now)
    waits = []
    with sender({"owner": webhook(server.port)}) as (running, inbox):
        for restart in (False, True, False):
            if restart:
                store.close(now)
                store = open_store(tmp_path, now)
            assert store.due_alerts(now.plus(-0.1), 10) == () or now is START
            for due in store.due_alerts(now, 10):
                running.offer(due)
            reported = inbox.get(timeout=DEADLINE_S)
            reported = AlertTried(
                at=now,
                alert=reported.alert,
                delivered=reported.delivered,
                error=reported.error,
                retry_after_s=reported.retry_after_s,
                final=reported.final,
            )
            with store.turn(now):
                after = store.alert_tried(reported, next_try_s)
            assert after is not None
            if after.due is not None:
                waits.append(after.due.seconds_since(now))
                now = after.due
    with store.turn(now):
        assert not store.queue_alert(alert("msg_1"), now)
    assert store.due_alerts(now.plus(10**6), 10) == ()
    store.close(now)
    assert waits[0] == 40.0
    assert 300.0 <= waits[1] <= 360.0
    assert [item.headers["webhook-id"] for item in server.received] == ["msg_1"] * 3
    (kept,) = Archive(tmp_path / "supervisor.db").alerts("delivered")
    assert (kept.tries, kept.error) == (3, None)


def open_store(folder: Path, now: Moment) -> Store:
    return Store.open(f"sqlite:///{folder}/supervisor.db", now, "boot")


def alert(name: str) -> NewAlert:
    return NewAlert(id=name, sink="owner", type="incident.opened", job="night", body=b'{"type":"incident.opened"}')


def failed(retry_after_s: float | None = None, *, final: bool = False) -> AlertTried:
    return AlertTried(at=START, alert="a", delivered=False, error="x", retry_after_s=retry_after_s, final=final)


def test_the_schedule_is_that_of_the_standard_and_ends() -> None:
    waits = [next_try_s("msg_1", tries, failed()) for tries in range(1, 11)]
    assert waits[-1] is None
    for wait, step in zip(waits, WAITS_S[1:], strict=False):
        assert wait is not None
        assert step <= wait <= step * 1.2


@given(st.text(), st.integers(1, 9))
def test_the_schedule_is_the_same_whenever_it_is_asked(alert_id: str, tries: int) -> None:
    assert next_try_s(alert_id, tries, failed()) == next_try_s(alert_id, tries, failed())


def test_what_failed_together_does_not_come_back_together() -> None:
    waits = {next_try_s(f"msg_{number}", 3, failed()) for number in range(50)}
    assert len(waits) == 50


def test_what_the_receiver_asks_for_counts_up_to_a_day() -> None:
    assert next_try_s("msg_1", 1, failed(3600.0)) == 3600.0
    assert next_try_s("msg_1", 1, failed(10.0**9)) == 86400.0
    late = next_try_s("msg_1", 4, failed(1.0))
    assert late is not None
    assert late >= 7200.0
    assert next_try_s("msg_1", 1, failed(final=True)) is None
    assert next_try_s("msg_1", 1, AlertTried(at=START, alert="a", delivered=True, error=None)) is None
