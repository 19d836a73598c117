"""What is watched: every rule says how near its limits are, or why it does not watch, and flags where it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.findings import FaultClass
from supervisor.core.gauge import Gauge
from supervisor.core.history import History
from supervisor.core.readings import Stage
from supervisor.core.rules import RULES, Rule
from supervisor.core.rules.advisory.power import Power
from supervisor.core.rules.advisory.straggler_rank import StragglerRank
from supervisor.core.rules.disk_low import DiskLow
from supervisor.core.rules.gpu_lost import GpuLost
from supervisor.core.rules.host_memory import HostMemory
from supervisor.core.rules.thermal import Thermal
from supervisor.core.rules.throughput_drop import ThroughputDrop
from supervisor.core.rules.vram_high import VramHigh
from tests.rigs.agreeing import agrees

from .long_stories import LongStory, long_story, trained
from .stories import GB, GPU, NAN, OTHER_GPU, START, story

TOUCHY: dict[str, dict[str, Any]] = {
    "stall": {"limit_s": 5.0, "output_limit_s": 20.0},
    "start_timeout": {"setup_limit_s": 15.0, "warmup_limit_s": 4.0},
    "busy_without_progress": {"hold_s": 5.0, "search_s": 8.0},
    "gpu_idle": {"hold_s": 5.0},
    "hang": {"hold_s": 5.0},
    "dead_worker": {"hold_s": 5.0},
    "lost_process": {"hold_s": 5.0},
    "vram_high": {"limit_bytes": 4 * GB, "hold_s": 0.0},
    "host_memory": {"hold_s": 0.0},
    "disk_low": {"warn_left_s": 1e9},
    "gpu_lost": {"hold_s": 5.0, "min_readings": 2},
    "ecc": {"tolerated_correctable": 3},
    "loss_spike": {"act": True, "sustained_steps": 20, "distance_factor": 8.0},
    "loss_plateau_or_divergence": {"act": True, "divergence_epochs": 1, "patience_epochs": 2},
    "checkpoint_bad": {"act": True, "limit": 1},
    "checkpoint_overdue": {"act": True, "limit_s": 30.0},
    "thermal": {"act": True, "hold_s": 0.0},
    "throttling": {"hold_s": 0.0},
    "fan": {"hold_s": 0.0},
    "power": {"hold_s": 0.0},
    "throughput_drop": {"act": True, "window_s": 60.0, "min_stretches": 2, "at_least_per_s": 3.0},
    "data_starved": {"window_s": 60.0},
    "straggler_rank": {"window_s": 60.0, "hold_s": 1.0},
    "deadline": {"at_unix_s": START.unix_s + 900.0},
    "non_finite_loss": {"tolerated": 0},
    "non_finite_grad": {"tolerated": 2, "run_steps": 4},
    "fragmentation": {"act": True},
}
"""Limits at which much of what is told below is too much."""
ALL = [rule() for rule in RULES]
ALL_TOUCHY = [rule(**TOUCHY.get(rule.name, {})) for rule in RULES]


def only(watched: tuple[Gauge, ...]) -> Gauge:
    (found,) = watched
    return found


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_of_a_training_of_which_nothing_is_known_nothing_is_near(rule: Rule) -> None:
    history = History(now=START, launched_at=START)
    for found in rule.measure(history):
        assert found.what
        assert not found.reached
        assert found.not_watched or found.limit is None or found.now == 0
    agrees(rule, history)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_of_one_that_steps_each_is_measured_or_a_condition_or_not_watched_for_a_reason(rule: Rule) -> None:
    timeline = (
        story().training(200).stage(Stage.STEP, stages_complete=True).gpu(5, busy=90.0, used=3 * GB).tree(5, cpu=99.0)
    )
    timeline.memory(5, available=20 * GB).disks(data=400 * GB)
    for found in rule.measure(timeline.history):
        assert (found.limit is None) or (found.share is not None) != (found.not_watched is not None)
        assert not found.reached


def test_each_rule_says_what_of_the_training_it_watches() -> None:
    assert {rule.group for rule in ALL} == {"steps", "losses", "gpus", "memory", "storage", "pace", "process"}


def test_each_gpu_is_measured_in_percent_or_in_the_settings_bytes() -> None:
    timeline = story().training(10).gpu(used=3 * GB)
    limit, warn = VramHigh().measure(timeline.history)
    assert (warn.now, warn.limit, limit.limit) == (50.0, 83.0, 95.0)
    found, _ = VramHigh(limit_bytes=4 * GB).measure(timeline.history)
    assert (found.unit, found.share) == ("bytes", 0.75)
    assert all(item.not_watched for item in VramHigh().measure(timeline.silence(61).history))


def test_of_memory_and_disks_it_is_what_is_left_that_counts() -> None:
    timeline = story().training(10).memory(available=16 * GB)
    found, _ = HostMemory(limit_fraction=0.25).measure(timeline.history)
    assert (found.below, found.share) == (True, 0.5)
    timeline.disks(data=400_000_000, other=4 * GB)
    limit, warn, _, _, fills, _ = DiskLow(warn_fraction=0.0).measure(timeline.history)
    assert (limit.what, limit.share, warn.reached) == ("space left on /data", 0.5, True)
    assert fills.not_watched == "it does not fill, as far as is known"


def test_a_disk_that_fills_is_watched_by_the_time_that_is_left() -> None:
    timeline = long_story().hours(1.0, per_hour=10, of="disk", start=40.0)
    _, _, fills = DiskLow().measure(timeline.history)
    assert fills.now == pytest.approx(50 / 10 * 3600, rel=0.05)
    assert (fills.limit, fills.below, fills.reached) == (7200.0, True, False)


def test_a_limit_that_is_reached_and_not_held_yet_says_for_how_long() -> None:
    timeline = trained().card(10, junction_c=112.0)
    limit, warn = Thermal().measure(timeline.history)
    assert (limit.share, limit.held_s, limit.hold_s, limit.reached) == (1.0, 10.0, 30.0, False)
    two_readings, _ = Thermal().measure(trained().card(1, junction_c=112.0).history)
    assert two_readings.held_s == 1.0
    assert (warn.share, warn.reached) == (1.0, False)
    assert all(item.reached for item in Thermal().measure(timeline.card(20, junction_c=112.0).history))


def test_nearness_counts_from_where_a_training_that_is_well_stands() -> None:
    timeline = trained().card(5, junction_c=60.0, power_w=98.0, power_cap_w=100.0)
    assert [item.share for item in Thermal().measure(timeline.history)] == [0.0, 0.0]
    assert [item.share for item in Power().measure(timeline.history)] == [0.0, 0.0]
    timeline = long_story().pace(1200, every_s=1.0)
    assert only(ThroughputDrop().measure(timeline.history)).share == 0.0
    timeline.pace(400, every_s=1.3)
    assert only(ThroughputDrop().measure(timeline.history)).share == pytest.approx((1 - 1 / 1.3) / 0.4)


def test_a_gpu_that_does_not_answer_is_near_to_be_lost() -> None:
    timeline = story(gpus_used=(GPU, OTHER_GPU)).training().gpu(5, busy=9.0).gpu(5, busy=9.0, gpu=OTHER_GPU)
    near = {item.what[:12]: item.now for item in GpuLost(min_readings=2).measure(timeline.history)}
    assert near == {GPU: 5.0, OTHER_GPU: 0.0}
    alone = story().training().gpu(5).history
    assert only(GpuLost().measure(alone)).not_watched == "there is no other GPU that answers"


def test_what_else_must_agree_is_named() -> None:
    timeline = long_story()
    for _ in range(200):
        timeline.pace(1.0, wait_s=0.5)
        timeline.now = timeline.now.plus(-1.0)
        timeline.pace(1.0, wait_s=0.5, rank=1)
    _, waiting = StragglerRank(window_s=60.0).measure(timeline.history)
    assert (waiting.share, waiting.lacks, waiting.reached) == (1.0, "that the others wait less", False)


def disks(timeline: LongStory, amount: float) -> None:
    timeline.disks(data=round(amount * 3 * GB), other=40 * GB)


def epoch(timeline: LongStory, amount: float) -> None:
    first = timeline.history.steps[-1].step + 1 if timeline.history.steps else 1
    timeline.steps(first, first + 9, loss=amount, batches=10).epoch_ends(first // 10, fitness=amount)


def losses(timeline: LongStory, loss: float) -> None:
    first = timeline.history.steps[-1].step + 1 if timeline.history.steps else 1
    timeline.steps(first, first + 39, loss=loss, grad_norm=1.0 if first % 3 else NAN)


def card(timeline: LongStory, amount: float) -> None:
    timeline.card(
        4,
        junction_c=60 + 60 * amount,
        fan_rpm=0 if amount > 0.7 else 900,
        power_w=100 + 40 * amount,
        power_cap_w=120 - 60 * amount,
        throttled_by=("thermal",) if amount > 0.5 else (),
        ecc_correctable=round(8 * amount),
        ecc_uncorrectable=round(amount),
        vram_used_bytes=round(6 * GB * amount),
        vram_total_bytes=6 * GB,
        gpu_busy_percent=100 * amount,
    )


MOVES: dict[str, Callable[[LongStory, float], object]] = {
    "usual": lambda timeline, _: losses(timeline, 1.0),
    "high": lambda timeline, amount: losses(timeline, 1.0 + 9 * amount),
    "nan": lambda timeline, _: losses(timeline, NAN),
    "slow": lambda timeline, amount: timeline.pace(130, every_s=0.2 + amount, wait_s=amount / 2),
    "rank": lambda timeline, amount: timeline.pace(130, every_s=1.0, wait_s=amount, rank=1),
    "silence": lambda timeline, amount: timeline.silence(40 * amount),
    "looked": lambda timeline, _: timeline.looked(),
    "card": card,
    "other": lambda timeline, _: timeline.gpu(4, busy=50.0, gpu=OTHER_GPU),
    "still": lambda timeline, amount: timeline.gpu(8, busy=100.0 if amount > 0.5 else 0.0),
    "tree": lambda timeline, amount: timeline.tree(8, cpu=0.0, stuck=(4242,) if amount > 0.5 else ()),
    "alive": lambda timeline, amount: timeline.alive(8, *((4242, 4250) if amount > 0.5 else (4242,))),
    "workers": lambda timeline, _: timeline.rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[4250], training=True),
    "memory": lambda timeline, amount: timeline.memory(4, available=round(6 * GB * amount), rss=20 * GB),
    "leak": lambda timeline, amount: timeline.hours(0.3, per_hour=20 * amount, of="host"),
    "allocator": lambda timeline, amount: timeline.allocator(10 * GB, reserved=23 * GB, retries=round(20 * amount)),
    "disks": disks,
    "epoch": epoch,
    "checkpoint": lambda timeline, amount: timeline.seen(
        "/a.pt", Verdict.REJECTED if amount > 0.4 else Verdict.PROVEN, "not finite" if amount > 0.7 else "cut", step=3
    ),
    "plan": lambda timeline, _: timeline.says(ev.AgentEvent.PLAN, epochs=3, batches_per_epoch=100, device="cuda:0"),
    "half": lambda timeline, _: timeline.says(ev.AgentEvent.PRECISION, asked="half", used="single"),
    "fault": lambda timeline, amount: timeline.kernel(FaultClass.PAGE_FAULT, fatal=amount > 0.5),
    "stage": lambda timeline, amount: timeline.stage(list(Stage)[round(7 * amount)], stages_complete=amount < 0.8),
    "prints": lambda timeline, _: timeline.prints("50 %"),
}


@given(moves=st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.floats(0.0, 1.0)), min_size=1, max_size=12))
def test_whatever_happens_a_rule_flags_exactly_where_what_it_watches_is_reached(moves: list[tuple[str, float]]) -> None:
    timeline = trained(20)
    for name, amount in moves:
        MOVES[name](timeline, amount)
        for rule in (*ALL, *ALL_TOUCHY):
            agrees(rule, timeline.history)
    timeline.exits(1)
    for rule in ALL_TOUCHY:
        agrees(rule, timeline.history)
