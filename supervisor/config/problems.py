"""Problems of a configuration, with file, key, value and what is permitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

PROBLEMS_NOTED = 100
"""A file with more of them is not a configuration; each takes time to describe and to find in the text."""


class Level(Enum):
    """An error prevents the daemon from starting; a warning is only reported."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem: its position, and what is permitted."""

    file: str
    key: str
    """Path of the key, as in `jobs.yolo.rules.stall.limit_s`; empty if the problem is the file itself."""
    problem: str
    allowed: str
    """What is permitted, or what to do."""
    value: str | None = None
    """The value as text; None if there is none, or if it may be a secret."""
    level: Level = Level.ERROR
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return it as one line for a person."""
        place = self.file
        if self.line is not None:
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        key = f"{self.key}: " if self.key else ""
        value = f" (it is {self.value})" if self.value is not None else ""
        word = "warning: " if self.level is Level.WARNING else ""
        return f"{place}: {word}{key}{self.problem}{value}; {self.allowed}"


class ConfigError(ValueError):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
