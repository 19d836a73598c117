"""The inbox keeps order and gives errors to those who can do something about them."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from clocks_by_hand import START

from supervisor.core import events as ev
from supervisor.core.readings import StepRecord
from supervisor.daemon.inbox import STEPS_TOGETHER, STEPS_WEIGHED, Inbox, Inquiry


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


def test_it_knows_how_many_events_of_a_job_wait() -> None:
    inbox = Inbox()

    def write() -> None:
        for _ in range(2000):
            inbox.put(looked("one"))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    inbox.put(looked("two"))
    inbox.put(ev.Tick(at=START))
    inbox.later(lambda: None)
    assert (inbox.waiting("one"), inbox.waiting("two"), inbox.waiting("three")) == (8000, 1, 0)
    while inbox.get(0.0) is not None:
        pass
    assert (inbox.waiting("one"), inbox.waiting("two")) == (0, 0)


def test_many_steps_weigh_more_than_one() -> None:
    inbox = Inbox()
    steps = tuple(StepRecord(at=START, step=step) for step in range(10 * STEPS_WEIGHED))
    inbox.put(ev.StepsMade(at=START, job="one", attempt=1, records=steps))
    assert inbox.waiting("one") == 11
    inbox.get(0.0)
    assert inbox.waiting("one") == 0


def test_steps_of_one_recorder_wait_together_for_the_tick() -> None:
    inbox = Inbox()
    for first in (1, 3, 5):
        inbox.put(made("one", first, first + 1))
    inbox.put(made("two", 1))
    assert inbox.waiting("one") == 1
    together = inbox.get(0.0)
    assert together == made("one", 1, 2, 3, 4, 5, 6, cursor=6)
    assert inbox.get(0.0) == made("two", 1)
    assert inbox.get(0.0) is None
    assert (inbox.waiting("one"), inbox.waiting("two")) == (0, 0)


def test_steps_that_are_as_they_should_be_wake_nobody() -> None:
    inbox = Inbox()
    threading.Timer(0.05, lambda: inbox.put(made("one", 1))).start()
    threading.Timer(0.1, lambda: inbox.put(looked("two"))).start()
    assert inbox.get(10) == made("one", 1), "what woke the reader comes after what was there before it"
    assert inbox.get(10) == looked("two")


def test_a_loss_that_is_no_number_is_not_held() -> None:
    inbox = Inbox()
    inbox.put(made("one", 1))
    wrong = replace(made("one", 2), records=(StepRecord(at=START, step=2, loss=float("nan")),))
    threading.Timer(0.05, lambda: inbox.put(wrong)).start()
    assert inbox.get(10) == made("one", 1)
    assert inbox.get(10) is wrong


def test_what_happened_between_two_steps_stays_between_them() -> None:
    inbox = Inbox()
    in_order: list[ev.Event] = [made("one", 1), looked("one"), made("one", 2), ev.Tick(at=START), made("one", 3)]
    for event in in_order:
        inbox.put(event)
    inbox.later(lambda: None)
    assert [inbox.get(0.0) for _ in in_order] == in_order
    assert isinstance(inbox.get(0.0), Inquiry)


def test_steps_behind_lost_ones_are_distinguished() -> None:
    inbox = Inbox()
    after_a_gap = made("one", 9, lost=7)
    for event in (made("one", 1), after_a_gap, made("one", 10)):
        inbox.put(event)
    assert inbox.get(0.0) == made("one", 1)
    assert inbox.get(0.0) == after_a_gap
    assert inbox.get(0.0) == made("one", 10)


def test_so_many_steps_become_one_event_and_no_more() -> None:
    inbox = Inbox()
    for first in range(0, 3 * STEPS_TOGETHER, 256):
        inbox.put(made("one", *range(first, first + 256)))
    taken = []
    while (event := inbox.get(0.0)) is not None:
        assert isinstance(event, ev.StepsMade)
        assert len(event.records) <= STEPS_TOGETHER
        taken += [record.step for record in event.records]
    assert taken == list(range(3 * STEPS_TOGETHER))
    assert inbox.waiting("one") == 0


def test_an_inbox_that_holds_steps_is_not_empty() -> None:
    inbox = Inbox()
    inbox.put(made("one", 1))
    assert not inbox.empty()
    inbox.get(0.0)
    assert inbox.empty()


def made(job: str, *steps: int, cursor: int | None = None, lost: int = 0) -> ev.StepsMade:
    records = tuple(StepRecord(at=START, step=step) for step in steps)
    return ev.StepsMade(
        at=START, job=job, attempt=1, records=records, cursor=steps[-1] if cursor is None else cursor, lost=lost
    )


def looked(job: str) -> ev.RecorderIdle:
    return ev.RecorderIdle(at=START, job=job, attempt=1)
