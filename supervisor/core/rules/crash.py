"""Crash: the process ended and the training did not. It names the cause as far as facts go.

Facts have an order: the kernel's log, then what the training raised, then what it printed last, then the exit
status. A line printed long before the end explains nothing: frameworks survive an out-of-memory error in epoch 1.

When it acts. That a process ended is a fact and needs no second one. Whether its training was complete follows from its
plan, its last step and its status; where they disagree it warns and does not retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM
from typing import ClassVar

from supervisor.core.attempt.agent_reports import Trainer
from supervisor.core.findings import LAST_BOOT, FaultClass, KernelFinding
from supervisor.core.flags import Act, Severity
from supervisor.core.gauge import Gauge, Group, Observation, event_gauge
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.rank_failure import Raised, RankExited, RankKilled, first_failure
from supervisor.core.readings import ExitStatus, Stage, signal_name
from supervisor.core.remedies import causes
from supervisor.core.rules.crash_diagnosis import HOST_LOST, KILLED_BY_SIGNAL, LAST_OUTPUT, crash_diagnosis
from supervisor.core.rules.gpu_fault import is_fatal
from supervisor.core.rules.non_finite_loss import NonFiniteLoss, list_in_window, spoilt
from supervisor.core.sanitize import sanitize
from supervisor.core.start_failure import COMMAND, is_command_missing, may_have_stepped, split_quoting, start_failure

LINE_CHARACTERS = 300
SHELL_SIGNAL = 128
"""A shell ends with this plus the signal that killed its child."""
PASSED_ON = frozenset({SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM})
"""What a Python program that ends with its child's return code (`sys.exit(-9)`) turns into 256 less the signal.

DeepSpeed's launcher does. The lowest numbers are left out: -1 and -2 are statuses of other programs.
"""
BY_SIGNAL = re.compile(r"SIG[A-Z0-9]{1,12}|signal [0-9]{1,3}")
"""How the agent names a process that a signal has ended and that another process of its program has reaped."""
NON_FINITE = "non_finite"
COMPILE = "compile"
WRAPPER = "wrapper"
"""What a training was started by failed after the training's own end."""
SPOILT_STEPS = NonFiniteLoss().window_steps

NOT_FINITE = re.compile(
    # From its beginning alone: a search from each character of a long message takes minutes, and finds the excluded.
    # Of the name of a file, a module or a column nothing follows.
    r"\A(?!(?:\w+\.)*(?:Attribute|FileNotFound|Import|Key|ModuleNotFound|Name|NotADirectory|OS|Permission|Syntax|Type)Error)"
    r"(?:(?:\w+\.)*(?:FloatingPoint|Nan)Error\b|.*?(?:non-?finite|not finite|loss scale (?:reached|already at minimum)"
    r"|elements of input should be between 0 and 1"
    r"|\b(?:loss|grad\w*|norms?|returned|values?|found|detected|either|encountered|elements?|scores?)\b.{0,80}?"
    r"(?<![\w./'\"])(?:nan|inf)(?![\w'\"]|\.\w)|(?<![\w./'\"])nan (?:loss|grad|norm|detected)))",
    re.I | re.S,
)
"""An exception about numbers that are not finite, in the words of autograd, torch.distributions, Lightning, Megatron,
fairseq, DeepSpeed, JAX, TensorFlow, faster-coco-eval, and torch's binary cross entropy of a NaN. One in the input is
the data's: it is there whatever is changed."""

