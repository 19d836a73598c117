"""A program that finds and loads its checkpoints by itself, whether they can be verified or not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import LOADS_ITSELF, OTHER_FORMATS, ResumePoint, Verdict
from supervisor.core.job import Phase

from .stories import JOB, Life, life
from .test_start_failure import raises

OTHER = min(OTHER_FORMATS)


def crashed() -> Life:
    """It has made steps and saved a file of its own format, has crashed, and its resume point is looked for."""
    timeline = life().started().steps(1, 100).saves("a.ubj", 100, Verdict.REJECTED, OTHER)
    timeline.silence(1).exits(1).silence(600)
    assert timeline.phase() is Phase.BACKOFF
    return timeline.looks(loads_itself=True)


def newest_launch(timeline: Life) -> de.Launch:
    return [decision for decision in timeline.decisions if isinstance(decision, de.Launch)][-1]


def test_it_is_launched_again_without_a_file_and_the_reason_says_what_is_not_proven() -> None:
    timeline = crashed()
    launch = newest_launch(timeline)
    assert (launch.attempt, launch.resume_from, launch.loads_itself, launch.reason) == (2, None, True, LOADS_ITSELF)
    assert timeline.present().loads_itself


def test_an_attempt_that_loads_itself_is_the_present_and_not_the_next() -> None:
    timeline = crashed()
    job = timeline.job
    assert job.attempt is not None
    assert (job.loads_itself(job.attempt.number), job.loads_itself(job.attempt.number + 1)) == (True, False)


def test_what_it_saved_before_is_its_own_still_where_it_fails_again_before_it_saves() -> None:
    """A launch from the beginning would overwrite what it goes on from."""
    timeline = crashed().started().steps(101, 140)
    timeline.exits(1).silence(600).looks(loads_itself=True)
    launch = newest_launch(timeline)
    assert (launch.attempt, launch.loads_itself) == (3, True)


def test_a_start_from_the_beginning_is_one_where_a_person_asks_for_it() -> None:
    timeline = crashed().started().steps(101, 140).exits(1).silence(1)
    timeline.asks(ev.Ask.START, fresh=True)
    launch = newest_launch(timeline)
    assert (launch.attempt, launch.resume_from, launch.loads_itself) == (3, None, False)


# --- where its newest save ends each start ---------------------------------------------------------------------------


def fails_at_start(timeline: Life, *moved: str, kind: str = "OpError") -> Life:
    """It fails before its first step with what it loads; the search then finds what is to be moved for it."""
    return finds_own(raises(timeline, kind, "not an sstable (bad magic number)"), *moved)


def finds_own(timeline: Life, *moved: str) -> Life:
    """The search finds what the program loads by itself, and what is to be moved where it is to do without that."""
    plan = timeline.job.retry
    if timeline.phase() is not Phase.BACKOFF or plan is None:
        return timeline
    timeline.silence(max(plan.not_before.seconds_since(timeline.now), 0) + 0.1)
    point = ResumePoint(checkpoint=None, possible=True, reason=LOADS_ITSELF, loads_itself=True)
    if moved and plan.blamed_unix_s is not None:
        point = replace(point, newer=moved, stand_in=timeline.saved[0])
    timeline.put(ev.ResumePointFound(at=timeline.now, job=JOB, attempt=timeline.attempt, point=point))
    return timeline


def test_a_program_that_fails_twice_with_what_it_saved_last_is_started_without_that() -> None:
    timeline = fails_at_start(crashed(), "b.ubj")
    assert newest_launch(timeline).set_aside == (), "the first time may be a chance"
    launched_at = timeline.present().launched_at
    fails_at_start(timeline, "b.ubj")
    launch = newest_launch(timeline)
    assert (launch.set_aside, launch.stand_in, launch.loads_itself) == (("b.ubj",), timeline.saved[0], True)
    assert launch.reason == f"{LOADS_ITSELF}; moved aside, so that it finds the save before: b.ubj"
    assert launched_at.unix_s < launch.at.unix_s
    timeline.started().steps(51, 90)
    assert timeline.phase() is Phase.RUNNING


def test_one_that_fails_without_it_too_is_given_up_and_what_was_moved_is_named() -> None:
    timeline = crashed()
    for _ in range(3):
        fails_at_start(timeline, "b.ubj")
    assert timeline.phase() is Phase.FAILED
    assert timeline.job.reason is not None
    assert "in the same way without b.ubj, which was moved aside: a file that the program reads" in timeline.job.reason


def test_one_that_crashes_by_now_one_signal_now_another_is_started_without_it_once() -> None:
    """LightGBM reads a model that was cut short into SIGSEGV or SIGABRT."""
    timeline, moved = crashed(), []
    for signal in (11, 6, 11, 6, 11):
        timeline.started().silence(2).exits(signal=signal)
        finds_own(timeline, "b.ubj")
        moved.append(newest_launch(timeline).set_aside)
    assert moved == [(), ("b.ubj",), (), (), ()]


@pytest.mark.parametrize(
    "kind", ["ModuleNotFoundError: No module named 'timm'; OpError", "ConnectionError: timed out; OpError"]
)
def test_a_start_that_fails_by_something_else_moves_nothing(kind: str) -> None:
    timeline = crashed()
    for _ in range(2):
        fails_at_start(timeline, "b.ubj", kind=kind)
    assert all(launch.set_aside == () for launch in timeline.decisions if isinstance(launch, de.Launch))


# --- where it went on ------------------------------------------------------------------------------------------------


def went_on(timeline: Life) -> tuple[int | None, int | None]:
    """The step that the newest incident's next attempt went on from, and the steps that it lost."""
    incident = timeline.job.incident
    assert incident is not None
    assert (incident.outcome, incident.resumed_from) == ("restarted", None)
    return incident.went_on_step, incident.lost_steps


