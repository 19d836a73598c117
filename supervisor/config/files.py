"""The files of a configuration: the named one and those in the folder `conf.d` next to it, read and merged.

Tables are merged key by key. A job and a receiver are in one file only, and no key is defined twice: then the order of
the files, which is that of their names, decides nothing.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from supervisor.config.positions import Path as KeyPath
from supervisor.config.positions import find_lines
from supervisor.config.problems import PROBLEMS_NOTED, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = "conf.d"
LARGEST_BYTES = 1 << 20
DEEPEST = 32
"""Tables and arrays within each other; what the configuration knows is five deep."""
NAMED_TABLES = ("jobs", "alerts")
"""Tables of named tables, each of which is in one file only."""
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}\.[ \t]*){{{DEEPEST}}}", re.MULTILINE)
"""A key of more than `DEEPEST` parts; the parser takes time by the square of their number."""
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class FileError(ValueError):
    """A file that cannot be used, with the reason."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file: its name in messages, its text and the values in it."""

    path: str
    text: str
    values: Mapping[str, Any]


def list_paths(path: Path) -> list[Path]:
    """Return the file and the `*.toml` of `conf.d` next to it in the order of their names; raises OSError."""
    try:
        found = sorted((path.parent / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        found = []
    return [path, *(item for item in found if item.suffix == ".toml" and not item.name.startswith("."))]


def read_files(path: Path) -> list[ConfigFile]:
    """Return every file of the configuration at `path`; raises FileError."""
    first = parse(read_text(path), str(path))
    try:
        _, *others = list_paths(path)
    except OSError as error:
        folder = str(path.parent / FOLDER)
        problem = f"cannot be read: {error.strerror}"
        raise _refuse(folder, problem, "give the daemon's user the right to read it, or remove it") from error
    return [first, *(parse(read_text(other), str(other)) for other in others)]


def read_text(path: Path, largest_bytes: int = LARGEST_BYTES) -> str:
    """Return the text of one file; raises FileError."""
    file = str(path)
    try:
        content = _read_regular(path, largest_bytes + 1)
    except BlockingIOError as error:
        raise _refuse(file, "has no end, as a log of the kernel", "name a TOML file") from error
    except OSError as error:
        allowed = "name a TOML file that this user may read"
        raise _refuse(file, f"cannot be read: {error.strerror}", allowed) from error
    if len(content) > largest_bytes:
        allowed = "name the configuration, not some other file"
        raise _refuse(file, f"is larger than {largest_bytes} bytes", allowed)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refuse(file, "is not UTF-8", "save it as UTF-8", line=line) from error


def _read_regular(path: Path, limit_bytes: int) -> bytes:
    """Return the first bytes of a file; raises FileError where it is none, OSError.

    BlockingIOError where it is one that a reader waits for: /proc/kmsg is a regular file too.
    """
    _require_regular(path, path.stat())  # opening a device may act on it
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(fd))
        pieces, left = [], limit_bytes
        while left > 0 and (piece := os.read(fd, left)):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refuse(str(path), "is not a regular file", "name a TOML file")


def parse(text: str, file: str) -> ConfigFile:
    """Return the values of a text; raises FileError."""
    if (long_key := _LONG_KEY.search(text)) is not None:
        raise _refuse_depth(file, line=text.count("\n", 0, long_key.end()) + 1)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        last = text.count("\n") + 1
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (last, None)
        what = _PLACE.sub("", str(error))
        raise _refuse(file, f"is not valid TOML: {what}", "correct it there", line=line, column=column) from error
    except (ValueError, RecursionError) as error:
        raise _refuse(file, f"cannot be used as TOML: {str(error)[:120]}", "correct it") from error
    if _is_deeper(values, DEEPEST):
        raise _refuse_depth(file)
    return ConfigFile(path=file, text=text, values=values)


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def merge(files: Sequence[ConfigFile]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values of all files as one, and a problem for each key that two of them define."""
    merged: dict[str, Any] = {}
    problems: list[Problem] = []
    lines_by_file: dict[int, Mapping[KeyPath, int]] = {}

    def find_line(index: int, path: KeyPath) -> int | None:
        if index not in lines_by_file:  # a text is read once, however many of its keys are looked for
            lines_by_file[index] = find_lines(files[index].text)
        return _line_of(lines_by_file[index], path)

    for index, file in enumerate(files):
        for path in islice(_merge_into(merged, file.values, ()), PROBLEMS_NOTED):
            earlier = next(item for item in range(index) if _defines(files[item].values, path))
            known = find_line(earlier, path)
            first = files[earlier].path if known is None else f"{files[earlier].path}:{known}"
            problem = f"is defined twice: here and at {first}"
            line = find_line(index, path)
            key = ".".join(path)
            problems.append(
                Problem(file=file.path, key=key, problem=problem, allowed="remove one of the two", line=line)
            )
    return merged, problems


def as_text(values: Mapping[str, Any]) -> str:
    """Return values that were read from TOML as TOML, each key at the top on a line of its own."""
    return "".join(f"{_quote(key)} = {_write(value)}\n" for key, value in values.items())


def _merge_into(merged: dict[str, Any], values: Mapping[str, Any], table: KeyPath) -> Iterator[KeyPath]:
    """Add values to those of the files before; yield the path of each that is there already."""
    for key, value in values.items():
        path = (*table, key)
        if key not in merged:
            merged[key] = _copy_tables(value)
        elif table not in [(name,) for name in NAMED_TABLES] and _are_tables(merged[key], value):
            yield from _merge_into(merged[key], value, path)
        else:
            yield path


def _are_tables(first: object, second: object) -> bool:
    return isinstance(first, dict) and isinstance(second, dict)


def _copy_tables(value: Any) -> Any:
    return {key: _copy_tables(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _defines(values: Mapping[str, Any], path: KeyPath) -> bool:
    inner: Any = values
    for key in path:
        if not isinstance(inner, Mapping) or key not in inner:
            return not isinstance(inner, Mapping)
        inner = inner[key]
    return True


def _line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, or of the nearest table around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def _write(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _quote(value)
        case list():
            return f"[{', '.join(map(_write, value))}]"
        case dict():
            return "{" + ", ".join(f"{_quote(key)} = {_write(inner)}" for key, inner in value.items()) + "}"
        case int() | float():
            return repr(value)
        case _:  # dates and times
            return str(value.isoformat())


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _refuse_depth(file: str, line: int | None = None) -> FileError:
    return _refuse(file, f"has more than {DEEPEST} tables within each other", "name the configuration", line=line)


def _refuse(file: str, problem: str, allowed: str, line: int | None = None, column: int | None = None) -> FileError:
    return FileError(Problem(file=file, key="", problem=problem, allowed=allowed, line=line, column=column))
