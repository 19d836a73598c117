"""How long a whole job has rested, and how long it may by what was learned; it flags nothing.

A wait for data and a validation are given much longer than they ever took, for a machine may be under load. Load makes
slow, not idle: where no process of the job works, and no card of it, less silence is proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from supervisor.core.history import History
from supervisor.core.readings import GpuReading, ProcessReading
from supervisor.core.rules.standstill import IDLE_PERCENT, machine_gasps
from supervisor.core.series import R, lasted_s, run_of

RESTS_CPU_PERCENT = 3.0
"""Of one processor, all processes of the job together."""


def resting_limit_s(history: History, cap_s: float) -> float | None:
    """Return the limit learned for the present stage in seconds of rest, at most `cap_s`.

    None where the stage has none, too little is known, or rest would prove nothing: where stages may go untold, and
    where the machine gasps for memory.
    """
    if not (history.hooked and history.whole) or machine_gasps(history) or history.learned_limit_s(cap_s) is None:
        return None
    return history.learned.limit_s(history.stage, cap_s, resting=True)


def rested_s(history: History) -> float:
    """Return for how many seconds no process of the job, and no card of it, has done anything since its last sign."""
    since, cards = history.quiet_since(), history.readings_by_gpu()
    unseen = not cards or any(gpu not in cards for gpu in history.gpus_used)
    if since is None or (history.device != "cpu" and unseen):
        return 0.0

    def run(readings: Iterable[R], rests: Callable[[R], bool | None]) -> float:
        return lasted_s(run_of(readings, lambda one: one.at.seconds_since(since) >= 0 and rests(one), history.now))

    return min([run(history.processes, _rests), *(run(readings, _card_rests) for readings in cards.values())])


def _rests(reading: ProcessReading) -> bool | None:
    if reading.uninterruptible_pids:  # who waits for a disk, or a server's file system, may wait for its load
        return False
    return None if reading.cpu_percent is None else reading.cpu_percent <= RESTS_CPU_PERCENT


def _card_rests(reading: GpuReading) -> bool | None:
    return None if reading.gpu_busy_percent is None else reading.gpu_busy_percent <= IDLE_PERCENT
