"""Reads the configuration file and reports all problems in it."""

from __future__ import annotations

import re
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.config.cross import cross_check
from supervisor.config.positions import find_line, find_lines
from supervisor.config.problems import ConfigError, Level, Problem
from supervisor.config.read import Reader
from supervisor.config.settings import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_BYTES = 1 << 20
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a file came to: settings and at most warnings, or None and at least one error."""

    settings: Settings | None
    problems: tuple[Problem, ...]

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What can be lived with."""
        return tuple(problem for problem in self.problems if problem.level is Level.WARNING)


def load(path: Path) -> Settings:
    """Return the settings in the file; raise ConfigError with every problem where it cannot be used."""
    checked = check(path)
    if checked.settings is None:
        raise ConfigError(checked.problems)
    return checked.settings


def check(path: Path) -> Checked:
    """Read and check the file; never raises for what it holds or for its absence."""
    file = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _build_refusal(file, "is no plain file", "name a TOML file")
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        return _build_refusal(file, f"cannot be read: {error.strerror}", "name a TOML file that this user may read")
    if len(content) > LARGEST_BYTES:
        return _build_refusal(
            file, f"is larger than {LARGEST_BYTES} bytes", "name the configuration, not some other file"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _build_refusal(file, "is not UTF-8", "save it as UTF-8", line=line)
    return check_text(text, file)


def check_text(text: str, file: str) -> Checked:
    """Check the text of a configuration; `file` is its name in messages, and where secrets' modes are judged by."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        last = text.count("\n") + 1
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (last, None)
        what = _PLACE.sub("", str(error))
        return _build_refusal(file, f"is no TOML: {what}", "mend it there", line=line, column=column)
    except (ValueError, RecursionError) as error:
        return _build_refusal(file, f"is no TOML that can be used: {str(error)[:120]}", "mend it")
    reader = Reader(file)
    settings = reader.table(Settings, values)
    problems = reader.problems
    if settings is not None:
        said = tuple(problem.key for problem in problems)
        problems += [
            problem for problem in cross_check(settings, file) if not any(key.startswith(problem.key) for key in said)
        ]
    if problems:
        lines = find_lines(text)
        problems = [replace(problem, line=find_line(lines, problem.key)) for problem in problems]
    usable = not any(problem.level is Level.ERROR for problem in problems)
    return Checked(settings=settings if usable else None, problems=tuple(problems))


def _build_refusal(
    file: str, problem: str, allowed: str, line: int | None = None, column: int | None = None
) -> Checked:
    item = Problem(file=file, key="", problem=problem, allowed=allowed, line=line, column=column)
    return Checked(settings=None, problems=(item,))
