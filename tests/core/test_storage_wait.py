"""Storage wait: what waits for a file system goes on when there is an answer, and what only looks like it is killed."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import SHADOW, Act
from supervisor.core.readings import KernelWait, ProcessUse, Stage, StepRecord, StorageWait
from supervisor.core.rules import RULES, Rule
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.stopped_process import StoppedProcess
from supervisor.core.rules.storage_wait import StorageWait as StorageWaitRule
from supervisor.core.stats.storage_waits import StorageWaits

from .stories import GPU, JOB, OTHER_GPU, START, Life, life, story

TRAINER, RANK, WORKER = 4242, 4243, 5000
PLACE = "/data (nfs4 of server:/export)"
HOUR_S = 3600


def wait_of(pid: int, thread: int | None = None, place: str | None = PLACE) -> StorageWait:
    return StorageWait(pid=pid, name="python", thread=thread or pid, channel="rpc_wait_bit_killable", place=place)


MAIN_WAITS: dict[str, Any] = {"stuck": (TRAINER,), "storage": (wait_of(TRAINER),), "cpu": 0.0}
WORKER_WAITS: dict[str, Any] = {"stuck": (WORKER,), "storage": (wait_of(WORKER),), "cpu": 0.0}


def training(stage: Stage = Stage.STEP, *, stages_complete: bool = True, rules: tuple[Rule, ...] | None = None) -> Life:
    """A training of one process on a GPU, in its hundredth step."""
    timeline = life(rules).started(TRAINER).claimed(TRAINER).training()
    timeline.stage(stage, stages_complete=stages_complete)
    timeline.read_decisions()
    return timeline


def flags_of(timeline: Life) -> list[tuple[str, str]]:
    """Return what was decided and by which rule."""
    return [
        (type(decision).__name__, decision.flag.rule)
        for decision in timeline.decisions
        if isinstance(decision, de.Warn | de.Stop | de.Retry) and decision.flag is not None
    ]


def stopped_by(timeline: Life) -> list[str]:
    return [rule for kind, rule in flags_of(timeline) if kind == "Stop"]


def waiting(timeline: Life, seconds: float, *, busy: float | None = None, **tree: Any) -> Life:
    """Let processes and the GPU be read for so long: every two seconds, through hours every twenty."""
    every_s = 2 if seconds < HOUR_S else 20
    for _ in range(round(seconds / every_s)):
        timeline.silence(every_s).tree(**tree)
        if busy is not None:
            timeline.gpu(busy=busy)
    return timeline


# --- it is left to go on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [Stage.STEP, Stage.DATA_WAIT, Stage.CHECKPOINT, Stage.VALIDATE, Stage.COMPILE])
def test_a_training_that_waits_for_a_server_for_an_hour_is_reported_once_and_goes_on(stage: Stage) -> None:
    timeline = waiting(training(stage), HOUR_S, busy=0.0, **MAIN_WAITS)
    assert flags_of(timeline) == [("Warn", "storage_wait")]
    (warning,) = timeline.decisions
    assert isinstance(warning, de.Warn)
    assert warning.flag.message == (
        f"process {TRAINER} (python) waits for {PLACE} (rpc_wait_bit_killable), 40 s without a step (stage "
        f"{stage.value}): it goes on when there is an answer, it is stopped after 14400 s"
    )
    assert warning.flag.diagnosis is not None
    assert warning.flag.diagnosis.causes == ("it waits for a file system, which ends when its disk or server answers",)
    timeline.tree(2, cpu=90.0).steps(101, 200)
    assert stopped_by(timeline) == []


def test_after_the_wait_a_step_has_its_usual_limit() -> None:
    timeline = waiting(training(rules=(Stall(), StorageWaitRule())), HOUR_S, **MAIN_WAITS)
    waiting(timeline, 40, cpu=0.0)
    assert stopped_by(timeline) == []
    waiting(timeline, 10, cpu=0.0)  # with the 20 s before the first reading that showed the wait
    assert stopped_by(timeline) == ["stall"]


def test_at_its_own_limit_it_is_stopped_with_what_waits() -> None:
    timeline = waiting(training(rules=(Stall(), StorageWaitRule())), 4 * HOUR_S - 60, **MAIN_WAITS)
    assert stopped_by(timeline) == []
    waiting(timeline, 80, **MAIN_WAITS)
    assert stopped_by(timeline) == ["storage_wait"]
    (stop,) = [decision for decision in timeline.decisions if isinstance(decision, de.Stop)]
    assert f"waits for {PLACE}" in stop.reason
    assert "there is no answer" in stop.reason


def test_a_start_that_waits_has_its_limit_besides() -> None:
    rules = (StartTimeout(setup_limit_s=600), StorageWaitRule())
    timeline = life(rules).started(TRAINER).claimed(TRAINER).stage(Stage.SETUP)
    waiting(timeline, HOUR_S, **MAIN_WAITS)
    waiting(timeline, 570, cpu=90.0)
    assert stopped_by(timeline) == []
    waiting(timeline, 20, cpu=90.0)
    assert stopped_by(timeline) == ["start_timeout"]


def test_one_rank_that_waits_holds_up_the_others_whose_gpus_are_busy_with_a_collective() -> None:
    timeline = life().started(4000).claimed(TRAINER, RANK).training()
    timeline.gpus_used = timeline.history.gpus_used = (GPU, OTHER_GPU)
    spinning = (ProcessUse(pid=TRAINER, name="python", rss_bytes=1, cpu_percent=100.0),)
    for waits in ({"stuck": (RANK,), "storage": (wait_of(RANK),)}, WORKER_WAITS):
        timeline.read_decisions()
        for _ in range(50):
            timeline.silence(4).gpu(busy=99.0, gpu=GPU).gpu(busy=0.0, gpu=OTHER_GPU)
            timeline.tree(**{**waits, "cpu": 100.0}, largest=spinning)
        assert stopped_by(timeline) == []
        timeline.steps(101, 120)


@pytest.mark.parametrize("stage", [Stage.DATA_WAIT, Stage.VALIDATE])
def test_a_loaders_worker_that_waits_holds_up_what_waits_for_its_batch(stage: Stage) -> None:
    assert stopped_by(waiting(training(stage), HOUR_S, busy=0.0, **WORKER_WAITS)) == []


def test_a_thread_that_waits_holds_up_what_waits_for_its_batch() -> None:
    timeline = training(stages_complete=False)
    assert stopped_by(waiting(timeline, HOUR_S, busy=0.0, cpu=0.0, storage=(wait_of(TRAINER, 4299),))) == []


def test_workers_that_wait_for_a_lock_of_one_that_waits_for_the_server_wait_with_it() -> None:
    lock = KernelWait(pid=5001, name="python", thread=5001, channel="rwsem_down_read_slowpath", switches=9)
    tree = {**WORKER_WAITS, "stuck": (WORKER, 5001), "waits": (lock,)}
    assert stopped_by(waiting(training(Stage.DATA_WAIT), HOUR_S, busy=0.0, **tree)) == []


# --- what only looks like it ------------------------------------------------------------------------------------------


def test_a_process_in_the_gpus_driver_is_stopped_as_ever_whatever_else_waits_for_a_disk() -> None:
    of_gpu = KernelWait(pid=TRAINER, name="python", thread=TRAINER, channel="amdgpu_ctx_wait_prev_fence", switches=9)
    tree = {**WORKER_WAITS, "stuck": (TRAINER, WORKER), "waits": (of_gpu,)}
    assert stopped_by(waiting(training(), 60, **tree)) == ["hang"]
    timeline = training(Stage.DATA_WAIT, rules=(Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 200, **tree)) == ["stall"]


def test_a_process_that_waits_in_the_kernel_for_something_unknown_is_stopped_as_ever() -> None:
    assert stopped_by(waiting(training(), 60, **{**WORKER_WAITS, "stuck": (TRAINER, WORKER)})) == ["hang"]
    unknown = KernelWait(pid=5001, name="python", thread=5001, channel="msleep", switches=9)
    tree = {**WORKER_WAITS, "stuck": (WORKER, 5001), "waits": (unknown,)}
    timeline = training(Stage.DATA_WAIT, rules=(Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 200, **tree)) == ["stall"]


def test_a_loader_that_waits_for_a_pipe_is_stopped_as_ever() -> None:
    timeline = training(Stage.DATA_WAIT, rules=(Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 200, cpu=0.0, switches=0.0)) == ["stall"]


def test_a_worker_that_waits_explains_no_step_that_is_under_way() -> None:
    """It had delivered the batch; in a kernel search, or in HIP, the step hangs by itself."""
    timeline = training(rules=(Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 70, **WORKER_WAITS)) == ["stall"]


@pytest.mark.parametrize(
    ("busy", "tree"),
    [
        (99.0, {}),
        (None, {"largest": (ProcessUse(pid=TRAINER, name="python", rss_bytes=1, cpu_percent=100.0),)}),
        (0.0, {"on_gpu": (TRAINER,)}),
    ],
    ids=["the GPU works", "its processor works", "it waits in the driver"],
)
def test_a_worker_that_waits_explains_nothing_while_the_training_waits_for_its_gpu(
    busy: float | None, tree: dict[str, Any]
) -> None:
    timeline = training(stages_complete=False, rules=(Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 70, busy=busy, **{**WORKER_WAITS, **tree})) == ["stall"]


def test_a_stopped_process_is_one_whoever_else_waits() -> None:
    timeline = training(rules=(StoppedProcess(continue_first=False), Stall(), StorageWaitRule()))
    assert stopped_by(waiting(timeline, 60, **{**WORKER_WAITS, "stopped": (TRAINER,)})) == ["stopped_process"]


def test_what_reads_a_disk_now_and_then_lengthens_the_limit_by_that_share_alone() -> None:
    timeline = training(rules=(Stall(), StorageWaitRule()))
    for _ in range(20):
        timeline.silence(2).tree(**MAIN_WAITS).silence(2).tree(cpu=0.0)
    assert stopped_by(timeline) == []
    for _ in range(15):
        timeline.silence(2).tree(**MAIN_WAITS).silence(2).tree(cpu=0.0)
    assert stopped_by(timeline) == ["stall"]


def test_a_wait_whose_readings_cease_is_taken_to_last_for_a_minute_at_most() -> None:
    timeline = waiting(training(rules=(Stall(), StorageWaitRule())), 60, **MAIN_WAITS)
    timeline.silence(115)
    assert stopped_by(timeline) == []
    timeline.silence(10)
    assert stopped_by(timeline) == ["stall"]


# --- settings, and what is learned ------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"enabled": False}, {"act": SHADOW}])
def test_switched_off_it_has_the_limits_of_any_standstill(setting: dict[str, Any]) -> None:
    timeline = training(rules=(Stall(), StorageWaitRule(**setting)))
    assert stopped_by(waiting(timeline, 70, **MAIN_WAITS)) == ["stall"]


def test_without_the_right_to_act_it_is_left_alone_for_ever() -> None:
    act: Act = False
    timeline = waiting(training(rules=(Stall(), StorageWaitRule(act=act))), 5 * HOUR_S, **MAIN_WAITS)
    assert flags_of(timeline) == [("Warn", "storage_wait")]
    (warning,) = timeline.decisions
    assert isinstance(warning, de.Warn)
    assert warning.flag.message.endswith("it is left alone")


def test_a_training_whose_steps_are_not_seen_may_wait_for_hours_of_a_day_but_not_for_hours_at_a_time() -> None:
    """All its waits since its launch come to more than the limit, where it waits in every second reading."""
    timeline = life((StorageWaitRule(limit_s=600.0),)).started(TRAINER)
    for _ in range(40):
        timeline.silence(20).tree(**MAIN_WAITS).silence(20).tree(cpu=90.0)
    assert flags_of(timeline) == []
    flags = flags_of(waiting(timeline, 640, **MAIN_WAITS))
    assert flags[:2] == [("Warn", "storage_wait"), ("Stop", "storage_wait")]


def test_steps_of_a_rank_are_progress_on_a_node_that_has_no_rank_0() -> None:
    timeline = life((StorageWaitRule(),)).started(TRAINER)
    for step in range(1, 60):
        timeline.silence(20).tree(**MAIN_WAITS).silence(5)
        record = StepRecord(at=timeline.now, step=step)
        timeline.put(ev.StepsMade(at=timeline.now, job=JOB, attempt=timeline.attempt, rank=1, records=(record,)))
    assert flags_of(timeline) == []


def test_a_step_that_waited_teaches_nothing_about_steps() -> None:
    timeline = waiting(training(), 120, **MAIN_WAITS)
    learned = timeline.history.learned.plain()
    timeline.tree(cpu=90.0).steps(101, 101)
    assert timeline.history.learned.plain() == learned
    timeline.steps(102, 102)
    assert timeline.history.learned.plain() != learned


def test_steps_that_each_wait_for_a_disk_for_a_while_are_counted_and_learned_from() -> None:
    timeline = training(Stage.DATA_WAIT, rules=(Stall(), StorageWaitRule()))
    idle_s, learned = timeline.history.pace.idle_s, timeline.history.learned.stages[Stage.STEP].total
    for step in range(101, 111):
        timeline.tree(10, **WORKER_WAITS).steps(step, step)
    assert timeline.history.pace.idle_s == idle_s
    assert timeline.history.learned.stages[Stage.STEP].total - learned == 10
    assert flags_of(timeline) == []


def test_the_time_that_the_daemon_did_not_run_is_no_wait() -> None:
    timeline = story().started(TRAINER).training().tree(10, **MAIN_WAITS)
    timeline.away(600)
    assert timeline.history.storage.own == ()
    assert timeline.history.no_step_s == pytest.approx(0.0, abs=0.1)
    timeline.silence(30)
    assert timeline.history.no_step_s == pytest.approx(30.0, abs=0.1)


def test_every_rule_together_leaves_a_wait_alone() -> None:
    timeline = training(Stage.DATA_WAIT, rules=tuple(rule() for rule in RULES))
    assert stopped_by(waiting(timeline, HOUR_S, busy=0.0, switches=0.0, **WORKER_WAITS)) == []


def test_spans_are_counted_once_and_only_within_what_is_asked() -> None:
    waits = StorageWaits()
    for second in range(10):
        waits.add(START.plus(second), (wait_of(TRAINER),))
    waits.add(START.plus(10), ())
    waits.add(START.plus(20), (wait_of(TRAINER),))
    assert waits.unbroken_s(START.plus(25)) == 5
    assert waits.seconds(START, START.plus(15)) == 10
    assert waits.seconds(START.plus(5), START.plus(8)) == 3
    assert waits.seconds(START.plus(5), START.plus(25)) == 10
    assert waits.seconds(START.plus(25), START.plus(20)) == 0
    waits.add(START.plus(200), (wait_of(TRAINER),))
    assert waits.unbroken_s(START.plus(201)) == 1, "nothing was read for longer than a reading is current"
    assert waits.seconds(START.plus(20), START.plus(200)) == 60


def test_a_wait_is_named_as_far_as_it_is_known() -> None:
    assert wait_of(7, place=None).words == "process 7 (python) waits for a file system (rpc_wait_bit_killable)"
    assert wait_of(7, 9).words == f"process 7 (python), thread 9, waits for {PLACE} (rpc_wait_bit_killable)"


def test_of_many_that_wait_the_first_are_named() -> None:
    waits = tuple(wait_of(pid) for pid in (TRAINER, *range(5000, 5004)))
    timeline = story().started(TRAINER).training().stage(Stage.DATA_WAIT)
    flag = timeline.tree(31, storage=waits, stuck=(TRAINER,)).check(StorageWaitRule())
    assert flag is not None
    assert "process 5001 (python) waits for" in flag.message
    assert "process 5002" not in flag.message
    assert "and 2 more, 31 s without a step" in flag.message
    timeline.put(ev.Exited(at=timeline.now, job=JOB, attempt=1, status=story().exits(0).history.exit))  # type: ignore[arg-type] # it has one
    assert timeline.check(StorageWaitRule()) is None
