"""How long a whole job has rested, and how long it may by what was learned.

A wait for data and a validation are given much more time than they ever took, for a machine may be under load. Load
makes slow, not idle: where no process and no GPU of the job works, a shorter time is proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, ProcessReading
from supervisor.core.rules.standstill import IDLE_PERCENT, machine_gasps
from supervisor.core.stats.holds import R, run_of

RESTS_CPU_PERCENT = 3.0
"""Of one processor, all processes of the job together."""
STOPPED_SLACK_S = 5.0
"""A process that was stopped within so long after the last step made none for that reason alone."""
RESTS_SWITCHES_PER_S = 5.0
"""Of all threads together: timers of progress bars and monitors wake a few times a minute."""


def resting_limit_s(history: History, cap_s: float) -> float | None:
    """Return the limit learned for the present stage in seconds of rest, at most `cap_s`.

    None where the stage has none, too little is known, or rest would prove nothing: where not every stage is reported,
    and where the machine is short of memory.
    """
    if (
        not (history.hooked and history.stages_complete)
        or machine_gasps(history)
        or history.learned_limit_s(cap_s) is None
    ):
        return None
    return history.learned.limit_s(history.stage, cap_s, resting=True)


def stopped_s(history: History) -> float:
    """Return for how many seconds some process of the job has been stopped (state T), since the last progress."""
    since = history.no_step_since() or history.launched_at
    run = run_of(
        history.processes,
        lambda process: process.at.seconds_since(since) >= 0 and bool(process.stopped_pids),
        history.now,
    )
    return history.lasted_s(run) - (history.excused_s(run[0].at, run[-1].at) if run else 0.0)


def was_stopped_throughout(history: History) -> bool:
    """Whether some process was stopped in every reading since the last progress, but for its first seconds."""
    since = history.no_step_since() or history.launched_at
    later = [reading for reading in history.processes if reading.at.seconds_since(since) >= STOPPED_SLACK_S]
    return bool(later) and all(reading.stopped_pids for reading in later)


def awaits_outside(history: History) -> bool:
    """Whether what trains will be woken from outside of the job, by the newest reading of its processes."""
    return bool(history.processes) and _is_woken(history, history.processes[-1])


def _is_woken(history: History, reading: ProcessReading) -> bool:
    """Whether a process that trains, or a worker of its loaders, sleeps by a timer or waits for a peer's answer.

    Ranks are peers of each other on other nodes, and of several each may wait for one that hangs: peers are no excuse
    there. Where it is not known who trains, any process may.
    """
    trains = _list_trainers(history)
    draws = trains | _list_workers(history) if trains else set(reading.pids or reading.timed_pids + reading.asking_pids)
    asks = () if len(history.reports.rank_pids) > 1 else reading.asking_pids
    return not draws.isdisjoint((*reading.timed_pids, *asks))


def _list_trainers(history: History) -> set[int]:
    pids = {*history.reports.rank_pids.values()}
    return pids if history.training_pid is None else pids | {history.training_pid}


def _list_workers(history: History) -> set[int]:
    return {pid for loader in history.reports.loaders.values() for pid in loader.pids}


def whole_job_rested_s(history: History) -> float:
    """Return for how many seconds nothing in the whole job ran, and nothing in it could wake what trains.

    Apart from the processor and the GPUs: threads were hardly scheduled, unlike those that wait for a disk or read from
    a network, the training has no child that it could be waiting for, and it waits for nothing outside of the job.
    Unknown is no rest.
    """
    since = history.no_step_since() or history.launched_at
    workers, trains = _list_workers(history), _list_trainers(history)

    def still(process: ProcessReading) -> bool | None:
        if process.switches_per_s is None and process.cpu_percent is None:
            return None
        waited_for = any(parent in trains and pid not in workers | trains for pid, parent in process.parents)
        runs = process.switches_per_s is None or process.switches_per_s > RESTS_SWITCHES_PER_S
        woken = runs or waited_for or _is_woken(history, process)
        return not woken and process.at.seconds_since(since) >= 0 and bool(_is_resting(process))

    if history.has_unread_gpus:
        return 0.0
    return min([_lasted_s(history, history.processes, still), *_gpus_rested_s(history, since)])


def find_last_sign(history: History) -> Moment:
    """Return when the job last made a step or printed something; where neither is known, its launch."""
    signs = [moment for moment in (history.no_step_since(), history.output_at) if moment is not None]
    return max(signs, key=lambda moment: moment.monotonic_s, default=history.launched_at)


def idle_s(history: History) -> float:
    """Return for how many seconds nothing of the job has run and nothing was printed; unknown is in use."""
    since = find_last_sign(history)
    if history.has_unread_gpus:
        return 0.0

    def still(process: ProcessReading) -> bool | None:
        if process.switches_per_s is None:
            return None if process.cpu_percent is None else False
        rests = process.switches_per_s <= RESTS_SWITCHES_PER_S and bool(_is_resting(process))
        return rests and process.processes > 0 and process.at.seconds_since(since) >= 0

    return min([_lasted_s(history, history.processes, still), *_gpus_rested_s(history, since)])


def quiet_s(history: History) -> float:
    """Return for how many seconds no processor time was taken, nothing was printed and no GPU was seen to work.

    Less than `idle_s`: a launcher that wakes to look after its ranks is quiet. What no sensor tells is not work.
    """
    since = find_last_sign(history)

    def quiet(reading: ProcessReading) -> bool | None:
        return reading.at.seconds_since(since) >= 0 and reading.processes > 0 and _is_resting(reading)

    def works(reading: GpuReading) -> bool:
        return reading.at.seconds_since(since) >= 0 and _is_gpu_resting(reading) is False

    if any(works(reading) for readings in history.readings_by_gpu().values() for reading in readings):
        return 0.0
    return _lasted_s(history, history.processes, quiet)


def rested_s(history: History) -> float:
    """Return for how many seconds no process of the job, and no GPU of it, has done anything since its last sign."""
    since, gpus = history.no_step_since(), history.readings_by_gpu()
    unseen = not gpus or any(gpu not in gpus for gpu in history.gpus_used)
    if since is None or (history.device != "cpu" and unseen):
        return 0.0

    def run(readings: Iterable[R], rests: Callable[[R], bool | None]) -> float:
        return _lasted_s(history, readings, lambda item: item.at.seconds_since(since) >= 0 and rests(item))

    def still(process: ProcessReading) -> bool | None:
        return False if _is_woken(history, process) else _is_resting(process)

    return min([run(history.processes, still), *(run(readings, _is_gpu_resting) for readings in gpus.values())])


def _lasted_s(history: History, readings: Iterable[R], holds: Callable[[R], bool | None]) -> float:
    """Return how long a run lasts, without the time in which the job rests as another node waits for its storage."""
    run = run_of(readings, holds, history.now)
    return history.lasted_s(run) - (history.excused_s(run[0].at, run[-1].at) if run else 0.0)


def _gpus_rested_s(history: History, since: Moment) -> list[float]:
    """Return for how many seconds each GPU of the job has done nothing, since a moment."""

    def still(reading: GpuReading) -> bool | None:
        return reading.at.seconds_since(since) >= 0 and _is_gpu_resting(reading)

    return [_lasted_s(history, readings, still) for readings in history.readings_by_gpu().values()]


def _is_resting(reading: ProcessReading) -> bool | None:
    # Who waits for a disk, or a server's file system, may wait for its load.
    if reading.uninterruptible_pids or reading.served_pids:
        return False
    return None if reading.cpu_percent is None else reading.cpu_percent <= RESTS_CPU_PERCENT


def _is_gpu_resting(reading: GpuReading) -> bool | None:
    return None if reading.gpu_busy_percent is None else reading.gpu_busy_percent <= IDLE_PERCENT
