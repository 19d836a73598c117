"""Takes evidence of an attempt before it is killed, whatever state it is in; it interprets nothing and never waits on.

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

from supervisor.core import folder as names
from supervisor.core.readings import GpuReading, HostReading, StepRecord
from supervisor.core.secrets import without_secrets
from supervisor.runner import outside
from supervisor.runner.core_dumps import DEVCOREDUMP, take_core_dumps
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


Part: TypeAlias = Callable[[Path], list[str]]
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
        _start({"cards.txt": lambda path: outside.cards(path / "cards.txt")}, target, {})
        missing = _run(_parts(folder, launcher, slot, facts), target, deadline)
    return EvidenceResult(folder=target, took_s=time.perf_counter() - began, missing=tuple(missing))


def place(folder: Path, incident_id: str) -> Path:
    """Return where the evidence of an incident lies, or would."""
    return folder / names.EVIDENCE / _safe_name(incident_id)


def _parts(folder: Path, launcher: Launcher, slot: str, facts: EvidenceFacts) -> dict[str, Part]:
    return {
        "records.jsonl": lambda path: _write_rows(path / "records.jsonl", map(asdict, facts.records[-RECORDS_KEPT:])),
        "kernel.txt": lambda path: _write(path / "kernel.txt", "".join(f"{line}\n" for line in facts.kernel_lines)),
        "gpus.jsonl": lambda path: _write_rows(path / "gpus.jsonl", map(asdict, facts.gpus)),
        "host.jsonl": lambda path: _write_rows(path / "host.jsonl", map(asdict, facts.host)),
        "configuration.txt": lambda path: _write(path / "configuration.txt", facts.configuration()),
        "environment.txt": lambda path: _write(path / "environment.txt", outside.environment(launch_env(folder))),
        "checkpoints.jsonl": lambda path: _write_rows(path / "checkpoints.jsonl", map(_stat_row, facts.checkpoints)),
        "core dumps": lambda path: take_core_dumps(DEVCOREDUMP, path),
        "output.txt": lambda path: _write(path / "output.txt", without_secrets(read_output_tail(folder))),
        "stacks": lambda path: take_stacks(folder, launcher, slot, path, native=facts.stands_still),
        "processes.txt": lambda path: _take_processes(folder, path / "processes.txt"),
    }


def _run(parts: dict[str, Part], target: Path, deadline: float) -> list[str]:
    """Run the parts side by side until the deadline; return what is missing, each with its reason."""
    missing: dict[str, list[str]] = {}
    for thread in _start(parts, target, missing):
        thread.join(max(0.0, deadline - time.perf_counter()))
    late = [f"{name}: not done in time" for name in parts if name not in missing]
    return late + [one for name in parts for one in missing.get(name, ())]


def _start(parts: dict[str, Part], target: Path, missing: dict[str, list[str]]) -> list[threading.Thread]:
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


def _take_processes(folder: Path, target: Path) -> list[str]:
    """Write what /proc tells of each process, piece by piece: what a hanging read leaves unsaid, it leaves alone."""
    tree = tree_of(folder)
    with target.open("w", encoding="utf-8", errors="backslashreplace") as out:
        out.writelines(f"{one.pid} child of {one.parent}, state {one.state}\n" for one in tree)
        for name in PROC_FILES:
            for one in tree:
                found = without_secrets(_read_proc(Path(f"/proc/{one.pid}/{name}")))
                out.write(f"\n== /proc/{one.pid}/{name}\n{found}\n")
                out.flush()
        for one in tree:
            for thread in sorted(Path(f"/proc/{one.pid}/task").glob("*"))[:THREADS_LIMIT]:
                facts = (f"{name}: {_read_proc(thread / name)}" for name in PROC_THREAD_FILES)
                out.write(f"\n== {thread}\n" + "\n".join(facts) + "\n")
                out.flush()
    return [] if tree else ["processes.txt: nothing of the attempt runs any more"]


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
    with (folder / names.OUTPUT).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - RAW_TAIL_BYTES))
        text = file.read(RAW_TAIL_BYTES).decode("utf-8", "replace")
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


def _make(target: Path) -> list[str]:
    target.mkdir(parents=True, exist_ok=True)
    return []


def _write(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return []


def _write_rows(path: Path, rows: Iterable[dict[str, object]]) -> list[str]:
    return _write(path, "".join(json.dumps(_plain(row), default=str) + "\n" for row in rows))


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Return the row with NaN and infinity as text: they are no JSON, and here they are the point."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _safe_name(incident_id: str) -> str:
    """Return a name that stays inside the folder, whatever a job is called."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", incident_id).lstrip(".") or "incident"