_RAISED = (
    (
        FaultClass.OOM_GPU.value,
        re.compile(
            r"OutOfMemoryError|(?:HIP|CUDA)(?: error:)? out of memory|hipErrorOutOfMemory"
            r"|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)",
            re.I,
        ),
    ),
    (FaultClass.OOM_HOST.value, re.compile(r"^MemoryError|DefaultCPUAllocator|Cannot allocate memory", re.I)),
    (FaultClass.MIOPEN.value, re.compile(r"miopen", re.I)),
    (
        FaultClass.NO_KERNEL_IMAGE.value,
        re.compile(
            r"no kernel image|invalid device function|NoBinaryForGpu"
            r"|HSA_STATUS_ERROR_(?:INVALID_ISA|ILLEGAL_INSTRUCTION|INVALID_CODE_OBJECT)",
            re.I,
        ),
    ),
    (
        FaultClass.ILLEGAL_ACCESS.value,
        re.compile(
            r"illegal memory access|memory access fault|IllegalAddress|unspecified launch failure|ErrorLaunchFailure"
            r"|error: misaligned address|illegal instruction was encountered"
            r"|HSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|EXCEPTION\b)|CUDA_ERROR_LAUNCH_FAILED",
            re.I,
        ),
    ),
    (
        FaultClass.GPU_HANG.value,
        re.compile(
            r"launch timed out and was terminated|ErrorLaunchTimeOut|CUDA_ERROR_LAUNCH_TIMEOUT"
            r"|HSA_STATUS_ERROR_(?:HANG|QUEUE_)|reason *: ?GPU Hang",
            re.I,
        ),
    ),
    (
        FaultClass.GPU_LOST.value,
        re.compile(r"ErrorDeviceLost|error: device lost|\bGPU is lost\b|determine the device handle for GPU", re.I),
    ),
    (
        FaultClass.ECC_UNCORRECTABLE.value,
        re.compile(r"uncorrectable (?:ECC|NVLink) error|ErrorECC(?:NotCorrectable|Uncorrectable)", re.I),
    ),
    (FaultClass.ASSERTION.value, re.compile(r"device-side assert|(?:hip|cuda)ErrorAssert", re.I)),
    (FaultClass.BLAS.value, re.compile(r"(?:roc|hip|cu)blas|HIPBLAS_STATUS|CUBLAS_STATUS", re.I)),
    (COMPILE, re.compile(r"BackendCompilerFailed|InductorError|TorchRuntimeError|torch\._(?:dynamo|inductor)", re.I)),
    (FaultClass.DATA_LOADER.value, re.compile(r"DataLoader worker|unable to allocate shared memory", re.I)),
    (
        FaultClass.DISK_FULL.value,
        re.compile(
            r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing"
            r"|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+|database or disk is full",
            re.I,
        ),
    ),
    (
        FaultClass.NO_GPU.value,
        re.compile(
            r"No (?:CUDA|HIP) GPUs are available|Found no NVIDIA driver|no (?:CUDA|ROCm)-capable device"
            r"|Torch not compiled with CUDA|driver version is insufficient|(?:hip|cuda)Error(?:NoDevice|Insufficient)"
            r"|busy or unavailable|cudaErrorDevicesUnavailable"
        ),
    ),
    (FaultClass.NCCL_ERROR.value, re.compile(r"\b[nr]ccl(?:[A-Z]\w*Error|Invalid\w+)|\bNCCL [Ee]rror")),
    (NON_FINITE, NOT_FINITE),
)
"""Faults by an exception's type and message, in the words of HIP, CUDA and XLA; the first match counts."""


