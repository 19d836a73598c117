"""What a hostile training can do to its supervisor with the rights that it has, one function a kind of action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from mischief import doors, files, processes, words
from mischief.target import Target

ACTIONS: Mapping[str, Callable[[Target, Random], str]] = {
    **files.ACTIONS, **words.ACTIONS, **processes.ACTIONS, **doors.ACTIONS,
}  # fmt: skip
"""Each does its work and returns what it did in words; OSError is allowed to come out."""
