"""Collects evidence of an attempt before it is killed, within a time limit.

Every part that looks beyond the state directory runs in its own thread and writes its own file, so a part that hangs in
the kernel (possibly by the fault under investigation) does not affect the others. The evidence may be passed on: only
environment variables that concern the hardware are included, and recognizable secrets are removed from text.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from supervisor.children.files_apart import apart_within
from supervisor.children.prompt_thread import PromptThread
from supervisor.children.running_limit import RunningLimit
from supervisor.children.shared_files import stat_each
from supervisor.core import attempt_files as names
from supervisor.core.readings import GpuReading, HostReading, StepRecord
from supervisor.core.sanitize import without_secrets
from supervisor.rotated_output import read_output_end
from supervisor.runner import tools
from supervisor.runner.attempt_folder import is_shim_hidden
from supervisor.runner.core_dumps import DEVCOREDUMP, take_core_dumps
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.launcher import Launcher
from supervisor.runner.stacks import launch_env, take_stacks, tree_of

RECORDS_KEPT = 200
TAIL_BYTES = 65536
RAW_TAIL_BYTES = 4 * TAIL_BYTES
"""Raw bytes read for the tail: redraws of a progress bar fold to a small part of them."""
PROC_FILES = ("status", "wchan", "stack", "syscall", "stat", "limits", "cmdline")
"""In this order: reading `cmdline` waits for the memory lock, which a process in state D may hold."""
PROC_THREAD_FILES = ("comm", "wchan", "stack", "stat")
PROC_FILE_LIMIT_BYTES = 16384
THREADS_LIMIT = 64
PARTS_AT_ONCE = 7
"""Threads for one slot at most: the groups of `_build_parts`, the folder and the GPUs."""
LOOK_SHARE = 0.6
"""Of the limit, for the checkpoints: no thread waits for a file system that hangs, one more at each incident."""
IN_STATE = ("folder", "records.jsonl")
"""The first parts of the groups that need the state directory alone: whoever asks does them where no thread begins."""

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFacts:
    """Evidence that the daemon already has, to be written with what is collected."""

    records: Sequence[StepRecord] = ()
    """The newest steps, oldest first."""
    kernel_lines: Sequence[str] = ()
    gpus: Sequence[GpuReading] = ()
    host: Sequence[HostReading] = ()
    configuration: Callable[[], str] = str
    """Returns the configuration as text without secrets; called in the part's thread."""
    checkpoints: Callable[[], Sequence[Path]] = tuple
    """Returns the job's checkpoints by the record; called in the part's thread."""
    stands_still: bool = False
    """Whether the training makes no steps: only then are native stacks taken, which takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceResult:
    """Where the evidence is, and what is missing."""

    folder: Path
    took_s: float
    missing: tuple[str, ...] = ()
    """What could not be collected, each with its reason."""


Part: TypeAlias = Callable[[EvidenceFolder], list[str]]
"""Writes its files into the incident's folder and returns what is missing; may raise OSError."""
Parts: TypeAlias = dict[str, Part]
"""By name, in the order in which one thread runs them: those that need the state directory alone share one."""

_under_way: dict[tuple[str, str], PromptThread] = {}
"""The newest thread of each group, by slot and first part."""
_starting = threading.Lock()


def take(  # noqa: PLR0913 - whom to ask, about what, and for how long
    folder: Path, launcher: Launcher, slot: str, facts: EvidenceFacts, incident_id: str, *, limit_s: float = 5.0
) -> EvidenceResult:
    """Collect the evidence of the attempt in `folder` into evidence/INCIDENT; always returns within `limit_s`.

    Raises nothing: parts that failed or hang are named in `missing`. A part that hangs writes its file if it finishes.
    """
    began = time.perf_counter()
    target = place(folder, incident_id)
    limit = RunningLimit(limit_s)
    missing = _run_parts(slot, [{"folder": _make_folder}], target, limit)
    if not missing:
        # A vendor's tool may take a second, or hang with the GPU; stopping the training must not wait for it.
        _start_parts(slot, [{"gpus.txt": tools.write_gpu_tools}], target, {})
        missing = _run_parts(slot, _build_parts(folder, launcher, slot, facts, limit_s), target, limit)
    return EvidenceResult(folder=target.path, took_s=time.perf_counter() - began, missing=tuple(missing))


def place(folder: Path, incident_id: str) -> EvidenceFolder:
    """Return the evidence folder of an incident, whether it exists or not."""
    return EvidenceFolder(folder, f"{names.EVIDENCE}/{_safe_name(incident_id)}")


def _build_parts(folder: Path, launcher: Launcher, slot: str, facts: EvidenceFacts, limit_s: float) -> list[Parts]:
    in_state: Parts = {
        "records.jsonl": lambda target: _write_rows(
            target, "records.jsonl", map(asdict, facts.records[-RECORDS_KEPT:])
        ),
        "kernel.txt": lambda target: _write_text(
            target, "kernel.txt", "".join(f"{line}\n" for line in facts.kernel_lines)
        ),
        "gpus.jsonl": lambda target: _write_rows(target, "gpus.jsonl", map(asdict, facts.gpus)),
        "host.jsonl": lambda target: _write_rows(target, "host.jsonl", map(asdict, facts.host)),
        "configuration.txt": lambda target: _write_text(target, "configuration.txt", facts.configuration()),
        "environment.txt": lambda target: _write_text(target, "environment.txt", tools.environment(launch_env(folder))),
        "output.txt": lambda target: _write_text(target, "output.txt", without_secrets(read_output_tail(folder))),
    }
    looked_for: Parts = {
        "checkpoints.jsonl": lambda target: _write_rows(
            target, "checkpoints.jsonl", _stat_rows(tuple(facts.checkpoints()), LOOK_SHARE * limit_s)
        ),
        "core dumps": lambda target: take_core_dumps(DEVCOREDUMP, target),
        "stacks": lambda target: take_stacks(folder, launcher, slot, target, native=facts.stands_still),
        "processes.txt": lambda target: _take_processes(folder, target),
    }
    return [in_state, *({name: part} for name, part in looked_for.items())]


