"""Another environment as a remedy: each is tried once, and one that fails its proof is skipped and costs nothing."""

from __future__ import annotations

from dataclasses import replace

from supervisor.control.present_remedies import remedy_report
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import ResumePoint
from supervisor.core.job import Limits, Phase
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.effects import changes_of
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.trials import Outcome, Trial
from supervisor.store.records import RemedyRecord

from .stories import JOB, TRAINER, Life, life

LIMITS = Limits(
    budget=Budget(restarts=9, backoff_s=(0.0,)), remedies=Remedies(crash=("other_environment",), helped_after_steps=20)
)


def crashed(*environments: str, limits: Limits = LIMITS) -> Life:
    timeline = life(limits=limits)
    timeline.context = RemedyContext(environments=environments)
    return timeline.training(100).saves("epoch0.pt", 60).exits(1)


def answered(timeline: Life, problem: str | None) -> Life:
    """The search for the resume point ended, with the proof of the environment."""
    point = ResumePoint(
        checkpoint=timeline.saved[-1], possible=True, reason="the newest proven", environment_problem=problem
    )
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    return timeline


def row_of(trial: Trial) -> RemedyRecord:
    return RemedyRecord(
        job=JOB,
        attempt=trial.attempt,
        at_unix_s=trial.at.unix_s,
        cause=trial.cause,
        remedy=trial.remedy,
        step=trial.step,
        reason=trial.reason,
        outcome=trial.outcome.value,
        settled_unix_s=None,
    )


def environment_of(timeline: Life) -> str | None:
    return changes_of(timeline.job.course.in_force, LIMITS.remedies).environment


def test_a_crash_is_tried_in_the_first_environment_and_what_helps_stays() -> None:
    timeline = crashed("older", "newer")
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert (retry.remedy, retry.environment, retry.why) == (
        "other_environment", "older", "another environment: older"
    )  # fmt: skip
    assert isinstance(answered(timeline, None).last, de.Launch)
    assert environment_of(timeline) == "older"
    timeline.training(200)
    assert timeline.job.course.trials[-1].outcome is Outcome.HELPED
    assert environment_of(timeline) == "older"


def test_an_environment_that_fails_its_proof_is_skipped_and_spends_nothing() -> None:
    timeline = crashed("older", "newer")
    ledger = timeline.job.ledger
    answered(timeline, "epoch0.pt does not load there: torch 1.13.1: KeyError")
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert retry.reason == "environment older is skipped: epoch0.pt does not load there: torch 1.13.1: KeyError"
    assert (retry.remedy, retry.environment) == ("other_environment", "newer")
    assert (retry.attempt, retry.counts) == (1, False)
    assert timeline.job.ledger == ledger
    assert (timeline.job.phase, timeline.attempt) == (Phase.BACKOFF, 1)
    assert timeline.job.retry is not None
    assert timeline.job.retry.resume_point is None, "it is looked for and proven again"
    launch = answered(timeline, None).last
    assert isinstance(launch, de.Launch)
    assert launch.attempt == 2
    assert environment_of(timeline) == "newer"
    assert [trial.outcome for trial in timeline.job.course.trials] == [Outcome.SKIPPED, Outcome.OPEN]


def test_where_no_environment_is_left_the_next_try_is_a_plain_one() -> None:
    timeline = answered(crashed("older"), "no torch")
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert (retry.remedy, retry.reason) == ("restart", "environment older is skipped: no torch")
    assert environment_of(timeline) is None
    assert timeline.job.course.trials[0].outcome is Outcome.SKIPPED


def test_each_skipped_environment_is_listed_with_its_reason_though_its_attempt_is_anothers() -> None:
    timeline = crashed("older", "newer", "third")
    answered(timeline, "no torch")
    answered(timeline, "KeyError")
    answered(timeline, None)
    *_, taken = timeline.job.course.trials
    report = remedy_report([timeline.job], [row_of(taken)], [])
    assert [(trial.attempt, trial.outcome) for trial in report.tried] == [(2, "open"), (2, "skipped"), (2, "skipped")]
    assert report.tried[2].reason == "another environment: older; skipped: no torch"
    assert report.tried[1].reason is not None
    assert report.tried[1].reason.endswith("another environment: newer; skipped: KeyError")


def test_a_skipped_environment_that_nothing_followed_is_listed_once() -> None:
    limits = replace(LIMITS, remedies=replace(LIMITS.remedies, forbid=("restart",)))
    timeline = answered(crashed("older", limits=limits), "no torch")
    (skipped,) = timeline.job.course.trials
    report = remedy_report([timeline.job], [row_of(skipped)], [])
    assert [trial.reason for trial in report.tried] == ["another environment: older; skipped: no torch"]


def test_where_nothing_is_left_the_job_is_given_up_with_the_reason() -> None:
    limits = replace(LIMITS, remedies=replace(LIMITS.remedies, forbid=("restart",)))
    timeline = answered(crashed("older", limits=limits), "no torch")
    give_up = timeline.last
    assert isinstance(give_up, de.GiveUp)
    assert (give_up.job, give_up.attempt) == (JOB, 1)
    assert "environment older is skipped: no torch; no remedy is left for crash" in give_up.reason
    assert environment_of(timeline) is None
    assert timeline.job.course.trials[-1].outcome is Outcome.SKIPPED


def test_each_environment_is_tried_once() -> None:
    timeline = crashed("older", "newer")
    taken = []
    while isinstance(retry := timeline.last, de.Retry):
        taken.append(retry.environment)
        answered(timeline, None).training(100).exits(1)
    assert taken == ["older", "newer"]
    assert timeline.phase() is Phase.FAILED


def test_another_remedy_is_kept_where_the_environment_of_before_does_not_load_any_more() -> None:
    timeline = crashed("older")
    answered(timeline, None).training(200)
    timeline.job = replace(
        timeline.job, limits=replace(LIMITS, remedies=replace(LIMITS.remedies, crash=("compile_off",)))
    )
    timeline.exits(1)
    answered(timeline, "no torch")
    retry = timeline.last
    assert isinstance(retry, de.Retry)
    assert retry.remedy == "compile_off"
    assert [held.remedy for held in timeline.job.course.in_force] == ["compile_off"]


def test_a_remedy_that_is_taken_twice_is_not_given_up_with_an_attempt_that_never_began() -> None:
    """The environment of before does not load when a quarter of the batch is to be tried: it is not a half then."""
    halves = replace(LIMITS, remedies=replace(LIMITS.remedies, oom_gpu=("half_batch", "half_batch")))
    timeline = crashed("older", limits=halves)
    answered(timeline, None).training(200)
    for problem in (None, "no torch"):
        timeline.says(ev.AgentEvent.PLAN, **TRAINER)
        timeline.says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message="HIP out of memory").exits(1)
        answered(timeline, problem)
        if problem is None:
            timeline.training(100)
    assert [(held.remedy, held.attempt) for held in timeline.job.course.in_force] == [
        ("half_batch", 3),
        ("half_batch", 4),
    ]


def test_a_job_without_other_environments_has_no_such_remedy() -> None:
    last = crashed().last
    assert not isinstance(last, de.Retry) or last.remedy == "restart"
