"""What an attempt's files hold while they cannot be read is unknown: its absence proves nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.attempt.files_read import UNREAD_KEPT
from supervisor.core.flags import Severity
from supervisor.core.judge import judge
from supervisor.core.readings import ExitStatus, Stage, StepRecord
from supervisor.core.rules import RULES
from supervisor.core.rules.advisory.straggler_rank import StragglerRank
from supervisor.core.rules.crash import Crash
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout

from .stories import JOB, OTHER_GPU, Story, story
from .test_dead_worker import PARENT, loading
from .test_gpu_lost import both

ALL_RULES = tuple(rule() for rule in RULES)


def reading(timeline: Story, part: str = fo.RECORDER, *, fails: bool) -> Story:
    """Report that a file cannot be read any more, or that it can be again."""
    error = "OSError: [Errno 5] Input/output error" if fails else ""
    place = ev.reading_place(part)
    timeline.put(
        ev.SupervisionChanged(at=timeline.now, job=JOB, attempt=1, place=place, error=error, recovered=not fails)
    )
    return timeline


def critical(timeline: Story) -> set[str]:
    return {flag.rule for flag in judge(ALL_RULES, timeline.history) if flag.severity is Severity.CRITICAL}


def test_steps_that_cannot_be_read_are_no_stall() -> None:
    timeline = reading(story().training(100).looked(), fails=True)
    assert timeline.silence(3600).check(Stall()) is None


def test_a_hang_is_found_once_the_recorder_can_be_read_again_by_all_of_its_time() -> None:
    timeline = reading(story().training(100).looked(), fails=True).silence(70)
    assert timeline.check(Stall()) is None
    flag = reading(timeline.looked(), fails=False).check(Stall())
    assert flag is not None
    assert flag.message.startswith("no step for 70 s")


def test_a_training_that_went_on_unseen_is_judged_by_its_own_last_step() -> None:
    timeline = reading(story().training(100).looked(), fails=True).silence(600)
    made = StepRecord(at=timeline.now.plus(-1), step=700, loss=1.0)
    timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(made,)))
    assert reading(timeline.looked(), fails=False).check(Stall()) is None
    assert timeline.silence(58).looked().check(Stall()) is None
    assert timeline.silence(1).looked().check(Stall()) is not None


def test_a_recorder_that_could_never_be_read_is_no_slow_start() -> None:
    timeline = reading(story().started().stage(Stage.WARMUP), fails=True)
    assert timeline.silence(3600).check(StartTimeout()) is None
    assert timeline.looked().check(StartTimeout()) is not None


def test_a_process_that_is_gone_is_found_though_its_steps_cannot_be_read() -> None:
    timeline = reading(story().training(100).looked(), fails=True).silence(5)
    timeline.put(ev.Exited(at=timeline.now, job=JOB, attempt=1, status=ExitStatus(at=timeline.now, signal=9)))
    assert "crash" in critical(timeline)


def test_an_end_with_status_0_is_no_failure_where_the_last_steps_could_not_be_read() -> None:
    planned = story().started().says(ev.AgentEvent.PLAN, epochs=9, batches_per_epoch=50)
    stepping = story().says(ev.AgentEvent.PLAN, epochs=9, batches_per_epoch=50).training(100)
    for timeline in (planned, stepping):
        reading(timeline, fails=True).exits(0)
        assert [flag.severity for flag in judge((Crash(),), timeline.history)] == [Severity.WARNING]
    assert "its recorder cannot be read" in judge((Crash(),), stepping.history)[0].message


def test_a_worker_or_a_gpu_that_is_gone_stops_nothing_whose_steps_cannot_be_read() -> None:
    without_worker, without_gpu = loading().looked(), both().looked()
    for timeline in (without_worker, without_gpu):
        reading(timeline, fails=True)
    without_worker.alive(60, 1, PARENT, 52)
    without_gpu.card(60, gpu=OTHER_GPU)
    assert critical(without_worker) == critical(without_gpu) == set()
    assert "dead_worker" in critical(reading(without_worker.looked(), fails=False))
    assert "gpu_lost" in critical(reading(without_gpu.looked(), fails=False))


def test_output_that_cannot_be_read_is_no_standing_progress_bar() -> None:
    timeline = story().started()
    timeline.put(
        ev.OutputSeen(at=timeline.now, job=JOB, attempt=1, new_bytes=9, last_line="9/10", findings=(), progress_step=9)
    )
    reading(timeline, fo.OUTPUT, fails=True).silence(3600)
    assert timeline.check(Stall()) is None
    assert timeline.check(StartTimeout()) is None
    assert reading(timeline, fo.OUTPUT, fails=False).check(Stall()) is not None


def test_a_rank_whose_recorder_cannot_be_read_is_no_straggler() -> None:
    timeline = story().training(100)
    for rank in (1, 2):
        made = StepRecord(at=timeline.now, step=100, loss=1.0)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=1, records=(made,), rank=rank))
    reading(timeline, fo.recorder_part(2), fails=True)
    for rank in (0, 1):
        made = StepRecord(at=timeline.now.plus(60), step=160, loss=1.0)
        timeline.put(ev.StepsMade(at=timeline.now.plus(60), job=JOB, attempt=1, records=(made,), rank=rank))
    assert timeline.silence(60).looked().check(StragglerRank()) is None
    flag = reading(timeline, fo.recorder_part(2), fails=False).check(StragglerRank())
    assert flag is not None
    assert "rank 2" in flag.message


def test_files_that_cannot_be_read_are_kept_up_to_a_bound_and_those_before_it_stay() -> None:
    timeline = story().training(100)
    for rank in range(UNREAD_KEPT + 9):
        reading(timeline, fo.recorder_part(rank), fails=True)
    assert list(timeline.history.files_read.unread_since) == [fo.recorder_part(rank) for rank in range(UNREAD_KEPT)]


@given(
    stage=st.sampled_from([Stage.SETUP, Stage.WARMUP, Stage.STEP, Stage.DATA_WAIT, Stage.VALIDATE, Stage.CHECKPOINT]),
    stages_complete=st.booleans(),
    steps=st.integers(0, 100),
    unread_s=st.integers(5, 20_000),
    busy=st.sampled_from([None, 0.0, 50.0, 100.0]),
    cpu=st.sampled_from([None, 0.0, 100.0]),
    stuck=st.sampled_from([(), (4242,)]),
)
def test_law_nothing_is_stopped_for_steps_that_could_not_be_read(  # noqa: PLR0917 - Hypothesis names them
    stage: Stage,
    stages_complete: bool,
    steps: int,
    unread_s: int,
    busy: float | None,
    cpu: float | None,
    stuck: tuple[int, ...],
) -> None:
    """However long, and whatever else is seen: a training that makes steps may look like that."""
    timeline = story().training(steps) if steps else story().started()
    timeline.stage(stage, stages_complete=stages_complete)
    if steps:
        timeline.looked()
    reading(timeline, fails=True)
    for _ in range(20):
        timeline.silence(unread_s / 20).gpu(busy=busy).tree(cpu=cpu, stuck=stuck, switches=0.0)
    for _ in range(20):  # with readings close enough together to be one run
        timeline.silence(5).gpu(busy=busy).tree(cpu=cpu, stuck=stuck, switches=0.0)
    assert critical(timeline) == set()
