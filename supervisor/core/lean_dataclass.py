"""`dataclass`, as in the standard library, with methods that all classes share instead of one of each for every class.

The standard library compiles `__repr__`, `__setattr__` and `__delattr__` for every frozen class, and the last two keep
the class from before its slots alive: 6.5 of the 16 KB that a class takes in Python 3.11. With some 350 classes that
was 2.5 MB of the daemon's memory. Type checkers see the standard library's own.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from dataclasses import dataclass as _generate
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Return the class as a dataclass, or a decorator that does; the options are those of the standard library."""

        def decorate(cls: type) -> type:
            return _with_shared_methods(cls, options)

        return decorate if cls is None else decorate(cls)


__all__ = ["dataclass"]


def _with_shared_methods(cls: type, options: dict[str, bool]) -> type:
    shares_repr = options.get("repr", True) and "__repr__" not in cls.__dict__
    generate: Callable[[type], type] = _generate(**{**options, "repr": False})
    made = generate(cls)
    if shares_repr:
        made.__repr__ = _describe  # type: ignore[assignment]  # as a method
    if options.get("frozen"):
        made.__setattr__ = _refuse_assignment  # type: ignore[assignment]  # as a method
        made.__delattr__ = _refuse_deletion  # type: ignore[assignment]  # as a method
    return made


@recursive_repr()
def _describe(self: Any) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({values})"


def _refuse_assignment(_self: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
