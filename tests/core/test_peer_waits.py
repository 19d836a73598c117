"""Peers' waits: while another node of the training waits for its storage, this one's ranks stand still with it."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import decisions as de
from supervisor.core.flags import SHADOW
from supervisor.core.peers import PeerWait
from supervisor.core.readings import KernelWait, ProcessUse, Stage, StorageWait
from supervisor.core.rules import RULES, Rule
from supervisor.core.rules.idle_job import IdleJob
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.rules.stopped_process import StoppedProcess
from supervisor.core.rules.storage_wait import StorageWait as StorageWaitRule
from supervisor.core.stats.storage_waits import StorageWaits

from .stories import START, Life, life, story
from .test_stall import fed
from .test_storage_wait import HOUR_S, MAIN_WAITS, TRAINER, flags_of, stopped_by, training, wait_of, waiting

TWO: tuple[Rule, ...] = (Stall(), StorageWaitRule())
LONG_S = 1000
"""Longer than any limit on silence but that of a validation."""


def while_peers_wait(timeline: Life, seconds: float, *, busy: float | None = None, **tree: Any) -> Life:
    """Let another node wait for so long, which is reported every four seconds, as what is read here."""
    for _ in range(round(seconds / 4)):
        timeline.silence(4).peers_wait("n1")
        if tree:
            timeline.tree(**tree)
        if busy is not None:
            timeline.gpu(busy=busy)
    return timeline


@pytest.mark.parametrize("stage", [Stage.STEP, Stage.DATA_WAIT, Stage.CHECKPOINT, Stage.VALIDATE, Stage.COMPILE])
@pytest.mark.parametrize("busy", [0.0, 99.0], ids=["gloo", "nccl"])
def test_a_training_whose_other_node_waits_for_long_is_reported_once_and_goes_on(stage: Stage, busy: float) -> None:
    timeline = while_peers_wait(training(stage), LONG_S, busy=busy, cpu=busy, switches=0.0)
    assert flags_of(timeline) == [("Warn", "storage_wait")]
    (warning,) = timeline.decisions
    assert isinstance(warning, de.Warn)
    assert warning.flag.message == (
        f"node n1: process 7 (python) waits for /data (nfs4), 32 s without a step (stage {stage.value}): "
        "it goes on when there is an answer, it is stopped after 14400 s"
    )
    assert warning.flag.diagnosis is not None
    assert warning.flag.diagnosis.causes == ("it waits for a file system, which ends when its disk or server answers",)
    timeline.peers_wait().tree(2, cpu=90.0).steps(101, 200)
    assert stopped_by(timeline) == []


def test_a_limit_of_rest_that_was_learned_does_not_count_it_either() -> None:
    timeline = fed().tree(10, cpu=0.2)
    for _ in range(30):
        timeline.peers_wait("n1").tree(4, cpu=0.2)
        assert timeline.check(Stall()) is None
    flag = timeline.peers_wait().tree(5, cpu=0.2).check(Stall())
    assert flag is not None
    assert flag.message == "no step for 15 s in stage data_wait (learned limit at rest 15 s), last step 1299"


def test_once_the_other_nodes_wait_is_over_a_step_has_its_usual_limit() -> None:
    timeline = while_peers_wait(training(rules=TWO), LONG_S)
    timeline.peers_wait()
    timeline.silence(55)  # with the 4 s before the first report
    assert stopped_by(timeline) == []
    timeline.silence(2)
    assert stopped_by(timeline) == ["stall"]


def test_at_the_limit_of_its_own_rule_it_is_stopped_with_the_node_that_waits() -> None:
    timeline = while_peers_wait(training(rules=(Stall(), StorageWaitRule(limit_s=600.0))), 600)
    assert stopped_by(timeline) == []
    timeline.silence(4).peers_wait("n1")
    assert stopped_by(timeline) == ["storage_wait"]
    (stop,) = [decision for decision in timeline.decisions if isinstance(decision, de.Stop)]
    assert "node n1: process 7 (python) waits for /data" in stop.reason


def test_a_start_in_which_another_node_waits_has_its_limit_besides() -> None:
    rules = (StartTimeout(setup_limit_s=600), StorageWaitRule())
    timeline = life(rules).started(TRAINER).claimed(TRAINER).stage(Stage.SETUP)
    while_peers_wait(timeline, LONG_S).peers_wait()
    timeline.silence(590)
    assert stopped_by(timeline) == []
    timeline.silence(10)
    assert stopped_by(timeline) == ["start_timeout"]


def test_steps_while_another_node_waits_are_steps() -> None:
    timeline = training(rules=TWO)
    for step in range(101, 200):
        timeline.peers_wait("n1").steps(step, step, 20.0)
    assert flags_of(timeline) == []


def test_a_job_whose_steps_are_not_seen_is_not_idle_while_another_node_waits() -> None:
    timeline = life((IdleJob(act=True), StorageWaitRule())).started(TRAINER)
    timeline.gpus_used = timeline.history.gpus_used = ()
    while_peers_wait(timeline, 600, cpu=0.0, switches=0.0)
    assert flags_of(timeline) == [("Warn", "storage_wait")]
    waiting(timeline, 330, cpu=0.0, switches=0.0)
    assert stopped_by(timeline) == ["idle_job"]


# --- what excuses nothing ---------------------------------------------------------------------------------------------


def test_a_report_counts_for_five_seconds_only() -> None:
    timeline = training(rules=TWO)
    timeline.peers_wait("n1").silence(64)
    assert stopped_by(timeline) == []
    assert timeline.history.storage.find_peers(timeline.now) == ()
    timeline.silence(1.1)
    assert stopped_by(timeline) == ["stall"]


@pytest.mark.parametrize("breaks", [False, True], ids=["without a break", "with breaks"])
def test_a_node_that_waits_for_ever_excuses_a_standstill_no_longer_than_the_limit(*, breaks: bool) -> None:
    """Whatever the rule may do: what another node reports cannot be verified here."""
    timeline = training(rules=(Stall(), StorageWaitRule(act=False, limit_s=600.0)))
    began = timeline.now
    while not stopped_by(timeline) and timeline.now.seconds_since(began) < HOUR_S:
        timeline.silence(2).peers_wait("n1")
        if breaks and round(timeline.now.monotonic_s) % 60 < 2:
            timeline.peers_wait().silence(1)
    assert stopped_by(timeline) == ["stall"]
    assert timeline.now.seconds_since(began) == pytest.approx(660.0, abs=20.0)
    (warning,) = [decision for decision in timeline.decisions if isinstance(decision, de.Warn)]
    assert warning.flag.message.endswith("the limits of a standstill hold after 600 s")


@pytest.mark.parametrize("act", [False, True])
def test_two_nodes_that_wait_in_turn_are_ended_by_the_total_limit(*, act: bool) -> None:
    """Each alone waits for ten seconds only, and both together for ever."""
    timeline = training(rules=(Stall(), StorageWaitRule(act=act, limit_s=600.0)))
    began = timeline.now
    while not stopped_by(timeline) and timeline.now.seconds_since(began) < HOUR_S:
        waiting(timeline.tree(**MAIN_WAITS).peers_wait(), 10, **MAIN_WAITS)
        while_peers_wait(timeline.peers_wait("n1").tree(cpu=0.0), 12, cpu=0.0)
    assert stopped_by(timeline) == ["storage_wait" if act else "stall"]
    assert timeline.now.seconds_since(began) < (700 if act else 1500)


def test_what_waits_here_too_is_left_alone_without_end_where_that_is_set() -> None:
    timeline = training(rules=(Stall(), StorageWaitRule(act=False, limit_s=600.0)))
    assert stopped_by(while_peers_wait(timeline, LONG_S, **MAIN_WAITS)) == []


@pytest.mark.parametrize("setting", [{"enabled": False}, {"act": SHADOW}])
def test_switched_off_it_has_the_limits_of_any_standstill(setting: dict[str, Any]) -> None:
    timeline = training(rules=(Stall(), StorageWaitRule(**setting)))
    assert stopped_by(while_peers_wait(timeline, 70)) == ["stall"]


def test_a_process_in_this_nodes_gpu_driver_is_stopped_as_ever_whichever_node_waits() -> None:
    of_gpu = KernelWait(pid=TRAINER, name="python", thread=TRAINER, channel="amdgpu_ctx_wait_prev_fence", switches=9)
    timeline = while_peers_wait(training(), 60, stuck=(TRAINER,), waits=(of_gpu,), cpu=0.0)
    assert stopped_by(timeline) == ["hang"]


def test_a_stopped_process_on_this_node_is_one_whichever_node_waits() -> None:
    timeline = training(rules=(StoppedProcess(continue_first=False), *TWO))
    assert stopped_by(while_peers_wait(timeline, 60, stopped=(TRAINER,), cpu=0.0)) == ["stopped_process"]


def test_the_time_that_the_daemon_did_not_run_is_no_wait() -> None:
    timeline = story().started(TRAINER).training().peers_wait("n1")
    timeline.away(600)
    assert timeline.history.storage.find_peers(timeline.now) == ()
    assert timeline.history.no_step_s == pytest.approx(0.0, abs=0.1)


def test_a_step_that_waited_for_another_node_teaches_nothing_about_steps() -> None:
    timeline = while_peers_wait(training(), 120)
    learned, idle_s = timeline.history.learned.plain(), timeline.history.pace.idle_s
    timeline.peers_wait().steps(101, 101)
    assert timeline.history.learned.plain() == learned
    assert timeline.history.pace.idle_s - idle_s == pytest.approx(120.0, abs=0.1)


# --- what a node without rank 0 reports of its own --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "used", "waits"),
    [(0.0, 0.0, True), (None, 0.0, True), (99.0, 0.0, False), (0.0, 100.0, False)],
    ids=["it waits for its batch", "its GPU is not read", "its GPU works", "its processor works"],
)
def test_a_workers_wait_is_one_of_its_rank_where_neither_gpu_nor_processor_works(
    busy: float | None, used: float, *, waits: bool
) -> None:
    """No stage is known there. A rank in a collective of RCCL, which waits for others, has its GPU at full load."""
    timeline = story().started(4000).claims(2, TRAINER).rank_steps(2, 1, 10)
    if busy is not None:
        timeline.gpu(busy=busy)
    largest = (ProcessUse(pid=TRAINER, name="python", rss_bytes=1, cpu_percent=used),)
    timeline.tree(storage=(wait_of(5000),), stuck=(5000,), largest=largest)
    assert timeline.history.storage.own == ((wait_of(5000),) if waits else ())


def test_what_other_nodes_wait_for_is_none_of_its_own() -> None:
    """Else two nodes could keep up each other's wait for ever."""
    assert story().started(TRAINER).claims(2, TRAINER).peers_wait("n0").tree().history.storage.own == ()


