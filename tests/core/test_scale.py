"""Steps are compared on one scale: what only an attempt counts reaches nothing that outlives the attempt."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import events as ev
from supervisor.core.apply_event import after_first_losses
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.checkpoints.loss_curve import curve_of, went_on_by_losses
from supervisor.core.job import Job, Limits, Phase
from supervisor.core.remedies.budget import Budget, Ledger
from supervisor.core.remedies.trials import Outcome
from supervisor.core.reports.progress import progress_of
from supervisor.core.scale import Place, Scale, is_beyond, lost_steps, same_place, steps_between
from supervisor.store.jobs import encode

from .stories import JOB, START, Life, life

OWN = 10_000_000
"""Numbers from here on are an attempt's own count in these stories, so that one that went astray is known."""
PLACES = st.builds(Place, st.integers(0, 1000), st.none() | st.integers(1, 3))
SCALES = st.sampled_from(["training", "attempt", "silent"])
LIMITS = Limits(budget=Budget(restarts=100, restarts_per_cause=100, restarts_per_period=1000, backoff_s=(0.0,)))


@given(place=PLACES, other=PLACES, tolerance=st.integers(0, 1000))
def test_what_lies_on_two_scales_has_no_order_and_no_distance(place: Place, other: Place, tolerance: int) -> None:
    if place.attempt == other.attempt:
        assert steps_between(place, other) == other.step - place.step
        assert is_beyond(place, other) is (place.step > other.step)
        return
    assert steps_between(place, other) is None
    assert is_beyond(place, other) is None
    assert lost_steps(place, other) is None
    assert not same_place(place, other, tolerance)


def report_scale(lived: Life, scale: str, resumed: bool | None = None) -> Life:
    """The agent says what the steps of the attempt count, or nothing."""
    if scale == "silent":
        return lived
    return lived.says(ev.AgentEvent.COUNTING, scale=scale, first=1, resumed=resumed)


def attempt(lived: Life, scale: str, first: int, steps: int) -> Life:
    """An attempt that makes steps, saves once and dies."""
    begins = (OWN if scale == "attempt" else 0) + first
    report_scale(lived.started(), scale).steps(begins, begins + steps - 1)
    return lived


def died(lived: Life) -> Life:
    return lived.exits(signal=9).looks().silence(1)


@given(
    attempts=st.lists(st.tuples(SCALES, st.integers(1, 300), st.integers(1, 40), st.booleans()), min_size=1, max_size=6)
)
def test_no_number_of_an_attempts_own_count_outlives_the_attempt(
    attempts: list[tuple[str, int, int, bool]],
) -> None:
    """Not in budget, remedies, triage, plan, incident's cost or the next attempt, whatever scales take turns."""
    lived = life(limits=LIMITS)
    for scale, first, steps, saves in attempts:
        attempt(lived, scale if lived.job.number > 1 else "silent", first, steps)
        if saves:
            place = lived.present().training_step(lived.present().last_step)
            lived.saved.append(replace(lived.saves("a.pt", 0).saved.pop(), step=place))
        lived.exits(signal=9)
        given_up = lived.phase() is Phase.FAILED
        if not given_up:
            lived.looks().silence(1)
        kept = without_own(json.loads(encode(lived.job)))
        assert not list(numbers(kept, OWN)), kept
        if given_up:
            return  # twice at the same place of the training


def without_own(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job without what says of itself that an attempt counts it, and without sentences for people."""
    for item in (job["attempt"] or {}, job["incident"] or {}):
        if item.get("scale") == Scale.ATTEMPT.value:
            for name in ("last_step", "first_step"):
                item.pop(name, None)
    for flag in ((job["incident"] or {}).get("flag"), (job["stop"] or {}).get("flag")):
        for name in ("since_step", "evidence", "message"):
            (flag or {}).pop(name, None)
    return job


def numbers(found: Any, least: int, name: str = "") -> Any:
    """Yield the numbers from `least` on, but for times and identities of files."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from numbers(value, least, key)
    elif isinstance(found, list):
        for value in found:
            yield from numbers(value, least, name)
    elif isinstance(found, int | float) and found >= least and "_s" not in name and not name.endswith("_ns"):
        yield (name, found)


# --- progress -----------------------------------------------------------------------------------------------------


def test_a_training_whose_process_counts_from_one_makes_progress_once_it_is_seeded() -> None:
    """Seven kills of a plain SGD loop: each attempt goes on from the step that its checkpoint holds."""
    lived, at = life(limits=replace(LIMITS, budget=Budget(restarts=2, restarts_per_cause=2, backoff_s=(0.0,)))), 0
    for _ in range(7):
        report_scale(lived.started(), "training", resumed=True if at else None).steps(at + 1, at + 30)
        at += 20
        lived.saves("a.pt", at).silence(1)
        died(lived)
        assert lived.job.incident is not None
        assert lived.job.incident.lost_steps == 10
    assert (lived.phase().value, lived.job.ledger.furthest_step) == ("starting", 150)


def test_steps_that_only_the_attempt_counts_are_no_progress_nor_the_lack_of_it() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 0)
    lived.saved = [replace(lived.saved[0], step=None)]
    died(lived)
    spent = lived.job.ledger
    report_scale(lived.started(), "attempt").steps(OWN, OWN + 500)
    assert lived.job.ledger == spent
    died(lived)
    assert (lived.job.ledger.in_a_row, lived.job.ledger.total) == (spent.in_a_row, spent.total + 1)
    assert lived.job.incident is not None
    assert lived.job.incident.lost_steps is None


