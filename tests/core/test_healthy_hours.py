"""Hours of healthy training, told with all that is unusual and sound in them: no rule may call any of it critical."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.flags import Severity
from supervisor.core.judge import judge
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.rules import RULES

from .long_stories import LongStory
from .stories import GB, GPU, JOB, OTHER_GPU

BATCHES, EPOCHS = 900, 12
REPORTED = frozenset({"milestone", "best_metric"})


class Healthy(LongStory):
    """One training of a few hours; every ten seconds all sensors are read and all rules are asked."""

    def __init__(self, seed: int, step_s: float) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.step_s = step_s
        self.rules = tuple(rule() for rule in RULES)
        self.flags: Counter[tuple[str, Severity, str]] = Counter()
        self.read_at = self.now
        self.cached = 0.0
        self.made = 0

    def live(self, seconds: float, busy: float | None) -> None:
        """Let time pass, with readings and judgement."""
        end = self.now.plus(seconds)
        while end.seconds_since(self.now) > 0:
            self.now = self.now.plus(min(10.0, end.seconds_since(self.now)))
            self.look(busy)

    def look(self, busy: float | None) -> None:
        """Read everything once, where ten seconds have passed."""
        if self.now.seconds_since(self.read_at) < 10:
            return
        self.read_at, any_ = self.now, self.chance.random
        heat = 70 + 15 * any_()
        for gpu in (GPU, OTHER_GPU):
            reading = GpuReading(
                at=self.now,
                gpu=gpu,
                source="sysfs",
                gpu_busy_percent=busy if any_() > 0.02 else None,
                vram_used_bytes=round((3.8 + 0.3 * any_()) * GB),
                vram_total_bytes=6 * GB,
                edge_c=heat - 10,
                junction_c=heat,
                fan_rpm=round(1200 + 400 * any_()),
                power_w=150 + 12 * any_(),
                power_cap_w=160.0,
                throttled_by=("power",),
                ecc_correctable=3,
                ecc_uncorrectable=1,
            )
            self.put(ev.GpusRead(at=self.now, readings=(reading,)))
        self.cached = min(6.0, self.cached + 0.01)  # a data set that is being cached levels off
        used = round((4 + self.cached + 0.5 * any_()) * GB)
        disk = DiskReading(path="/runs", free_bytes=300 * GB - round(any_() * GB) - self.made, total_bytes=1000 * GB)
        host = HostReading(
            at=self.now, memory_total_bytes=32 * GB, memory_available_bytes=28 * GB - used, disks=(disk,)
        )
        self.put(ev.HostRead(at=self.now, reading=host))
        tree = ProcessReading(at=self.now, processes=4, rss_bytes=used, pids=(4241, 4242, 50, 51))
        self.put(ev.ProcessesRead(at=self.now, job=JOB, attempt=1, reading=tree))
        self.allocator(GB + round(any_() * 5e7), reserved=4 * GB, retries=1, total_bytes=6 * GB)
        self.put(ev.Tick(at=self.now))
        for flag in judge(self.rules, self.history):
            self.flags[(flag.rule, flag.severity, flag.message)] += 1

    def epoch(self, number: int) -> None:
        """Steps, a validation, a checkpoint; image sizes change, the last epochs see easier images."""
        self.rank_says(ev.AgentEvent.WORKERS, loader=number, pids=[50, 51], training=True)
        self.stage(Stage.STEP)
        easier = 0.8 if number >= EPOCHS - 2 else 1.0
        level = easier * (1 + 4 * math.exp(-number / 4))
        for batch in range(BATCHES):
            size = self.chance.choice((0.7, 1.0, 1.3))
            slow = 5.0 if self.chance.random() < 0.002 else 1.0
            self.now = self.now.plus(self.step_s * size * slow)
            loss = level * self.chance.lognormvariate(0, 0.25)
            nan = number == 3 and batch == 46
            self.put(
                ev.StepsMade(
                    at=self.now,
                    job=JOB,
                    attempt=1,
                    records=(
                        StepRecord(
                            at=self.now,
                            step=number * BATCHES + batch + 1,
                            epoch=number,
                            loss=math.nan if nan else loss,
                            data_wait_s=0.1 * self.step_s,
                        ),
                    ),
                )
            )
            self.look(97.0)
        self.rank_says(ev.AgentEvent.WORKERS, loader=number, pids=[], ended=True)
        self.stage(Stage.VALIDATE).live(self.chance.uniform(60, 400), 20.0)
        self.stage(Stage.CHECKPOINT).live(self.chance.uniform(1, 90), 0.0)
        self.made += 12_000_000
        self.seen("last.pt", Verdict.PROVEN, step=(number + 1) * BATCHES)
        self.says(ev.AgentEvent.CHECKPOINT_SAVED, requested=False)
        self.epoch_ends(number, fitness=0.3 + 0.02 * number, metrics={"metrics/mAP50-95(B)": 0.3 + 0.02 * number})
        self.stage(Stage.STEP)


@pytest.mark.parametrize(("seed", "step_s"), [(1, 0.06), (2, 1.2)])
def test_no_healthy_hour_raises_a_flag_but_good_news(seed: int, step_s: float) -> None:
    timeline = Healthy(seed, step_s)
    timeline.started().stage(Stage.SETUP).live(300, 0.0)
    timeline.says(ev.AgentEvent.PLAN, epochs=EPOCHS, batches_per_epoch=BATCHES, start_epoch=0, device="cuda:0")
    timeline.stage(Stage.WARMUP).live(500, 99.0)  # kernels are searched for
    for number in range(EPOCHS):
        timeline.epoch(number)
        if number == 4:  # a laptop sleeps: the monotonic clock stands, the wall clock jumps
            timeline.now = Moment(timeline.now.monotonic_s, timeline.now.unix_s + 30_000)
        if number == 7:  # the wall clock is set back
            timeline.now = Moment(timeline.now.monotonic_s, timeline.now.unix_s - 7_200)
        if number == 9:  # all sensors are silent for a while
            timeline.read_at = timeline.now.plus(200)
    seen = {(rule, severity): message for rule, severity, message in timeline.flags if rule not in REPORTED}
    assert set(seen) == {
        ("non_finite_loss", Severity.WARNING),  # the one NaN of epoch 4
        ("busy_without_progress", Severity.WARNING),  # the search for kernels
    }, seen
