"""The inbox keeps order and gives errors to those who can do something about them."""

from __future__ import annotations

import logging
import threading

import pytest
from clocks_by_hand import START

from supervisor.core import events as ev
from supervisor.daemon.inbox import Inbox, Inquiry


def test_events_of_one_writer_come_out_in_their_order() -> None:
    inbox = Inbox()
    for n in range(100):
        inbox.put(ev.Tick(at=START.plus(n)))
    ticks = [inbox.get(0) for _ in range(100)]
    assert ticks == [ev.Tick(at=START.plus(n)) for n in range(100)]


def test_an_empty_inbox_gives_nothing_after_the_time() -> None:
    assert Inbox().get(0.01) is None
    assert Inbox().get(-1.0) is None


def test_a_question_that_nobody_answers_ends_with_an_error() -> None:
    inbox = Inbox()
    with pytest.raises(TimeoutError):
        inbox.ask(lambda: 1, limit_s=0.01)


def test_an_event_wakes_a_reader_that_waits() -> None:
    inbox = Inbox()
    threading.Timer(0.05, lambda: inbox.put(ev.Tick(at=START))).start()
    assert inbox.get(10) == ev.Tick(at=START)


def test_work_that_nobody_waits_for_is_logged_when_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    inbox.later(lambda: 1 / 0)
    inquiry = inbox.get(0)
    assert isinstance(inquiry, Inquiry)
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError) as raised:
        inquiry.question()
    inquiry.answer.set_exception(raised.value)
    assert "inbox.work_failed" in caplog.text
