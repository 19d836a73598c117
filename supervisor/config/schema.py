"""Describes a settings class: its keys, their types, and the permitted values as text."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as shapes

MAY_BE_ZERO = frozenset(
    {
        "backoff_s",
        "max_returns",
        "hold_s",
        "idle_percent",
        "min_gain_fraction",
        "min_rise_fraction",
        "jitter_fraction",
        "min_share",
        "never_retry_exit_codes",
        "always_retry_exit_codes",
        "restarts",
        "restarts_per_cause",
        "restarts_per_period",
        "same_place_steps",
        "settle_s",
        "snapshot_every_s",
        "tail_s",
        "tolerated",
        "tolerated_correctable",
        "tolerated_gradients",
        "warn_bytes",
    }
)
"""Numbers of rules and budget for which 0 means something; every other one is a limit and must be above it."""
_HIGHEST = {"_percent": 100, "_fraction": 1, "_share": 1}
"""By the end of the name."""


def is_table(kind: object) -> bool:
    """Whether `kind` is a class whose fields are keys of a TOML table."""
    return inspect.isclass(kind) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))


@cache
def keys_of(table: type) -> Mapping[str, Any]:
    """Return the keys of a settings class with their types, in the order of the class."""
    hints = get_type_hints(table, include_extras=True)
    if issubclass(table, msgspec.Struct):
        return {name: hints[name] for name in table.__struct_fields__}
    return {field.name: hints[field.name] for field in _dataclass_fields(table)}


@cache
def required(table: type) -> frozenset[str]:
    """Return the keys without a default."""
    if issubclass(table, msgspec.Struct):
        return frozenset(field_info.name for field_info in msgspec.structs.fields(table) if field_info.required)
    missing = dataclasses.MISSING
    fields = _dataclass_fields(table)
    return frozenset(field.name for field in fields if field.default is missing and field.default_factory is missing)


def _dataclass_fields(table: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(table)


def table_within(kind: Any) -> type | None:
    """Return the settings class of a `dict[str, CLASS]`, or None where `kind` is no such thing."""
    arguments = get_args(kind)
    if get_origin(kind) is dict and len(arguments) == 2 and is_table(arguments[1]):
        return arguments[1]  # type: ignore[no-any-return]  # is_table has just said that it is a class
    return None


def is_path(kind: Any) -> bool:
    """Whether the value is a path of the file system."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return any(_extra_keys(member).get("path") for member in members)


def allowed(kind: Any) -> str:
    """Return the permitted values of `kind` as text."""
    return _describe_type(shapes.type_info(kind))


def range_problem(table: type, name: str, value: object) -> str | None:
    """Return what is allowed where a number lies outside the range that its field of a core dataclass states."""
    if not dataclasses.is_dataclass(table) or not isinstance(value, int | float):
        return None
    field = next(item for item in dataclasses.fields(table) if item.name == name)
    least, most = field.metadata.get("between", (-math.inf, math.inf))
    return None if least <= value <= most else f"a number from {least:g} to {most:g}"


def number_problem(name: str, value: object) -> str | None:
    """Return what is allowed where a number of a core dataclass, which carries no limits itself, breaks its name's."""
    if isinstance(value, list | tuple):
        return next(filter(None, (number_problem(name, item) for item in value)), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return "a finite number"
    highest = next((most for end, most in _HIGHEST.items() if name.endswith(end)), math.inf)
    fits = (value >= 0 if name in MAY_BE_ZERO else value > 0) and value <= highest
    if fits:
        return None
    least = "0 or a number above it" if name in MAY_BE_ZERO else "a number above 0"
    return least if highest == math.inf else f"{least}, at most {highest}"


def _extra_keys(kind: Any) -> dict[str, Any]:
    info = shapes.type_info(kind)
    return (info.extra or {}) if isinstance(info, shapes.Metadata) else {}


def _describe_type(info: shapes.Type) -> str:
    match info:
        case shapes.Metadata(type=inner, extra=extra):
            return str(
                (extra or {}).get("allowed")
                or ("an absolute path" if "path" in (extra or {}) else _describe_type(inner))
            )
        case shapes.IntType():
            return "a whole number" + _describe_bounds(info)
        case shapes.FloatType():
            return "a number" + _describe_bounds(info)
        case shapes.StrType():
            return "text" + (", not empty" if info.min_length else "")
        case shapes.LiteralType(values=values):
            return "one of " + ", ".join(f'"{entry}"' for entry in values)
        case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item):
            return "a list" + (", not empty," if info.min_length else "") + " of: " + _describe_type(item)
        case shapes.DictType(value_type=value):
            return "a table of: " + _describe_type(value)
        case shapes.UnionType(types=types):
            return " or ".join(_describe_type(type_) for type_ in types if not isinstance(type_, shapes.NoneType))
        case _:
            return _PLAIN.get(type(info), "a table")


_PLAIN: Mapping[type, str] = {
    shapes.BoolType: "true or false",
    shapes.DateTimeType: "a date and time, as 2026-11-30T08:00:00",
}


def _describe_bounds(info: shapes.IntType | shapes.FloatType) -> str:
    low = "" if info.gt is None else f" above {info.gt:g}"
    low = low if info.ge is None else f" from {info.ge:g}"
    return low + ("" if info.le is None else f"{',' if low else ''} at most {info.le:.10g}")
