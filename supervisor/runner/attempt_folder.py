"""The folder of an attempt: created for the shim before the launch, read afterwards.

Files in the folder may have been written by a user's program or truncated by a full disk: readers return None for
invalid content.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.shared_files import replace_file
from supervisor.core import attempt_files as names
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.foreign_values import (
    BYTES_MAX,
    MONOTONIC_NS_MAX,
    PID_MAX,
    UNIX_S_MAX,
    as_float,
    as_int,
    as_message,
    as_text,
    read_json_object,
)
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus
from supervisor.own_places import ASIDE_LIMIT, make_way, move_aside
from supervisor.runner import process_table, shim, shim_files
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.process_table import Process
from supervisor.runner.process_words import read_words

log = logging.getLogger(__name__)

FILES_NAMED = 32
"""Number of checkpoints, the newest, whose steps are passed to an attempt."""
SAVES_NAMED = 64
"""Number of saves, the newest, whose steps are passed to an attempt by size and time only."""
NOTE_LIMIT_BYTES = 65536
"""More than any shim writes; a larger file is not the shim's."""
LAUNCH_LIMIT_BYTES = 1 << 22
"""Twice the size of arguments and environment that Linux allows."""
BOOT_ID_CHARS_MAX = 64
SIGNAL_MAX = 64
PROCESSES_MAX = 1 << 22
ERROR_CHARS_MAX = 1000
"""The shim truncates at 500."""
SHIM_PROGRAMS = frozenset({shim.AS_MODULE.encode(), shim.AS_STANDBY.encode()})
"""One of them is on the command line of every shim."""
PROBE = ".writable"
FAILING = frozenset({errno.EIO, errno.EROFS})
"""Errors of a disk that is broken, gone or mounted read-only after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimNote:
    """The content of shim.json, which the shim writes when the training runs."""

    pid: int
    start_ticks: int
    """Start of the shim in clock ticks since boot; distinguishes it from a later process with the same pid."""
    boot_id: str
    training_pid: int | None
    training_start_ticks: int | None
    started_unix_s: float | None = None
    problem: str | None = None
    """What the attempt lacks, for example a flight recorder that could not be created on a full disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A file that a training wrote, identified by size and time, and the step after which it was written."""

    size_bytes: int
    modified_ns: int
    step: int


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
    code: Code = INSTALLED,
    command: Sequence[str] | None = None,
) -> Path:
    """Create STATE/jobs/JOB/NUMBER with its launch.json, point `current` at it and return it.

    With `group` (a gid) its folders belong to that group, for a training that runs as another user; otherwise only the
    daemon can access them. `remedies` are settings for the agent by name, `code` is what its shim runs, `command` is
    what would start it from the beginning. Raises FileExistsError if the attempt was started before, OSError if a file
    cannot be written.
    """
    job_folder = make_job_folder(state, job, group)
    folder = job_folder / str(number)
    make_attempt_folder(folder, group)
    for name in (names.EXIT + ".tmp", names.EXIT, names.SHIM):
        if untrusted_files.exists(folder, name):
            raise FileExistsError(f"{folder}: this attempt has already been started; give the new one a higher number")
    launch = describe_launch(job, number, argv=argv, cwd=cwd, env=env, grace_s=grace_s, save_s=save_s)
    if command is not None:
        launch["command"] = list(command)
    lay_out(folder, launch, group, remedies, code)
    return folder


def describe_launch(  # noqa: PLR0913 - one argument a field of launch.json
    job: str, number: int, *, argv: Sequence[str], cwd: str, env: Mapping[str, str], grace_s: float, save_s: float
) -> dict[str, object]:
    """Return what launch.json tells the shim."""
    return {
        "version": shim_files.VERSION,
        "job": job,
        "attempt": number,
        "argv": list(argv),
        "cwd": cwd,
        "env": dict(env),
        "grace_s": grace_s,
        "save_s": save_s,
    }


def lay_out(
    folder: Path,
    launch: Mapping[str, object],
    group: int | None,
    remedies: Mapping[str, object] | None,
    code: Code = INSTALLED,
) -> None:
    """Write launch.json and remedies.json into a folder, and make it the job's `current`; creates it if missing.

    Raises OSError if a file cannot be written.
    """
    make_attempt_folder(folder, group)
    mode = 0o600 if group is None else 0o640
    # The shim locks it through a read-only descriptor: only the daemon can replace the file.
    lock = folder.with_name(names.LOCK)
    make_way(lock)  # opening a pipe waits for its writer
    os.close(os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
    if remedies:
        note = {"version": 1, "settings": dict(remedies)}
        write_atomically(folder / names.REMEDIES, json.dumps(note) + "\n", mode)
    write_atomically(folder / names.LAUNCH, json.dumps({**launch, "code": str(code.root)}) + "\n", mode)
    link_code(folder, code)
    point(folder.parent, Path(folder.name))


def point(slot_folder: Path, to: Path) -> None:
    """Point the `current` link of a slot, which its unit runs, to `to`."""
    _replace_link(slot_folder / names.CURRENT, to)


def link_code(folder: Path, code: Code) -> None:
    """Make the shim that is started on a folder run that code."""
    _replace_link(folder / names.CODE, code.root)


def _replace_link(link: Path, to: Path) -> None:
    draft = link.with_name(f"{link.name}.tmp")
    for place in (draft, link):
        make_way(place, lambda mode: not stat.S_ISDIR(mode))
    draft.unlink(missing_ok=True)
    draft.symlink_to(to)
    draft.replace(link)


def make_job_folder(state: Path, job: str, group: int | None) -> Path:
    """Create STATE/jobs/JOB with the folders that a job's attempts share, and return it. Raises OSError."""
    folder = state / "jobs" / job
    for path in (folder.parent, folder):
        make_folder(path, group)
    for name in (names.SNAPSHOTS, names.CONV2D):
        make_folder(folder / name, group, shared=True)
    return folder


