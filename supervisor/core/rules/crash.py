"""Crash: the process ended and the training did not. It names the cause as far as facts go and guesses no further.

Facts outrank each other: what the kernel saw, then what the training raised, then what it printed last, then the
bare status. A line printed long before the end explains nothing: frameworks survive an out-of-memory in epoch 1.

What is proof. That a process is gone is a fact, and needs no second witness; that its training had not come to its end
is told by its plan, its last step and its status, and where they disagree it is told and not retried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGBUS, SIGINT, SIGKILL, SIGSEGV
from typing import ClassVar

from supervisor.core.findings import LAST_BOOT, FaultClass, KernelFinding
from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, signal_name
from supervisor.core.rules.crash_diagnosis import crash_diagnosis
from supervisor.core.rules.gpu_fault import is_fatal
from supervisor.core.watched import Group, Watched, condition

LINE_CHARACTERS = 300
SHELL_SIGNAL = 128
"""A shell ends with this plus the signal that killed its child."""
NON_FINITE = "non_finite"
COMPILE = "compile"

_RAISED = (
    (
        FaultClass.OOM_GPU.value,
        re.compile(r"OutOfMemoryError|(?:HIP|CUDA)(?: error:)? out of memory|hipErrorOutOfMemory", re.I),
    ),
    (FaultClass.OOM_HOST.value, re.compile(r"^MemoryError|DefaultCPUAllocator|Cannot allocate memory", re.I)),
    (FaultClass.MIOPEN.value, re.compile(r"miopen", re.I)),
    (FaultClass.NO_KERNEL_IMAGE.value, re.compile(r"no kernel image|invalid device function|NoBinaryForGpu", re.I)),
    (FaultClass.ILLEGAL_ACCESS.value, re.compile(r"illegal memory access|memory access fault|IllegalAddress", re.I)),
    (FaultClass.ASSERTION.value, re.compile(r"device-side assert|(?:hip|cuda)ErrorAssert", re.I)),
    (FaultClass.BLAS.value, re.compile(r"(?:roc|hip|cu)blas|HIPBLAS_STATUS|CUBLAS_STATUS", re.I)),
    (COMPILE, re.compile(r"BackendCompilerFailed|InductorError|TorchRuntimeError|torch\._(?:dynamo|inductor)", re.I)),
    (FaultClass.DATA_LOADER.value, re.compile(r"DataLoader worker|unable to allocate shared memory", re.I)),
    (FaultClass.DISK_FULL.value, re.compile(r"No space left on device|Disk quota exceeded", re.I)),
    (NON_FINITE, re.compile(r"(?:loss|grad\w*|returned|values?)\b.*\b(?:nan|inf)\b|non-?finite", re.I)),
)
"""What an exception's type and message say, HIP's wordings and CUDA's; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One explanation of an end."""

    fault: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The process ended in any way but as a training ends; `fault` is the class of the cause.

    Status 0 is a finish, unless the training had told a plan and stopped short of it. A training that was asked to
    save before it ended had not come to its end either. Where torch was met and no step was ever seen, nobody knows:
    that is told and not retried, and so is a process that crashed after its training had ended.
    """

    name: ClassVar[str] = "crash"
    group: ClassVar[Group] = "process"
    enabled: bool = True
    act: Act = True
    tail_s: float = 60.0
    """A line of output or of the kernel's log counts as a cause this long before the end."""

    def check(self, history: History) -> RedFlag | None:
        """Flag an end that was not a finish."""
        ended = _came_to_its_end(history)
        if history.host_lost is not None:
            cause = Cause(fault="host_lost", text=_lost(history, history.host_lost))
        elif history.exit is None:
            return None
        elif history.exit.clean:
            return None if ended else self._clean(history)
        else:
            cause = self._cause(history, history.exit)
        return self._flag(history, cause, told_only=ended and history.train_ended)

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return whether it has ended so: no number is near to that."""
        what = "the process ends otherwise than a training ends"
        return (condition(self.name, what, self.check(history), Severity.acting(act=self.act)),)

    def _clean(self, history: History) -> RedFlag | None:
        """Return what is wrong with an end of status 0 that was not the training's own end."""
        if history.steps:
            if _plan_fulfilled(history) is not False:
                return None
            text = f"ended with status 0 at step {history.steps[-1].step}, short of its plan"
            return self._flag(history, Cause(fault="ended_early", text=text), told_only=not history.hooked)
        if not (history.planned or history.claimed or history.patched):
            return None
        cause = Cause(fault="ended_without_training", text="ended with status 0 and not one step was seen")
        return self._flag(history, cause, told_only=not (history.hooked and history.planned))

    def _cause(self, history: History, status: ExitStatus) -> Cause:
        return (
            _not_started(status)
            or self._in_kernel_log(history, status)
            or self._raised(history, status)
            or self._printed(history, status)
            or _by_signal(status)
            or Cause(fault="exit_code", text=status.words)
        )

    def _in_kernel_log(self, history: History, status: ExitStatus) -> Cause | None:
        near = [one for one in history.kernel if self._near(one.told_at, status.at)]
        fatal = (one for one in near if is_fatal(history, one) and history.concerns(one))
        fault = next(fatal, None)
        if fault is not None:
            text = f"{status.words} after a GPU fault: {fault.line}"
            return Cause(fault=fault.fault.value, text=text if fault.remedy is None else f"{text} ({fault.remedy})")
        kills = (one for one in near if one.fault is FaultClass.OOM_KILL and _killed_ours(history, status, one))
        kill = next(kills, None)
        if kill is None:
            return None
        text = f"the kernel killed it for want of memory: {kill.line}"
        return Cause(fault=FaultClass.OOM_HOST.value, text=text)

    def _raised(self, history: History, status: ExitStatus) -> Cause | None:
        if history.exception_at is None or not self._near(history.exception_at, status.at):
            return None
        if history.exception is None or history.exception.get("type") != "KeyboardInterrupt":
            return _raised(history)
        # What SIGINT makes Python raise tells where it was, not why; some processes end with status 1 after it.
        text = status.words if _signal_of(status) == SIGINT else f"{status.words}: interrupted by SIGINT"
        return Cause(fault="killed_by_signal", text=text)

    def _printed(self, history: History, status: ExitStatus) -> Cause | None:
        found = [one for one in history.output if one.fatal and self._near(one.at, status.at)]
        if not found:
            return None
        fault = NON_FINITE if found[-1].fault is FaultClass.NAN else found[-1].fault.value
        return Cause(fault=fault, text=f"{status.words}: {found[-1].line}")

    def _near(self, at: Moment, end: Moment) -> bool:
        return abs(end.seconds_since(at)) <= self.tail_s

    def _flag(self, history: History, cause: Cause, *, told_only: bool = False) -> RedFlag:
        since, since_step = _spoilt(history) if cause.fault == NON_FINITE else (None, None)
        last = _one_line(history.last_line)
        text = _one_line(cause.text)
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act and not told_only),
            at=history.now,
            message=text if not last or last in text else f"{text}; last output: {last}",
            since=since,
            since_step=since_step,
            fault=cause.fault,
            diagnosis=crash_diagnosis(cause.fault),
        )