_EXCEPTION_LINE = re.compile(r"(?:[A-Za-z_]\w{0,40}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?::|$)")
"""The last line of a traceback."""
_METRIC_LINE = re.compile(r"\w+:\s*[-+\d.eE]+\s*%?$")
"""`MeanAbsoluteError: 0.31` is none."""
_WORD = re.compile(r"\w")
"""A last line of dashes only, as below a launcher's report, is ignored."""
_DIRECT_CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n"
_CHAIN = re.compile(rf"\n\nDuring handling of the above exception, another exception occurred:\n|{_DIRECT_CAUSE}")
"""Between the tracebacks of an exception and of one that was raised while it was handled, the earlier one first."""
_OUT_OF_MEMORY = tuple((fault, pattern) for fault, pattern in _RAISED if fault.startswith("oom_"))
_WORKER_READ = "in _try_get_data"
"""Where torch reads what a loader's worker sent: before it knows that the worker died, the broken connection is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One explanation of an end."""

    fault: str
    text: str
    doubtful: bool = False
    """Whether it may have been the end of the training, so that it is reported and not retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The process ended otherwise than a training ends; `fault` is the class of the cause.

    Status 0 is a finish, unless the training had reported a plan and stopped short of it, or every process that trained
    was killed and its program took no notice, or, without a plan, an exception was printed last: that is a warning,
    unless the training's own loops had more steps to make, or it was resumed and made none. A training that was asked
    to save before it ended was not complete either. Where torch was found and no step was ever seen, it is not known:
    that is a warning without a retry, and so is a process that crashed after its training had ended, and a wrapper (a
    shell script, `make`, gdb) that failed after what trained had ended with status 0.
    """

    name: ClassVar[str] = "crash"
    group: ClassVar[Group] = "process"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = True
    tail_s: float = 60.0
    """A line of output or of the kernel's log counts as a cause this long before the end."""

    def may_flag(self, history: History) -> bool:
        """Whether the attempt has ended."""
        return history.exit is not None or history.host_lost is not None

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return whether it has ended so; no number is near to that."""
        what, found = "the process ends otherwise than a training ends", self._find_cause(history)
        observed = None if found is None else self._observe_end(history, found)
        acts = self.act and (found is None or not found.doubtful)
        return (event_gauge(what, observed, Severity.acting(act=acts)),)

    def _find_cause(self, history: History) -> Cause | None:
        ended = _came_to_its_end(history)
        if history.host_lost is not None:
            cause = Cause(fault=HOST_LOST, text=_describe_loss(history, history.host_lost))
        elif history.exit is None:
            return None
        elif history.exit.clean:
            return None if ended else self._explain_lost(history, history.exit) or self._explain_clean(history)
        else:
            wrapper = self._explain_wrapper(history, history.exit)
            if wrapper is not None:
                return wrapper
            cause = self._explain_end(history, history.exit)
        return replace(cause, doubtful=ended and history.train_ended)

    def _explain_end(self, history: History, status: ExitStatus) -> Cause:
        return (
            _not_started(status)
            or self._in_kernel_log(history, status)
            or self._explain_raised(history, status)
            or self._explain_printed(history, status)
            or self._explain_rank(history, status)
            or _by_signal(status)
            or _explain_lost_trainers(history, status)
            or Cause(fault=COMMAND if is_command_missing(history, status) else "exit_code", text=status.words)
        )

    def _explain_wrapper(self, history: History, status: ExitStatus) -> Cause | None:
        """Return that the training itself came to its normal end, and what it was started by failed.

        A shell script whose last line fails does so, `make` with a later rule that fails, and gdb. Where a process
        raised an exception, or another interpreter began after that end, what failed may be a part of the training.
        """
        pid = _find_finished(history, status)
        failed = self._in_kernel_log(history, status) or self._find_failure(history, status)
        if pid is None or failed is not None or _explain_clean_end(history) is not None:
            return None
        text = f"the training (pid {pid}) came to its normal end with status 0, and its wrapper {status.words}"
        return Cause(fault=WRAPPER, text=text, doubtful=True)

    def _explain_clean(self, history: History) -> Cause | None:
        """Return why an end of status 0 came early: the program may have caught what its training raised."""
        cause = _explain_clean_end(history)
        failure = None if history.exit is None else self._find_failure(history, history.exit)
        if cause is None or cause.fault != "ended_early" or not isinstance(failure, Raised):
            return cause
        raised = _cause_of(failure)
        return replace(cause, fault=raised.fault, text=f"{cause.text}, after its training raised {raised.text}")

    def _explain_lost(self, history: History, status: ExitStatus) -> Cause | None:
        """Return what ended all that trained, where the program that started it ended with status 0 nevertheless.

        As a pipe into `tee` does, `screen`, Luigi, or a parent that joins its child without a look at the exit code.
        """
        killed = _explain_lost_trainers(history, status)
        if killed is None:
            return None
        return self._in_kernel_log(history, status) or self._explain_raised(history, status) or killed

    def _in_kernel_log(self, history: History, status: ExitStatus) -> Cause | None:
        near = [finding for finding in history.kernel.findings if self._is_near(finding.reported_at, status.at)]
        fatal = (finding for finding in near if is_fatal(history, finding) and history.concerns(finding))
        fault = next(fatal, None)
        if fault is not None:
            text = f"{status.words} after a GPU fault: {fault.line}"
            return Cause(fault=fault.fault.value, text=text if fault.remedy is None else f"{text} ({fault.remedy})")
        failure = self._find_failure(history, status)
        kills = (
            finding
            for finding in near
            if finding.fault is FaultClass.OOM_KILL and _killed_ours(history, status, finding, failure)
        )
        kill = next(kills, None)
        if kill is None:
            return None
        text = f"the kernel killed it for want of memory: {kill.line}"
        return Cause(fault=FaultClass.OOM_HOST.value, text=text)

    def _explain_raised(self, history: History, status: ExitStatus) -> Cause | None:
        failure = self._find_failure(history, status)
        if failure is None or isinstance(failure, RankExited):
            return None
        if isinstance(failure, RankKilled):
            who = "a process" if failure.rank is None else f"rank {failure.rank} (pid {failure.pid})"
            text = f"{who} was killed by {signal_name(failure.signal)}, as its launcher reports"
            return Cause(fault=_fault_of(failure.signal), text=text)
        if failure.kind != "KeyboardInterrupt":
            return _with_spoilt_loss(history, _cause_of(failure))
        # What SIGINT makes Python raise says where it was, not why; some processes end with status 1 after it.
        text = status.words if _signal_of(status) == SIGINT else f"{status.words}: interrupted by SIGINT"
        return Cause(fault=KILLED_BY_SIGNAL, text=text)

    def _explain_printed(self, history: History, status: ExitStatus) -> Cause | None:
        found = [finding for finding in history.output if finding.fatal and self._is_near(finding.at, status.at)]
        if not found:
            return None
        fault = NON_FINITE if found[-1].fault is FaultClass.NAN else found[-1].fault.value
        return Cause(fault=fault, text=f"{status.words}: {found[-1].line}")

    def _explain_rank(self, history: History, status: ExitStatus) -> Cause | None:
        """Return which rank ended, where neither its exception nor its output is known to be why."""
        failure = self._find_failure(history, status)
        if not isinstance(failure, RankExited):
            return None
        text = f"rank {failure.rank} (pid {failure.pid}) ended with status {failure.code}, as its launcher reports"
        return Cause(fault="exit_code", text=text)

    def _start_failure(self, history: History, status: ExitStatus, fault: str) -> str | None:
        failure = self._find_failure(history, status)
        return start_failure(history, status, fault, None if isinstance(failure, RankKilled) else failure)

    def _find_failure(self, history: History, status: ExitStatus) -> Raised | RankKilled | RankExited | None:
        near = [raised for raised in history.raised if self._is_near(raised.at, status.at)]
        return first_failure([raised for raised in near if not _is_left_behind(history, status, raised)])

    def _is_near(self, at: Moment, end: Moment) -> bool:
        return abs(end.seconds_since(at)) <= self.tail_s

    def _observe_end(self, history: History, cause: Cause) -> Observation:
        since, since_step = _find_spoilt(history) if cause.fault == NON_FINITE else (None, None)
        last, status = _one_line(history.last_line), history.exit
        text = _one_line(cause.text)
        start = None if status is None or cause.doubtful else self._start_failure(history, status, cause.fault)
        return Observation(
            message=text if not _WORD.search(last) or last in text else f"{text}{LAST_OUTPUT}{last}",
            since=since,
            since_step=since_step,
            fault=cause.fault,
            start_failure=start,
            at_start=status is not None and not may_have_stepped(history, status),
            diagnosis=crash_diagnosis(cause.fault),
        )


def _is_left_behind(history: History, status: ExitStatus, raised: Raised) -> bool:
    """Whether another process raised it once a signal had ended the command: a loader's worker, whose pipe broke."""
    is_another = raised.pid is not None and raised.pid != history.training_pid
    return status.signal is not None and is_another and raised.at.seconds_since(status.at) > 0


