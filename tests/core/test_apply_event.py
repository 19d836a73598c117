"""How a job changes with events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import events as ev
from supervisor.core.apply_event import (
    SILENT_START_S,
    UNWATCHED_SAVES_S,
    after_earlier_clock,
    after_event,
    after_silent_start,
)
from supervisor.core.findings import FaultClass
from supervisor.core.job import DesiredState, Job, Limits, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, Stage, StepRecord
from supervisor.core.remedies.budget import Budget

from .stories import JOB, START, life


def test_events_of_other_jobs_and_attempts_change_nothing() -> None:
    job = life().training().job
    status = ExitStatus(at=START, code=1)
    for event in (
        ev.Exited(at=START, job="other", attempt=1, status=status),
        ev.Exited(at=START, job=JOB, attempt=2, status=status),
        ev.UserRequest(at=START, job="other", ask=ev.Ask.STOP, by="uid 0"),
        ev.Tick(at=START),
    ):
        assert after_event(job, event) is job
    fresh = Job(name=JOB, since=START)
    assert after_event(fresh, ev.Exited(at=START, job=JOB, attempt=0, status=status)) is fresh


def test_the_first_step_makes_it_run_and_later_ones_are_noted() -> None:
    timeline = life().started().stage(Stage.WARMUP)
    assert timeline.phase() is Phase.STARTING
    timeline.steps(1, 1)
    first_at = timeline.now
    timeline.steps(2, 40, loss=0.5, batches=10)
    attempt = timeline.present()
    assert timeline.phase() is Phase.RUNNING
    assert (attempt.first_step_at, attempt.last_step, attempt.last_step_at) == (first_at, 40, timeline.now)
    assert (attempt.epoch, attempt.loss, attempt.training_pid) == (3, 0.5, 4242)
    assert timeline.job.ledger.furthest_step == 40


def test_a_compiled_loop_whose_steps_are_not_seen_makes_it_run() -> None:
    timeline = life().started().stage(Stage.LOOP)
    assert timeline.phase() is Phase.RUNNING
    assert timeline.steps(1, 1).stage(Stage.LOOP).phase() is Phase.RUNNING


def test_a_training_that_reports_nothing_counts_as_running_once_imports_are_over() -> None:
    timeline = life().started().tree(100)
    assert timeline.phase() is Phase.STARTING
    assert timeline.tree(21).phase() is Phase.RUNNING


def test_a_training_that_reports_nothing_runs_once_it_has_lived_for_the_time_given() -> None:
    timeline = life().started()
    assert after_silent_start(timeline.job, timeline.now, SILENT_START_S - 1.0) is timeline.job
    assert after_silent_start(timeline.job, timeline.now, SILENT_START_S).phase is Phase.RUNNING


def test_a_hooked_training_starts_until_its_first_step() -> None:
    assert life().started().stage(Stage.SETUP).tree(600).phase() is Phase.STARTING


def test_an_incident_of_a_training_whose_steps_are_not_seen_ends_when_it_runs_again() -> None:
    timeline = life().started().tree(121).exits(signal=9).looks()
    timeline.started()
    incident = timeline.tree(121).job.incident
    assert incident is not None
    assert (timeline.phase(), incident.closed, incident.lost_steps) == (Phase.RUNNING, True, None)
    assert incident.downtime_s is not None
    assert incident.downtime_s < 120, "until the process was there again"


def test_an_incident_whose_lost_steps_can_be_known_waits_for_the_next_step() -> None:
    timeline = life().training(40).exits(signal=9).looks()
    timeline.started().tree(600)
    assert timeline.job.incident is not None
    assert not timeline.job.incident.closed
    incident = timeline.steps(1, 1).job.incident
    assert incident is not None
    assert (incident.closed, incident.lost_steps) == (True, 40)


def test_steps_of_other_ranks_and_empty_pages_move_nothing() -> None:
    job = life().started().job
    record = StepRecord(at=START, step=7)
    other_rank = ev.StepsMade(at=START, job=JOB, attempt=1, records=(record,), rank=1)
    assert after_event(job, other_rank) == job
    assert after_event(job, replace(other_rank, rank=0, records=())) == job


def test_progress_that_arrives_while_stopping_counts_and_moves_nothing() -> None:
    timeline = life().training(10).asks(ev.Ask.STOP).steps(11, 12)
    assert timeline.phase() is Phase.STOPPING
    assert timeline.job.ledger.furthest_step == 12


def test_miopen_that_failed_is_remembered_over_attempts() -> None:
    timeline = life().training().prints("miopenStatusUnknownError", FaultClass.MIOPEN).exits(1)
    assert timeline.looks().job.miopen_failed


def test_evidence_belongs_to_the_incident_of_its_attempt() -> None:
    timeline = life().training().silence(60)
    timeline.put(ev.EvidenceTaken(at=timeline.now, job=JOB, attempt=1, folder="evidence/night-1", took_s=1.0))
    assert timeline.job.incident is not None
    assert timeline.job.incident.evidence == "evidence/night-1"


def test_evidence_of_a_crash_may_come_when_the_next_attempt_runs() -> None:
    timeline = life().training().exits(signal=11).looks()
    assert timeline.job.number == 2
    timeline.put(ev.EvidenceTaken(at=timeline.now, job=JOB, attempt=1, folder="evidence/night-1", took_s=1.0))
    assert timeline.job.incident is not None
    assert timeline.job.incident.evidence == "evidence/night-1"


def test_a_signal_of_which_nobody_gave_the_order_changes_nothing() -> None:
    timeline = life().training()
    before = timeline.job
    assert timeline.signalled().job == before


def test_a_resume_point_is_taken_once_and_only_while_waiting_for_it() -> None:
    timeline = life().training().exits(1)
    timeline.launch_allowed = False
    waiting = timeline.job
    found = timeline.looks().job
    assert waiting.retry is not None
    assert found.retry is not None
    assert (waiting.retry.resume_point, found.phase) == (None, Phase.BACKOFF)
    assert found.retry.resume_point is not None
    assert timeline.saves("later.pt", 999).looks().job == found


def test_the_end_of_the_training_is_known_until_another_begins() -> None:
    timeline = life().training().says(ev.AgentEvent.TRAIN_END).stage(Stage.ENDED)
    assert timeline.present().train_ended
    timeline.stage(Stage.SETUP)
    assert not timeline.present().train_ended


def test_a_request_is_kept_whatever_the_phase() -> None:
    for phase in Phase:
        job = Job(name=JOB, since=START, phase=phase)
        stop = ev.UserRequest(at=START, job=JOB, ask=ev.Ask.STOP, by="uid 0")
        assert after_event(job, stop).desired_state is DesiredState.STOP


def test_a_clock_that_goes_back_keeps_later_checkpoints_in_this_training() -> None:
    timeline = life()
    began = timeline.job.began_unix_s
    assert began == START.unix_s
    assert after_event(timeline.job, ev.ClockStepped(at=START, by_s=-3600.0)).began_unix_s == began - 3600
    assert after_event(timeline.job, ev.ClockStepped(at=START, by_s=3600.0)).began_unix_s == began
    assert after_event(timeline.job, ev.ClockStepped(at=START, by_s=0.5)).began_unix_s == began
    assert after_event(timeline.job, ev.ClockStepped(at=START, by_s=float("nan"))).began_unix_s == began


def test_a_clock_that_goes_back_is_remembered_by_its_furthest_time() -> None:
    """The attempt's launch is given the time of the present setting: what it saves from now on is its own."""
    job = life().job
    assert job.attempt is not None
    launched = job.attempt.launched_at
    for by_s in (-3600.0, -60.0):
        job = after_event(job, ev.ClockStepped(at=Moment(START.monotonic_s, START.unix_s + 7200 + by_s), by_s=by_s))
    assert job.clock_before_unix_s == START.unix_s + 7200
    assert job.attempt is not None
    assert job.attempt.launched_at.monotonic_s == launched.monotonic_s
    assert job.attempt.launched_at.unix_s == launched.unix_s - 3660
    assert life().job.clock_before_unix_s is None


