"""A triage before the retry: made once, waited for, used where it says something, and nothing where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Limits, Phase
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.core.remedies.settings import Remedies
from supervisor.core.triage.finding import Finding, inconclusive

from .stories import GB, GPU, JOB, NAN, OTHER_GPU, TRAINER, Life, life

LIMITS = Limits(triage_s=600.0, budget=Budget(backoff_s=(0.0,), jitter_fraction=0.0))
DATA = Finding(verdict="data", words="img is not finite", files=("3.png",), speaks_for=("skip_data",))
NUMERICS = Finding(verdict="numerics", words="half alone", speaks_for=("amp_off", "lower_lr"), in_vain=("restart",))
ONCE = Finding(verdict="hardware", words="finite now")
ALWAYS = Finding(
    verdict="hardware", words="not on the CPU", speaks_for=("other_gpu", "cpu_profile"), in_vain=("restart",)
)


def trainee(limits: Limits = LIMITS, context: RemedyContext | None = None) -> Life:
    """A training of ultralytics that has saved something."""
    timeline = life(limits=limits)
    timeline.context = context or RemedyContext()
    timeline.training(20).says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100).says(
        ev.AgentEvent.CLAIMED, torch="2.12"
    )
    timeline.saves("a.pt", 10).silence(1).saves("b.pt", 20)
    timeline.steps(21, 40)
    return timeline


def poisoned(timeline: Life, first: int = 41) -> Life:
    """Its losses cease to be numbers, and it is ended for that."""
    timeline.steps(first, first + 2, loss=NAN).signalled()
    return timeline.exits(signal=15)


def ended(timeline: Life, finding: Finding, attempt: int | None = None) -> Life:
    item = timeline.job.triage
    assert item is not None
    number = timeline.attempt if attempt is None else attempt
    timeline.put(
        ev.TriageEnded(at=timeline.now, job=JOB, attempt=number, finding=finding, began_at=item.began_at or item.at)
    )
    return timeline


def examined(finding: Finding, context: RemedyContext | None = None, limits: Limits = LIMITS) -> Life:
    timeline = poisoned(trainee(limits, context)).looks()
    timeline.read_decisions()
    return ended(timeline.silence(30), finding)


def acts(timeline: Life) -> list[str]:
    """What was decided since this was last asked; that isolated NaNs are told first is another story."""
    return [report for report in timeline.read_decisions() if report != "Warn"]


def retry(timeline: Life) -> de.Retry:
    found = [decision for decision in timeline.decisions if isinstance(decision, de.Retry)]
    assert len(found) == 1, timeline.decisions
    return found[0]


def test_a_triage_is_made_between_the_end_of_the_attempt_and_its_retry() -> None:
    timeline = poisoned(trainee())
    assert acts(timeline) == ["Launch", "Stop", "StartTriage"], "what it replays from is looked for first"
    assert timeline.phase() is Phase.BACKOFF
    timeline.looks()
    (begun,) = timeline.decisions
    assert isinstance(begun, de.Triage)
    assert (begun.step, begun.looked_for) == (41, "loss")
    assert begun.resume_from is not None
    assert begun.resume_from.path == "b.pt"
    timeline.read_decisions()
    assert timeline.silence(300).read_decisions() == [], "nothing starts beside it"
    assert ended(timeline, DATA).read_decisions() == ["Retry"]
    assert timeline.looks().read_decisions() == ["Launch"], (
        "the resume point is looked for again: a replay may have spoilt files"
    )
    assert timeline.job.incident is not None
    assert timeline.job.incident.finding == DATA


def test_without_the_setting_none_is_made() -> None:
    timeline = poisoned(trainee(replace(LIMITS, triage_s=None)))
    assert acts(timeline) == ["Launch", "Stop", "Retry"]


def test_a_trouble_that_is_not_of_numbers_is_not_replayed() -> None:
    timeline = trainee()
    timeline.exits(1)
    assert timeline.read_decisions() == ["Launch", "Retry"]


def test_gradients_that_cease_to_be_finite_are_replayed_for_gradients() -> None:
    timeline = trainee()
    timeline.steps(41, 241, grad_norm=NAN).signalled().exits(signal=15).looks()
    begun = timeline.last
    assert isinstance(begun, de.Triage)
    assert (begun.step, begun.looked_for) == (41, "gradients")


def test_it_waits_until_the_memory_of_the_attempt_is_freed() -> None:
    timeline = life(limits=LIMITS)
    taken = RemedyContext(memory=(GpuMemory(gpu=GPU, used_bytes=5 * GB),))
    timeline.training(20).says(ev.AgentEvent.CLAIMED, torch="2.12")
    timeline.job = replace(
        timeline.job, attempt=replace(timeline.present(), memory_before=(GpuMemory(gpu=GPU, used_bytes=0),))
    )
    timeline.context = taken
    timeline.saves("b.pt", 20).steps(21, 40)
    poisoned(timeline).looks()
    assert acts(timeline) == ["Launch", "Stop", "StartTriage"]
    assert timeline.silence(30).read_decisions() == []
    timeline.context = RemedyContext()
    assert timeline.silence(1).read_decisions() == ["Triage"]


# --- what is done with the finding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "remedy", "cause"),
    [
        (DATA, "skip_data", "non_finite"),
        (NUMERICS, "amp_off", "non_finite"),
        (ONCE, "restart", "hardware"),
        (inconclusive("it ran out of time"), "skip_step", "non_finite"),
        (Finding(verdict="data_or_numerics", words="everywhere"), "skip_step", "non_finite"),
    ],
)
def test_the_finding_chooses_the_remedy(finding: Finding, remedy: str, cause: str) -> None:
    timeline = examined(finding)
    assert (retry(timeline).remedy, retry(timeline).cause) == (remedy, cause)
    assert timeline.job.incident is not None
    assert (timeline.job.incident.cause, timeline.job.incident.remedy, timeline.job.incident.finding) == (
        cause,
        remedy,
        finding,
    )


def test_a_triage_that_says_nothing_leaves_the_retry_as_it_would_have_been() -> None:
    timeline = examined(inconclusive("it did not get to the step within the 600 s of the triage"))
    without = poisoned(trainee(replace(LIMITS, triage_s=None)))
    mine, usual = retry(timeline), retry(without)
    assert (mine.remedy, mine.why, mine.cause, mine.step) == (usual.remedy, usual.why, usual.cause, usual.step)


def test_a_remedy_that_the_table_does_not_allow_is_not_taken_whatever_was_found() -> None:
    limits = replace(LIMITS, remedies=Remedies(forbid=("skip_data",)))
    assert retry(examined(DATA, limits=limits)).remedy == "skip_step"


def test_a_gpu_that_computes_wrong_is_left_for_another_or_for_the_cpu() -> None:
    other = retry(examined(ALWAYS, RemedyContext(free_gpus=(OTHER_GPU,))))
    assert (other.remedy, other.gpu) == ("other_gpu", OTHER_GPU)
    assert "triage: hardware: not on the CPU" in (other.why or "")
    assert retry(examined(ALWAYS, RemedyContext(cpu_profile=True))).remedy == "cpu_profile"


def test_a_gpu_that_always_computes_wrong_is_not_retried_in_vain() -> None:
    timeline = examined(ALWAYS)
    (last,) = timeline.decisions
    assert isinstance(last, de.GiveUp)
    assert "no remedy is left for hardware" in last.reason
    assert "triage: hardware: not on the CPU" in last.reason
    assert timeline.job.incident is not None
    assert timeline.job.incident.outcome == "gave_up"


def test_the_wait_before_a_retry_runs_while_it_is_examined() -> None:
    limits = replace(LIMITS, budget=Budget(backoff_s=(100.0,), jitter_fraction=0.0))
    timeline = examined(DATA, limits=limits)
    assert retry(timeline).not_before.seconds_since(timeline.now) == pytest.approx(70.0)


def test_the_same_place_is_not_replayed_again() -> None:
    timeline = examined(DATA)
    timeline.looks().training(20).steps(21, 40)
    timeline.read_decisions()
    poisoned(timeline)
    assert acts(timeline) == ["Stop", "Retry"]
    assert "triage: data" in (timeline.job.course.trials[-1].reason)
    assert timeline.job.incident is not None
    assert (timeline.job.incident.attempt, timeline.job.incident.finding) == (2, DATA), (
        "its owner is told the files again"
    )


def test_once_triage_is_switched_off_an_earlier_finding_counts_no_more() -> None:
    timeline = examined(DATA)
    timeline.looks().training(20).steps(21, 40)
    timeline.read_decisions()
    timeline.job = replace(timeline.job, limits=replace(LIMITS, triage_s=None))
    poisoned(timeline)
    assert acts(timeline) == ["Stop", "Retry"]
    assert "triage" not in timeline.job.course.trials[-1].reason
    assert timeline.job.incident is not None
    assert timeline.job.incident.finding is None


def test_another_place_is() -> None:
    timeline = examined(DATA)
    timeline.looks().training(20).steps(21, 60)
    timeline.read_decisions()
    poisoned(timeline, 61)
    assert acts(timeline) == ["Stop", "StartTriage"]


# --- what may come in between -----------------------------------------------------------------------------------------


def test_a_stop_waits_for_the_replay_to_be_gone_and_nothing_starts_after_it() -> None:
    timeline = poisoned(trainee()).looks()
    timeline.read_decisions()
    assert timeline.asks(ev.Ask.STOP).read_decisions() == [], "stopped means that nothing runs"
    ended(timeline, inconclusive("it was cancelled by a start of the job"))
    assert timeline.read_decisions() == ["Finish"]
    assert timeline.phase() is Phase.STOPPED
    assert timeline.asks(ev.Ask.START).looks().read_decisions() == ["Launch"]


def test_a_start_in_the_midst_of_it_ends_it_and_retries_at_once() -> None:
    limits = replace(LIMITS, budget=Budget(backoff_s=(1000.0,), jitter_fraction=0.0))
    timeline = poisoned(trainee(limits)).looks()
    timeline.read_decisions()
    timeline.asks(ev.Ask.START)
    assert timeline.job.triage is not None
    assert timeline.job.triage.unwanted
    assert timeline.read_decisions() == [], "the replay is on the card as yet"
    ended(timeline, inconclusive("it was cancelled by a start of the job"))
    assert timeline.read_decisions() == ["Retry"]
    assert timeline.looks().read_decisions() == ["Launch"]


def test_a_fresh_restart_in_the_midst_of_it_begins_again() -> None:
    timeline = poisoned(trainee()).looks()
    timeline.read_decisions()
    timeline.asks(ev.Ask.RESTART, fresh=True)
    ended(timeline, inconclusive("it was cancelled by a start of the job"))
    launch = timeline.decisions[-1]
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None


def test_no_state_to_replay_from_leaves_the_triage_out() -> None:
    timeline = life(limits=LIMITS)
    timeline.training(20).saves("a.pt", 10, verdict=None)
    timeline.saved = [replace(checkpoint, verdict=None) for checkpoint in timeline.saved]
    poisoned(timeline, 21)
    timeline.read_decisions()
    timeline.looks()
    assert "Triage" not in timeline.read_decisions()
    assert timeline.job.awaits_triage is False


def test_a_triage_that_is_forbidden_before_it_began_is_left_out() -> None:
    timeline = poisoned(trainee())
    timeline.read_decisions()
    timeline.job = replace(timeline.job, limits=replace(LIMITS, triage_s=None))
    assert timeline.silence(1).read_decisions() == ["Retry"]


def test_a_replay_that_cannot_be_killed_is_reported_once_and_nothing_starts() -> None:
    timeline = poisoned(trainee()).looks()
    timeline.read_decisions()
    assert timeline.silence(629).read_decisions() == []
    assert timeline.silence(2).read_decisions() == ["Warn"]
    assert timeline.silence(1000).read_decisions() == []
    ended(timeline, inconclusive("late"))
    assert timeline.read_decisions() == ["Retry"]


def test_word_that_comes_twice_or_for_another_attempt_changes_nothing() -> None:
    timeline = poisoned(trainee()).looks()
    timeline.read_decisions()
    assert ended(timeline, DATA, attempt=7).read_decisions() == []
    ended(timeline, DATA)
    known = timeline.job
    ended(timeline, ONCE, attempt=1)
    assert timeline.job == known


def test_a_daemon_that_is_ending_decides_nothing_of_it() -> None:
    timeline = poisoned(trainee()).looks()
    timeline.read_decisions()
    timeline.asks(ev.Ask.SHUT_DOWN)
    ended(timeline, inconclusive("it was cancelled by a start of the job"))
    assert timeline.read_decisions() == []
    assert timeline.job.awaits_triage, "the next daemon decides the retry"