def test_a_new_proven_checkpoint_is_progress_where_no_step_is_known() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 0)
    lived.saved = [replace(lived.saved[0], step=None)]
    died(lived)
    assert lived.job.ledger.in_a_row == 1
    report_scale(lived.started(), "attempt").steps(1, 50).saves("b.pt", 0).silence(1)
    newest = replace(lived.saved[-1], step=None)
    lived.put(ev.CheckpointSeen(at=lived.now, job=JOB, attempt=2, checkpoint=newest))
    assert lived.job.ledger.in_a_row == 0


def test_the_same_proven_step_twice_is_progress_once() -> None:
    ledger = Ledger(in_a_row=3).saved(Place(40), 100.0)
    assert (ledger.in_a_row, ledger.proven_step) == (0, 40)
    assert replace(ledger, in_a_row=2).saved(Place(40), 100.0).in_a_row == 2
    assert replace(ledger, in_a_row=2).saved(Place(41), 100.0).in_a_row == 0


def test_a_save_that_is_proven_after_a_restart_clears_only_the_restarts_before_it() -> None:
    """Proving takes time: a training that always dies at one step must not get its budget back by its first save."""
    spent = Ledger(total=3, in_a_row=3, causes=(("crash", 2), ("stall", 1)), recent_unix_s=(10.0, 20.0, 30.0))
    late = spent.saved(Place(40), 15.0)
    assert (late.in_a_row, late.proven_step) == (2, 40)
    assert late.causes == (("crash", 2), ("stall", 1))
    last = spent.saved(Place(40), 25.0)
    assert (last.in_a_row, last.causes) == (1, (("crash", 1), ("stall", 1)))
    assert spent.saved(Place(40), 31.0).in_a_row == 0


def test_a_checkpoint_from_before_the_attempt_is_no_progress_of_it() -> None:
    lived = life(limits=LIMITS)
    lived.started().saves("old.pt", 7).silence(5)
    died(lived)
    lived.started().steps(1, 3)
    lived.job = replace(lived.job, ledger=replace(lived.job.ledger, in_a_row=4))
    old = replace(lived.saved[0], verdict=Verdict.PROVEN)
    lived.put(ev.CheckpointSeen(at=lived.now, job=JOB, attempt=lived.attempt, checkpoint=old))
    assert lived.job.ledger.in_a_row == 4


def test_a_remedy_against_a_trouble_at_an_unknown_place_has_helped_after_enough_steps_of_its_own() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 0)
    lived.saved = [replace(lived.saved[0], step=None)]
    died(lived)
    report_scale(lived.started(), "attempt").steps(1, 30)
    died(lived)
    assert lived.job.course.trials[-1].step is None
    report_scale(lived.started(), "attempt").steps(1, 99)
    assert [lived.job.course.trials[-1].outcome, lived.steps(100, 101).job.course.trials[-1].outcome] == [
        Outcome.OPEN,
        Outcome.HELPED,
    ]


# --- whether it went on ----------------------------------------------------------------------------------------------


def test_a_count_that_begins_with_one_again_says_that_the_training_began_again() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 40).silence(1)
    died(lived)
    assert lived.job.incident is not None
    assert (lived.job.incident.outcome, lived.job.incident.lost_steps) == ("resumed", 10)
    lived.started().steps(1, 2)
    assert (lived.job.incident.outcome, lived.job.incident.lost_steps) == ("checkpoint_ignored", 50)
    assert lived.present().went_on is False


def test_a_second_training_of_a_process_that_resumes_is_not_reported_to_have_begun_again() -> None:
    """Of a program with several fits the first made 30 steps, the second 20; the checkpoint is of step 40."""
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 40).silence(1)
    died(lived)
    lived.started().steps(1, 30).says(ev.AgentEvent.RESUMED, path="a.pt", step=40).steps(41, 45)
    assert lived.job.incident is not None
    assert (lived.job.incident.outcome, lived.job.incident.lost_steps) == ("resumed_later", 40)


