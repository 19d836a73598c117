"""Runs another program once and ends its whole group at a deadline; it judges nothing that the program said."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

REAPED_WITHIN_S = 1.0
"""A process that SIGKILL reaches is gone by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of one run."""

    printed: bytes
    complained: bytes = b""
    """What it wrote to standard error; empty where that was to stand between the rest."""
    status: int | None = None
    """None: it was not done in time and was ended."""
    undead: subprocess.Popen[bytes] | None = None
    """The process, where SIGKILL did not end it: it waits in the kernel, and another one would only join it there."""


def run(command: Sequence[str], limit_s: float, *, together: bool = False) -> Ran:
    """Run a program for `limit_s` at most, in a group of its own, without input and in the C locale.

    `together` puts standard error between what it prints. Raises OSError where it cannot be started.
    """
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    try:
        printed, complained = program.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        reaped = _end(program)
        printed, complained = late.output or b"", late.stderr or b""
        return Ran(printed=printed, complained=complained, undead=None if reaped else program)
    return Ran(printed=printed, complained=complained or b"", status=program.returncode)


def _end(program: subprocess.Popen[bytes]) -> bool:
    """Kill a program's group and return whether it is gone; its pipes are closed, whoever still holds the other end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    for pipe in (program.stdout, program.stderr):
        if pipe:
            pipe.close()
    try:
        program.wait(timeout=REAPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        return False
    return True
