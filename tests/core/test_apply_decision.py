"""How a job changes with decisions."""

from __future__ import annotations

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.job import ImpossibleMove, Phase

from .stories import life


def test_a_decision_takes_effect_at_once() -> None:
    timeline = life().training().silence(60)
    assert [type(decision) for decision in timeline.decisions] == [de.Launch, de.Stop]
    assert timeline.next_decision() is None
    assert timeline.silence(1).read_decisions() == ["Launch", "Stop"]


def test_a_decision_that_comes_twice_is_a_defect_and_raises() -> None:
    timeline = life()
    with pytest.raises(ImpossibleMove):
        after_decision(timeline.job, timeline.last)


def test_the_steps_between_flag_and_end_are_part_of_what_was_lost() -> None:
    timeline = life().training(100).saves("a.pt", 50).silence(60).steps(101, 110).exits(signal=15).looks()
    assert timeline.job.incident is not None
    assert timeline.job.incident.lost_steps == 60


def test_an_attempt_without_a_step_does_not_forget_where_the_trouble_was() -> None:
    timeline = life().training(100).saves("a.pt", 50).exits(1).looks()
    timeline.asks(ev.Ask.RESTART).exits(signal=15).looks()
    assert timeline.job.number == 3
    assert timeline.job.incident is not None
    assert timeline.job.incident.last_step == 100
    assert not timeline.job.incident.closed
    assert timeline.steps(51, 51).job.incident is not None
    assert timeline.job.incident.closed


def test_an_incident_left_open_by_a_stop_is_closed_as_stopped() -> None:
    timeline = life().training().silence(60).asks(ev.Ask.STOP).exits(signal=15)
    assert timeline.job.incident is not None
    assert timeline.job.incident.outcome == "stopped"


def test_an_incident_of_a_training_without_steps_is_closed_by_its_finish_as_what_it_was_started_with() -> None:
    timeline = life().exits(signal=9).looks().exits(0)
    assert (timeline.job.phase, timeline.job.number) == (Phase.FINISHED, 2)
    assert timeline.job.incident is not None
    assert timeline.job.incident.closed
    assert (timeline.job.incident.outcome, timeline.job.incident.lost_steps) == ("restarted", None)


def test_an_incident_after_which_the_training_finished_without_a_step_keeps_what_it_was_started_from() -> None:
    timeline = life().training(100).saves("a.pt", 50).exits(signal=9).looks().exits(0)
    assert (timeline.job.phase, timeline.job.number) == (Phase.FINISHED, 2)
    assert timeline.job.incident is not None
    assert timeline.job.incident.closed
    assert (timeline.job.incident.outcome, timeline.job.incident.lost_steps) == ("resumed", 50)
