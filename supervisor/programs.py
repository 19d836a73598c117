"""Runs another program once and kills its process group at a deadline."""

from __future__ import annotations

import os
import selectors
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from supervisor.children.child import Child
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, STDOUT, start

REAPED_WITHIN_S = 1.0
"""How long to wait for a process after SIGKILL."""
OUTPUT_LIMIT_BYTES = 4 << 20
"""More than any of the tools prints."""
PIECE_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a program wrote to its pipes."""

    stdout: bytes
    stderr: bytes
    complete: bool
    """Whether the program has ended within the limits of time and size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of one run."""

    stdout: bytes
    stderr: bytes = b""
    """Standard error; empty if it was merged into standard output."""
    status: int | None = None
    """Exit status; None if the program was killed at the limit of time or output."""
    undead: Child | None = None
    """The process, if SIGKILL did not end it (state D): another one would hang as well."""


def run(  # noqa: PLR0913 - each has its default
    command: Sequence[str],
    limit_s: float,
    *,
    together: bool = False,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    limit_bytes: int = OUTPUT_LIMIT_BYTES,
    cwd: str | os.PathLike[str] | None = None,
) -> Ran:
    """Run a program for at most `limit_s` in which this process runs, in its own process group and in the C locale.

    `together` merges standard error into standard output; `given` is its standard input; `environment` replaces this
    process's environment. Raises OSError if it cannot be started.
    """
    with _open_input(given) as standard_input:
        program = start(
            command,
            stdin=standard_input,
            stdout=PIPE,
            stderr=STDOUT if together else PIPE,
            new_session=True,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"} if environment is None else environment,
        )
    output = read_output(program, RunningLimit(limit_s), limit_bytes)
    if not output.complete:
        reaped = _kill_group(program)
        return Ran(stdout=output.stdout, stderr=output.stderr, undead=None if reaped else program)
    return Ran(stdout=output.stdout, stderr=output.stderr, status=program.returncode)


def _open_input(given: bytes) -> IO[bytes]:
    """Return a file with the program's standard input: a pipe would block if the program does not read it."""
    if not given:
        return Path(os.devnull).open("rb")
    opened = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    opened.write(given)
    opened.seek(0)
    return opened


def read_output(program: Child, limit: RunningLimit, limit_bytes: int) -> Output:
    """Return the output of a program until it ends, at most `limit_bytes` from each pipe and within a limit of time.

    If the output is not complete, a limit was exceeded: the program still runs, and the caller must end it.
    """
    output = read_until_closed(program, limit, limit_bytes)
    if not output.complete:
        return output
    return replace(output, complete=limit.wait_for(lambda wait_s: program.wait(wait_s) is not None))


def read_until_closed(program: Child, limit: RunningLimit, limit_bytes: int) -> Output:
    """Return the output of a program until it has closed its pipes, whether it ends then or not; see `read_output`."""
    pipes = [pipe for pipe in (program.stdout, program.stderr) if pipe is not None]
    received = {pipe: bytearray() for pipe in pipes}
    complete = True
    with selectors.DefaultSelector() as ready:
        for pipe in pipes:
            ready.register(pipe, selectors.EVENT_READ, pipe)
        while complete and ready.get_map():
            wait_s = limit.next_wait_s()
            readable = ready.select(wait_s)
            complete = bool(readable) or wait_s > 0
            for key, _ in readable:
                piece = os.read(key.fd, PIECE_BYTES)
                received[key.data] += piece
                if not piece:
                    ready.unregister(key.fileobj)
                complete = complete and len(received[key.data]) <= limit_bytes
    if complete:
        for pipe in pipes:
            pipe.close()
    stdout = bytes(received[program.stdout][:limit_bytes]) if program.stdout else b""
    stderr = bytes(received[program.stderr][:limit_bytes]) if program.stderr else b""
    return Output(stdout=stdout, stderr=stderr, complete=complete)


def _kill_group(program: Child) -> bool:
    """Kill a program's process group and close its pipes; return whether the program has ended."""
    program.kill_group()
    return program.end(REAPED_WITHIN_S)
