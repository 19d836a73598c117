"""Reads a saved log or output from a file or standard input, up to a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from supervisor.cli.errors import CliError

LONGEST_BYTES = 64 * 1024 * 1024
LAST_PART = f"pass its last part: tail -c {LONGEST_BYTES} FILE | supervisorctl explain"


def read_saved(source: Path | str, where_too_long: str = LAST_PART) -> str:
    """Return the text in a file, or for `-` on standard input; invalid UTF-8 is shown as escapes.

    Raises CliError if it cannot be read or is longer than 64 MiB; the hint is then `where_too_long`.
    """
    try:
        if str(source) == "-":
            return _read_text(sys.stdin.buffer, "standard input", where_too_long)
        with Path(source).open("rb") as stream:
            return _read_text(stream, str(source), where_too_long)
    except OSError as error:
        remedy = "give a file that can be read, or - for standard input"
        raise CliError(f"{source}: {error.strerror or error}", remedy, "unreadable") from error


def _read_text(stream: IO[bytes], name: str, where_too_long: str) -> str:
    content = stream.read(LONGEST_BYTES + 1)
    if len(content) > LONGEST_BYTES:
        raise CliError(f"{name}: longer than {LONGEST_BYTES >> 20} MiB", where_too_long, "too_long")
    return content.decode("utf-8-sig", "backslashreplace")
