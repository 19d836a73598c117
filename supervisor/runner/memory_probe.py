"""Runs a job's own command for two steps, as the calling user, and returns what memory they took.

Nothing that the command writes stays (`discarded_writes.py`); where the system does not allow that, the agent ends the
probe before a file is written over. The process group is killed once the report is there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from supervisor import untrusted_files
from supervisor.children.child import Child
from supervisor.children.start import PIPE, find_program, start
from supervisor.core import attempt_files as names
from supervisor.core.foreign_values import as_dict, as_float, as_int, as_message
from supervisor.core.memory.points import TEXT_LIMIT, Point, read_point
from supervisor.runner import discarded_writes
from supervisor.runner.attempt_folder import compose_env, make_attempt_folder, read_note
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.shim_files import Recorder

REPORT = f"{names.RUN}/memory.json"
REPORT_LIMIT_BYTES = 1 << 20
CANNOT_DISCARD = f"status {discarded_writes.CANNOT}"
WAYS = ("alone", "forked", "further")
OUTPUT_LIMIT_BYTES = 4096
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
LOOK_EVERY_S = 0.02
END_LIMIT_S = 5.0
"""How long the command may take to end after SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is probed."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    conv2d: str = "off"
    agent_settings: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is different in a probe; None: as the job has it."""

    batch: int | None = None
    configured: int | None = None
    """The micro-batch that `batch` takes the place of."""
    precision: str | None = None
    checkpointing: bool | None = None
    without_gpu: bool = False
    timed: bool = False
    """Whether steps are timed, and on a CPU nothing is counted."""
    draws: int = 0
    """Batches that are drawn and timed in place of a training."""
    look: bool = False
    """Whether only the first batch is looked at."""
    skips_cudnn: bool = False
    """Whether cuDNN may be left out of depthwise convolutions where it prepares them for seconds, and of attention."""
    without_cudnn: bool = False
    """Whether it is left out of the convolutions from the first, since an earlier probe has shown that."""
    without_cudnn_attention: bool = False
    """Whether it is left out of attention, as in earlier probes."""
    computes: bool = False
    """Whether all is computed where tensors are counted without a GPU, and not shapes alone are reckoned."""
    forgets: bool = False
    """Whether steps that were made in the same process before are to leave neither gradients nor optimizer states."""
    traces: bool = True
    """Whether the blocks of the allocator are recorded, of a probe that is no proof."""
    repeats: bool = False
    """Whether a step may have the batch of an earlier one, where another would take long to draw."""
    composes: bool = False
    """Whether a batch may be put together from samples that were drawn before, where drawing takes long."""
    steps: int = 2
    room_bytes: int | None = None
    """What the allocator of a GPU may hold; None: all that is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A point, or the problem why there is none."""

    point: Point | None
    problem: str = ""
    out_of_memory: bool = False
    on_gpu: bool = False
    """Whether torch sees a GPU."""
    batch: int | None = None
    """Samples in the last micro-batch that was drawn."""
    configured: int | None = None
    """The same by the loader's own sampler."""
    shapes_only: bool = False
    """Whether tensors were counted whose values were not computed."""
    why_computed: str = ""
    """Why values were computed in the end, where shapes were tried before."""
    timing: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of a step, of waiting in it, or of drawing a batch; and the loader's workers."""
    output: str = ""
    """The last lines that the command printed."""
    discarded: bool = True
    """Whether what the command wrote was discarded; else existing files were guarded."""
    way: str = "alone"
    """In which process: one "alone", one "forked" from the loaded command, or a "further" probe in such a one."""
    why_alone: str = ""
    """Why the command could not be forked."""
    loaded_s: float | None = None
    """From the start of its interpreter until it first used the GPU or a loader."""
    alike: bool | None = None
    """Whether batches of as many samples had the same shapes; None: there were no two of them."""


