"""What may be behind a training that makes no step, in words, by what GPUs and processes showed.

Sources in brackets are public threads, and the recorded nights of November 2025.
"""

from __future__ import annotations

from supervisor.core.flags import Diagnosis
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ProcessReading, Stage
from supervisor.core.remedies.miopen import miopen_fails
from supervisor.core.rules.lost_process import find_lost_training
from supervisor.core.stats.holds import FRESH_S, newest_of

BUSY_PERCENT = 90.0
IDLE_PERCENT = 1.0
MEMORY_GASPS_PERCENT = 20.0
"""Share of time in which some process waits for memory, beyond which no pause proves anything."""

_SPINNING = (
    "a kernel that never ends, or a queue that the driver lost "
    "(robust-thermal-image-object-detection, 14 and 15 November 2025; ROCm#2533)"
)
_SEARCH = "MIOpen searches for a kernel and finds none that works on this GPU (ROCm/MIOpen#1995)"
_LOADER = (
    "the data loader is stuck: a dead or deadlocked worker, storage that does not answer (ultralytics#20415: freezes "
    "at random epochs, GPU at 0 %)"
)
_USERPTR = (
    "pinned memory of forked loader workers keeps the driver busy: `amdgpu_amdkfd_restore_userptr_worker hogged CPU` "
    "in the kernel's log (robust-thermal-image-object-detection, 14 November 2025)"
)
_DRIVER = "it waits in the kernel, most likely in the GPU's driver: signals do not reach it (ROCm#2533)"
_STORAGE = "it waits for a file system, which ends when its disk or server answers"
_DEADLOCK = "threads or ranks wait for one another (NCCL#1730: a collective hangs and every rank reports well)"

_LOST = "it was killed, or crashed in native code, and the program that started it, such as a process manager, stays"
_STOPPED = "something has stopped the process: SIGSTOP, a debugger, a freezer of its cgroup"
_HELD = "the process was stopped, by SIGSTOP or with a debugger (state T)"
THAW = "it goes on once its control group is thawed: `docker unpause`, `systemctl thaw`"
_FROZEN = "its control group was frozen: `docker pause`, `systemctl freeze`, a suspended job of a batch system"


def diagnosis_of(history: History) -> Diagnosis:
    """Return what a missing step is not, what it may be, and what the owner can do."""
    since = history.no_step_since() or history.launched_at
    busy = _busy_percent(history, since)
    waiting = _in_kernel(history, since)
    return Diagnosis(
        ruled_out=tuple(_list_ruled_out(history, busy)),
        causes=tuple(_list_causes(history, busy, waiting=waiting)),
        advice=tuple(_list_advice(history, busy, waiting=waiting)),
    )


def _list_ruled_out(history: History, busy: float | None) -> list[str]:
    found = []
    if _inside_a_step(history):
        found.append("validation, checkpoint, wait for data, kernels for a new shape: the agent reports each of them")
    if history.exit is None and not history.raised and find_lost_training(history) is None:
        found.append("a crash: the process is there and has raised nothing")
    if not history.kernel.findings:
        found.append("a fault that the kernel saw: its log says nothing of a GPU in use since the launch")
    if busy is not None and busy <= IDLE_PERCENT:
        found.append(f"a kernel under way: the GPU is {busy:.0f} % busy")
    return found


def _list_causes(history: History, busy: float | None, *, waiting: bool) -> list[str]:
    if history.storage.is_waiting(history.now):
        return [_STORAGE]
    if find_lost_training(history) is not None:
        return [_LOST]
    if waiting:
        return [_STORAGE] if _waits_for_disk(history) else [_DRIVER, _SPINNING]
    if _held_pids(history):
        return [_FROZEN] if history.processes[-1].frozen_pids else [_HELD]
    if history.stage is Stage.DATA_WAIT:
        return [_LOADER, _USERPTR]
    if busy is not None and busy >= BUSY_PERCENT:
        search = _may_search_kernels(history) and (
            history.starting or not history.stages_complete or history.stage is Stage.COMPILE
        )
        return [_SEARCH, _SPINNING] if search else [_SPINNING, _USERPTR]
    return [_DEADLOCK, _SPINNING, _STOPPED] if _inside_a_step(history) else [_LOADER, _DEADLOCK, _SPINNING]


def _list_advice(history: History, busy: float | None, *, waiting: bool) -> list[str]:
    advice = ["the stacks of every process are in the evidence: `supervisorctl show` names the folder"]
    if find_lost_training(history) is not None:
        advice.append(
            "have the program end with its training, or make the training itself the command: it is found at once"
        )
    if held := _held_pids(history):
        is_frozen = history.processes[-1].frozen_pids
        advice.append(THAW if is_frozen else f"kill -CONT {' '.join(map(str, held))} lets it go on")
    if history.storage.is_waiting(history.now):
        return [*advice, "`umount -f` of a mount that stays dead ends the wait with an error"]
    if waiting and not _waits_for_disk(history):
        advice.append("if SIGKILL does not end it, only a reset of the GPU or a reboot does")
    if busy is not None and busy >= BUSY_PERCENT and _may_search_kernels(history):
        advice.append('conv2d = "planned" computes convolutions without MIOpen')
    if not _inside_a_step(history) and (busy is None or busy < BUSY_PERCENT):
        advice.append("workers=0 takes the loader's processes out of the question")
    return advice