def test_a_fault_of_a_training_that_began_again_refuses_nothing_of_a_higher_step_from_before() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 40).silence(1)
    died(lived)
    lived.started().steps(1, 9).saves("b.pt", 9).steps(10, 14, loss=math.nan).saves("c.pt", 14).exits(1).silence(1)
    assert lived.phase() is Phase.BACKOFF
    lived.looks()
    verdicts = {item.path: item.verdict for item in lived.saved}
    assert verdicts == {"a.pt": Verdict.PROVEN, "b.pt": Verdict.PROVEN, "c.pt": Verdict.REJECTED}


def test_a_first_step_further_back_than_the_checkpoint_says_reports_what_was_lost() -> None:
    lived = life(limits=LIMITS)
    lived.started().steps(1, 50).saves("a.pt", 40).silence(1)
    died(lived)
    lived.started().steps(26, 27)
    assert lived.job.incident is not None
    assert (lived.job.incident.outcome, lived.job.incident.lost_steps) == ("resumed", 25)


def relaunched(losses: float, counts: str = "training", first: int = 251) -> Job:
    """A training whose loss fell from 10 to 1, and that was relaunched; nothing but its losses tells how it began."""
    lived = life(limits=LIMITS)
    lived.started().steps(1, 30, loss=10.0)
    lived.job = after_first_losses(lived.job, [10.0] * 30)
    lived.steps(31, 300, loss=1.0).saves("a.pt", 250).silence(1)
    died(lived)
    lived.job = replace(lived.job, attempt=replace(lived.present(), resume_curve=curve_of([1.0] * 200)))
    report_scale(lived.started(), counts).steps(first, first + 29, loss=losses)
    return after_first_losses(lived.job, [losses] * 30)


def test_losses_like_those_of_the_start_say_that_it_began_again() -> None:
    job = relaunched(10.0)
    assert job.attempt is not None
    assert job.incident is not None
    assert (job.attempt.went_on, job.attempt.scale, job.attempt.resumed) == (False, Scale.ATTEMPT, None)
    assert (job.incident.outcome, job.incident.lost_steps) == ("checkpoint_ignored", 300)


def test_losses_like_those_around_the_checkpoint_say_that_it_went_on() -> None:
    job = relaunched(1.0)
    assert job.attempt is not None
    assert job.incident is not None
    assert (job.attempt.went_on, job.incident.outcome, job.incident.confirmed) == (True, "resumed", True)


def test_losses_that_went_on_make_no_count_of_the_attempt_one_of_the_training() -> None:
    job = relaunched(1.0, counts="attempt")
    assert job.attempt is not None
    assert (job.attempt.went_on, job.attempt.scale) == (True, Scale.ATTEMPT)


def test_a_count_of_the_attempt_from_1_is_the_trainings_where_losses_say_that_it_began_again() -> None:
    job = relaunched(10.0, counts="attempt", first=1)
    assert job.attempt is not None
    assert (job.attempt.went_on, job.attempt.scale) == (False, Scale.TRAINING)


def test_losses_like_neither_say_nothing() -> None:
    job = relaunched(4.0)
    assert job.attempt is not None
    assert job.attempt.went_on is None
    assert went_on_by_losses(None, job.start_curve, job.start_curve) is None


def test_progress_of_an_attempt_that_counts_itself_is_its_own_and_no_share_of_the_training() -> None:
    lived = life(limits=LIMITS)
    lived.started().says(ev.AgentEvent.PLAN, epochs=2, batches_per_epoch=100).steps(1, 50)
    lived.history.scale, lived.history.first_step = Scale.ATTEMPT, 1
    progress = progress_of(lived.history)
    assert (progress.steps, progress.attempt_steps, progress.steps_total, progress.left_s) == (None, 50, None, None)
    assert lived.now.seconds_since(START) > 0


def test_what_a_restart_cost_is_not_known_where_the_training_resumed_by_itself() -> None:
    """As a JAX training with orbax, whose steps only the attempt counts: it was taken to have begun again."""
    lived = life(limits=LIMITS)
    attempt(lived, "training", 1, 60)
    died(lived)
    attempt(lived, "attempt", 1, 10)
    assert lived.job.incident is not None
    assert (lived.job.incident.lost_steps, lived.job.incident.went_on_step) == (None, None)
    again = life(limits=LIMITS)
    attempt(again, "training", 1, 60)
    died(again)
    attempt(again, "training", 1, 10)
    assert again.job.incident is not None
    assert (again.job.incident.lost_steps, again.job.incident.went_on_step) == (60, 0)