def check_disk(state: Path, job: str) -> None:
    """Raise OSError where the disk of a job's folder fails, so that no attempt can be laid out there.

    A full one is not meant, nor a folder that the daemon may not write: no waiting mends these.
    """
    probe = state / "jobs" / job / PROBE
    try:
        replace_file(probe, b"\n", 0o600)
        probe.unlink()
    except OSError as error:
        if error.errno in FAILING:
            why = f"{error.strerror}; it cannot be written, so nothing is launched until it can be"
            raise OSError(error.errno, why, str(probe.parent)) from error


def make_attempt_folder(folder: Path, group: int | None) -> None:
    """Create the folder of an attempt, a replay or a standby, with its part that the training may write."""
    make_folder(folder, group)
    make_folder(folder / names.RUN, group, shared=True)


def make_folder(folder: Path, group: int | None, *, shared: bool = False) -> None:
    """Create a folder of the state directory if it is missing; with `shared`, the training's user may write there.

    A link or a folder of another user in its place is renamed and logged, since the daemon has not created it.
    Raises OSError if it cannot be created.
    """
    mode = 0o700 if group is None else 0o2770 if shared else 0o2750
    for _ in range(ASIDE_LIMIT):
        try:
            folder.mkdir(mode & 0o777, parents=True)
        except FileExistsError:
            there = folder.lstat()
            if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
                move_aside(folder)
                continue
        break
    _set_rights(folder, mode, group)


def _set_rights(folder: Path, mode: int, group: int | None) -> None:
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        there = os.fstat(at)
        # Below a directory with the setgid bit they are already right, and the daemon's sandbox forbids both calls.
        if group is not None and there.st_gid != group:
            os.fchown(at, -1, group)
        if stat.S_IMODE(there.st_mode) != mode:
            os.fchmod(at, mode)
    except PermissionError as error:
        text = f"{folder}: group and mode must be {group} and {mode:o}; `supervisorctl setup` sets them"
        raise PermissionError(error.errno, text) from error
    finally:
        os.close(at)


def write_atomically(path: Path, text: str, mode: int) -> None:
    """Write a file that appears complete or not at all; it is created with `mode`, since it may contain secrets."""
    replace_file(path, text.encode("ascii"), mode)


def compose_env(  # noqa: PLR0913 - one argument a variable
    *,
    job: str,
    number: int,
    folder: Path,
    env: Mapping[str, str],
    inherited: Mapping[str, str],
    agent: Path | None,
    conv2d: str,
    agent_settings: Mapping[str, str],
    resume_from: str | None,
    snapshot_every: str,
    mean_fault_s: float,
    resume_steps: str = "",
    snapshot_replicas: str | None = None,
) -> dict[str, str]:
    """Return the variables that the training gets in addition to those that its shim inherits.

    `env` is the job's own, `inherited` the daemon's environment, `agent` the folder of its copy or None for a
    training without agent, `agent_settings` what else the job's settings ask of the agent. The user's PYTHONPATH
    follows the agent's; PYTHONUNBUFFERED is set unless the user sets it.
    """
    given = {**inherited, **env}
    composed = dict(env)
    composed.update(
        {
            names.ENV_FOLDER: str(folder / names.RUN),
            names.ENV_JOB: job,
            names.ENV_ATTEMPT: str(number),
            names.ENV_CONV2D: conv2d,
            **agent_settings,
            # Empty, not absent: a daemon started by a supervised program must not pass on that program's value.
            names.ENV_RESUME_FROM: resume_from or "",
            names.ENV_RESUME_STEPS: resume_steps,
            names.ENV_SNAPSHOTS: str(folder.parent / names.SNAPSHOTS),
            names.ENV_SNAPSHOT_EVERY: snapshot_every,
            names.ENV_REPLICAS: snapshot_replicas or "",
            names.ENV_MEAN_FAULT: f"{mean_fault_s:.0f}",
        }
    )
    if agent is not None:
        theirs = given.get("PYTHONPATH", "")
        composed["PYTHONPATH"] = f"{agent}{os.pathsep}{theirs}" if theirs else str(agent)
    if "PYTHONUNBUFFERED" not in given:
        composed["PYTHONUNBUFFERED"] = "1"
    return composed


