"""Runs another program once and kills its process group at a deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

REAPED_WITHIN_S = 1.0
"""A process that SIGKILL reaches is gone by then."""


OUTPUT_LIMIT_BYTES = 4 << 20
"""No tool that is asked here has so much to say."""
PIECE_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a program wrote to its pipes."""

    printed: bytes
    complained: bytes
    whole: bool
    """Whether it has ended, and this is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of one run."""

    printed: bytes
    complained: bytes = b""
    """What it wrote to standard error; empty where that was to stand between the rest."""
    status: int | None = None
    """None: it was not done in time, or had no end of words, and was ended."""
    undead: subprocess.Popen[bytes] | None = None
    """The process, where SIGKILL did not end it: it waits in the kernel, and another one would only join it there."""


def run(
    command: Sequence[str],
    limit_s: float,
    *,
    together: bool = False,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a program for `limit_s` at most, in a group of its own and in the C locale.

    `together` puts standard error between what it prints; `given` is its standard input; `environment` stands in place
    of ours. Raises OSError where it cannot be started.
    """
    with _open_input(given) as standard_input:
        program = subprocess.Popen(
            command,
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"} if environment is None else dict(environment),
        )
    said = listen(program, limit_s, OUTPUT_LIMIT_BYTES)
    if not said.whole:
        reaped = _end(program)
        return Ran(printed=said.printed, complained=said.complained, undead=None if reaped else program)
    return Ran(printed=said.printed, complained=said.complained, status=program.returncode)


def _open_input(given: bytes) -> IO[bytes]:
    """Return a file with what a program is given: a pipe would block where the program reads nothing of it."""
    if not given:
        return Path(os.devnull).open("rb")
    opened = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    opened.write(given)
    opened.seek(0)
    return opened


def listen(program: subprocess.Popen[bytes], limit_s: float, limit_bytes: int) -> Said:
    """Return what a program says until it has ended, at most `limit_bytes` on each of its pipes and for `limit_s`.

    What is not whole was too long or took too long: the program still runs, and is the caller's to end.
    """
    end = time.perf_counter() + limit_s
    pipes = [pipe for pipe in (program.stdout, program.stderr) if pipe is not None]
    heard = {pipe: bytearray() for pipe in pipes}
    whole = True
    with selectors.DefaultSelector() as ready:
        for pipe in pipes:
            ready.register(pipe, selectors.EVENT_READ, pipe)
        while whole and ready.get_map():
            spoken = ready.select(max(0.0, end - time.perf_counter()))
            whole = bool(spoken)
            for key, _ in spoken:
                piece = os.read(key.fd, PIECE_BYTES)
                heard[key.data] += piece
                if not piece:
                    ready.unregister(key.fileobj)
                whole = whole and len(heard[key.data]) <= limit_bytes
    if whole:
        for pipe in pipes:
            pipe.close()
        try:
            program.wait(max(0.0, end - time.perf_counter()))
        except subprocess.TimeoutExpired:
            whole = False
    printed = bytes(heard[program.stdout][:limit_bytes]) if program.stdout else b""
    complained = bytes(heard[program.stderr][:limit_bytes]) if program.stderr else b""
    return Said(printed=printed, complained=complained, whole=whole)


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