def probe(command: Command, what_if: WhatIf, code: Code = INSTALLED) -> Result:
    """Return what two steps of the command took; raise OSError where its folder cannot be made.

    A training whose tensors are counted, and that does not come to its second step by shapes alone, is computed.
    """
    result = _probe_once(command, what_if, code)
    if not fails_without_values(result, what_if):
        return result
    return replace(_probe_once(command, replace(what_if, computes=True), code), why_computed=result.problem)


def fails_without_values(result: Result, what_if: WhatIf) -> bool:
    """Whether a probe that left out arithmetic ended without an answer, and may have one with it."""
    return result.shapes_only and result.point is None and not result.timing and not what_if.look


def _probe_once(command: Command, what_if: WhatIf, code: Code) -> Result:
    with _scratch_folder() as scratch:
        folder = scratch / "probe"
        make_attempt_folder(folder, None)
        problem = Recorder(str(folder)).make()
        if problem is not None:
            return Result(point=None, problem=problem)
        request = describe_request(what_if, folder / REPORT)
        env = build_env(command, {**request, "guard": os.geteuid() != 0}, folder, code, without_gpu=what_if.without_gpu)
        ending = _run_process(discard_writes(command, scratch), env, command, folder)
        discarded = ending != CANNOT_DISCARD or untrusted_files.exists(folder, REPORT)
        if not discarded:
            env = build_env(command, {**request, "guard": True}, folder, code, without_gpu=what_if.without_gpu)
            ending = _run_process(list(command.argv), env, command, folder)
        return read_result(folder, ending, discarded=discarded)


def make_scratch_folder() -> Path:
    """Return a new folder, the only one in which what a probed command writes stays."""
    return Path(os.path.realpath(tempfile.mkdtemp(prefix="rocm-supervisor-probe-")))


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    scratch = make_scratch_folder()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def discard_writes(command: Command, scratch: Path) -> list[str]:
    """Return the command line by which all that the command writes but in `scratch` is discarded."""
    return [sys.executable, "-I", "-S", discarded_writes.__file__, str(scratch), "--", *command.argv]


def describe_request(what_if: WhatIf, report: Path) -> dict[str, object]:
    """Return what the agent is asked for, but for the guard of files."""
    return {
        "report": str(report),
        "steps": what_if.steps,
        "room_bytes": what_if.room_bytes,
        "batch": what_if.batch,
        "configured": what_if.configured,
        "precision": what_if.precision,
        "checkpointing": what_if.checkpointing,
        "look": what_if.look,
        "timed": what_if.timed,
        "draws": what_if.draws,
        "skips_cudnn": what_if.skips_cudnn,
        "without_cudnn": what_if.without_cudnn,
        "without_cudnn_attention": what_if.without_cudnn_attention,
        "forgets": what_if.forgets,
        "computes": what_if.computes,
        "repeats": what_if.repeats,
        "composes": what_if.composes,
        "traces": what_if.traces,
    }


def build_env(
    command: Command, request: Mapping[str, object], folder: Path, code: Code, *, without_gpu: bool
) -> dict[str, str]:
    """Return the environment of a probe: that of an attempt, with the request to the agent."""
    composed = compose_env(
        job="estimate",
        number=0,
        folder=folder,
        env={**command.env, **(NO_GPU if without_gpu else {})},
        inherited=os.environ,
        agent=code.agent,
        conv2d=command.conv2d,
        agent_settings=command.agent_settings,
        resume_from=None,
        snapshot_every="0",
        mean_fault_s=0.0,
    )
    return {**os.environ, **composed, names.ENV_MEMORY_PROBE: json.dumps(request)}


ENDS_WITH_CALLER = """\
exec 3<&0 </dev/null
( (read -r _ <&3; kill -KILL 0) & )
exec 3<&-
exec "$@"
"""
"""Has /bin/sh become a command whose process group ends once the pipe that is its input closes, as by a SIGKILL of
whoever holds the other end. Who waits for that is in the group, so that its number is no other's, and no child of
the command, which may wait for all of its children."""