def _inside_a_step(history: History) -> bool:
    """Whether the agent, which reports every stage, reports that a batch is being computed."""
    return history.stage is Stage.STEP and history.stages_complete


def _may_search_kernels(history: History) -> bool:
    """Whether MIOpen may be searching: a GPU that it may run on, and a Conv2d that was not replaced."""
    newest = history.newest_by_gpu().values()
    amd = any(reading.gfx_version is None or reading.gfx_version.startswith("gfx") for reading in newest)
    return bool(newest) and amd and not history.patched


def machine_gasps(history: History) -> bool:
    """Whether the machine waits for memory so much that everything on it may stand still for a while."""
    newest = history.host[-1] if history.host else None
    if newest is None or history.now.seconds_since(newest.at) > FRESH_S:
        return False
    return (newest.memory_stall_percent or 0.0) >= MEMORY_GASPS_PERCENT


def miopen_known_to_fail(history: History) -> bool:
    """Whether a GPU of the job is one on which MIOpen is known not to work, and Conv2d was not replaced."""
    versions = [reading.gfx_version for reading in history.newest_by_gpu().values()]
    return not history.patched and any(version and miopen_fails(version) for version in versions)


def _busy_percent(history: History, since: Moment) -> float | None:
    """Return the mean use of the job's busiest GPU since a moment; None where no reading has it."""
    means = []
    for readings in history.readings_by_gpu().values():
        known = [
            reading.gpu_busy_percent
            for reading in list(readings)[-60:]
            if reading.gpu_busy_percent is not None and reading.at.seconds_since(since) >= 0
        ]
        means += [sum(known) / len(known)] if known else []
    return max(means, default=None)


def describe_hold(reading: ProcessReading, pid: int) -> str:
    """Return what holds a process that is stopped, to complete a sentence about it."""
    if pid in reading.frozen_pids:
        return "frozen with its control group"
    if pid in reading.traced_pids:
        return "held by a debugger"
    if pid in reading.terminal_pids:
        return "stopped by the job control of its terminal"
    return "stopped by a signal (SIGSTOP, Ctrl-Z)"


def choose_stopped(history: History, reading: ProcessReading) -> int:
    """Return which of the processes that are stopped by a reading is named.

    One that makes steps comes first, then one that SIGCONT continues: others are held by a debugger or a terminal.
    """
    makers, held = history.reports.rank_pids.values(), reading.held_pids
    return min(reading.stopped_pids, key=lambda pid: (pid not in makers, pid in held, pid))


def name_stopped(history: History) -> str:
    """Return which processes are stopped by the newest reading, to be appended to a message; empty where none is."""
    newest = newest_of(history.processes, lambda _: True, history.now)
    if newest is None or not newest.stopped_pids:
        return ""
    pid = choose_stopped(history, newest)
    others = len(newest.stopped_pids) - 1
    more = f", and {others} more" if others else ""
    state = "" if pid in newest.frozen_pids else ", state T"
    return f"; process {pid} is {describe_hold(newest, pid)}{state}{more}"


STEADY_READINGS = 3
"""A process that so many readings before the standstill list was no helper that comes and goes."""
NAMED_AT_MOST = 3


def name_ended(history: History) -> str:
    """Return which of its processes are gone since the last step, to be appended to a message; empty where none is.

    A learner that a program spawned, or a worker of a pool that no library reports, may be what the others wait for.
    """
    newest, since = history.newest_processes, history.no_step_since()
    if newest is None or newest.pids is None or since is None:
        return ""
    before = [set(reading.pids or ()) for reading in history.processes if reading.at.seconds_since(since) <= 0]
    if len(before) < STEADY_READINGS:
        return ""
    steady = set.intersection(*before[-STEADY_READINGS:])
    gone = sorted(steady.difference(newest.pids, history.reports.trainers))
    if not gone:
        return ""
    more = f", and {len(gone) - NAMED_AT_MOST} more" if len(gone) > NAMED_AT_MOST else ""
    return f"; gone since: process {', '.join(map(str, gone[:NAMED_AT_MOST]))}{more}"


def _held_pids(history: History) -> tuple[int, ...]:
    """Return the processes that are stopped, by the newest reading."""
    newest = newest_of(history.processes, lambda _: True, history.now)
    return () if newest is None else newest.stopped_pids


def _waits_for_disk(history: History) -> bool:
    """Whether all that waits in the kernel, by the newest of some readings, is known to wait for a file system."""
    waits = history.processes[-1].waits
    return bool(waits) and all(wait.is_of_disk for wait in waits)


def _in_kernel(history: History, since: Moment) -> bool:
    newest = [process for process in list(history.processes)[-3:] if process.at.seconds_since(since) >= 0]
    return bool(newest) and all(process.uninterruptible_pids for process in newest)