def _is_lost(history: History, pid: int, trainer: Trainer) -> bool:
    """Whether a process that trained, and is not the command itself, did not come to its own end.

    That is reported by its interpreter, or by its program where that has ended it, or ends with it.
    """
    if pid == history.training_pid or _ends_with_program(history, trainer):
        return False
    if trainer.ended:
        return BY_SIGNAL.fullmatch(trainer.error) is not None or any(raised.pid == pid for raised in history.raised)
    return True


def _ends_with_program(history: History, trainer: Trainer) -> bool:
    """Whether it lived when its program came to its end, and has made no step since, as one in the background does."""
    if trainer.left_at is None:
        return False
    return history.last_step_at is None or history.last_step_at.seconds_since(trainer.left_at) <= 0


def _find_finished(history: History, status: ExitStatus) -> int | None:
    """Return the process that trained last, where all that trained ended with status 0 below a wrapper that failed."""
    reports = history.reports
    trainers = reports.trainers
    is_elsewhere = bool(reports.rank_pids) and 0 not in reports.rank_pids
    is_asked = history.saves.save_requested or 0 in history.unread_ranks
    if not trainers or not history.steps or history.training_pid is None or is_elsewhere or is_asked:
        return None
    if status.code is None or _signal_of(status) is not None:
        return None
    for pid, trainer in trainers.items():
        began_after = (
            reports.begun_at is not None
            and trainer.ended_at is not None
            and reports.begun_at.seconds_since(trainer.ended_at) > 0
        )
        if pid == history.training_pid or trainer.status != 0 or trainer.error or began_after:
            return None
    return _find_newest(trainers)[0]


