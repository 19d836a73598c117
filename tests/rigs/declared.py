"""Whether a value of the core is of the types that it declares: what is not known is None, and neither False nor ""."""

from __future__ import annotations

import collections.abc
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_declared(value: object, checked: dict[int, object] | None = None) -> None:
    """Fail where a field of a dataclass, or of those within it, is none of its type; `checked` are left out."""
    checked = {} if checked is None else checked
    if not is_dataclass(value) or id(value) in checked:
        return
    checked[id(value)] = value  # held, so that no other value gets its number
    for name, hint in _list_hints(type(value)):
        item = getattr(value, name)
        if type(item) is hint and not hasattr(hint, "__dataclass_fields__"):
            continue
        assert _is_of(hint, item, checked), f"{type(value).__name__}.{name} is {item!r}, declared as {hint}"


@cache
def _list_hints(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((name, hints[name]) for name in kind.__dataclass_fields__)  # type: ignore[attr-defined] # a dataclass


def _is_of(hint: Any, value: object, checked: dict[int, object]) -> bool:
    kind, of = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_is_of(item, value, checked) for item in of)
    if kind is Literal:
        return value in of
    if kind is tuple and of and of[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(of) and all(map(_is_of, of, value, [checked] * len(of)))
    if kind in (tuple, list, set, frozenset, collections.deque, collections.abc.Sequence):
        return isinstance(value, kind) and all(_is_of(of[0], item, checked) for item in value)
    if kind in (dict, collections.abc.Mapping):
        return isinstance(value, kind) and all(
            _is_of(of[0], name, checked) and _is_of(of[1], item, checked) for name, item in value.items()
        )
    return _is_one_of_class(kind or hint, value, checked)


def _is_one_of_class(kind: Any, value: object, checked: dict[int, object]) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind is collections.abc.Callable:
        return callable(value)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    check_declared(value, checked)
    return isinstance(value, kind) or (kind is NoneType and value is None)
