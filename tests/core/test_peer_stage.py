"""The stage of a training on a node without rank 0: that of rank 0, as long as the leader passes it on."""

from __future__ import annotations

from typing import TypeVar

import pytest

from supervisor.core.gauge import Gauge
from supervisor.core.job import Phase
from supervisor.core.readings import Stage
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.storage_wait import StorageWait as StorageWaitRule

from .stories import Story, life, story
from .test_storage_wait import TRAINER, stopped_by

RULE = StartTimeout()
S = TypeVar("S", bound=Story)


def node_without_rank_0() -> Story:
    """A node whose first rank is the training's third."""
    return story().started().claims(2, TRAINER)


def while_rank_0_is_in(timeline: S, stage: Stage, seconds: int, *, stepped: bool = False) -> S:
    """Let rank 0 be in a stage on another node for so long, which is reported every second."""
    for second in range(1, seconds + 1):
        timeline.silence(1).peer_stage(stage, float(second), stepped=stepped)
    return timeline


def gauge_of(timeline: Story) -> Gauge:
    (gauge,) = RULE.measure(timeline.history)
    return gauge


def test_its_stage_is_that_of_rank_0_while_reports_of_it_are_fresh() -> None:
    timeline = node_without_rank_0()
    found = [timeline.history.training_stage]
    timeline.peer_stage(Stage.VALIDATE, 7.0, stepped=True)
    for silent_s in (5, 0.1):
        found.append(timeline.silence(silent_s).history.training_stage)
    assert found == [None, Stage.VALIDATE, None]
    assert timeline.history.stage is None, "no stage of its own: nothing is judged by its steps"


def test_a_start_has_the_limit_of_the_stage_in_which_rank_0_is() -> None:
    timeline = while_rank_0_is_in(node_without_rank_0().silence(1000), Stage.WARMUP, 599)
    assert timeline.check(RULE) is None
    flag = while_rank_0_is_in(timeline, Stage.STEP, 1).check(RULE)
    assert flag is None, "a new stage begins"
    flag = while_rank_0_is_in(timeline, Stage.WARMUP, 600).check(RULE)
    assert flag is not None
    assert flag.message == "no first step after 600 s in stage warmup (limit 600 s)"


def test_a_setup_of_rank_0_counts_from_the_launch_as_on_its_own_node() -> None:
    timeline = while_rank_0_is_in(node_without_rank_0(), Stage.SETUP, 1799)
    assert timeline.check(RULE) is None
    assert while_rank_0_is_in(timeline, Stage.SETUP, 1).check(RULE) is not None


def test_the_first_step_of_rank_0_ends_the_watch_of_a_start_though_no_step_is_seen_here() -> None:
    timeline = while_rank_0_is_in(node_without_rank_0(), Stage.STEP, 1, stepped=True)
    assert timeline.silence(9999).check(RULE) is None
    assert not timeline.history.starting


def test_a_leader_that_is_gone_leaves_a_start_the_longest_limit_from_what_was_known_last_and_no_more() -> None:
    """Whoever waits for whom: without news a start ends by its own node's limit."""
    timeline = while_rank_0_is_in(node_without_rank_0().silence(1700), Stage.WARMUP, 50)
    assert timeline.silence(1740).check(RULE) is None
    assert gauge_of(timeline).limit == RULE.setup_limit_s
    assert timeline.silence(11).check(RULE) is not None


def test_a_stage_of_a_compiled_loop_on_another_node_is_no_start_that_takes_long() -> None:
    assert while_rank_0_is_in(node_without_rank_0(), Stage.LOOP, 2000).check(RULE) is None


def test_reports_that_were_on_their_way_for_longer_or_less_are_of_one_stage() -> None:
    timeline = node_without_rank_0().silence(100)
    for second, delay_s in enumerate((0.0, 0.4, 0.1, 0.3), start=1):
        timeline.silence(1).peer_stage(Stage.WARMUP, second - delay_s)
    assert gauge_of(timeline).now == 4.0


def test_no_silence_is_judged_by_the_stage_of_another_node() -> None:
    """Its steps are seen there alone: a rank that waits for it here makes none while it validates."""
    timeline = life().started().claims(2, TRAINER).rank_steps(2, 1, 50)
    while_rank_0_is_in(timeline, Stage.STEP, 2000, stepped=True)
    assert stopped_by(timeline) == []
    (gauge,) = Stall().measure(timeline.history)
    assert (gauge.what, gauge.not_watched) == ("no step, in stage step", "the node of rank 0 watches its steps")


@pytest.mark.parametrize("stepped", [False, True])
def test_the_job_runs_once_rank_0_has_made_a_step(*, stepped: bool) -> None:
    timeline = life().started().claims(2, TRAINER).peer_stage(Stage.STEP, 1.0, stepped=stepped)
    assert timeline.job.phase is (Phase.RUNNING if stepped else Phase.STARTING)


def test_the_time_in_which_this_daemon_did_not_run_ends_what_is_known_of_the_stage() -> None:
    timeline = node_without_rank_0().peer_stage(Stage.WARMUP, 1.0)
    timeline.away(600)
    found = [timeline.history.training_stage, timeline.peer_stage(Stage.WARMUP, 601.0).history.training_stage]
    assert found == [None, Stage.WARMUP]


def test_a_wait_for_storage_names_the_stage_of_rank_0() -> None:
    timeline = node_without_rank_0().rank_steps(2, 1, 50)
    for _ in range(10):
        timeline.silence(4).peer_stage(Stage.CHECKPOINT, 4.0, stepped=True).peers_wait("n0")
    flag = timeline.check(StorageWaitRule())
    assert flag is not None
    assert "without a step (stage checkpoint)" in flag.message


def test_the_stage_of_rank_0_on_this_node_is_its_own_whatever_else_is_reported() -> None:
    timeline = story().started().stage(Stage.SETUP).peer_stage(Stage.VALIDATE, 1.0, stepped=True)
    assert timeline.history.training_stage is Stage.SETUP
    assert timeline.history.starting