def _find_newest(trainers: Mapping[int, Trainer]) -> tuple[int, Trainer]:
    return max(trainers.items(), key=lambda entry: entry[1].at.monotonic_s)


def _explain_lost_trainers(history: History, status: ExitStatus) -> Cause | None:
    """Return that all that trained was lost, where its program ended with a status of its own.

    `make`, `xargs` and GNU parallel do: 2, 125, or how many of their commands failed.
    """
    trainers = history.reports.trainers
    if status.code is None or not trainers:
        return None
    if not all(_is_lost(history, pid, trainer) for pid, trainer in trainers.items()):
        return None
    pid, last = _find_newest(trainers)
    how = f"was killed by {last.error}" if BY_SIGNAL.fullmatch(last.error) else "was killed or crashed"
    text = f"the process that trained (pid {pid}) {how}, and its program {status.words}"
    return Cause(fault=KILLED_BY_SIGNAL, text=text)


def _explain_clean_end(history: History) -> Cause | None:
    """Return what is wrong with an end of status 0 that was not the training's own end."""
    unread = 0 in history.unread_ranks
    if history.steps:
        fulfilled = _plan_fulfilled(history)
        if fulfilled is None:
            return _explain_printed_last(history)
        if fulfilled:
            return None
        text = f"ended with status 0 at step {history.steps[-1].step}, short of its plan"
        if unread:
            text += "; its recorder cannot be read, so that it may have gone on"
        return Cause(fault="ended_early", text=text, doubtful=unread or not history.hooked)
    line = history.last_line.strip()
    if history.resumed is not None and not unread and _EXCEPTION_LINE.match(line) and not _METRIC_LINE.match(line):
        text = f"ended with status 0 before its first step, after it printed {line}"
        return Cause(fault="exit_code", text=text)
    if not (history.plan.planned or history.claimed or history.patched):
        return None
    text = "ended with status 0 and not one step was seen"
    doubtful = unread or not (history.hooked and history.plan.planned)
    return Cause(fault="ended_without_training", text=text, doubtful=doubtful)


