"""How long a replay of a 62-hour training takes: its steps in buckets of ten seconds, its readings once a second.

    python tests/bench/replay.py [--hours 62]

All rules are asked, as `supervisorctl replay` asks them; the limit is 60 seconds of this process's time on a processor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]  # the package of the same name that may be installed must not come first

from supervisor.core import events as ev  # noqa: E402 (after the path is set)
from supervisor.core.moments import Moment  # noqa: E402
from supervisor.core.readings import DiskReading, GpuReading, HostReading, ProcessReading, Stage  # noqa: E402
from supervisor.core.rules import RULES  # noqa: E402
from supervisor.replay.engine import replay  # noqa: E402
from supervisor.replay.recording import Recording  # noqa: E402
from supervisor.store.records import StepBucket  # noqa: E402

JOB = "long"
GPU = "0000:0a:00.0"
LAUNCH = Moment(1000.0, 1_763_000_000.0)
FIRST_STEP_S = 5.0
STEPS_PER_S = 18
BUCKET_S = 10
EPOCH_S = 4500
LIMIT_S = 60.0
HOURS = 62.0


def buckets(hours: float) -> Iterator[StepBucket]:
    """Return the steps of so many hours as the record keeps them when they are old."""
    steps = STEPS_PER_S * BUCKET_S
    for number in range(int(hours * 3600 / BUCKET_S)):
        began_s = LAUNCH.unix_s + FIRST_STEP_S + number * BUCKET_S
        loss = 1.0 + 1000.0 / (1000.0 + number)
        yield StepBucket(
            attempt=1, bucket_unix_s=int(began_s), steps=steps, step_first=1 + steps * number,
            step_last=steps * (number + 1), first_unix_s=began_s, last_unix_s=began_s + BUCKET_S - 1 / STEPS_PER_S,
            epoch=number * BUCKET_S // EPOCH_S, loss_min=0.8 * loss, loss_mean=loss, loss_max=1.3 * loss,
            loss_last=1.05 * loss, lr_last=0.01, grad_norm_max=2.0, data_wait_mean_s=0.002,
            gpu_memory_max_bytes=4 << 30, steps_per_s=float(STEPS_PER_S), non_finite=0,
        )  # fmt: skip


def facts(hours: float) -> Iterator[ev.Event]:
    """Return everything else: the launch, and each second a reading of card, machine and processes."""
    yield ev.Launched(at=LAUNCH, job=JOB, attempt=1, shim_pid=10, training_pid=11)
    yield ev.StageEntered(at=LAUNCH.plus(1.0), job=JOB, attempt=1, stage=Stage.STEP, stages_complete=True)
    disks = (DiskReading(path="/", free_bytes=1 << 40, total_bytes=1 << 41),)
    for second in range(2, int(hours * 3600)):
        at = LAUNCH.plus(second + 0.3)
        card = GpuReading(
            at=at, gpu=GPU, source="sysfs", gpu_busy_percent=97.0, vram_used_bytes=4 << 30, vram_total_bytes=6 << 30,
            edge_c=70.0 + second % 5, junction_c=80.0 + second % 7, power_w=140.0 + second % 11,
        )  # fmt: skip
        host = HostReading(
            at=at, cpu_percent=40.0, memory_total_bytes=32 << 30, memory_available_bytes=20 << 30, disks=disks,
            memory_stall_percent=0.0,
        )  # fmt: skip
        tree = ProcessReading(at=at, processes=3, rss_bytes=(3 << 30) + (second % 60 << 20), cpu_percent=120.0)
        yield ev.GpusRead(at=at, readings=(card,))
        yield ev.HostRead(at=at, reading=host)
        yield ev.ProcessesRead(at=at, job=JOB, attempt=1, reading=tree)


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS)
    given = parser.parse_args()
    recording = Recording(
        job=JOB, attempt=1, launched_at=LAUNCH, gpus_used=(GPU,), facts=list(facts(given.hours)),
        buckets=list(buckets(given.hours)),
    )  # fmt: skip
    began_s, began_wall_s = time.process_time(), time.perf_counter()
    fired = list(replay(recording, [rule() for rule in RULES]))
    took_s, wall_s = time.process_time() - began_s, time.perf_counter() - began_wall_s
    limit_s = LIMIT_S * given.hours / HOURS
    sys.stdout.write(
        f"{given.hours:g} hours at {STEPS_PER_S} steps/s, {len(recording.buckets)} buckets, {len(recording.facts)} "
        f"facts, {len(RULES)} rules, flags: {', '.join(flag.flag.rule for flag in fired) or 'none'}\n"
        f"processor time {took_s:.1f} s (limit {limit_s:.1f}: {'met' if took_s <= limit_s else 'NOT MET'}), "
        f"{wall_s:.1f} s by the clock, {given.hours * 3600 / took_s:.0f} times real speed\n"
    )
    sys.exit(took_s > limit_s)


if __name__ == "__main__":
    main()
