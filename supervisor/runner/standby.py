"""The daemon's side of a standby interpreter: prepares its folder, promotes it or dismisses it.

All that is known of it lies in that folder, so that a later daemon finds it; nothing is decided here.
"""

from __future__ import annotations

import errno
import json
import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.foreign_values import as_message
from supervisor.runner import shim
from supervisor.runner.attempt_folder import (
    link_code,
    make_attempt_folder,
    make_job_folder,
    read_note,
    read_shim,
    read_start_error,
    write_whole,
)
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError

POLL_S = 0.002
WHY_CHARS_MAX = 1000
END_LIMIT_S = 2.0
UNASKED = "it ended without a reason (killed, or out of memory)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an attempt would be launched with as things stand, and what it will import first."""

    number: int
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    remedies: Mapping[str, object]
    modules: Sequence[tuple[str, str | None]]
    """Each with the file that it must come from, where that is known."""
    alone_s: float
    """How long it may wait once the attempt before it has ended."""
    code: Code = INSTALLED
    """What its shim runs, before and as the attempt."""


def folder_of(attempt: Path) -> Path:
    """Return the folder of what stands by for the attempt in that folder."""
    return attempt.with_name(f"{shim.STANDBY_FOLDER}{attempt.name}")


def stood_by_for(state: Path, job: str) -> tuple[Path, ...]:
    """Return the folders of a job's attempts that something stood by for, whether it does still or not."""
    found = (state / "jobs" / job).glob(f"{shim.STANDBY_FOLDER}*")
    return tuple(path.with_name(path.name.removeprefix(shim.STANDBY_FOLDER)) for path in found)


def prepare(state: Path, job: str, wanted: Wanted, before: Path, group: int | None) -> Path:
    """Make the folder for what will stand by beside the attempt in `before`; return that of its attempt.

    Of earlier ones nothing is left but that of `before` itself. Raises OSError where the disk refuses.
    """
    attempt = make_job_folder(state, job, group) / str(wanted.number)
    folder = folder_of(attempt)
    for old in stood_by_for(state, job):
        if old != before:
            _remove(folder_of(old))
    for made in (attempt, folder):  # the attempt's own may be its working directory
        make_attempt_folder(made, group)
    note, mode = read_shim(before), 0o600 if group is None else 0o640
    task = {
        "version": 1,
        "launch": {"argv": list(wanted.argv), "cwd": wanted.cwd, "env": dict(wanted.env)},
        "modules": [list(pair) for pair in wanted.modules],
        "folder": str(attempt),
        "alone_s": wanted.alone_s,
        "after": None if note is None else {"pid": note.pid, "start_ticks": note.start_ticks},
    }
    if wanted.remedies:
        remedies = {"version": 1, "settings": dict(wanted.remedies)}
        write_whole(folder / names.REMEDIES, json.dumps(remedies) + "\n", mode)
    write_whole(folder / names.STANDBY, json.dumps(task) + "\n", mode)
    link_code(folder, wanted.code)
    return attempt


def going(attempt: Path) -> bool:
    """Whether what stood by for an attempt was told to go, and did not refuse: it is the attempt's shim."""
    return _has(attempt, names.GOING)


def ready(attempt: Path) -> bool:
    """Whether everything is imported and somebody waits."""
    return was_ready(attempt) and waits(attempt)


def was_ready(attempt: Path) -> bool:
    """Whether everything was imported, whether or not somebody waits still."""
    return _has(attempt, names.READY)


def waits(attempt: Path) -> bool:
    """Whether a shim waits for the word about the attempt."""
    door = _door(attempt)
    if door is None:
        return False
    os.close(door)
    return True


def refused(attempt: Path) -> str | None:
    """Return why what stood by will not be the attempt; None where it left no such word."""
    return as_message(read_note(folder_of(attempt), names.REFUSED).get("why"), WHY_CHARS_MAX)


def go(attempt: Path, limit_s: float = LAUNCH_LIMIT_S) -> str | None:
    """See `Launcher.go`."""
    door = _door(attempt)
    if door is None:
        return refused(attempt) or UNASKED
    try:
        os.write(door, b"go\n")
        return _answer(attempt, door, limit_s)
    except BrokenPipeError:
        return refused(attempt) or UNASKED
    finally:
        os.close(door)


def _answer(attempt: Path, door: int, limit_s: float) -> str | None:
    until = time.perf_counter() + limit_s
    while time.perf_counter() < until:
        gone = _closed(door)
        if read_shim(attempt) is not None:
            return None
        error = read_start_error(attempt)
        if error is not None:
            raise LaunchError(error)
        why = refused(attempt)
        if why is not None or (gone and not going(attempt)):
            return why or UNASKED
        time.sleep(POLL_S)
    raise LaunchError(f"the standby did not report within {limit_s:.0f} s")


def _closed(door: int) -> bool:
    poll = select.poll()
    poll.register(door, 0)
    return bool(poll.poll(0))


def end(attempt: Path) -> bool:
    """Tell what stands by for an attempt to end; return whether nothing waits any more."""
    until = time.perf_counter() + END_LIMIT_S
    told = False
    while (door := _door(attempt)) is not None:
        try:
            if not told:
                os.write(door, b"end\n")
                told = True
        except OSError:
            pass  # it ended just now
        finally:
            os.close(door)
        if time.perf_counter() > until:
            return False
        time.sleep(POLL_S)
    return True


def clear(attempt: Path) -> None:
    """Remove what stood by for an attempt that nobody waits for any more, and the attempt's folder while empty."""
    _remove(folder_of(attempt))
    try:
        # An attempt that starts from cold in place of it has its launch.json there, and is about to need its run/.
        if untrusted_files.list_names(attempt.parent, attempt.name, limit=2).names != (names.RUN,):
            return
        (attempt / names.RUN).rmdir()
        attempt.rmdir()
    except OSError:
        return


def _remove(folder: Path) -> None:
    untrusted_files.remove_tree(folder.parent, folder.name)


def _has(attempt: Path, name: str) -> bool:
    return untrusted_files.lies_there(folder_of(attempt), name)


def _door(attempt: Path) -> int | None:
    """Return the named pipe, open for writing; None where nobody reads there."""
    try:
        return untrusted_files.open_pipe(folder_of(attempt), names.DOOR)
    except untrusted_files.UntrustedFileError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
