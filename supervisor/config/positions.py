"""Finds the line of every key in a TOML text, which the standard parser does not report.

The text must be one that the parser has accepted: nothing is validated here. See the TOML 1.0 specification, "Keys",
"String", "Array", "Inline Table", "Table" and "Array of Tables".
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Path = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\r\n#]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def find_lines(text: str) -> Mapping[Path, int]:
    """Return the line, from 1, at which each key and each table first appears, by its path.

    Keys within arrays of tables have the path without the index; the first of them counts. A text that is nested too
    deeply has no lines.
    """
    try:
        return _Scanner(text).scan()
    except RecursionError:
        return {}


def dot_paths(lines: Mapping[Path, int]) -> dict[str, int]:
    """Return the lines of keys by their paths as they are written in messages."""
    return {".".join(path): line for path, line in lines.items()}


def find_longest(dotted: Mapping[str, int], key: str) -> tuple[str, int] | None:
    """Return what of a key written with dots is in the text (`dot_paths`), with its line; None where nothing is.

    An index behind it (`paths[2]`) is left out. Where names contain dots, the longest name that fits is taken.
    """
    wanted = re.sub(r"\[[^\]]*\].*$", "", key)
    while wanted:
        if wanted in dotted:
            return wanted, dotted[wanted]
        wanted = wanted.rpartition(".")[0]
    return None


class _Scanner:
    """Reads a text once from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._lines: dict[Path, int] = {}

    def scan(self) -> Mapping[Path, int]:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._peek_next() == "[":
                table = self._read_header()
            else:
                self._read_pair(table)
            self._skip(_BLANK)
        return self._lines

    def _peek_next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Pass over what the pattern matches here and return it."""
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found[0]

    def _note_line(self, path: Path, start: int) -> None:
        """Keep the line of a path, and of the tables around it that have no line of their own."""
        line = bisect_right(self._line_starts, start)
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)

    def _read_header(self) -> Path:
        start, brackets = self._at, 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        path = self._read_key()
        self._at += brackets
        self._note_line(path, start)
        self._lines[path] = min(self._lines[path], bisect_right(self._line_starts, start))
        return path

    def _read_pair(self, table: Path) -> None:
        start = self._at
        path = table + self._read_key()
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        self._note_line(path, start)
        self._read_value(path)

    def _read_key(self) -> Path:
        """Pass over a key with the space around it and return its parts."""
        parts = []
        while True:
            self._skip(_SPACE)
            parts.append(self._read_part())
            self._skip(_SPACE)
            if self._peek_next() != ".":
                return tuple(parts)
            self._at += 1

    def _read_part(self) -> str:
        if self._peek_next() not in ("'", '"'):
            return self._skip(_BARE_KEY)
        quoted = self._skip(_STRINGS[2] if self._peek_next() == '"' else _STRINGS[3])
        return str(*tomllib.loads(f"{quoted} = 0"))

    def _read_value(self, path: Path) -> None:
        if self._peek_next() == "{":
            self._read_items("}", lambda: self._read_pair(path))
        elif self._peek_next() == "[":
            self._read_items("]", lambda: self._read_value(path))
        elif self._peek_next() in ("'", '"'):
            pattern = next(string for string in _STRINGS if string.match(self._text, self._at))
            self._skip(pattern)
        else:
            self._skip(_SCALAR)

    def _read_items(self, end: str, read: Callable[[], None]) -> None:
        """Pass over a bracketed list whose items are read by `read`."""
        self._at += 1
        self._skip(_BLANK)
        while self._peek_next() != end:
            read()
            self._skip(_BLANK)
            if self._peek_next() == ",":
                self._at += 1
                self._skip(_BLANK)
        self._at += 1
