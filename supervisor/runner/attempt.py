"""An attempt's folder, made for the shim and read after it; it starts no process.

What lies in the folder may have been written by a user's program or cut by a full disk: readers answer None to
anything that is not sound.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import supervisor
from supervisor.core import folder as names
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.runner import shim
from supervisor.runner.shim import Process

AGENT_PATH = Path(supervisor.__file__).resolve().parent / "agent" / "path"
NOTE_LIMIT_BYTES = 65536
"""More than any shim writes; a larger file is not its."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimNote:
    """What the shim left word of in shim.json once the training ran."""

    pid: int
    start_ticks: int
    """Start of the shim in clock ticks since boot, which tells it from a later process of its number."""
    boot_id: str
    training_pid: int | None
    training_start_ticks: int | None
    started_unix_s: float | None = None
    problem: str | None = None
    """What the attempt has to do without, such as a recorder that found no room on the disk."""


def prepare(  # noqa: PLR0913 - one argument a field of launch.json
    state: Path,
    job: str,
    number: int,
    *,
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    grace_s: float,
    save_s: float,
    group: int | None,
    remedies: Mapping[str, object] | None = None,
) -> Path:
    """Make STATE/jobs/JOB/NUMBER with its launch.json, point `current` at it and return it.

    With `group` (a gid) its folders belong to that group, for a training under a user of its own; otherwise they are
    the daemon's alone. `remedies` are settings for the agent by name. Raises FileExistsError where the attempt was
    started before, OSError where the disk refuses.
    """
    job_folder = state / "jobs" / job
    folder = job_folder / str(number)
    for one in (job_folder.parent, job_folder, folder, job_folder / names.SNAPSHOTS):
        make_folder(one, group)
    for name in (names.EXIT + ".tmp", names.EXIT, names.SHIM):
        if (folder / name).exists():
            raise FileExistsError(f"{folder}: this attempt was started before; give the new one a higher number")
    launch = {
        "version": 1,
        "job": job,
        "attempt": number,
        "argv": list(argv),
        "cwd": cwd,
        "env": dict(env),
        "grace_s": grace_s,
        "save_s": save_s,
    }
    lay_out(folder, launch, group, remedies)
    return folder


def lay_out(
    folder: Path, launch: Mapping[str, object], group: int | None, remedies: Mapping[str, object] | None
) -> None:
    """Write launch.json and remedies.json into a folder, and make it the job's `current`; made where it is not there.

    Raises OSError where the disk refuses.
    """
    make_folder(folder, group)
    mode = 0o600 if group is None else 0o640
    if remedies:
        note = {"version": 1, "settings": dict(remedies)}
        write_whole(folder / names.REMEDIES, json.dumps(note) + "\n", mode)
    write_whole(folder / names.LAUNCH, json.dumps(launch) + "\n", mode)
    point(folder.parent, Path(folder.name))


def point(slot_folder: Path, to: Path) -> None:
    """Let `current` of a slot be `to` from now on: it is what its unit runs."""
    pointer = slot_folder / f"{names.CURRENT}.tmp"
    pointer.unlink(missing_ok=True)
    pointer.symlink_to(to)
    pointer.replace(slot_folder / names.CURRENT)


