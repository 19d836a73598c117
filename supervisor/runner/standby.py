"""The daemon's side of a standby interpreter: prepares its folder, promotes it or dismisses it.

Its state is in that folder, so that a restarted daemon finds it. No decisions are made here.
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
from supervisor.children.running_limit import RunningLimit
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
    write_atomically,
)
from supervisor.runner.code_copy import INSTALLED, Code
from supervisor.runner.launcher import LAUNCH_LIMIT_S, LaunchError, SilentShimError

POLL_S = 0.002
WHY_CHARS_MAX = 1000
END_LIMIT_S = 2.0
UNASKED = "it ended without a reason (killed, or out of memory)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How the next attempt would be launched, and the modules that it will import first."""

    number: int
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    remedies: Mapping[str, object]
    modules: Sequence[tuple[str, str | None]]
    """Each with the file that it must be loaded from, if known."""
    alone_s: float
    """How long it may wait after the previous attempt has ended."""
    code: Code = INSTALLED
    """The code that its shim runs, as a standby and as the attempt."""


def folder_of(attempt: Path) -> Path:
    """Return the standby's folder of the attempt in a folder."""
    return attempt.with_name(f"{shim.STANDBY_FOLDER}{attempt.name}")


def stood_by_for(state: Path, job: str) -> tuple[Path, ...]:
    """Return the folders of a job's attempts that have a standby's folder, whether it still runs or not."""
    found = (state / "jobs" / job).glob(f"{shim.STANDBY_FOLDER}*")
    return tuple(path.with_name(path.name.removeprefix(shim.STANDBY_FOLDER)) for path in found)


def prepare(state: Path, job: str, wanted: Wanted, before: Path, group: int | None) -> Path:
    """Create the folder of a standby while the attempt in `before` runs; return the folder of the standby's attempt.

    Removes the folders of earlier standbys except that of `before`. Raises OSError if a file cannot be written.
    """
    attempt = make_job_folder(state, job, group) / str(wanted.number)
    folder = folder_of(attempt)
    for old in stood_by_for(state, job):
        if old != before:
            _remove_folder(folder_of(old))
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
        write_atomically(folder / names.REMEDIES, json.dumps(remedies) + "\n", mode)
    write_atomically(folder / names.STANDBY, json.dumps(task) + "\n", mode)
    link_code(folder, wanted.code)
    return attempt


def going(attempt: Path) -> bool:
    """Whether the standby of an attempt was promoted and did not refuse: it is the attempt's shim."""
    return _has_file(attempt, names.GOING)


def was_ready(attempt: Path) -> bool:
    """Whether the standby finished its imports, whether it is still waiting or not."""
    return _has_file(attempt, names.READY)


def waits(attempt: Path) -> bool:
    """Whether a standby is waiting for its command."""
    fifo = _open_fifo(attempt)
    if fifo is None:
        return False
    os.close(fifo)
    return True


def refused(attempt: Path) -> str | None:
    """Return why the standby refused to become the attempt; None if it did not refuse."""
    return as_message(read_note(folder_of(attempt), names.REFUSED).get("why"), WHY_CHARS_MAX)


def go(attempt: Path, limit_s: float = LAUNCH_LIMIT_S) -> str | None:
    """See `Launcher.go`."""
    fifo = _open_fifo(attempt)
    if fifo is None:
        return refused(attempt) or UNASKED
    try:
        os.write(fifo, b"go\n")
        return _wait_for_answer(attempt, fifo, limit_s)
    except BrokenPipeError:
        return refused(attempt) or UNASKED
    finally:
        os.close(fifo)


def _wait_for_answer(attempt: Path, fifo: int, limit_s: float) -> str | None:
    limit = RunningLimit(limit_s)
    while limit.next_wait_s() > 0:
        gone = _is_closed(fifo)
        if read_shim(attempt) is not None:
            return None
        error = read_start_error(attempt)
        if error is not None:
            raise LaunchError(error)
        why = refused(attempt)
        if why is not None or (gone and not going(attempt)):
            return why or UNASKED
        time.sleep(POLL_S)
    raise SilentShimError(f"the standby did not report within {limit_s:.0f} s")


def _is_closed(fifo: int) -> bool:
    poll = select.poll()
    poll.register(fifo, 0)
    return bool(poll.poll(0))


def end(attempt: Path) -> bool:
    """Command the standby of an attempt to end; return whether none is waiting any more."""
    limit = RunningLimit(END_LIMIT_S)
    requested = False
    while (fifo := _open_fifo(attempt)) is not None:
        try:
            if not requested:
                os.write(fifo, b"end\n")
                requested = True
        except OSError:
            pass  # it ended just now
        finally:
            os.close(fifo)
        if limit.next_wait_s() == 0:
            return False
        time.sleep(POLL_S)
    return True


def clear(attempt: Path) -> None:
    """Remove the folder of a standby that has ended, and the attempt's folder if it is empty."""
    _remove_folder(folder_of(attempt))
    try:
        # An attempt that was started without the standby has its launch.json there and needs its run/.
        if untrusted_files.list_names(attempt.parent, attempt.name, limit=2).names != (names.RUN,):
            return
        (attempt / names.RUN).rmdir()
        attempt.rmdir()
    except OSError:
        return


def _remove_folder(folder: Path) -> None:
    untrusted_files.remove_tree(folder.parent, folder.name)


def _has_file(attempt: Path, name: str) -> bool:
    return untrusted_files.entry_exists(folder_of(attempt), name)


def _open_fifo(attempt: Path) -> int | None:
    """Return the named pipe, open for writing; None if no process reads it."""
    try:
        return untrusted_files.open_pipe(folder_of(attempt), names.GO_FIFO)
    except untrusted_files.UntrustedFileError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
