"""Readers of values that another program wrote: each returns the value within its bounds, or None.

A limit is a fact about what the value means (no process has a number above 2**22, no epoch is the billionth): a value
outside is damage or malice, and what is not known is None.
"""

from __future__ import annotations

import json
import math
import re

COUNT_MAX = 2**53
"""Every integer up to here is exact as a float, and fits SQLite's 64 bits with room for arithmetic."""
STEP_MAX = 10**15
EPOCH_MAX = 10**9
BYTES_MAX = 2**60
PID_MAX = 2**22
"""PID_MAX_LIMIT of Linux."""
RANK_MAX = 2**16
UNIX_S_MAX = 253_402_300_799.0
"""The last second of the year 9999, beyond which datetime raises."""
MONOTONIC_NS_MAX = 2**63 - 1

ITEMS_MAX = 1024
DEPTH_MAX = 16
NAME_CHARS_MAX = 256
FILE_NAME_CHARS_MAX = 255
PATH_CHARS_MAX = 4096
"""NAME_MAX and PATH_MAX of Linux."""
TEXT_CHARS_MAX = 16_500
"""The agent cuts its longest text, a traceback, at 16,384."""
NUMBER_CHARS_MAX = 32
"""A double takes 24 characters at most, a 64-bit number 20."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def as_int(value: object, minimum: int = 0, maximum: int = COUNT_MAX) -> int | None:
    """Return an integer from `minimum` to `maximum`; None for anything else, including true and 1.0."""
    return value if type(value) is int and minimum <= value <= maximum else None


def as_float(value: object, minimum: float = -math.inf, maximum: float = math.inf) -> float | None:
    """Return a finite number between the limits as a float; None for anything else."""
    if type(value) is int:
        if not -(2**1023) <= value <= 2**1023:
            return None
    elif type(value) is not float:
        return None
    number = float(value)
    return number if math.isfinite(number) and minimum <= number <= maximum else None


def as_text(value: object, max_chars: int = NAME_CHARS_MAX) -> str | None:
    """Return a text that is not empty; None for a longer one: a name or a path that is cut names something else."""
    return _replace_surrogates(value) if isinstance(value, str) and 0 < len(value) <= max_chars else None


def as_path(value: object, max_chars: int = PATH_CHARS_MAX) -> str | None:
    """Return a path that a file system can have, bytes that are no UTF-8 among them; None for anything else."""
    if not isinstance(value, str) or not 0 < len(value) <= max_chars or "\0" in value:
        return None
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    return value


def as_message(value: object, max_chars: int = TEXT_CHARS_MAX) -> str | None:
    """Return a text for people that is not empty, cut where it is longer."""
    return _replace_surrogates(cut(value, max_chars)) if isinstance(value, str) and value else None


def as_list(value: object, max_items: int = ITEMS_MAX) -> list[object]:
    """Return the first `max_items` items of a list; [] for anything else."""
    return value[:max_items] if isinstance(value, list) else []


def as_dict(value: object, max_items: int = ITEMS_MAX) -> dict[str, object]:
    """Return the first `max_items` entries of an object, those with longer names left out; {} for anything else."""
    if not isinstance(value, dict):
        return {}
    entries = list(value.items())[:max_items]
    return {
        _replace_surrogates(name): entry
        for name, entry in entries
        if isinstance(name, str) and len(name) <= NAME_CHARS_MAX
    }


def as_bounded(value: object, depth: int = 6) -> object:
    """Return a value of which nothing more is known within the bounds of every kind; None for what lies outside."""
    match value:
        case None | bool():
            return value
        case int():
            return as_int(value, -COUNT_MAX)
        case float():
            return as_float(value)
        case str():
            return _replace_surrogates(cut(value, TEXT_CHARS_MAX))
        case list() if depth:
            return [as_bounded(item, depth - 1) for item in as_list(value)]
        case dict() if depth:
            return {name: as_bounded(item, depth - 1) for name, item in as_dict(value).items()}
        case _:
            return None


def cut(text: str, max_chars: int) -> str:
    """Return a text of at most `max_chars` characters, marked where something is left out."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def read_json(data: bytes | str) -> object:
    """Return what JSON text says; raise ValueError where it is none, is nested too deep or names a thing twice.

    The caller bounds its length. A number that no reader could accept is None at once, as are NaN and the infinities,
    which JSON does not have: parsing an integer takes time with the square of its digits.
    """
    try:
        text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
        found = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    _check_depth(found)
    return found


def read_json_object(data: bytes | str) -> dict[str, object] | None:
    """Return the object in JSON text; None where it holds none."""
    try:
        found = read_json(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _replace_surrogates(text: str) -> str:
    """Return a text without half surrogate pairs: such a one can be neither stored nor sent."""
    return text if text.isascii() else _LONE_SURROGATE.sub("?", text)


def _read_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= NUMBER_CHARS_MAX else None


def _read_float(digits: str) -> float | None:
    number = float(digits) if len(digits) <= NUMBER_CHARS_MAX else math.inf
    return number if math.isfinite(number) else None


def _read_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _check_depth(found: object) -> None:
    level: list[object] = [found]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ())
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise ValueError("nested too deep")


_DECODER = json.JSONDecoder(
    parse_int=_read_int,
    parse_float=_read_float,
    parse_constant=lambda _: None,
    object_pairs_hook=_read_object,
)
