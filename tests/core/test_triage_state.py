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
    told = life(limits=limits)
    told.context = context or RemedyContext()
    told.training(20).says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100).says(
        ev.AgentEvent.CLAIMED, torch="2.12"
    )
    told.saves("a.pt", 10).silence(1).saves("b.pt", 20)
    told.steps(21, 40)
    return told


def poisoned(told: Life, first: int = 41) -> Life:
    """Its losses cease to be numbers, and it is ended for that."""
    told.steps(first, first + 2, loss=NAN).signalled()
    return told.exits(signal=15)


def ended(told: Life, finding: Finding, attempt: int | None = None) -> Life:
    item = told.job.triage
    assert item is not None
    number = told.attempt if attempt is None else attempt
    told.put(ev.TriageEnded(at=told.now, job=JOB, attempt=number, finding=finding, began_at=item.began_at or item.at))
    return told


def examined(finding: Finding, context: RemedyContext | None = None, limits: Limits = LIMITS) -> Life:
    told = poisoned(trainee(limits, context)).looks()
    told.told()
    return ended(told.silence(30), finding)


def acts(told: Life) -> list[str]:
    """What was decided since this was last asked; that isolated NaNs are told first is another story."""
    return [report for report in told.told() if report != "Warn"]


def retry(told: Life) -> de.Retry:
    found = [decision for decision in told.decisions if isinstance(decision, de.Retry)]
    assert len(found) == 1, told.decisions
    return found[0]


def test_a_triage_is_made_between_the_end_of_the_attempt_and_its_retry() -> None:
    told = poisoned(trainee())
    assert acts(told) == ["Launch", "Stop", "StartTriage"], "what it replays from is looked for first"
    assert told.phase() is Phase.BACKOFF
    told.looks()
    (begun,) = told.decisions
    assert isinstance(begun, de.Triage)
    assert (begun.step, begun.looked_for) == (41, "loss")
    assert begun.resume_from is not None
    assert begun.resume_from.path == "b.pt"
    told.told()
    assert told.silence(300).told() == [], "nothing starts beside it"
    assert ended(told, DATA).told() == ["Retry"]
    assert told.looks().told() == ["Launch"], "the resume point is looked for again: a replay may have spoilt files"
    assert told.job.incident is not None
    assert told.job.incident.finding == DATA


def test_without_the_setting_none_is_made() -> None:
    told = poisoned(trainee(replace(LIMITS, triage_s=None)))
    assert acts(told) == ["Launch", "Stop", "Retry"]


def test_a_trouble_that_is_not_of_numbers_is_not_replayed() -> None:
    told = trainee()
    told.exits(1)
    assert told.told() == ["Launch", "Retry"]


def test_gradients_that_cease_to_be_finite_are_replayed_for_gradients() -> None:
    told = trainee()
    told.steps(41, 241, grad_norm=NAN).signalled().exits(signal=15).looks()
    begun = told.last
    assert isinstance(begun, de.Triage)
    assert (begun.step, begun.looked_for) == (41, "gradients")


def test_it_waits_until_the_memory_of_the_attempt_is_freed() -> None:
    told = life(limits=LIMITS)
    taken = RemedyContext(memory=(GpuMemory(gpu=GPU, used_bytes=5 * GB),))
    told.training(20).says(ev.AgentEvent.CLAIMED, torch="2.12")
    told.job = replace(told.job, attempt=replace(told.present(), memory_before=(GpuMemory(gpu=GPU, used_bytes=0),)))
    told.context = taken
    told.saves("b.pt", 20).steps(21, 40)
    poisoned(told).looks()
    assert acts(told) == ["Launch", "Stop", "StartTriage"]
    assert told.silence(30).told() == []
    told.context = RemedyContext()
    assert told.silence(1).told() == ["Triage"]


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
    told = examined(finding)
    assert (retry(told).remedy, retry(told).cause) == (remedy, cause)
    assert told.job.incident is not None
    assert (told.job.incident.cause, told.job.incident.remedy, told.job.incident.finding) == (cause, remedy, finding)


def test_a_triage_that_says_nothing_leaves_the_retry_as_it_would_have_been() -> None:
    told = examined(inconclusive("it did not get to the step within the 600 s of the triage"))
    without = poisoned(trainee(replace(LIMITS, triage_s=None)))
    mine, usual = retry(told), retry(without)
    assert (mine.remedy, mine.why, mine.cause, mine.step) == (usual.remedy, usual.why, usual.cause, usual.step)


def test_a_remedy_that_the_table_does_not_allow_is_not_taken_whatever_was_found() -> None:
    limits = replace(LIMITS, remedies=Remedies(forbid=("skip_data",)))
    assert retry(examined(DATA, limits=limits)).remedy == "skip_step"