def _run_parts(slot: str, groups: Sequence[Parts], target: EvidenceFolder, limit: RunningLimit) -> list[str]:
    """Run the groups of parts in parallel until the limit; return what is missing, each with its reason."""
    missing: dict[str, list[str]] = {}
    for thread in _start_parts(slot, groups, target, missing):
        limit.wait_for(partial(_has_ended, thread))
    parts = [name for group in groups for name in group]
    late = [f"{name}: not collected in time" for name in parts if name not in missing]
    return late + [text for name in parts for text in missing.get(name, ())]


def _has_ended(thread: PromptThread, wait_s: float) -> bool:
    thread.join(wait_s)
    return not thread.is_alive()


def _start_parts(
    slot: str, groups: Sequence[Parts], target: EvidenceFolder, missing: dict[str, list[str]]
) -> list[PromptThread]:
    """Start a thread for each group of parts; each part adds its problems to `missing` when it is done.

    Where that of an earlier incident still hangs another would as well, and each attempt would add one.
    """

    def run(group: Parts) -> None:
        for name, part in group.items():
            try:
                missing[name] = part(target)
            except Exception as error:  # noqa: BLE001 - a fence: no failure of a part may prevent stopping a training
                missing[name] = [f"{name}: {type(error).__name__}: {error}"]

    started: list[PromptThread] = []
    unstarted: dict[str, Exception] = {}
    for group in groups:
        first = next(iter(group))
        with _starting:
            earlier = _under_way.get((slot, first))
            if earlier is not None and earlier.is_alive():
                missing.update({name: [f"{name}: that of an earlier incident has not ended"] for name in group})
                continue
            thread = _under_way[slot, first] = PromptThread(partial(run, group), f"evidence-{first}")
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                unstarted[first] = error
                continue
        started.append(thread)
    for group in groups:
        first = next(iter(group))
        if first in unstarted and first in IN_STATE:
            run(group)
        elif first in unstarted:
            missing.update({name: [f"{name}: no thread could be started: {unstarted[first]}"] for name in group})
    return started


# --- processes ----------------------------------------------------------------------------------------------------


def _take_processes(folder: Path, target: EvidenceFolder) -> list[str]:
    """Write the /proc files of each process one by one, so that a read that hangs loses only what follows it."""
    tree = tree_of(folder)
    with target.open("processes.txt") as out:
        out.write(
            "".join(f"{process.pid} child of {process.parent}, state {process.state}\n" for process in tree).encode()
        )
        for name in PROC_FILES:
            for process in tree:
                found = without_secrets(_read_proc(Path(f"/proc/{process.pid}/{name}")))
                out.write(f"\n== /proc/{process.pid}/{name}\n{found}\n".encode("utf-8", "backslashreplace"))
        for process in tree:
            for thread in sorted(Path(f"/proc/{process.pid}/task").glob("*"))[:THREADS_LIMIT]:
                facts = (f"{name}: {_read_proc(thread / name)}" for name in PROC_THREAD_FILES)
                text = f"\n== {thread}\n" + "\n".join(facts) + "\n"
                out.write(text.encode("utf-8", "backslashreplace"))
    if tree:
        return []
    hidden = "/proc hides the processes of the attempt, as with hidepid or ProtectProc"
    return [f"processes.txt: {hidden if is_shim_hidden(folder) else 'no process of the attempt is running'}"]


def _read_proc(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(PROC_FILE_LIMIT_BYTES)
    except OSError as error:
        return f"({error.strerror})"
    return data.rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "backslashreplace")


# --- files --------------------------------------------------------------------------------------------------------


def read_output_tail(folder: Path) -> str:
    """Return the last 64 KiB of the training's output, over log rotations, redraws folded to the last text shown."""
    text = read_output_end(folder, RAW_TAIL_BYTES).decode("utf-8", "replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    folded = CONTROL.sub("", "\n".join(lines))
    return folded.encode()[-TAIL_BYTES:].decode("utf-8", "ignore")


def _stat_rows(paths: tuple[Path, ...], limit_s: float) -> Iterator[dict[str, object]]:
    """Yield what the file systems say of files. Raises TimeoutError where one does not answer within `limit_s`."""
    for path, stat in zip(paths, apart_within(limit_s, stat_each, paths), strict=True):
        if isinstance(stat, OSError):
            yield {"path": str(path), "error": stat.strerror}
            continue
        yield {
            "path": str(path),
            "size_bytes": stat.st_size,
            "modified_unix_s": stat.st_mtime,
            "inode": stat.st_ino,
            "owner": stat.st_uid,
        }


def _make_folder(target: EvidenceFolder) -> list[str]:
    target.make()
    return []


def _write_text(target: EvidenceFolder, name: str, text: str) -> list[str]:
    target.write(name, text)
    return []


def _write_rows(target: EvidenceFolder, name: str, rows: Iterable[dict[str, object]]) -> list[str]:
    return _write_text(target, name, "".join(json.dumps(_make_json_safe(row), default=str) + "\n" for row in rows))


def _make_json_safe(row: dict[str, object]) -> dict[str, object]:
    """Return the row with NaN and infinity as text, since JSON cannot represent them."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _safe_name(incident_id: str) -> str:
    """Return the incident's id as a file name without path components."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", incident_id).lstrip(".") or "incident"