def _explain_printed_last(history: History) -> Cause | None:
    """Return the exception that a program printed after its last step, before it ended with status 0: it caught it.

    Where its loops had more steps to make as well, it has not come to its end: loguru's `catch` around the main
    function of a program, as of YOLOX, prints what the training raised and returns.
    """
    last = history.steps[-1]
    fatal = [found for found in history.output if found.fatal]
    printed = [found for found in fatal if found.at.seconds_since(last.at) >= 0]
    line = printed[-1].line if printed else history.last_line
    if not printed and not _EXCEPTION_LINE.match(line.strip()):
        return None
    fault = "ended_early" if not printed or printed[-1].fault is FaultClass.NAN else printed[-1].fault.value
    total, unread = history.plan.total_steps, 0 in history.unread_ranks
    short = total is not None and last.step < total and len(printed) == len(fatal) and not unread
    where = f" at step {last.step} of {total}," if short else ""
    if short and fault == "ended_early" and NOT_FINITE.match(line.strip()):
        fault = NON_FINITE
    return Cause(fault=fault, text=f"ended with status 0{where} after it printed {line}", doubtful=not short)


def _describe_loss(history: History, reason: str) -> str:
    """Return why the attempt is gone, with the last fault of the boot that it ran in."""
    text = f"the attempt ended without an exit record: {reason}"
    last = [finding for finding in history.kernel.findings if finding.origin == LAST_BOOT]
    worst = max(last, key=lambda finding: finding.severity, default=None)
    return text if worst is None else f"{text}; the last boot ended with {worst.fault.value}: {worst.line}"


def _came_to_its_end(history: History) -> bool:
    """Whether the training is complete: its plan is fulfilled, or it reported its end and was not asked to stop.

    It reports that twice: in agent.jsonl, for which a disk may have no room, and as the stage in its recorder.
    """
    fulfilled = _plan_fulfilled(history)
    reported = history.train_ended or history.stage is Stage.ENDED
    return fulfilled is True or (reported and (fulfilled is None or not history.saves.save_requested))


def _plan_fulfilled(history: History) -> bool | None:
    """Whether the last step is the last of the plan; None where that is not known."""
    if history.plan.epochs is None or not history.steps:
        return None
    last = history.steps[-1]
    if history.plan.batches_per_epoch is not None:
        return last.step >= history.plan.epochs * history.plan.batches_per_epoch
    return None if last.epoch is None else last.epoch >= history.plan.epochs - 1


def _not_started(status: ExitStatus) -> Cause | None:
    return None if status.error is None else Cause(fault=COMMAND, text=status.words)


def _signal_of(status: ExitStatus) -> int | None:
    if status.signal is not None:
        return status.signal
    code = status.code or 0
    if 256 - code in PASSED_ON:
        return 256 - code
    return code - SHELL_SIGNAL if SHELL_SIGNAL < code <= SHELL_SIGNAL + 64 else None


def _killed_ours(
    history: History, status: ExitStatus, kill: KernelFinding, failure: Raised | RankKilled | RankExited | None
) -> bool:
    """Whether an OOM kill explains the end: it names the process, or a child whose death was passed on."""
    if isinstance(failure, RankKilled):
        return failure.signal == SIGKILL and (kill.pid is None or failure.pid in (None, kill.pid))
    if status.signal is None:
        loader = isinstance(failure, Raised) and _cause_of(failure).fault == FaultClass.DATA_LOADER.value
        trained = None if kill.pid is None else history.reports.trainers.get(kill.pid)
        lost = kill.pid is not None and trained is not None and _is_lost(history, kill.pid, trained)
        return _signal_of(status) == SIGKILL or loader or lost
    return status.signal == SIGKILL and (kill.pid is None or history.training_pid in (None, kill.pid))