def resume_steps(
    checkpoint: Checkpoint | None,
    kept: Iterable[Checkpoint],
    saves: Iterable[Save] = (),
    *,
    asked: bool,
    loads_itself: bool = False,
) -> str:
    """Return for the agent, as JSON, the steps of the checkpoints that a training may load; "" if there are none.

    `saves` are files identified by size and time, which a script that resumes from its own file may load although no
    generation of them is kept. `asked` is true if the command names the checkpoint to resume from, `loads_itself` if
    the program has to find and load by itself what no proof can open.
    """
    newest = sorted(kept, key=lambda item: item.saved_unix_s, reverse=True)[:FILES_NAMED]
    files = dict.fromkeys([*([checkpoint] if checkpoint is not None else []), *newest])
    rows: list[list[object]] = [
        [path, file.fingerprint.size_bytes, file.fingerprint.modified_ns, file.step]
        for file in files
        for path in dict.fromkeys((file.path, file.source or file.path))
    ]
    own = sorted(saves, key=lambda save: save.modified_ns, reverse=True)[:SAVES_NAMED]
    rows.extend([None, save.size_bytes, save.modified_ns, save.step] for save in own)
    if not rows and not loads_itself:
        return ""
    step = checkpoint.step if checkpoint is not None else None
    note: dict[str, object] = {"step": step, "asked": asked and checkpoint is not None, "files": rows}
    return json.dumps({**note, "loads_itself": True} if loads_itself else note)


def describe_newer(folder: Path) -> str | None:
    """Return that a later version launched an attempt, and what to do; None if none did.

    An older record is read; what a newer one holds may mean anything. Only what the daemon wrote tells which it is:
    the training can give its shim's records any version, and would never be judged or stopped again.
    """
    version = as_int(read_note(folder, names.LAUNCH, LAUNCH_LIMIT_BYTES).get("version"))
    if version is None or version <= shim_files.VERSION:
        return None
    known = f"and this daemon reads up to {shim_files.VERSION}"
    remedy = "install the version of rocm-supervisor that wrote it, or a later one"
    path = folder / names.LAUNCH
    until_then = "until then the attempt is left as it is, and `supervisorctl stop` ends it"
    return f"{path} has version {version}, {known}: {remedy}; {until_then}"


def read_shim(folder: Path) -> ShimNote | None:
    """Return the content of shim.json; None if it is missing or invalid."""
    note = read_note(folder, names.SHIM)
    pid, ticks = as_int(note.get("pid"), 1, PID_MAX), as_int(note.get("start_ticks"))
    boot = as_text(note.get("boot_id"), BOOT_ID_CHARS_MAX)
    if pid is None or ticks is None or boot is None:
        return None
    return ShimNote(
        pid=pid,
        start_ticks=ticks,
        boot_id=boot,
        training_pid=as_int(note.get("training_pid"), 1, PID_MAX),
        training_start_ticks=as_int(note.get("training_start_ticks")),
        started_unix_s=as_float(note.get("started_unix_s"), 0.0, UNIX_S_MAX),
        problem=as_message(note.get("problem"), ERROR_CHARS_MAX),
    )


def living_shim(folder: Path) -> Process | None:
    """Return the shim that shim.json names if it is running and proven to be this attempt's.

    The training can write shim.json, so the process must have the start time and boot in the file, run as the user
    who wrote it, have this attempt's folder on a shim's command line, and be neither the daemon nor its ancestor.
    """
    note = read_shim(folder)
    if note is None or note.boot_id != process_table.boot_id():
        return None
    process = process_table.read_process(note.pid)
    if process is None or process.dead or process.start_ticks != note.start_ticks:
        return None
    return process if _is_shim_of(process, folder) else None


