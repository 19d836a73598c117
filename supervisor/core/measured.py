"""A measured field of a reading, declared once: its name, type, and where it goes.

    fan_rpm: int | None = measured(record=True, api=True, column=Column("FAN", "{} rpm"))

The table of samples (`store/tables.py`), the body of `GET /v1/status` (`control/types.py`) and the columns of
`supervisorctl gpus` (`cli/gpus/table.py`) follow from it. A database that was made before a recorded field was declared
gets its column when the daemon opens it (`store/schema.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_args, get_type_hints

_KEY = "measured"


@dataclass(frozen=True, slots=True)
class Column:
    """How a measured field is shown in a table."""

    heading: str
    text: str
    """Format of a known value, with its unit."""
    scale: float | None = None
    """What the value is multiplied with before."""
    hot_at: float | None = None
    """From which value on it is shown as too high."""

    def format(self, value: float | None) -> str:
        """Return a value as text, `-` for an unknown one."""
        if value is None:
            return "-"
        return self.text.format(value if self.scale is None else value * self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Where a measured field goes."""

    name: str
    type: Any
    """Of a known value."""
    record: bool
    """A column of the table of samples."""
    api: bool
    """A field of the same name in the API."""
    column: Column | None


def measured(*, record: bool = False, api: bool = False, column: Column | None = None) -> Any:
    """Return the dataclass field of a value that is measured; it is None while unknown."""
    return field(default=None, metadata={_KEY: (record, api, column)})


@cache
def measures_of(reading: type) -> Mapping[str, Measure]:
    """Return the measured fields of a dataclass by name, in the order of their declaration."""
    hints = get_type_hints(reading)
    found = {}
    for declared in fields(reading):
        if _KEY in declared.metadata:
            record, api, column = declared.metadata[_KEY]
            kind = _without_none(hints[declared.name])
            found[declared.name] = Measure(name=declared.name, type=kind, record=record, api=api, column=column)
    return found


def _without_none(hint: Any) -> Any:
    """Return the type of a known value: `int` of `int | None`."""
    (known,) = (kind for kind in get_args(hint) if kind is not type(None))
    return known
