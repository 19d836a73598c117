"""A rule in shadow concludes as ever; what it would have acted on is noted once a trouble and touches nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.findings import FaultClass
from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge
from supervisor.core.job import Phase
from supervisor.core.judge import judge, merge_critical
from supervisor.core.readings import Stage
from supervisor.core.rules import ACTING, ADVISORIES
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall

from .stories import NAN, START, life, story


def test_what_would_have_stopped_the_job_is_noted_once_while_it_stands() -> None:
    timeline = life([Stall(act="shadow")]).training()
    timeline.read_decisions()
    timeline.silence(60).silence(60).silence(60)
    assert timeline.read_decisions() == ["Note"]
    assert timeline.phase() is Phase.RUNNING
    assert timeline.job.incident is None


def test_a_trouble_that_comes_back_is_noted_again() -> None:
    timeline = life([Stall(act="shadow")]).training(100).silence(61).steps(101, 102).silence(61)
    assert timeline.read_decisions().count("Note") == 2
    assert timeline.job.shadows_noted == 2


def test_another_rule_acts_next_to_it_and_owes_it_nothing() -> None:
    timeline = life([NonFiniteLoss(act="shadow"), Stall()]).training(100)
    timeline.steps(101, 103, loss=NAN).silence(60)
    decision = timeline.last
    assert isinstance(decision, de.Stop)
    assert decision.flag is not None
    assert decision.flag.rule == "stall"
    assert decision.flag.since is None


def test_warnings_of_a_rule_in_shadow_are_reported_as_ever() -> None:
    timeline = life([NonFiniteLoss(act="shadow")]).training(100)
    timeline.read_decisions()
    timeline.steps(101, 101, loss=NAN)
    assert timeline.read_decisions() == ["Warn"]


def test_a_crash_in_shadow_is_noted_and_not_retried() -> None:
    timeline = life([Crash(act="shadow")]).training(100)
    timeline.read_decisions()
    timeline.exits(1)
    assert timeline.read_decisions() == ["Note", "GiveUp"]


def test_the_next_attempt_notes_its_own_troubles() -> None:
    timeline = life([Stall(act="shadow"), Crash()]).training().silence(61).exits(signal=9).looks()
    timeline.training().silence(61)
    assert timeline.read_decisions().count("Note") == 2


def test_the_mark_is_judges_own_and_worst_overlooks_it() -> None:
    timeline = story().training().silence(60)
    (flag,) = judge([Stall(act="shadow")], timeline.history)
    assert (flag.severity, flag.shadow) == (Severity.CRITICAL, True)
    assert merge_critical([flag]) is None
    (flag,) = judge([Stall()], timeline.history)
    assert not flag.shadow


@pytest.mark.parametrize(("before", "after", "promoted"), [("shadow", True, 1), ("shadow", False, 0), (False, True, 0)])
def test_only_leaving_the_shadow_to_act_is_a_promotion(before: Act, after: Act, promoted: int) -> None:
    changed = ev.RuleChanged(at=START, job="night", rule="stall", before=before, after=after)
    assert changed.promoted == bool(promoted)


def test_every_stage_is_judged_in_shadow_too() -> None:
    timeline = life([Stall(act="shadow")]).training().stage(Stage.VALIDATE).silence(3600)
    assert timeline.read_decisions()[-1] == "Note"


def test_how_near_a_limit_is() -> None:
    assert Gauge(what="", now=15, limit=60).share == 0.25
    assert Gauge(what="", now=90, limit=60).share == 1.0
    assert Gauge(what="", now=400, limit=100, below=True).share == 0.25
    assert Gauge(what="", now=0, limit=100, below=True).share == 1.0
    assert Gauge(what="", now=None, limit=60).share is None
    assert Gauge(what="", now=1, limit=60, not_watched="it ended").share is None


MOVES = st.lists(
    st.sampled_from(
        ["steps", "nan", "silence", "idle", "busy", "stuck", "full", "fault", "validate", "compile", "exit"]
    ),
    min_size=1,
    max_size=25,
)


@given(moves=MOVES)
def test_with_every_rule_in_shadow_nothing_that_happens_stops_a_training(moves: list[str]) -> None:
    shadowed = [rule(act="shadow") for rule in ACTING]  # type: ignore[call-arg]  # `act` is a field of each
    timeline = life([*shadowed, *(rule() for rule in ADVISORIES)]).training(20)
    step = 20
    for move in moves:
        match move:
            case "steps" | "nan":
                timeline.steps(step + 1, step + 5, loss=NAN if move == "nan" else 1.0)
                step += 5
            case "silence":
                timeline.silence(4000)
            case "idle" | "busy":
                timeline.gpu(60, busy=0.0 if move == "idle" else 99.0, every_s=5.0)
            case "stuck":
                timeline.tree(60, cpu=0.0, stuck=(4242,), every_s=5.0)
            case "full":
                timeline.gpu(30, used=6_000_000_000, every_s=5.0)
            case "fault":
                timeline.kernel(FaultClass.GPU_HANG)
            case "validate" | "compile":
                timeline.stage(Stage(move), stages_complete=True)
            case "exit":
                timeline.exits(1)
                break
    assert {type(decision) for decision in timeline.decisions} <= {de.Launch, de.Note, de.Warn, de.GiveUp}
    assert timeline.job.incident is None
