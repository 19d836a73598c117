"""A crash in steps to which a tune had lent settings costs the tune alone; one of the machine is an incident."""

from __future__ import annotations

import math

from supervisor.core import decisions as de
from supervisor.core.events import AgentEvent
from supervisor.core.job import Limits
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.settings import Remedies
from supervisor.core.tuning.lent_block import ENDS_MAX
from supervisor.store.jobs import decode_job, encode

from .stories import Life, life

LIMITS = Limits(budget=Budget(backoff_s=(0.0,)), remedies=Remedies(crash=("restart",)))


def tuned(timeline: Life | None = None, *, lent: bool = True) -> Life:
    """An attempt whose tune has lent it settings, or has put the owner's back."""
    timeline = timeline or life(limits=LIMITS)
    timeline.training(100).saves("a.pt", 60).says(AgentEvent.TUNING, lent=True).steps(101, 120)
    return timeline if lent else timeline.says(AgentEvent.TUNING, lent=False).steps(121, 140)


def retry_of(timeline: Life) -> de.Retry:
    return next(item for item in reversed(timeline.decisions) if isinstance(item, de.Retry))


def test_a_crash_in_steps_with_lent_settings_costs_the_tune_alone() -> None:
    timeline = tuned()
    before = timeline.job.ledger
    timeline.exits(1)
    retry = retry_of(timeline)
    assert (retry.counts, retry.remedy, retry.ends_tune) == (False, None, True)
    assert retry.reason.startswith("with settings that a tune had lent: ")
    assert (timeline.job.incident, timeline.job.ledger) == (None, before)
    timeline.looks()
    attempt = timeline.present()
    assert attempt.resume_from is not None
    assert (attempt.number, attempt.resume_from.path, attempt.has_lent_block) == (2, "a.pt", False)


def test_a_crash_with_the_owners_settings_is_the_trainings_own() -> None:
    timeline = tuned(lent=False).exits(1)
    assert retry_of(timeline).counts
    assert timeline.job.incident is not None


def test_a_sigkill_from_outside_says_nothing_of_what_was_lent() -> None:
    timeline = tuned().exits(signal=9)
    assert retry_of(timeline).counts
    assert timeline.job.incident is not None


def test_numbers_that_are_lost_cost_the_tune_alone_and_what_was_saved_since_is_not_resumed_from() -> None:
    timeline = tuned()
    before = timeline.job.ledger
    timeline.steps(121, 124, loss=math.nan).saves("b.pt", 124)
    stop = next(item for item in reversed(timeline.decisions) if isinstance(item, de.Stop))
    assert not stop.save
    timeline.signalled().exits(signal=15)
    assert retry_of(timeline).ends_tune
    assert (timeline.job.incident, timeline.job.ledger) == (None, before)
    timeline.looks()
    attempt = timeline.present()
    assert attempt.resume_from is not None
    assert attempt.resume_from.path == "a.pt"


def test_a_program_that_claims_a_tune_in_each_attempt_is_charged_in_the_end() -> None:
    timeline = tuned().exits(1)
    for _ in range(ENDS_MAX - 1):
        timeline = tuned(timeline.looks()).exits(1)
        assert retry_of(timeline).ends_tune
    tuned(timeline.looks()).exits(1)
    assert retry_of(timeline).counts


def test_the_record_of_a_job_keeps_that_a_tune_had_lent_settings() -> None:
    job = tuned().exits(1).job
    assert decode_job(encode(job)) == job
