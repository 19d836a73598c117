"""An output that takes no more, as a file on a full disk: one line instead of a stack trace."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from supervisor.cli.errors import CliError


@contextmanager
def explaining_unprinted(arguments: Sequence[str]) -> Iterator[None]:
    """End the process with a line and FAILED where what a command prints cannot be written.

    A pipe that nothing reads any more is no error, and is click's; an error of a command's own files is raised.
    """
    try:
        yield
    except OSError as error:
        if not _came_of_print(error):
            raise
        failure = CliError(f"the output could not be written: {error.strerror}", "", "not_written")
        failure.as_json = "--json" in arguments
        with contextlib.suppress(OSError):  # stderr can be the same file
            failure.show()
        _drop_unwritten()
        sys.exit(failure.exit_code)


def _came_of_print(error: OSError) -> bool:
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code is click.echo.__code__


def _drop_unwritten() -> None:
    """Let what is still buffered go nowhere: the interpreter would try once more at its end, and print a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