def _cause_of(raised: Raised) -> Cause:
    kind, message = (str(raised.facts.get(field) or "") for field in ("type", "message"))
    text = ": ".join(part for part in (kind, message) if part) or "an exception"
    trace = str(raised.facts.get("traceback") or "")
    other = FaultClass.DATA_LOADER.value if _WORKER_READ in trace else "exception"
    fault = next((fault for fault, pattern in _RAISED if pattern.search(text)), other)
    handled = None if fault != "exception" else _find_out_of_memory(trace)
    if handled is not None:
        fault, text = handled[0], f"{handled[1]}, and while that was handled {_one_line(text)[:100]}"
    who = f"rank {raised.rank}: " if raised.rank else ""
    origin = None if handled is not None else _find_direct_cause(trace)
    caused = "" if origin is None or origin in _one_line(text) else f", caused by {origin}"
    frames = [line for line in trace.splitlines() if line.lstrip().startswith("File ") and " line " in line]
    place = f" ({frames[-1].strip()})" if frames else ""
    words = _one_line(_quote_other(kind, message) or text)[:200] if frames else text
    return Cause(fault=fault, text=f"{who}{words}{place}{caused}")


def _quote_other(kind: str, message: str) -> str | None:
    """Return what an exception of another type raised in another process, which its message quotes; None elsewhere."""
    quoted = split_quoting(message)[-1]
    return None if quoted == message or quoted.startswith(kind) else f"{quoted[:150]} (quoted by {kind})"


def _find_direct_cause(trace: str) -> str | None:
    """Return the words of the exception that the last one was raised from.

    Ray's TrainingFailedError and its like only refer to what came before.
    """
    earlier, between, _ = trace.rpartition(_DIRECT_CAUSE)
    if not between:
        return None
    lines = earlier.rstrip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return _one_line(" ".join(lines[frames[-1] + 1 :] if frames else lines[-1:]))[:200] or None


def _find_out_of_memory(trace: str) -> tuple[str, str] | None:
    """Return the class and words of the want of memory that was being handled when the last exception was raised.

    Programs do not often run what they do then, so that it fails in turn; more memory helps against both.
    """
    for earlier in reversed(_CHAIN.split(trace)[:-1]):
        lines = earlier.splitlines()
        frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
        words = _one_line(" ".join(lines[frames[-1] + 1 :] if frames else lines))[:100]
        for fault, pattern in _OUT_OF_MEMORY:
            if pattern.search(words):
                return fault, words
    return None


def _by_signal(status: ExitStatus) -> Cause | None:
    number = _signal_of(status)
    if number is None:
        return None
    fault = _fault_of(number)
    if status.signal is None:
        return Cause(fault=fault, text=f"{status.words}: a child was killed by {signal_name(number)}")
    return Cause(fault=fault, text=status.words)


def _fault_of(number: int) -> str:
    return FaultClass.ILLEGAL_ACCESS.value if number in (SIGSEGV, SIGBUS) else KILLED_BY_SIGNAL


def _with_spoilt_loss(history: History, cause: Cause) -> Cause:
    """Return a cause, of an exception of any other words, as that of a training whose newest loss is no number.

    A metric refuses NaN, an index made of it is out of range, and a program says in its own words that it ends.
    """
    if cause.fault != "exception" or not history.steps or not spoilt(history.steps[-1].loss):
        return cause
    return replace(cause, fault=NON_FINITE)


def _find_spoilt(history: History) -> tuple[Moment | None, int | None]:
    """Return since when a training that ended over NaN is spoilt: the first recent loss that was none, or its end.

    Gradients are none now and then under a scaler, and an old loss was survived.
    """
    losses = list_in_window(history, SPOILT_STEPS, lambda record: spoilt(record.loss))
    if losses:
        return losses[0].at, losses[0].step
    return (history.exit.at if history.exit else history.now), None


def _one_line(text: str) -> str:
    return " ".join(sanitize(text).split())[:LINE_CHARACTERS]