def test_a_card_that_computes_wrong_is_left_for_another_or_for_the_cpu() -> None:
    other = retry(examined(ALWAYS, RemedyContext(free_gpus=(OTHER_GPU,))))
    assert (other.remedy, other.gpu) == ("other_gpu", OTHER_GPU)
    assert "triage: hardware: not on the CPU" in (other.why or "")
    assert retry(examined(ALWAYS, RemedyContext(cpu_profile=True))).remedy == "cpu_profile"


def test_a_card_that_always_computes_wrong_is_not_retried_in_vain() -> None:
    told = examined(ALWAYS)
    (last,) = told.decisions
    assert isinstance(last, de.GiveUp)
    assert "no remedy is left for hardware" in last.reason
    assert "triage: hardware: not on the CPU" in last.reason
    assert told.job.incident is not None
    assert told.job.incident.outcome == "gave_up"


def test_the_wait_before_a_retry_runs_while_it_is_examined() -> None:
    limits = replace(LIMITS, budget=Budget(backoff_s=(100.0,), jitter_fraction=0.0))
    told = examined(DATA, limits=limits)
    assert retry(told).not_before.seconds_since(told.now) == pytest.approx(70.0)


def test_the_same_place_is_not_replayed_again() -> None:
    told = examined(DATA)
    told.looks().training(20).steps(21, 40)
    told.told()
    poisoned(told)
    assert acts(told) == ["Stop", "Retry"]
    assert "triage: data" in (told.job.course.trials[-1].reason)
    assert told.job.incident is not None
    assert (told.job.incident.attempt, told.job.incident.finding) == (2, DATA), "its owner is told the files again"


def test_another_place_is() -> None:
    told = examined(DATA)
    told.looks().training(20).steps(21, 60)
    told.told()
    poisoned(told, 61)
    assert acts(told) == ["Stop", "StartTriage"]


# --- what may come in between -----------------------------------------------------------------------------------------


def test_a_stop_waits_for_the_replay_to_be_gone_and_nothing_starts_after_it() -> None:
    told = poisoned(trainee()).looks()
    told.told()
    assert told.asks(ev.Ask.STOP).told() == [], "stopped means that nothing runs"
    ended(told, inconclusive("it was cancelled by a start of the job"))
    assert told.told() == ["Finish"]
    assert told.phase() is Phase.STOPPED
    assert told.asks(ev.Ask.START).looks().told() == ["Launch"]


def test_a_start_in_the_midst_of_it_ends_it_and_retries_at_once() -> None:
    limits = replace(LIMITS, budget=Budget(backoff_s=(1000.0,), jitter_fraction=0.0))
    told = poisoned(trainee(limits)).looks()
    told.told()
    told.asks(ev.Ask.START)
    assert told.job.triage is not None
    assert told.job.triage.unwanted
    assert told.told() == [], "the replay is on the card as yet"
    ended(told, inconclusive("it was cancelled by a start of the job"))
    assert told.told() == ["Retry"]
    assert told.looks().told() == ["Launch"]


def test_a_fresh_restart_in_the_midst_of_it_begins_anew() -> None:
    told = poisoned(trainee()).looks()
    told.told()
    told.asks(ev.Ask.RESTART, fresh=True)
    ended(told, inconclusive("it was cancelled by a start of the job"))
    launch = told.decisions[-1]
    assert isinstance(launch, de.Launch)
    assert launch.resume_from is None


def test_no_state_to_replay_from_leaves_the_triage_out() -> None:
    told = life(limits=LIMITS)
    told.training(20).saves("a.pt", 10, verdict=None)
    told.saved = [replace(checkpoint, verdict=None) for checkpoint in told.saved]
    poisoned(told, 21)
    told.told()
    told.looks()
    assert "Triage" not in told.told()
    assert told.job.awaits_triage is False


def test_a_triage_that_is_forbidden_before_it_began_is_left_out() -> None:
    told = poisoned(trainee())
    told.told()
    told.job = replace(told.job, limits=replace(LIMITS, triage_s=None))
    assert told.silence(1).told() == ["Retry"]


def test_a_replay_that_cannot_be_killed_is_told_once_and_nothing_starts() -> None:
    told = poisoned(trainee()).looks()
    told.told()
    assert told.silence(629).told() == []
    assert told.silence(2).told() == ["Warn"]
    assert told.silence(1000).told() == []
    ended(told, inconclusive("late"))
    assert told.told() == ["Retry"]


def test_word_that_comes_twice_or_for_another_attempt_changes_nothing() -> None:
    told = poisoned(trainee()).looks()
    told.told()
    assert ended(told, DATA, attempt=7).told() == []
    ended(told, DATA)
    known = told.job
    ended(told, ONCE, attempt=1)
    assert told.job == known


def test_a_daemon_that_is_ending_decides_nothing_of_it() -> None:
    told = poisoned(trainee()).looks()
    told.told()
    told.asks(ev.Ask.SHUT_DOWN)
    ended(told, inconclusive("it was cancelled by a start of the job"))
    assert told.told() == []
    assert told.job.awaits_triage, "the next daemon decides the retry"
