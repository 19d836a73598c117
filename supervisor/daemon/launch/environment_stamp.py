"""What of an environment shows that nothing was installed into it or removed from it since."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of the last write."""
MINORS = range(8, 20)
"""Of Python 3: no folder is listed, which could have any number of names."""
SETTINGS, TORCH = "pyvenv.cfg", "torch/version.py"


def read_stamp(python: str) -> Stamp | None:
    """Return the stamp of an interpreter and of what pip has installed for it; None where its torch lies elsewhere.

    An installation or a removal adds or removes a folder next to that of torch, which changes the time of theirs.
    """
    prefix = Path(python).parent.parent
    installed = [prefix / "lib" / f"python3.{minor}" / "site-packages" for minor in MINORS]
    interpreter, torch = _stat(Path(python)), [found for folder in installed if (found := _stat(folder / TORCH))]
    if interpreter is None or not torch:
        return None
    others = filter(None, map(_stat, (prefix / SETTINGS, *installed)))
    return (interpreter, *torch, *others)


def _stat(path: Path) -> tuple[str, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (os.fspath(path), found.st_ino, found.st_size, found.st_mtime_ns)
