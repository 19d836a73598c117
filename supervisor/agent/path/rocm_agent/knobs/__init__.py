"""What of a living PyTorch training can be changed at a step boundary, and changed back bit by bit.

Each knob is a class with `why_not()` (why it cannot be changed here, or None), `apply(value)`, which raises `Refused`
with everything as it was before, and `revert()`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A knob cannot be set, or would change the numbers; the text says why."""


def refuse(why: Optional[str]) -> None:
    """Raise Refused with a reason; do nothing where there is none."""
    if why is not None:
        raise Refused(why)


@contextmanager
def reverted_on_error(revert: Callable[[], None]) -> Iterator[None]:
    """Call `revert` where a knob cannot be set or its proof fails, whatever was raised, and raise that."""
    try:
        yield
    except BaseException:
        revert()
        raise


def list_params(optimizer: Any) -> List[Any]:
    """Return every weight that an optimizer changes."""
    return [param for group in optimizer.param_groups for param in group["params"]]
