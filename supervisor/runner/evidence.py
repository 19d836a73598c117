"""Collects evidence of an attempt before it is killed, within a time limit.

Every part runs in a thread of its own and writes a file of its own: one that hangs in the kernel (the very fault that
is looked at may do that) costs the others nothing. Of the environment only what concerns the hardware is kept, and
text loses the secrets that can be told for some: the bundle is made to be handed on.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.readings import GpuReading, HostReading, StepRecord
from supervisor.core.sanitize import without_secrets
from supervisor.runner import tools
from supervisor.runner.core_dumps import DEVCOREDUMP, take_core_dumps
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.launcher import Launcher
from supervisor.runner.stacks import launch_env, take_stacks, tree_of

RECORDS_KEPT = 200
TAIL_BYTES = 65536
RAW_TAIL_BYTES = 4 * TAIL_BYTES
"""Redraws of a progress bar fold to much less than they take."""
PROC_FILES = ("status", "wchan", "stack", "syscall", "stat", "limits", "cmdline")
"""In this order: reading `cmdline` waits for the memory lock, which a process stuck in the kernel may hold."""
PROC_THREAD_FILES = ("comm", "wchan", "stack", "stat")
PROC_FILE_LIMIT_BYTES = 16384
THREADS_LIMIT = 64

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFacts:
    """What the daemon knows already and puts beside what is looked up."""

    records: Sequence[StepRecord] = ()
    """The newest steps, oldest first."""
    kernel_lines: Sequence[str] = ()
    gpus: Sequence[GpuReading] = ()
    host: Sequence[HostReading] = ()
    configuration: Callable[[], str] = str
    """Makes it as text, without secrets; called where it is written, for no decision waits for it."""
    checkpoints: Sequence[Path] = ()
    stands_still: bool = False
    """Whether the training makes no steps: only then is it worth the seconds that native stacks take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceResult:
    """Where the evidence lies and what is not among it."""

    folder: Path
    took_s: float
    missing: tuple[str, ...] = ()
    """What could not be had in time, each with its reason."""


Part: TypeAlias = Callable[[EvidenceFolder], list[str]]
"""Writes its files into the incident's folder and returns what it could not have; may raise OSError."""


def take(  # noqa: PLR0913 - whom to ask, about what, and for how long
    folder: Path, launcher: Launcher, slot: str, facts: EvidenceFacts, incident_id: str, *, limit_s: float = 5.0
) -> EvidenceResult:
    """Take the evidence of the attempt in `folder` into evidence/INCIDENT; it returns within `limit_s`, always.

    It raises nothing: what failed or hung is named in `missing`, and a part that hung writes its file if it ever ends.
    """
    began = time.perf_counter()
    target = place(folder, incident_id)
    deadline = began + limit_s
    missing = _run({"folder": _make}, target, deadline)
    if not missing:
        # A vendor's tool may take a second, or hang with the card; the order to end must not wait for it.
        _start({"cards.txt": tools.cards}, target, {})
        missing = _run(_parts(folder, launcher, slot, facts), target, deadline)
    return EvidenceResult(folder=target.path, took_s=time.perf_counter() - began, missing=tuple(missing))


def place(folder: Path, incident_id: str) -> EvidenceFolder:
    """Return where the evidence of an incident lies, or would."""
    return EvidenceFolder(folder, f"{names.EVIDENCE}/{_safe_name(incident_id)}")