# --- how both are counted ---------------------------------------------------------------------------------------------


def test_what_waits_here_and_there_is_counted_once_and_named_both() -> None:
    waits = StorageWaits()
    for second in range(0, 20, 2):
        waits.add(START.plus(second), (wait_of(TRAINER),))
    waits.add(START.plus(20), ())
    for second in range(10, 30):
        waits.add_peers(START.plus(second), (PeerWait(node="n1", words="process 7 waits"),))
    waits.add_peers(START.plus(30), ())
    assert waits.seconds(START, START.plus(60)) == 30
    assert waits.seconds(START.plus(15), START.plus(25)) == 10
    assert waits.excused_s(START, START.plus(60), 1000.0) == 30
    assert waits.excused_s(START, START.plus(60), 4.0) == 24
    assert waits.unbroken_s(START.plus(30)) == 30
    assert waits.unbroken_s(START.plus(31)) == 0


def test_who_waits_here_is_named_before_other_nodes() -> None:
    timeline = story().started(TRAINER).training().tree(31, storage=(wait_of(TRAINER),), stuck=(TRAINER,))
    flag = timeline.peers_wait("n1", "n2", "n3").check(StorageWaitRule())
    assert flag is not None
    assert flag.message.startswith(f"process {TRAINER} (python) waits for /data (nfs4 of server:/export)")
    assert "; node n2: process 7 (python) waits for /data (nfs4) and 1 more, 31 s without a step" in flag.message


def test_every_rule_together_leaves_another_nodes_wait_alone() -> None:
    timeline = training(Stage.DATA_WAIT, rules=tuple(rule() for rule in RULES))
    assert stopped_by(while_peers_wait(timeline, LONG_S, busy=0.0, cpu=0.0, switches=0.0)) == []


# --- helpers of other ranks on one node -------------------------------------------------------------------------------


@pytest.mark.parametrize(("parent", "stopped"), [(4243, []), (4242, ["stall"]), (None, ["stall"])])
def test_a_worker_explains_a_step_under_way_where_it_serves_another_rank(
    parent: int | None, stopped: list[str]
) -> None:
    """Rank 0 computes its step until the gradients of all ranks are in, and one of them waits for its batch."""
    timeline = life(TWO).started(4000).claimed(4242, 4243).training()
    timeline.stage(Stage.STEP, stages_complete=True)
    timeline.read_decisions()
    of_worker = StorageWait(pid=5000, name="python", thread=5000, channel="rpc_wait_bit_killable")
    parents = () if parent is None else ((5001, parent), (5000, 5001))
    waiting(timeline, 120, stuck=(5000,), storage=(of_worker,), cpu=0.0, parents=((4242, 4000), *parents))
    assert stopped_by(timeline) == stopped
