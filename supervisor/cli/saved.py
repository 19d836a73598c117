"""Reads what the user saved, from a file or standard input; it reads so much and no more, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from supervisor.cli.app import CliError

LONGEST_BYTES = 64 * 1024 * 1024


def read_saved(source: Path | str) -> str:
    """Return the text in a file, or for `-` on standard input; bytes that are no UTF-8 show as escapes.

    Raises CliError where it cannot be read or is longer than 64 MiB.
    """
    try:
        if str(source) == "-":
            return _text(sys.stdin.buffer, "standard input")
        with Path(source).open("rb") as stream:
            return _text(stream, str(source))
    except OSError as error:
        remedy = "give a file that can be read, or - for standard input"
        raise CliError(f"{source}: {error.strerror or error}", remedy, "unreadable") from error


def _text(stream: IO[bytes], name: str) -> str:
    content = stream.read(LONGEST_BYTES + 1)
    if len(content) > LONGEST_BYTES:
        remedy = f"give its end: tail -c {LONGEST_BYTES} FILE | supervisorctl explain"
        raise CliError(f"{name}: longer than {LONGEST_BYTES >> 20} MiB", remedy, "too_long")
    return content.decode("utf-8-sig", "backslashreplace")
