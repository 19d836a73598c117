"""Facts as bounded JSON text for the record; whatever stands in them, it raises nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec

STRING_LIMIT = 8192
ITEMS_LIMIT = 256
DEPTH_LIMIT = 8
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kind_of(fact: object) -> str:
    """Return the name of a kind of fact as the database spells it: `GiveUp` is `give_up`."""
    return _WORD_START.sub("_", type(fact).__name__).lower()


def to_json(fact: object) -> str:
    """Return a fact as JSON; long strings and lists are cut, NaN becomes null, unknown objects their repr."""
    return msgspec.json.encode(_bounded(msgspec.to_builtins(fact, enc_hook=repr, str_keys=True), DEPTH_LIMIT)).decode()


def text(value: str, limit: int = STRING_LIMIT) -> str:
    """Return a string that SQLite can store: at most `limit` characters, lone surrogates replaced."""
    if len(value) > limit:
        value = value[: limit - 1] + "\u2026"
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth == 0:
        return "\u2026"
    if isinstance(value, dict):
        return {text(key, 256): _bounded(one, depth - 1) for key, one in list(value.items())[:ITEMS_LIMIT]}
    return [_bounded(one, depth - 1) for one in value[:ITEMS_LIMIT]]
