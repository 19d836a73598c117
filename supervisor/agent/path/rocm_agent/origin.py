"""Finds the number of an attempt's first step: by what it resumes from, what it loaded, or the optimizer's own count.

Where an optimizer keeps no count, the first step of a process is the step after the one that its checkpoint holds. The
daemon hands over the steps of the checkpoints that it knows; which of them the training loaded is seen here. Where that
cannot be known the process counts its own steps, and reports that.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os

from . import events
from .fence import fenced
from .layout import ENV_ATTEMPT, ENV_EPOCH, ENV_RESUME_FROM, ENV_RESUME_STEPS

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

NEAR_STEPS = 100
"""An optimizer's own count may lag behind the training's by so much, or a tenth: it leaves out what a scaler skips."""
FIRST_EPOCH = ".0.1"
FIRST_ATTEMPT = "1"
LOADS_NOTED = 64
SAVES_PER_S = 20

_loads: List[Tuple[str, int, int]] = []
"""Path, size in bytes and time of writing in ns of what was loaded before the first step."""
_asked = False
"""Whether the script requested the path to resume from."""
_restored = False
"""Whether the program restored a state from a folder by itself, in another attempt than the first."""
_began = False
_begins_again = False
_saves_ns: List[int] = []
_open_saves: List[Tuple[Any, int]] = []
"""Files that were open as a state was saved into them, each with the step that it holds."""


def watch_load(load: Callable[..., Any], first: str) -> Callable[..., Any]:
    """Make `load` note the file that it returned the content of: it may be a checkpoint. `first` names its argument.

    A program that could not read its checkpoint and went on without did not resume from it.
    """
    from functools import wraps

    @wraps(load)
    def watched(*args: Any, **kwargs: Any) -> Any:
        # Looked at before, as the program may replace the file once it has read it.
        found = _look_at(args[0] if args else kwargs.get(first))
        content = load(*args, **kwargs)
        if found is not None and not _began and len(_loads) < LOADS_NOTED:
            _loads.append(found)
        return content

    return watched


@fenced
def _look_at(source: Any) -> Optional[Tuple[str, int, int]]:
    """Return what `_loads` holds of a file; None where that can be no checkpoint, is not there or comes too late."""
    source = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", None)
    if _began or not isinstance(source, (str, os.PathLike)):
        return None
    path = os.path.realpath(os.fspath(source))
    try:
        found = os.stat(path)
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns


@fenced
def restores(folder: Any) -> None:
    """Note a folder that the program restores its state from: an attempt before may have saved that."""
    global _restored
    if _began:
        return
    _restored = os.environ.get(ENV_ATTEMPT, FIRST_ATTEMPT) != FIRST_ATTEMPT
    path = os.path.realpath(os.fspath(folder))
    found = os.stat(path)
    if len(_loads) < LOADS_NOTED:
        _loads.append((os.path.join(path, ""), found.st_size, found.st_mtime_ns))


def belongs_to_later(path: str) -> None:
    """Note that the file which was loaded is of a later training of the program: what comes first begins again."""
    global _begins_again
    _begins_again = True
    _loads[:] = [load for load in _loads if load[0] != os.path.realpath(path)]


def asks() -> None:
    """Note that the script requested the resume path and will load it itself."""
    global _asked
    _asked = True


@fenced
def saves(target: Any, step: int) -> bool:
    """Report the step of a file that was just saved; after a rename it is recognised by its time.

    Return whether it is still open: its size and time are known once the program has closed it.
    """
    report_closed()
    if step <= 0:
        return False
    if isinstance(target, (str, os.PathLike)):
        _report_save(target, step)
    elif isinstance(getattr(target, "name", None), (str, os.PathLike)) and len(_open_saves) < SAVES_PER_S:
        _open_saves.append((target, step))
        return True
    return False


@fenced
def report_closed() -> None:
    """Report the files that were saved while they were open, and have been closed since; the others are dropped."""
    found = _open_saves[:]
    del _open_saves[:]
    for file, step in found:
        if getattr(file, "closed", False):
            # Later than its write: its time tells nothing of the clock of its disk.
            _report_save(file.name, step, late=True)


@fenced
def _report_save(target: Any, step: int, *, late: bool = False) -> None:
    from time import monotonic_ns

    now = monotonic_ns()
    if len(_saves_ns) == SAVES_PER_S and now - _saves_ns[0] < 1000000000:
        return
    del _saves_ns[: len(_saves_ns) - SAVES_PER_S + 1]
    _saves_ns.append(now)
    path = os.path.abspath(os.fspath(target))
    found = os.stat(path)
    # A time of one number would be larger than any that JSON's readers keep exactly.
    seconds, rest_ns = divmod(found.st_mtime_ns, 1000000000)
    size_bytes = found.st_size
    events.write(
        "file_saved", path=path, size_bytes=size_bytes, modified_s=seconds, modified_ns=rest_ns, step=step, late=late
    )


@fenced
def resumed_step() -> Optional[int]:
    """Return the step of the checkpoint that the process goes on from; None where none is known."""
    return _resumed_from(_read_known_checkpoints(), _list_saves_before())[1]


def first_step(own: Optional[int]) -> int:
    """Return the number of this process's first step, and report what it counts; `own` is the optimizer's count."""
    global _began
    _began = True
    counting = _first_step(own)
    if counting is None:
        return max(1, own or 1)
    events.write("counting", **counting)
    return int(counting["first"])


@fenced
def _first_step(own: Optional[int]) -> Dict[str, Any]:
    given, before = _read_known_checkpoints(), _list_saves_before()
    path, step, sure = _resumed_from(given, before)
    if own is not None and own > 1:
        near = step is not None and abs(own - step - 1) <= max(NEAR_STEPS, step // 10)
        first = step + 1 if near and step is not None else own
        return {"scale": "training", "by": "optimizer", "first": first, "resumed": True, "path": path}
    if path is None:
        # No sign of a resume. A count that begins with 1 although a checkpoint existed is reported.
        to_resume, from_beginning = bool(os.environ.get(ENV_RESUME_FROM)), own == 1 or _begins_again
        may_resume = to_resume or bool(given.get("loads_itself")) or _is_relaunched() or _restored
        scale = "training" if from_beginning or not may_resume else "attempt"
        resumed = False if from_beginning and to_resume else None
        return {"scale": scale, "by": "process", "first": 1, "resumed": resumed, "path": None}
    if step is None or (own == 1 and not sure):
        return {"scale": "attempt", "by": "process", "first": 1, "resumed": sure or None, "path": path}
    named = None if any(row[0] == path for row in before) else path  # no other than what this attempt was given
    return {"scale": "training", "by": "checkpoint", "first": step + 1, "resumed": sure or None, "path": named}


def _is_relaunched() -> bool:
    """Whether a training on several nodes was launched before: what it saved then, another node may know alone."""
    launch = os.environ.get(ENV_EPOCH)
    return bool(launch) and not str(launch).endswith(FIRST_EPOCH)


def _resumed_from(given: Dict[str, Any], before: List[List[Any]]) -> Tuple[Optional[str], Optional[int], bool]:
    """Return (path, its step, whether it surely was loaded) of what the training goes on from; (None, None, False).

    `before` is what was saved in this attempt before the process began.
    """
    files = [item for item in given.get("files") or [] if len(item) == 4] + before
    asked_for = os.environ.get(ENV_RESUME_FROM)
    # What the daemon chose comes first, also as a copy that was put elsewhere: what is loaded besides, as the best one
    # so far, is not what the training goes on from.
    for rows, name in (([file for file in files if asked_for and file[0] == asked_for], asked_for), (files, None)):
        for path, size, modified_ns in reversed(_loads):
            matching = [file for file in rows if _matches_row(file, path, (size, modified_ns))]
            if matching:
                return name or path, next((step for *_, step in matching if step is not None), None), True
    if asked_for and (_asked or given.get("asked")):
        return asked_for, given.get("step"), _asked
    return None, None, False


def _list_saves_before() -> List[List[Any]]:
    """Return what a process before this one has saved, of which its launcher has started it again."""
    if not _loads:
        return []
    from . import relaunched

    return fenced(relaunched.list_saves)() or []


def _matches_row(row: List[Any], path: str, content: Tuple[int, int]) -> bool:
    """Whether a row of the daemon's is about a loaded file; one without a path knows it by its content alone."""
    known, size, modified_ns, _ = row
    return content == (size, modified_ns) or (known is not None and path.startswith(os.path.join(known, "")))


def _read_known_checkpoints() -> Dict[str, Any]:
    """Return what the daemon knows of checkpoints to resume from; {} where there are none."""
    text = os.environ.get(ENV_RESUME_STEPS)
    if not text:
        return {}
    import json

    found = json.loads(text)
    return found if isinstance(found, dict) else {}
