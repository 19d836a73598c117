"""Reads what the user saved, from a file or standard input; it reads so much and no more, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from supervisor.cli.app import CliError

LONGEST_BYTES = 64 * 1024 * 1024
ITS_END = f"give its end: tail -c {LONGEST_BYTES} FILE | supervisorctl explain"


def read_saved(source: Path | str, where_too_long: str = ITS_END) -> str:
    """Return the text in a file, or for `-` on standard input; bytes that are no UTF-8 show as escapes.

    Raises CliError where it cannot be read or is longer than 64 MiB: then `where_too_long` is the remedy.
    """
    try:
        if str(source) == "-":
            return _text(sys.stdin.buffer, "standard input", where_too_long)
        with Path(source).open("rb") as stream:
            return _text(stream, str(source), where_too_long)
    except OSError as error:
        remedy = "give a file that can be read, or - for standard input"
        raise CliError(f"{source}: {error.strerror or error}", remedy, "unreadable") from error


def _text(stream: IO[bytes], name: str, where_too_long: str) -> str:
    content = stream.read(LONGEST_BYTES + 1)
    if len(content) > LONGEST_BYTES:
        raise CliError(f"{name}: longer than {LONGEST_BYTES >> 20} MiB", where_too_long, "too_long")
    return content.decode("utf-8-sig", "backslashreplace")
