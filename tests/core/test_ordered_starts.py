"""A start that a tune orders: lent to one attempt, given up for nothing where it fails, outranked by any fault."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.attempt.standby import may_start
from supervisor.core.checkpoints.checkpoint import ResumePoint
from supervisor.core.findings import FaultClass
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import HostReading
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.settings import Remedies
from supervisor.core.tuning.start_order import StartOrder, TunedStart
from supervisor.store.jobs import decode_job, encode

from .stories import JOB, Life, life

LIMITS = Limits(budget=Budget(backoff_s=(0.0,)), remedies=Remedies(crash=("restart",)))
QUICK = TunedStart(knobs=(("malloc", "on"),), env=(("MALLOC", "1"),), command=("train",))


def running() -> Life:
    return life(limits=LIMITS).started().training(100).saves("a.pt", 60)


def asks(timeline: Life, ask: ev.StartAsk, order: StartOrder | None = None) -> Life:
    timeline.put(ev.StartAsked(at=timeline.now, job=JOB, attempt=timeline.attempt, ask=ask, order=order))
    return timeline


def restarted(timeline: Life, order: StartOrder) -> Life:
    """The attempt under way ends as ordered, and the next one is launched."""
    asks(timeline, ev.StartAsk.TRY, order).signalled().silence(1).exits(0)
    return timeline.looks()


def lent(*, since_unix_s: float | None = None) -> Life:
    """An attempt with what is on trial, launched and without a step."""
    timeline = running().silence(1)
    since = timeline.now.unix_s if since_unix_s is None else since_unix_s
    return restarted(timeline, StartOrder(start=QUICK, is_lent=True, since_unix_s=since)).started()


def test_an_order_ends_the_attempt_and_the_next_one_alone_has_it() -> None:
    timeline = lent()
    retry = next(item for item in timeline.decisions if isinstance(item, de.Retry))
    assert retry.reason == "restarted for a tune, with malloc on"
    assert (retry.counts, retry.flag) == (False, None)
    attempt = timeline.present()
    assert (attempt.number, attempt.start, attempt.is_lent) == (2, QUICK, True)
    assert timeline.job.next_start is None, "the one after it is as configured"
    assert timeline.job.ledger.total == 0
    assert timeline.job.incident is None


def test_the_attempt_saves_before_the_first_start_alone() -> None:
    for saves in (True, False):
        timeline = asks(running(), ev.StartAsk.TRY, StartOrder(start=None, saves=saves))
        stop = timeline.last
        assert isinstance(stop, de.Stop)
        assert stop.save is saves


def test_a_fault_between_the_order_and_its_stop_has_the_next_start_as_configured() -> None:
    timeline = running()
    timeline.job = replace(timeline.job, asked_start=StartOrder(start=QUICK, is_lent=True))
    timeline.exits(1).looks()
    attempt = timeline.present()
    assert (attempt.number, attempt.start, attempt.order) == (2, None, None)
    assert timeline.job.asked_start is None
    assert timeline.job.ledger.total == 1, "the fault is the training's own"


def test_an_order_for_an_attempt_that_is_over_is_none() -> None:
    timeline = running()
    timeline.put(ev.StartAsked(at=timeline.now, job=JOB, attempt=7, ask=ev.StartAsk.TRY, order=StartOrder(start=QUICK)))
    assert timeline.job.asked_start is None
    assert timeline.phase() is Phase.RUNNING


@pytest.mark.parametrize("ends", ["exits", "is not launched"])
def test_a_start_on_trial_that_fails_is_given_up_and_costs_nothing(ends: str) -> None:
    timeline = lent()
    timeline.exits(1) if ends == "exits" else timeline.fails_to_launch("no such file")
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert (retry.counts, retry.flag, retry.remedy) == (False, None, None)
    how = "its process could not be launched: no such file"
    how = "before its first step its process ended with status 1" if ends == "exits" else how
    assert retry.reason == f"started without malloc on: {how}"
    assert timeline.job.start_refused
    timeline.looks()
    attempt = timeline.present()
    assert (attempt.number, attempt.start) == (3, None)
    assert timeline.job.incident is None
    assert timeline.job.ledger == running().job.ledger


def test_a_start_on_trial_that_hangs_is_given_up_and_costs_nothing() -> None:
    timeline = lent().claimed(4242).tree().silence(3600).looked()
    timeline.silence(1)
    stop = next(item for item in reversed(timeline.decisions) if isinstance(item, de.Stop))
    assert stop.flag is None
    assert stop.reason.startswith("malloc on: ")
    timeline.exits(signal=9).looks()
    assert timeline.present().start is None
    assert timeline.job.start_refused == stop.reason
    assert timeline.job.incident is None
    assert timeline.job.ledger.total == 0


@pytest.mark.parametrize("ends", ["exits", "loses its numbers", "hangs"])
def test_a_start_on_trial_that_dies_in_its_steps_costs_the_trial_alone(ends: str) -> None:
    timeline = lent().training(100).saves("b.pt", 160)
    before = timeline.job.ledger
    if ends == "exits":
        timeline.exits(1)
    elif ends == "loses its numbers":
        timeline.steps(161, 162, loss=math.nan).looked()
    else:
        timeline.tree().silence(3600).looked()
    if ends != "exits":
        stop = next(item for item in reversed(timeline.decisions) if isinstance(item, de.Stop))
        assert (stop.flag, stop.save) == (None, False)
        timeline.exits(signal=9)
    retry = next(item for item in reversed(timeline.decisions) if isinstance(item, de.Retry))
    assert (retry.counts, retry.flag, retry.remedy) == (False, None, None)
    assert timeline.job.start_refused == retry.refused_start
    timeline.looks()
    attempt = timeline.present()
    assert attempt.start is None
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "a.pt", "what it saved is not used"
    assert (timeline.job.incident, timeline.job.ledger) == (None, before)
    timeline.started().training(100).exits(1)
    assert isinstance(timeline.last, de.Retry)
    assert timeline.last.counts, "that of a start as configured is the training's own"


@pytest.mark.parametrize("fault", ["machine", "disk"])
def test_a_fault_of_the_machine_is_one_whatever_is_on_trial(fault: str) -> None:
    timeline = lent().training(100).saves("b.pt", 160)
    if fault == "disk":
        timeline.prints("OSError: [Errno 28] No space left on device", FaultClass.DISK_FULL).exits(1)
    else:
        timeline.lost()
    retry = next(item for item in reversed(timeline.decisions) if isinstance(item, de.Retry))
    assert retry.flag is not None
    assert (retry.counts, timeline.job.start_refused) == (True, None)
    timeline.looks()
    attempt = timeline.present()
    assert attempt.start is None
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "a.pt"


@pytest.mark.parametrize("ask", [ev.Ask.STOP, ev.Ask.RESTART, ev.Ask.SHUT_DOWN])
def test_whoever_stops_the_training_the_next_start_is_as_configured_from_before(ask: ev.Ask) -> None:
    timeline = lent().training(100).saves("b.pt", 160)
    timeline.asks(ask).signalled().exits(0)
    timeline.job = replace(timeline.job, shutting_down=False)
    timeline.asks(ev.Ask.START) if ask is ev.Ask.STOP else timeline.silence(0)
    timeline.looks()
    attempt = timeline.present()
    assert (attempt.start, attempt.order) == (None, None)
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "a.pt"


def test_an_order_that_a_stop_by_its_user_overtakes_is_forgotten() -> None:
    timeline = asks(running(), ev.StartAsk.TRY, StartOrder(start=QUICK, is_lent=True))
    timeline.asks(ev.Ask.STOP).signalled().exits(0).asks(ev.Ask.START).looks()
    assert timeline.present().start is None


def test_the_end_of_a_tune_ends_what_it_has_lent() -> None:
    timeline = asks(lent().training(100).saves("b.pt", 160), ev.StartAsk.END)
    timeline.signalled().exits(0).looks()
    attempt = timeline.present()
    assert (attempt.start, attempt.order) == (None, None)
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "a.pt"
    assert timeline.job.asked_start is None
    timeline.started().training(10)
    assert timeline.phase() is Phase.RUNNING


def test_the_end_of_a_tune_leaves_an_attempt_as_configured_alone() -> None:
    timeline = asks(restarted(running(), StartOrder(start=None)).started().training(100), ev.StartAsk.END)
    assert timeline.phase() is Phase.RUNNING
    assert timeline.present().order is None


def test_the_end_of_a_tune_while_an_attempt_ends_for_it_or_is_not_launched_yet() -> None:
    order = StartOrder(start=QUICK, is_lent=True)
    stopping = asks(asks(running(), ev.StartAsk.TRY, order).signalled(), ev.StartAsk.END).exits(0).looks()
    waiting = asks(asks(running(), ev.StartAsk.TRY, order).signalled().exits(0), ev.StartAsk.END).looks()
    for timeline in (stopping, waiting):
        assert timeline.present().number == 2
        assert timeline.present().start is None
        assert timeline.started().training(10).phase() is Phase.RUNNING


def test_what_was_proven_is_used_at_once_and_by_every_start_until_it_is_forgotten() -> None:
    timeline = restarted(running(), StartOrder(start=None)).started().training(100).saves("b.pt", 160)
    asks(timeline, ev.StartAsk.KEEP, StartOrder(start=QUICK))
    assert timeline.phase() is Phase.RUNNING
    asks(timeline, ev.StartAsk.END).signalled().exits(0).looks()
    attempt = timeline.present()
    assert (attempt.start, attempt.is_lent) == (QUICK, False)
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "b.pt", "this start measured nothing: what it goes on from is the newest"
    timeline.started().training(100).asks(ev.Ask.RESTART).signalled().exits(0).looks()
    assert timeline.present().start == QUICK
    asks(timeline.started().training(100), ev.StartAsk.FORGET)
    assert timeline.phase() is Phase.RUNNING
    timeline.asks(ev.Ask.RESTART).signalled().exits(0).looks()
    assert timeline.present().start is None


def kept() -> Life:
    timeline = running()
    timeline.job = replace(timeline.job, tuned=QUICK)
    return timeline.asks(ev.Ask.RESTART).signalled().exits(0).looks().started()


def test_what_was_proven_and_fails_at_a_later_start_is_dropped_for_good() -> None:
    timeline = kept()
    assert timeline.present().start == QUICK
    timeline.exits(1)
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert not retry.counts
    assert timeline.job.tuned is None
    timeline.looks()
    assert timeline.present().start is None
    timeline.started().exits(1)
    assert isinstance(timeline.last, de.Retry)
    assert timeline.last.counts, "the next failure is the training's own"


def test_what_was_proven_is_dropped_at_the_second_fault_without_progress() -> None:
    timeline = kept().training(100).exits(1).looks()
    assert timeline.present().start == QUICK, "one fault is the training's own"
    timeline.started().steps(70, 80).exits(1)
    assert timeline.job.ledger.in_a_row == 2
    assert timeline.job.tuned is None
    timeline.looks()
    assert timeline.present().start is None


def test_what_was_proven_stays_where_the_machine_fails() -> None:
    for timeline in (kept().lost(), kept().fails_to_launch("no memory", "memory")):
        assert timeline.job.tuned == QUICK


def test_an_environment_that_loads_nothing_is_given_up_before_its_start() -> None:
    there = TunedStart(knobs=(("environment", "other"),), environment="other")
    timeline = asks(running(), ev.StartAsk.TRY, StartOrder(start=there, is_lent=True)).signalled().exits(0)
    assert timeline.job.environment == "other"
    point = ResumePoint(
        checkpoint=timeline.saved[-1], possible=True, reason="the newest", environment_problem="no torch there"
    )
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert (retry.reason, retry.counts) == ("started without environment other: no torch there", False)
    refused = timeline.job
    assert (refused.start_refused, refused.environment) == ("no torch there", None)
    timeline.looks()
    assert (timeline.present().number, timeline.present().start) == (2, None)


def test_what_was_proven_stays_where_the_environment_of_a_remedy_loads_nothing() -> None:
    limits = replace(LIMITS, remedies=Remedies(crash=("other_environment",)))
    timeline = life(limits=limits)
    timeline.context = RemedyContext(environments=("older",))
    timeline.job = replace(timeline.job, tuned=QUICK)
    timeline.started().training(100).saves("a.pt", 60).exits(1)
    assert timeline.job.environment == "older"
    point = ResumePoint(
        checkpoint=timeline.saved[-1], possible=True, reason="the newest", environment_problem="no torch there"
    )
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert (retry.reason, retry.refused_start) == ("environment older is skipped: no torch there", None)
    assert timeline.job.tuned == QUICK
    timeline.looks()
    assert (timeline.present().number, timeline.present().start) == (2, QUICK)


def test_the_end_of_a_training_on_trial_is_made_again_as_configured() -> None:
    timeline = lent().training(100).exits(0)
    assert isinstance(timeline.last, de.Retry)
    assert timeline.last.reason == "started without malloc on: its process ended with status 0"
    assert not timeline.last.counts
    timeline.looks()
    assert timeline.present().start is None


def test_no_standby_is_started_while_an_attempt_is_measured() -> None:
    timeline = restarted(running(), StartOrder(start=None)).started().training(100).silence(10)
    host = HostReading(at=timeline.now, memory_total_bytes=64 << 30, memory_available_bytes=60 << 30)
    assert not may_start(timeline.job, host, timeline.now)
    assert may_start(asks(timeline, ev.StartAsk.END).job, host, timeline.now)


def test_the_record_of_a_job_keeps_its_orders_and_an_older_one_has_none() -> None:
    timeline = lent()
    timeline.job = replace(timeline.job, tuned=QUICK, asked_start=StartOrder(start=QUICK))
    assert decode_job(encode(timeline.job)) == timeline.job
    state = json.loads(encode(timeline.job))
    for name in ("tuned", "asked_start", "start_refused"):
        del state[name]
    del state["attempt"]["start"], state["attempt"]["order"]
    older = decode_job(json.dumps(state))
    assert (older.tuned, older.asked_start, older.start_refused, older.next_start) == (None, None, None, None)
    assert older.attempt is not None
    assert (older.attempt.start, older.attempt.is_lent) == (None, False)


LARGER = TunedStart(knobs=(("batch", "x2"),), factors=(("batch_factor", 2.0), ("lr_factor", 2.0)), command=("train",))


@pytest.mark.parametrize(("start", "is_kept"), [(QUICK, True), (LARGER, False)])
def test_a_larger_batch_that_runs_out_of_memory_is_dropped_at_the_first_fault(start: TunedStart, is_kept: bool) -> None:
    timeline = running()
    timeline.job = replace(timeline.job, tuned=start)
    timeline.asks(ev.Ask.RESTART).signalled().exits(0).looks().started().training(100)
    timeline.prints("out of memory", FaultClass.OOM_GPU).exits(1)
    assert isinstance(timeline.last, de.Retry)
    assert (timeline.job.tuned == start) is is_kept


def test_a_larger_batch_stays_where_another_fault_is_the_trainings_own() -> None:
    timeline = running()
    timeline.job = replace(timeline.job, tuned=LARGER)
    timeline.asks(ev.Ask.RESTART).signalled().exits(0).looks().started().training(100).exits(1)
    assert timeline.job.tuned == LARGER
    assert decode_job(encode(timeline.job)) == timeline.job
