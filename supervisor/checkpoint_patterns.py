"""The patterns of a job's checkpoints: where each is looked for, and what to write for one that is a folder's name."""

from __future__ import annotations

import os
from glob import has_magic
from pathlib import Path


def place_of(pattern: str, cwd: str) -> str:
    """Return a pattern as it is looked for: relative ones start from the job's directory."""
    return str(Path(cwd) / with_home(pattern))


def with_home(path: str) -> str:
    """Return a path with this user's home in place of `~`; that of an unknown user stays, and names nothing."""
    return os.path.expanduser(path)  # noqa: PTH111 - that of pathlib raises for an unknown user


def ends_with_name(pattern: str) -> bool:
    """Whether a pattern for files ends with a name, which may be a folder's.

    What another does not match yet may still be saved.
    """
    return not pattern.endswith("/") and not has_magic(Path(pattern).name)


def advise(pattern: str, suffix: str = ".pt") -> str:
    """Return what to write in place of a folder's name; `suffix` is how the files in it end."""
    return f'write "{pattern}/*{suffix}" for files in it, or "{pattern}/" where the folder itself is one checkpoint'