def test_before_its_first_step_it_is_not_known_where_it_goes_on() -> None:
    assert went_on(crashed().started()) == (None, None)


def test_its_first_step_shows_where_it_went_on_and_what_that_cost() -> None:
    assert went_on(crashed().started().steps(81, 90)) == (80, 20)


def test_a_first_step_of_1_shows_that_it_loaded_nothing() -> None:
    assert went_on(crashed().started().steps(1, 10)) == (0, 100)


def test_steps_of_which_only_the_attempts_own_count_is_known_show_nothing() -> None:
    timeline = crashed().started().says(ev.AgentEvent.COUNTING, scale="attempt", first=1)
    assert went_on(timeline.steps(1, 10)) == (None, None)


def test_one_that_named_no_checkpoints_shows_it_by_its_steps_too() -> None:
    timeline = life().started().steps(1, 100).silence(1).exits(1).silence(600).looks()
    assert not newest_launch(timeline).loads_itself
    assert went_on(timeline.started().steps(81, 90)) == (80, 20)


# --- its own choice in place of the checkpoint that was chosen -------------------------------------------------------


def spoilt() -> Life:
    """Its weights became NaN after step 100; it saved them at step 110, and is launched to go on from step 100."""
    timeline = life().started().steps(1, 100).saves("/runs/epoch_4.pt", 100).silence(5)
    timeline.steps(101, 105, loss=math.nan).saves("/runs/epoch_5.pt", 110).silence(5).exits(1).silence(600).looks()
    launch = newest_launch(timeline)
    assert launch.resume_from is not None
    assert (launch.attempt, launch.resume_from.path) == (2, "/runs/epoch_4.pt")
    return timeline.started()


def loads(timeline: Life, path: str, first: int) -> Life:
    return timeline.says(ev.AgentEvent.COUNTING, scale="training", first=first, resumed=True, path=path)


def test_another_file_that_it_loads_than_it_was_given_is_named_with_its_step() -> None:
    incident = loads(spoilt(), "/runs/epoch_5.pt", 111).steps(111, 112).job.incident
    assert incident is not None
    assert (incident.outcome, incident.own_file, incident.went_on_step) == ("resumed", "/runs/epoch_5.pt", 110)


@pytest.mark.parametrize(
    ("path", "first"), [("/runs/epoch_4.pt", 90), ("/runs/epoch_4.pt/model", 90), ("/new.pt", 101)]
)
def test_a_file_of_what_it_was_given_and_a_copy_of_it_elsewhere_are_what_was_chosen(path: str, first: int) -> None:
    incident = loads(spoilt(), path, first).steps(first, first + 1).job.incident
    assert incident is not None
    assert (incident.outcome, incident.own_file, incident.went_on_step) == ("resumed", None, None)


def test_spoilt_weights_that_it_loads_by_itself_are_given_up_with_what_to_change() -> None:
    """Each further attempt would load them again, and each remedy would look as if it had not helped."""
    timeline = loads(spoilt(), "/runs/epoch_5.pt", 111).steps(111, 116, loss=math.nan).silence(5).exits(1).silence(5)
    assert timeline.phase() is Phase.FAILED
    given_up = [decision for decision in timeline.decisions if isinstance(decision, de.GiveUp)]
    assert [decision.attempt for decision in given_up] == [2]
    assert (
        "loaded /runs/epoch_5.pt by itself, whose weights are spoilt, in place of /runs/epoch_4.pt"
        in given_up[0].reason
    )
    assert (
        "have resume.command take {checkpoint}, set resume.set_newer_aside, or move that file away"
        in given_up[0].reason
    )


def test_weights_that_become_nan_later_are_met_as_ever() -> None:
    timeline = loads(spoilt(), "/runs/epoch_5.pt", 111).steps(111, 140).steps(141, 146, loss=math.nan).silence(5)
    timeline.exits(1).silence(5)
    assert timeline.phase() is not Phase.FAILED
