"""Lays the code that trainings run where a daemon looks for it, as if an earlier launch had copied and compiled it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from supervisor.runner import code_copy


def lay_code(copies: Path, state: Path) -> None:
    """Have a state directory hold what lies in `copies`: links of the same files where they are on one file system.

    Several hundred files for each daemon of a test are a twentieth of what the suite takes of the processor, as copies,
    and whoever creates a file walks over all that were removed lately.
    """
    shutil.copytree(copies, state / code_copy.FOLDER, copy_function=_link_or_copy)


def _link_or_copy(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)
