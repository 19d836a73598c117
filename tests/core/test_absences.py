"""Time in which the daemon did not run proves nothing of a training, and hides nothing for longer than it lasted."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.attempt.absences import ABSENCES_KEPT, Absences, moved_on
from supervisor.core.findings import FaultClass
from supervisor.core.flags import Severity
from supervisor.core.judge import judge
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.rules import RULES
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout

from .stories import JOB, START, Story, life, story

ALL_RULES = tuple(rule() for rule in RULES)


def flagged(timeline: Story) -> set[tuple[str, int]]:
    return {(flag.rule, flag.severity.value) for flag in judge(ALL_RULES, timeline.history)}


def test_a_machine_that_stood_still_is_no_stall() -> None:
    timeline = story().training(100).silence(1).away(3600).looked()
    assert timeline.check(Stall()) is None
    assert timeline.silence(58).looked().check(Stall()) is None


def test_one_that_hung_is_found_once_its_limit_has_run_out_after_that() -> None:
    flag = story().training(100).silence(1).away(3600).silence(59).looked().check(Stall())
    assert flag is not None
    assert flag.message.startswith("no step for 60 s")


def test_absences_that_come_again_and_again_hide_no_hang() -> None:
    timeline = story().training(100)
    for _ in range(59):
        assert timeline.away(2).silence(1).looked().check(Stall()) is None
    assert timeline.away(2).silence(1).looked().check(Stall()) is not None


def test_a_training_that_went_on_meanwhile_is_judged_by_its_own_last_step() -> None:
    """The daemon alone was stopped: half of its absence lies after the last step that it reads then."""
    timeline = story().training(100)
    made = StepRecord(at=timeline.now.plus(300), step=101, loss=1.0)
    timeline.away(600).put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(made,)))
    assert timeline.history.no_step_s == 0.0
    assert timeline.silence(59).check(Stall()) is None
    assert timeline.silence(1).check(Stall()) is not None


def test_a_start_has_its_whole_time() -> None:
    timeline = story().started().stage(Stage.SETUP).silence(1000).away(5000)
    assert timeline.silence(799).check(StartTimeout()) is None
    assert timeline.silence(1).check(StartTimeout()) is not None


def test_a_step_that_the_daemon_was_away_in_is_not_learned() -> None:
    timeline = story().training(100).stage(Stage.STEP, stages_complete=True).steps(101, 1300, 0.1)
    limit_s = timeline.history.learned.limit_s(Stage.STEP, 60.0)
    for step in range(1301, 1340):
        timeline.away(30).steps(step, step, 0.1)
    assert timeline.history.learned.limit_s(Stage.STEP, 60.0) == limit_s


def test_a_fault_that_the_kernel_reported_meanwhile_is_acted_on_at_once() -> None:
    timeline = story().training(100).away(600).kernel(FaultClass.GPU_RESET)
    assert ("gpu_fault", Severity.CRITICAL.value) in flagged(timeline)


def test_the_time_to_end_is_what_the_training_could_use() -> None:
    timeline = life().training().asks(ev.Ask.STOP).signalled().silence(20).away(600)
    assert not [decision for decision in timeline.decisions if isinstance(decision, de.Kill)]
    timeline.silence(29)
    assert not [decision for decision in timeline.decisions if isinstance(decision, de.Kill)]
    timeline.silence(1)
    assert isinstance(timeline.last, de.Kill)
    assert timeline.silence(9).away(600).job.unkillable is False
    assert timeline.silence(1).job.unkillable is True


@example(
    stage=Stage.SETUP, stages_complete=False, before_s=15, after_s=15, away_s=5.0, busy=None, cpu=None, stuck=(4242,)
)  # fmt: skip
@example(
    stage=Stage.STEP, stages_complete=True, before_s=15, after_s=15, away_s=5.0, busy=0.0, cpu=None, stuck=()
)  # fmt: skip
@example(
    stage=Stage.STEP, stages_complete=True, before_s=25, after_s=20, away_s=5.0, busy=100.0, cpu=None, stuck=()
)  # fmt: skip
@given(
    stage=st.sampled_from([Stage.SETUP, Stage.WARMUP, Stage.STEP, Stage.DATA_WAIT, Stage.VALIDATE, Stage.CHECKPOINT]),
    stages_complete=st.booleans(),
    before_s=st.integers(0, 80),
    after_s=st.integers(0, 80),
    away_s=st.floats(1, 100_000),
    busy=st.sampled_from([None, 0.0, 100.0]),
    cpu=st.sampled_from([None, 0.0, 100.0]),
    stuck=st.sampled_from([(), (4242,)]),
)
def test_law_an_absence_adds_no_flag(  # noqa: PLR0917 - Hypothesis names them
    stage: Stage,
    stages_complete: bool,
    before_s: int,
    after_s: int,
    away_s: float,
    busy: float | None,
    cpu: float | None,
    stuck: tuple[int, ...],
) -> None:
    """Whatever is concluded with an absence in the midst of a silence is concluded without it as well."""

    def tell(away_s: float) -> Story:
        timeline = story().training(100).stage(stage, stages_complete=stages_complete)
        for seconds in (before_s, after_s):
            for _ in range(seconds // 5):
                timeline.gpu(busy=busy).tree(cpu=cpu, stuck=stuck, switches=0.0).silence(5).looked()
            if away_s:
                timeline, away_s = timeline.away(away_s), 0.0
        return timeline

    assert flagged(tell(away_s)) <= flagged(tell(0.0))


@given(
    spans=st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 100)), max_size=20),
    since_s=st.floats(0, 2000),
    length_s=st.floats(0, 2000),
)
def test_law_what_counts_and_what_does_not_are_the_whole_time(
    spans: list[tuple[float, float]], since_s: float, length_s: float
) -> None:
    absences, at, away = Absences(), START, 0.0
    since, until = START.plus(since_s), START.plus(since_s + length_s)
    for present_s, away_s in spans:
        begun, at = at.plus(present_s), at.plus(present_s + away_s)
        absences.add(ev.DaemonAway(at=at, away_s=away_s))
        first, last = max(begun.monotonic_s, since.monotonic_s), min(at.monotonic_s, until.monotonic_s)
        away += max(0.0, last - first)
    assert absences.seconds(since, until) == pytest.approx(length_s - away, abs=1e-6)


def test_they_are_bounded() -> None:
    absences = Absences()
    for number in range(ABSENCES_KEPT + 10):
        absences.add(ev.DaemonAway(at=START.plus(10 * number), away_s=1.0))
    assert absences.seconds(START.plus(-100), START.plus(10 * ABSENCES_KEPT + 90)) == 10 * ABSENCES_KEPT + 190 - 1024


def test_a_moment_is_moved_on_by_what_of_an_absence_lies_after_it_and_keeps_its_wall_time() -> None:
    away = ev.DaemonAway(at=START.plus(100), away_s=60)
    assert [moved_on(START.plus(s), away).monotonic_s - START.monotonic_s for s in (10, 40, 70, 100, 130)] == [
        70,
        100,
        100,
        100,
        130,
    ]
    assert moved_on(START, away).unix_s == START.unix_s