def test_a_job_that_was_given_up_resumes_at_once_because_a_person_started_it() -> None:
    timeline = life(limits=Limits(budget=Budget(never_retry_exit_codes=(3,)))).training().exits(3)
    assert timeline.phase() is Phase.FAILED
    timeline.silence(10).asks(ev.Ask.START)
    assert timeline.job.retry is not None
    assert timeline.job.retry.not_before == timeline.now
    assert timeline.job.reason == "started by uid 1000"


@pytest.mark.parametrize(("lived_s", "runs"), [(SILENT_START_S, True), (SILENT_START_S - 0.001, False)])
def test_a_silent_training_runs_from_that_time_on(lived_s: float, *, runs: bool) -> None:
    timeline = life().started()
    assert (after_silent_start(timeline.job, timeline.now, lived_s).phase is Phase.RUNNING) is runs


def test_a_record_of_a_time_later_than_the_clock_shows_that_it_was_set_back() -> None:
    """After a reboot it is not known by how much: only what is written from now on is compared by its time."""
    job, now_unix_s = life().job, START.unix_s - 7200
    assert job.attempt is not None
    back = after_earlier_clock(job, now_unix_s, START.unix_s)
    assert back.attempt is not None
    assert (back.began_unix_s, back.attempt.launched_at.unix_s) == (now_unix_s, now_unix_s)
    assert back.attempt.launched_at.monotonic_s == job.attempt.launched_at.monotonic_s
    assert back.clock_before_unix_s == START.unix_s + UNWATCHED_SAVES_S
    assert after_earlier_clock(back, now_unix_s, START.unix_s - 60).clock_before_unix_s == back.clock_before_unix_s
    for written_until in (None, now_unix_s):
        assert after_earlier_clock(job, now_unix_s, written_until) == job
