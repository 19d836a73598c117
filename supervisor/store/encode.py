"""Encodes facts as JSON text of limited size; does not raise for any content."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from supervisor.json_bytes import encode_json

STRING_LIMIT = 8192
LIMITS = ((STRING_LIMIT, 256), (2048, 64), (256, 32), (64, 16))
"""Characters of a string and items of a list or object, tried in this order until the text fits."""
BODY_LIMIT_BYTES = 65_536
DEPTH_LIMIT = 8
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")


def kind_of(fact: object) -> str:
    """Return the name of a fact's kind in the database: `GiveUp` is `give_up`."""
    return _WORD_START.sub("_", type(fact).__name__).lower()


def to_json(fact: object) -> str:
    """Return a fact as JSON; long strings and lists are truncated, NaN becomes null, unknown objects their repr."""
    plain = msgspec.to_builtins(fact, enc_hook=repr, str_keys=True)
    for limits in LIMITS:
        body = encode_json(_limit_value(plain, DEPTH_LIMIT, limits))
        if len(body) <= BODY_LIMIT_BYTES:
            break
    return body.decode()


def text(value: str, limit: int = STRING_LIMIT) -> str:
    """Return a string that SQLite can store: at most `limit` characters, lone surrogates replaced."""
    if len(value) > limit:
        value = value[: limit - 1] + "\u2026"
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _limit_value(value: Any, depth: int, limits: tuple[int, int]) -> Any:
    if isinstance(value, str):
        return text(value, limits[0])
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth == 0:
        return "\u2026"
    if isinstance(value, dict):
        return {text(key, 256): _limit_value(item, depth - 1, limits) for key, item in list(value.items())[: limits[1]]}
    return [_limit_value(item, depth - 1, limits) for item in value[: limits[1]]]
