"""Reports that the program has come to its end: what it does from then on, in threads and exit handlers, makes no step.

Python calls `threading._shutdown` first at its exit, before it joins threads and before it runs exit handlers; after
`sys.exit` too, which no hook for exceptions sees.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

from . import exceptions
from .fence import fenced
from .layout import CHECKPOINT, EXITING, STEP, VALIDATE

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    from .recorder import Recorder


@fenced
def begin(holding: Callable[[], Optional[Recorder]]) -> None:
    """Report the end of this process, which trains; `holding` returns its recorder, None in a child that it forked."""
    import threading

    shutdown = threading._shutdown  # type: ignore[attr-defined]

    def _shutdown(*words: Any) -> Any:
        _report_end(holding())
        return shutdown(*words)

    threading._shutdown = _shutdown  # type: ignore[attr-defined]


@fenced
def _report_end(recorder: Optional[Recorder]) -> None:
    # An exception that ends it is reported as such, and has the limit of the stage that it was raised in.
    if recorder is not None and recorder.stage in (STEP, VALIDATE, CHECKPOINT) and not exceptions.is_ending():
        recorder.stage, recorder.aside = EXITING, 0
