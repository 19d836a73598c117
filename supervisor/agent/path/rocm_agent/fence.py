"""The fence between the agent and the training: what fails in a hook is reported once and goes no further."""

from __future__ import annotations

from . import events

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Callable

_reported = set()


def failed(where: str, error: Exception) -> None:
    """Report that the hook `where` failed; a hook that fails at every step is reported once."""
    if where not in _reported:
        _reported.add(where)
        events.write("hook_failed", where=where, error="%s: %s" % (type(error).__name__, error))


def fenced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function` return None where it would raise an Exception."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            failed("%s.%s" % (function.__module__, function.__qualname__), error)
            return None

    inside.__wrapped__ = function
    return inside