def make_folder(folder: Path, group: int | None) -> None:
    """Make a folder of the state directory, for trainings of another user with their `group`."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return
    wanted, there = 0o700 if group is None else 0o2770, folder.stat()
    # Below a directory with the setgid bit nothing differs, and the daemon's sandbox lets neither call through.
    if group is not None and there.st_gid != group:
        os.chown(folder, -1, group)
    if stat.S_IMODE(there.st_mode) != wanted:
        folder.chmod(wanted)


def write_whole(path: Path, text: str, mode: int) -> None:
    """Write a file that is either there in full or not at all; `mode` holds from its first byte, for it has secrets."""
    draft = path.with_name(path.name + ".tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    draft.replace(path)


def agent_path(path: Path = AGENT_PATH) -> Path:
    """Return the directory for PYTHONPATH; raise ValueError where anybody could put code of theirs into it."""
    for one in (path, *sorted(path.rglob("*"))):
        mode = one.lstat().st_mode
        if mode & stat.S_IWOTH and not stat.S_ISLNK(mode):
            raise ValueError(f"{one}: writable by everybody, and trainings would run it; `chmod o-w` it")
    return path


def compose_env(  # noqa: PLR0913 - one argument a variable
    *,
    job: str,
    number: int,
    folder: Path,
    env: Mapping[str, str],
    inherited: Mapping[str, str],
    agent: Path | None,
    conv2d: str,
    conv2d_settings: Mapping[str, str],
    resume_from: str | None,
    snapshot_every: str,
    mean_fault_s: float,
) -> dict[str, str]:
    """Return the variables that the training gets on top of what its shim inherits.

    `env` is the job's own, `inherited` the daemon's environment, `agent` the answer of `agent_path` or None for a
    training without it, `conv2d_settings` what the agent is to know of it. The user's PYTHONPATH stays, after the
    agent's; PYTHONUNBUFFERED is set unless they set it.
    """
    given = {**inherited, **env}
    composed = dict(env)
    composed.update(
        {
            names.ENV_FOLDER: str(folder),
            names.ENV_JOB: job,
            names.ENV_ATTEMPT: str(number),
            names.ENV_CONV2D: conv2d,
            **conv2d_settings,
            # Empty, not absent: a daemon that was itself started by a supervised program must not pass on its own.
            names.ENV_RESUME_FROM: resume_from or "",
            names.ENV_SNAPSHOTS: str(folder.parent / names.SNAPSHOTS),
            names.ENV_SNAPSHOT_EVERY: snapshot_every,
            names.ENV_MEAN_FAULT: f"{mean_fault_s:.0f}",
        }
    )
    if agent is not None:
        theirs = given.get("PYTHONPATH", "")
        composed["PYTHONPATH"] = f"{agent}{os.pathsep}{theirs}" if theirs else str(agent)
    if "PYTHONUNBUFFERED" not in given:
        composed["PYTHONUNBUFFERED"] = "1"
    return composed


def read_shim(folder: Path) -> ShimNote | None:
    """Return the shim's word that the training runs; None where there is none or it is damaged."""
    note = read_note(folder / names.SHIM)
    pid, ticks, boot = _count(note.get("pid")), _count(note.get("start_ticks")), _text(note.get("boot_id"))
    if pid is None or ticks is None or boot is None:
        return None
    return ShimNote(
        pid=pid,
        start_ticks=ticks,
        boot_id=boot,
        training_pid=_count(note.get("training_pid")),
        training_start_ticks=_count(note.get("training_start_ticks")),
        started_unix_s=_number(note.get("started_unix_s")),
        problem=_text(note.get("problem")),
    )


def living_shim(folder: Path) -> Process | None:
    """Return the shim that shim.json names if it lives: its start time and boot guard against a reused number."""
    note = read_shim(folder)
    if note is None or note.boot_id != shim.boot_id():
        return None
    process = shim.read_process(note.pid)
    if process is None or process.dead or process.start_ticks != note.start_ticks:
        return None
    return process


def read_exit(folder: Path, now: Moment) -> ExitStatus | None:
    """Return how the attempt ended; None where the shim left no word of it or the word is damaged.

    The monotonic part of its moment is the shim's own reading where that was of this boot, else reckoned from the
    wall clock.
    """
    note = read_note(folder / names.EXIT)
    code, number, error = _whole(note.get("exit_code")), _count(note.get("signal")), _text(note.get("error"))
    if code is None and number is None and error is None:
        return None
    at, unix_s, monotonic_ns = now, _number(note.get("ended_unix_s")), _count(note.get("ended_monotonic_ns"))
    shim_note = read_shim(folder)
    if monotonic_ns is not None and shim_note is not None and shim_note.boot_id == shim.boot_id():
        at = now.at_monotonic(monotonic_ns / 1e9)
    elif unix_s is not None:
        at = Moment(now.monotonic_s - (now.unix_s - unix_s), unix_s)
    return ExitStatus(at=at, code=code, signal=number, error=error, max_rss_bytes=_count(note.get("max_rss_bytes")))


def read_start_error(folder: Path) -> str | None:
    """Return why the shim could not start the training; None where it left no such word."""
    return _text(read_note(folder / names.EXIT).get("error"))


def read_note(path: Path, limit_bytes: int = NOTE_LIMIT_BYTES) -> dict[str, object]:
    """Return what a shim or an agent wrote; empty where it wrote nothing, or it is damaged or longer than the limit."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return {}
        with path.open("rb") as file:
            note = json.loads(file.read(limit_bytes))
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(value: object) -> int | None:
    number = _whole(value)
    return None if number is None or number < 0 else number


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
