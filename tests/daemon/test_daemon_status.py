"""The status says what is known; what is not known is None."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from clocks_by_hand import START
from msgspec import structs

from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.judge import judge
from supervisor.core.readings import StepRecord
from supervisor.core.reports.expectations import Expectation
from supervisor.core.rules import RULES
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.stall import Stall
from supervisor.daemon.job_state import JobState
from supervisor.daemon.status import job_status, line, steps_per_s, steps_total

RULES_OF_A_JOB = tuple(rule() for rule in RULES)


def training(steps: int, every_s: float, loss: float = 1.5) -> JobState:
    """Return the dossier of a job that made `steps`, the last one now, by a plan of 5 epochs of 100."""
    history = History(now=START, launched_at=START.plus(-steps * every_s), gpus_used=())
    attempt = Attempt(number=3, launched_at=START, training_pid=42, last_step=steps, epoch=0, loss=loss)
    records = tuple(
        StepRecord(at=START.plus((n - steps) * every_s), step=n, epoch=0, loss=loss) for n in range(1, steps + 1)
    )
    plan: dict[str, object] = {"epochs": 5, "batches_per_epoch": 100}
    history.add(ev.AgentReported(at=START, job="one", attempt=3, agent_event=ev.AgentEvent.PLAN, facts=plan))
    history.add(ev.StepsMade(at=START, job="one", attempt=3, records=records))
    job = Job(name="one", since=START, phase=Phase.RUNNING, attempt=attempt)
    return JobState(job=job, rules=RULES_OF_A_JOB, history=history)


def test_a_running_job_has_a_pace_an_end_and_a_place() -> None:
    status = job_status(training(50, 0.5), START)
    assert status.steps_per_s == pytest.approx(2.0)
    assert (status.step, status.steps_total, status.epoch, status.epochs) == (50, 500, 0, 5)
    assert status.eta == pytest.approx(START.unix_s + 450 / 2.0)
    assert (status.phase, status.attempt, status.pid) == ("running", 3, 42)


def test_who_looks_again_and_again_gets_the_same_without_the_gauges() -> None:
    job_state = training(50, 0.5)
    whole = job_status(job_state, START)
    assert {gauge.rule for gauge in whole.watched} >= {rule.name for rule in RULES_OF_A_JOB}
    assert job_status(job_state, START, watched=False) == structs.replace(whole, watched=[])


def test_samples_and_tokens_a_second_are_those_of_all_ranks() -> None:
    job_state = training(0, 1.0)
    assert job_state.history is not None
    drawn = tuple(StepRecord(at=START.plus(n * 0.5 - 5), step=n, samples=8, tokens=4096) for n in range(1, 11))
    job_state.history.add(ev.StepsMade(at=START, job="one", attempt=3, records=drawn))
    for rank in (0, 1):
        job_state.history.add(
            ev.AgentReported(
                at=START, job="one", attempt=3, agent_event=ev.AgentEvent.CLAIMED, rank=rank, pid=7 + rank, facts={}
            )
        )
    status = job_status(job_state, START)
    assert (status.steps_per_s, status.samples_per_s, status.tokens_per_s) == (2.0, 32.0, 16384.0)


def test_a_step_of_unknown_size_leaves_the_rate_unknown() -> None:
    job_state = training(0, 1.0)
    assert job_state.history is not None
    sizes = (8, None, 8)
    drawn = tuple(StepRecord(at=START.plus(n - 3), step=n + 1, samples=size) for n, size in enumerate(sizes))
    job_state.history.add(ev.StepsMade(at=START, job="one", attempt=3, records=drawn))
    status = job_status(job_state, START)
    assert (status.steps_per_s, status.samples_per_s) == (1.0, None)


def test_the_pace_is_that_of_the_last_minute() -> None:
    job_state = training(10, 100.0)
    assert job_state.history is not None
    quick = tuple(StepRecord(at=START.plus(n * 0.1), step=10 + n) for n in range(1, 21))
    job_state.history.add(ev.StepsMade(at=START.plus(2), job="one", attempt=3, records=quick))
    assert steps_per_s(job_state.history) == pytest.approx(10.0)


def test_one_step_is_no_pace_and_no_plan_no_end() -> None:
    assert steps_per_s(training(1, 1.0).history) is None
    assert steps_per_s(None) is None
    assert steps_total(None) is None
    status = job_status(training(1, 1.0), START)
    assert (status.steps_per_s, status.eta) == (None, None)


def test_a_loss_that_is_no_number_is_not_shown_as_one() -> None:
    assert job_status(training(5, 1.0, loss=math.nan), START).loss is None


def test_a_job_that_ended_has_no_process_no_pace_and_no_flags() -> None:
    job_state = training(50, 0.5)
    job_state.job = replace(job_state.job, phase=Phase.FINISHED)
    status = job_status(job_state, START)
    assert (status.pid, status.stage, status.steps_per_s, status.flags) == (None, None, None, [])
    assert status.step == 50


def test_a_job_never_started_shows_nothing_that_is_not_known() -> None:
    status = job_status(JobState(job=Job(name="one", since=START), rules=RULES_OF_A_JOB), START)
    assert (status.phase, status.attempt, status.step, status.loss, status.epoch) == ("pending", 0, None, None, None)


def test_the_line_for_systemd_names_each_job_and_the_daemons_trouble() -> None:
    running = training(50, 0.5).job
    failed = Job(name="two", since=START, phase=Phase.FAILED, reason="5 restarts in a row")
    reported = line([running, failed], "the disk is full")
    assert (
        reported
        == "one running (epoch 1, step 50, loss 1.5); two failed: 5 restarts in a row; problem: the disk is full"
    )
    assert line([], None) == "no jobs configured"
    assert len(line([replace(failed, reason="x" * 1000)], None)) == 400


def test_the_owners_criteria_are_held_against_the_training() -> None:
    job_state = training(50, 0.5)
    job_state.expected = Expectation(batches_per_s=15.0, no_nan=True)
    status = job_status(job_state, START)
    assert [(expectation.name, expectation.verdict) for expectation in status.expectations] == [
        ("batches_per_s", "not_met"),
        ("no_nan", "met"),
    ]
    assert status.eta_early is not None
    assert status.eta is not None
    assert status.eta_late is not None
    assert status.eta_early < status.eta < status.eta_late
    assert status.steps_expected == 1 + int(24.5 * 15)


def test_every_rule_says_what_it_watches_the_nearest_trouble_first() -> None:
    job_state = training(50, 0.5)
    assert job_state.history is not None
    job_state.history.add(ev.Tick(at=START.plus(30)))
    watched = job_status(job_state, START).watched
    assert {gauge.rule for gauge in watched} == {rule.name for rule in job_state.rules}
    assert (watched[0].rule, watched[0].group, watched[0].severity) == ("stall", "steps", "critical")
    assert watched[0].share == pytest.approx(0.5, abs=0.02)
    assert watched[-1].severity == "info"
    assert all(gauge.enabled and not gauge.shadow for gauge in watched)


def test_a_rule_in_shadow_and_one_switched_off_are_shown_as_such() -> None:
    job_state = training(50, 0.5)
    job_state.rules = (Stall(act="shadow"), HostMemory(enabled=False))
    shadow, off = job_status(job_state, START).watched
    assert (shadow.rule, shadow.shadow, shadow.enabled, shadow.not_watched) == ("stall", True, True, None)
    assert (off.rule, off.enabled, off.not_watched) == ("host_memory", False, "the rule is switched off")


def test_good_news_is_no_red_flag() -> None:
    job_state = training(450, 0.5)
    assert job_state.history is not None
    assert any(flag.rule == "milestone" for flag in judge(job_state.rules, job_state.history))
    assert not any("milestone" in item for item in job_status(job_state, START).flags)