def is_hidden(pid: int) -> bool:
    """Whether a process is there and /proc shows nothing of it, as it does of other users' with `hidepid` (proc(5)).

    When it was started is unknown then, so that it is taken for the one that had this pid.
    """
    if process_table.read_process(pid) is not None:
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def is_shim_hidden(folder: Path) -> bool:
    """Whether shim.json names a process of which /proc shows nothing: its attempt is known to systemd alone."""
    note = read_shim(folder)
    return note is not None and note.boot_id == process_table.boot_id() and is_hidden(note.pid)


def is_note_of(note: ShimNote | None, running: Process) -> bool:
    """Whether shim.json names this process: its training can replace what the shim wrote."""
    known = (running.pid, running.start_ticks, process_table.boot_id())
    return note is not None and (note.pid, note.start_ticks, note.boot_id) == known


def note_of(running: Process) -> ShimNote:
    """Return what the kernel reports of a shim; its oldest child is the training."""
    children = (process for process in process_table.read_processes() if process.parent == running.pid)
    training = min(children, key=lambda process: process.start_ticks, default=None)
    return ShimNote(
        pid=running.pid,
        start_ticks=running.start_ticks,
        boot_id=process_table.boot_id(),
        training_pid=None if training is None else training.pid,
        training_start_ticks=None if training is None else training.start_ticks,
    )


def names_another(folder: Path) -> bool:
    """Whether shim.json names a running process that is not the attempt's shim, so that it must be searched for."""
    note = read_shim(folder)
    if note is None or note.boot_id != process_table.boot_id():
        return False
    process = process_table.read_process(note.pid)
    return process is not None and not process.dead and not _is_shim_of(process, folder)


def _is_shim_of(process: Process, folder: Path) -> bool:
    try:
        writer = untrusted_files.file_status(folder, names.SHIM)
    except OSError:
        return False
    if writer is None or process.pid in list_own_ancestors() or _effective_user(process.pid) != writer.st_uid:
        return False
    # Reading the command line of a process in state D may block.
    return process.state == "D" or has_shim_command(process, folder)


def has_shim_command(process: Process, folder: Path) -> bool:
    """Whether a process runs the shim's program for the attempt in a folder, started for it or as its standby."""
    own = folder.resolve()
    known = (os.fsencode(own), os.fsencode(own.with_name(f"{shim.STANDBY_FOLDER}{own.name}")))
    arguments = read_words([process], "cmdline", own=False)[process.pid]
    return len(arguments) > 2 and arguments[-2] in known and not SHIM_PROGRAMS.isdisjoint(arguments)


def _effective_user(pid: int) -> int | None:
    """Return the effective uid of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[2])
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def list_own_ancestors() -> set[int]:
    """Return the pids of this process and its ancestors."""
    line, pid = set[int](), os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        process = process_table.read_process(pid)
        pid = process.parent if process is not None else 0
    return line


def read_exit(folder: Path, now: Moment) -> ExitStatus | None:
    """Return how the attempt ended; None if the exit record is missing or invalid.

    The monotonic part of its moment is the shim's own reading if it is of this boot, else computed from the wall clock.
    """
    note = read_note(folder, names.EXIT)
    code, number = as_int(note.get("exit_code"), maximum=255), as_int(note.get("signal"), 1, SIGNAL_MAX)
    error = as_message(note.get("error"), ERROR_CHARS_MAX)
    if code is None and number is None and error is None:
        return None
    at, unix_s = now, as_float(note.get("ended_unix_s"), 0.0, UNIX_S_MAX)
    monotonic_ns = as_int(note.get("ended_monotonic_ns"), maximum=MONOTONIC_NS_MAX)
    shim_note = read_shim(folder)
    if monotonic_ns is not None and shim_note is not None and shim_note.boot_id == process_table.boot_id():
        at = now.at_monotonic(min(monotonic_ns / 1e9, now.monotonic_s))
    elif unix_s is not None:
        unix_s = min(unix_s, now.unix_s)
        at = Moment(now.monotonic_s - (now.unix_s - unix_s), unix_s)
    rss_bytes = as_int(note.get("max_rss_bytes"), maximum=BYTES_MAX)
    left = as_int(note.get("in_background"), maximum=PROCESSES_MAX) or None
    return ExitStatus(at=at, code=code, signal=number, error=error, max_rss_bytes=rss_bytes, in_background=left)


def read_start_error(folder: Path) -> str | None:
    """Return why the shim could not start the training; None if it recorded no error."""
    return as_message(read_note(folder, names.EXIT).get("error"), ERROR_CHARS_MAX)


def read_note(folder: Path, name: str, limit_bytes: int = NOTE_LIMIT_BYTES) -> dict[str, object]:
    """Return the JSON object in a file of the folder; {} if it is missing, invalid, or longer than the limit."""
    try:
        return read_json_object(untrusted_files.read_bytes(folder, name, limit_bytes)) or {}
    except OSError:
        return {}