def _parts(folder: Path, launcher: Launcher, slot: str, facts: EvidenceFacts) -> dict[str, Part]:
    return {
        "records.jsonl": lambda target: _write_rows(
            target, "records.jsonl", map(asdict, facts.records[-RECORDS_KEPT:])
        ),
        "kernel.txt": lambda target: _write(target, "kernel.txt", "".join(f"{line}\n" for line in facts.kernel_lines)),
        "gpus.jsonl": lambda target: _write_rows(target, "gpus.jsonl", map(asdict, facts.gpus)),
        "host.jsonl": lambda target: _write_rows(target, "host.jsonl", map(asdict, facts.host)),
        "configuration.txt": lambda target: _write(target, "configuration.txt", facts.configuration()),
        "environment.txt": lambda target: _write(target, "environment.txt", tools.environment(launch_env(folder))),
        "checkpoints.jsonl": lambda target: _write_rows(target, "checkpoints.jsonl", map(_stat_row, facts.checkpoints)),
        "core dumps": lambda target: take_core_dumps(DEVCOREDUMP, target),
        "output.txt": lambda target: _write(target, "output.txt", without_secrets(read_output_tail(folder))),
        "stacks": lambda target: take_stacks(folder, launcher, slot, target, native=facts.stands_still),
        "processes.txt": lambda target: _take_processes(folder, target),
    }


def _run(parts: dict[str, Part], target: EvidenceFolder, deadline: float) -> list[str]:
    """Run the parts side by side until the deadline; return what is missing, each with its reason."""
    missing: dict[str, list[str]] = {}
    for thread in _start(parts, target, missing):
        thread.join(max(0.0, deadline - time.perf_counter()))
    late = [f"{name}: not collected in time" for name in parts if name not in missing]
    return late + [text for name in parts for text in missing.get(name, ())]


def _start(parts: dict[str, Part], target: EvidenceFolder, missing: dict[str, list[str]]) -> list[threading.Thread]:
    """Start the parts; each puts into `missing` what it could not have once it is done."""

    def run(name: str, part: Part) -> None:
        try:
            missing[name] = part(target)
        except Exception as error:  # noqa: BLE001 - a fence: no failure to look may keep a training from being ended
            missing[name] = [f"{name}: {type(error).__name__}: {error}"]

    threads = [
        threading.Thread(target=run, args=pair, name=f"evidence-{pair[0]}", daemon=True) for pair in parts.items()
    ]
    for thread in threads:
        thread.start()
    return threads


# --- processes ----------------------------------------------------------------------------------------------------


def _take_processes(folder: Path, target: EvidenceFolder) -> list[str]:
    """Write what /proc tells of each process, piece by piece: what a hanging read leaves unsaid, it leaves alone."""
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
    return [] if tree else ["processes.txt: no process of the attempt is running"]


def _read_proc(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(PROC_FILE_LIMIT_BYTES)
    except OSError as error:
        return f"({error.strerror})"
    return data.rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "backslashreplace")


# --- files --------------------------------------------------------------------------------------------------------


def read_output_tail(folder: Path) -> str:
    """Return the last 64 KiB of what the training printed, redraws folded to what a person saw last."""
    text = untrusted_files.read_tail(folder, names.OUTPUT, RAW_TAIL_BYTES).content.decode("utf-8", "replace")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    folded = CONTROL.sub("", "\n".join(lines))
    return folded.encode()[-TAIL_BYTES:].decode("utf-8", "ignore")


def _stat_row(path: Path) -> dict[str, object]:
    try:
        stat = path.stat()
    except OSError as error:
        return {"path": str(path), "error": error.strerror}
    return {
        "path": str(path),
        "size_bytes": stat.st_size,
        "modified_unix_s": stat.st_mtime,
        "inode": stat.st_ino,
        "owner": stat.st_uid,
    }


def _make(target: EvidenceFolder) -> list[str]:
    target.make()
    return []


def _write(target: EvidenceFolder, name: str, text: str) -> list[str]:
    target.write(name, text)
    return []


def _write_rows(target: EvidenceFolder, name: str, rows: Iterable[dict[str, object]]) -> list[str]:
    return _write(target, name, "".join(json.dumps(_plain(row), default=str) + "\n" for row in rows))


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Return the row with NaN and infinity as text: they are no JSON, and here they are the point."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _safe_name(incident_id: str) -> str:
    """Return a name that stays inside the folder, whatever a job is called."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", incident_id).lstrip(".") or "incident"