def _lost(history: History, reason: str) -> str:
    """Return why nothing is left of the attempt, with what the boot that it ran in ended with."""
    text = f"the attempt ended without a word: {reason}"
    last = [one for one in history.kernel if one.origin == LAST_BOOT]
    worst = max(last, key=lambda one: one.severity, default=None)
    return text if worst is None else f"{text}; the last boot ended with {worst.fault.value}: {worst.line}"


def _came_to_its_end(history: History) -> bool:
    """Whether the training itself is done: its plan is fulfilled, or it said so and nobody had asked it to stop."""
    fulfilled = _plan_fulfilled(history)
    return fulfilled is True or (history.train_ended and (fulfilled is None or not history.save_requested))


def _plan_fulfilled(history: History) -> bool | None:
    """Whether the last step is the last of the plan; None where that cannot be told."""
    if history.epochs is None or not history.steps:
        return None
    last = history.steps[-1]
    if history.batches_per_epoch is not None:
        return last.step >= history.epochs * history.batches_per_epoch
    return None if last.epoch is None else last.epoch >= history.epochs - 1


def _not_started(status: ExitStatus) -> Cause | None:
    return None if status.error is None else Cause(fault="command_missing", text=status.words)


def _signal_of(status: ExitStatus) -> int | None:
    if status.signal is not None:
        return status.signal
    code = status.code or 0
    return code - SHELL_SIGNAL if SHELL_SIGNAL < code <= SHELL_SIGNAL + 64 else None


def _killed_ours(history: History, status: ExitStatus, kill: KernelFinding) -> bool:
    """Whether an OOM kill explains the end: it names the process, or a child whose death was passed on."""
    if status.signal is None:
        raised = _raised(history)
        return _signal_of(status) == SIGKILL or (raised is not None and raised.fault == FaultClass.DATA_LOADER.value)
    return status.signal == SIGKILL and (kill.pid is None or history.training_pid in (None, kill.pid))


def _raised(history: History) -> Cause | None:
    if history.exception is None:
        return None
    kind, message = (str(history.exception.get(field) or "") for field in ("type", "message"))
    text = f"{kind}: {message}" if message else kind or "an exception"
    fault = next((fault for fault, pattern in _RAISED if pattern.search(text)), "exception")
    frames = [line for line in str(history.exception.get("traceback") or "").splitlines() if " line " in line]
    return Cause(fault=fault, text=f"{_one_line(text)[:200]} ({frames[-1].strip()})" if frames else text)


def _by_signal(status: ExitStatus) -> Cause | None:
    number = _signal_of(status)
    if number is None:
        return None
    fault = FaultClass.ILLEGAL_ACCESS.value if number in (SIGSEGV, SIGBUS) else "killed_by_signal"
    if status.signal is None:
        return Cause(fault=fault, text=f"{status.words}: a child was killed by {signal_name(number)}")
    return Cause(fault=fault, text=status.words)


def _spoilt(history: History) -> tuple[Moment | None, int | None]:
    """Return since when a training that ended over NaN is spoilt: the first that was seen, or else its end."""
    if history.non_finite:
        return history.non_finite[0].at, history.non_finite[0].step
    return (history.exit.at if history.exit else history.now), None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LINE_CHARACTERS]
