"""What of a living PyTorch training can be changed at a step boundary, and changed back bit by bit.

Each knob is a class with `why_not()` (why it cannot be changed here, or None), `apply(value)`, which raises `Refused`
with everything as it was before, and `revert()`.
"""


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A knob cannot be set, or would change the numbers; the text says why."""
