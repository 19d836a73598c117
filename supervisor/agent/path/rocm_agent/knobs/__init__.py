"""What of a living PyTorch training can be changed at a step boundary, and changed back bit by bit.

Each knob is a class with `why_not()` (why it cannot be changed here, or None), `apply(value)`, which raises `Refused`
with everything as it was before, and `revert()`.
"""

from __future__ import annotations

from typing import Any, List


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A knob cannot be set, or would change the numbers; the text says why."""


def list_params(optimizer: Any) -> List[Any]:
    """Return every weight that an optimizer changes."""
    return [param for group in optimizer.param_groups for param in group["params"]]