def start_process(argv: Sequence[str], env: Mapping[str, str], command: Command, folder: Path) -> Child:
    """Start a probed command, leader of its own session; raise OSError where it cannot be started.

    It does not outlive this process: it could take the last of the memory from a training.
    """
    program = find_program(argv[0], env)
    path = Path(command.cwd) / program
    if not os.access(path, os.X_OK):
        number = errno.EACCES if os.access(path, os.F_OK) else errno.ENOENT
        raise OSError(number, os.strerror(number), program)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(untrusted_files.open_file(folder, names.OUTPUT, flags, only_name=True), "ab") as output:
        return start(
            ["/bin/sh", "-c", ENDS_WITH_CALLER, "sh", program, *argv[1:]],
            cwd=command.cwd,
            env=env,
            stdin=PIPE,
            stdout=output,
            stderr=output,
            new_session=True,
        )


def end_process(process: Child) -> None:
    """Kill a probed command as a whole, with its forks and the workers of their loaders."""
    process.kill_group()
    process.end(END_LIMIT_S)
    until_s = time.perf_counter() + END_LIMIT_S
    # What has inherited the command's files holds the GPU's memory until it is gone.
    while time.perf_counter() < until_s and _is_group_alive(process.pid):
        time.sleep(LOOK_EVERY_S)


def _is_group_alive(group: int) -> bool:
    """Whether a process of a group holds anything: one that only waits for its parent, a second maybe, does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(_holds_memory(found, group) for found in psutil.process_iter())


def _holds_memory(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ProcessLookupError, PermissionError):
        return False


def _run_process(argv: Sequence[str], env: Mapping[str, str], command: Command, folder: Path) -> str:
    """Run the command until it has reported or ended, and kill what is left of it; return how it ended."""
    try:
        process = start_process(argv, env, command, folder)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    try:
        return wait_for_report(process, folder, REPORT, command.limit_s)
    finally:
        end_process(process)


def wait_for_report(process: Child, folder: Path, report: str, limit_s: float) -> str:
    """Return "reported" once the report is there, else how the command ended or that its time is over."""
    until_s = time.perf_counter() + limit_s
    while process.poll() is None:
        if untrusted_files.exists(folder, report):
            return "reported"
        if time.perf_counter() > until_s:
            return f"no second step within {limit_s:.0f} s"
        time.sleep(LOOK_EVERY_S)
    return f"status {process.returncode}"


def read_result(folder: Path, ending: str, *, discarded: bool, name: str = REPORT) -> Result:
    """Return what a report says, or how the command ended where there is none."""
    report = read_note(folder, name, REPORT_LIMIT_BYTES)
    result = Result(point=None, output=_read_output(folder), discarded=discarded)
    if not report:
        words = f"the command ended before its second step ({ending})" if ending.startswith("status") else ending
        return replace(result, problem=words)
    found = read_point(report)
    return replace(
        result,
        point=found if isinstance(found, Point) else None,
        problem=found if isinstance(found, str) else "",
        out_of_memory=report.get("out_of_memory") is True,
        on_gpu=report.get("device") == "cuda",
        batch=as_int(report.get("batch")),
        configured=as_int(report.get("configured")),
        shapes_only=report.get("shapes_only") is True,
        timing=_read_timing(report.get("timing")),
        way=way if (way := report.get("way")) in WAYS else "alone",
        why_alone=as_message(report.get("why_alone"), TEXT_LIMIT) or "",
        loaded_s=as_float(report.get("loaded_s"), 0.0),
        alike=alike if isinstance(alike := report.get("alike"), bool) else None,
    )


def _read_timing(value: object) -> dict[str, float]:
    known = as_dict(value)
    read = {name: as_float(known.get(name), 0.0) for name in ("step_ms", "wait_ms", "draw_ms", "draws", "workers")}
    return {name: number for name, number in read.items() if number is not None}


def _read_output(folder: Path) -> str:
    try:
        written = untrusted_files.file_status(folder, names.OUTPUT)
        size = written.st_size if written is not None else 0
        raw = untrusted_files.read_part(folder, names.OUTPUT, max(0, size - OUTPUT_LIMIT_BYTES), OUTPUT_LIMIT_BYTES)
    except OSError:
        return ""
    return raw.decode("utf-8", "replace")
