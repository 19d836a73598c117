"""What the rules cost: 8 cards, 4 jobs, every reading once a second, and 18 steps a second of each job.

    python tests/bench/rules_cost.py

One second of a daemon's judging is played over full windows (600 readings of each card, 2,048 steps) and timed by the
processor; the limit is 1 % of one core. Reading the sensors and writing the record are measured elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]  # the package of the same name that may be installed must not come first

from supervisor.core import events as ev  # noqa: E402 (after the path is set)
from supervisor.core.history import (  # noqa: E402
    READINGS_KEPT,
    STEPS_KEPT,
    History,
)
from supervisor.core.judge import judge  # noqa: E402
from supervisor.core.moments import Moment  # noqa: E402
from supervisor.core.readings import (  # noqa: E402
    DiskReading,
    GpuReading,
    HostReading,
    ProcessReading,
    Stage,
    StepRecord,
)
from supervisor.core.rules import RULES, flag_of  # noqa: E402

START = Moment(1000.0, 1_763_000_000.0)
CARDS = tuple(f"0000:{number:02x}:00.0" for number in range(3, 11))
JOBS = 4
STEPS_PER_S = 18
TICKS_PER_S = 4
SECONDS = 20
LIMIT_PERCENT = 1.0
RULES_OF_A_JOB = tuple(rule() for rule in RULES)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


class Machine:
    """Four jobs on two cards each, their windows full."""

    def __init__(self) -> None:
        self.now = START
        self.step = 0
        self.histories = [
            History(now=START, launched_at=START, gpus_used=CARDS[2 * number : 2 * number + 2])
            for number in range(JOBS)
        ]
        self._put(ev.StageEntered(at=START, job="one", attempt=1, stage=Stage.STEP, stages_complete=True))
        for _ in range(max(READINGS_KEPT, STEPS_KEPT // STEPS_PER_S) + 1):
            self.second(judged=False, stepping=True)

    def second(self, *, judged: bool, stepping: bool) -> None:
        """Let a second go by: readings, steps, ticks, each judged as the loop judges it."""
        for _ in range(TICKS_PER_S):
            self.now = self.now.plus(1 / TICKS_PER_S)
            if stepping:
                self._put(self._steps(round(STEPS_PER_S / TICKS_PER_S)))
            else:
                self._put(ev.RecorderIdle(at=self.now, job="one", attempt=1), judged=judged)
            self._put(ev.Tick(at=self.now), judged=judged)
        cards = tuple(
            GpuReading(
                at=self.now, gpu=gpu, source="sysfs", gpu_busy_percent=97.0, vram_used_bytes=4 << 30,
                vram_total_bytes=16 << 30, edge_c=70.0, junction_c=80.0, power_w=150.0,
            )
            for gpu in CARDS
        )  # fmt: skip
        disks = (DiskReading(path="/", free_bytes=1 << 40, total_bytes=1 << 41),)
        host = HostReading(
            at=self.now,
            memory_total_bytes=1 << 36,
            memory_available_bytes=1 << 35,
            disks=disks,
            memory_stall_percent=0.0,
        )
        tree = ProcessReading(at=self.now, processes=9, rss_bytes=1 << 32, cpu_percent=120.0)
        self._put(ev.GpusRead(at=self.now, readings=cards))
        self._put(ev.HostRead(at=self.now, reading=host))
        self._put(ev.ProcessesRead(at=self.now, job="one", attempt=1, reading=tree))

    def _steps(self, count: int) -> ev.StepsMade:
        records = []
        for number in range(count):
            self.step += 1
            at = self.now.plus((number - count) / STEPS_PER_S)
            records.append(
                StepRecord(at=at, step=self.step, loss=1.0, grad_norm=2.0, data_wait_s=0.001, gpu_memory_bytes=4 << 30)
            )
        return ev.StepsMade(at=self.now, job="one", attempt=1, records=tuple(records))

    def _put(self, event: ev.Event, *, judged: bool = False) -> None:
        for history in self.histories:
            history.add(event)
            if judged:
                judge(RULES_OF_A_JOB, history)


def each_us(work: Callable[[], object], rounds: int) -> float:
    """Return processor microseconds of one call, the best of five series."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(rounds):
            work()
        best = min(best, time.thread_time() - began)
    return best / rounds * 1e6


def percent(machine: Machine, *, judged: bool, stepping: bool) -> float:
    """Return the share of a core that a second of it takes."""
    began = time.thread_time()
    for _ in range(SECONDS):
        machine.second(judged=judged, stepping=stepping)
    return (time.thread_time() - began) / SECONDS * 100


def main() -> None:
    """Measure and print."""
    machine = Machine()
    history = machine.histories[0]
    say(f"{'one check, its training stepping':<40} {'us':>8}")
    for rule in RULES_OF_A_JOB:
        say(f"  {rule.name:<38} {each_us(lambda: flag_of(rule, history), 200):8.1f}")  # noqa: B023 (called at once)
    asked_us = each_us(lambda: [rule.measure(history) for rule in RULES_OF_A_JOB], 50)
    say(f"  {'what status asks of one job':<38} {asked_us:8.1f}")
    stepping = percent(machine, judged=True, stepping=True) - percent(machine, judged=False, stepping=True)
    still = percent(machine, judged=True, stepping=False)
    kept = percent(machine, judged=False, stepping=True)
    say(f"\n{len(CARDS)} cards, {JOBS} jobs, 1 Hz                      % of one core (limit {LIMIT_PERCENT:g})")
    say(f"  rules, all jobs stepping               {stepping:8.2f}")
    say(f"  rules, all jobs standing still         {still:8.2f}   (events included)")
    say(f"  keeping the window, {JOBS * STEPS_PER_S} steps a second   {kept:8.2f}   (not of the rules)")


if __name__ == "__main__":
    main()
