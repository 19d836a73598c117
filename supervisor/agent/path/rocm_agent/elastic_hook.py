"""Reports how the ranks ended that torchrun's agent has reaped, before it ends all others.

No other process can read a status that has been reaped: a supervisor that had no processor in the tenth of a second
before knows only that the rank is gone. torchrun prints the status as well, but only once the others have ended. With
`--max-restarts` it then starts all of them again, and nothing else tells that the training began a second time.
"""

from __future__ import annotations

from functools import wraps
from signal import Signals

from . import events
from .fence import fenced

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


_reported = set()
"""Ranks: a context is closed more than once."""


def install(module: ModuleType) -> None:
    """Report from `PContext.close`, which begins to end the ranks that are left."""
    context = module.PContext
    original = context.close

    @wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        _report(self)
        return original(self, *args, **kwargs)

    context.close = close


@fenced
def _report(context: Any) -> None:
    handlers = getattr(context, "subprocess_handlers", None) or {}
    codes = {str(handler.proc.pid): handler.proc.returncode for handler in handlers.values()}
    reaped = {pid: code for pid, code in codes.items() if code is not None and pid not in _reported}
    if reaped:
        _reported.update(reaped)
        events.write("reaped", codes=reaped)
    is_first = not getattr(context, "_seen_by_rocm_agent", False)
    context._seen_by_rocm_agent = True
    for pid, code in reaped.items():
        if code and is_first:  # what has ended later was ended by torchrun
            events.write("trains", of=int(pid), ended=True, error=name_end(code), restarts=True)


def name_end(code: int) -> str:
    """Return a status in words, negative for a signal."""
    try:
        return Signals(-code).name if code < 0 else "status %d" % code
    except ValueError:
        return "signal %d" % -code
