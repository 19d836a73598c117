"""Moves checkpoints out of a training's own search, then execs the training: `ATTEMPT CHOSEN PATH... -- COMMAND ...`.

It runs as the training's user, in the job's working directory, and imports only the standard library. Each path goes,
by one rename, into a hidden folder next to it and under a name that no pattern of checkpoints finds. Nothing is
deleted or replaced, and a run that was killed is completed by the next one. What names a moved checkpoint, a link or
a file such as `latest`, names the chosen one after it where that lies in the same folder; as it was it is kept too.
"""

from __future__ import annotations

import os
import sys
from itertools import islice
from pathlib import Path

COULD_NOT = 78
"""EX_CONFIG of sysexits.h: the training was not started."""
FOLDER = ".rocm-supervisor-aside"
PREFIX, SUFFIX = "aside.", ".aside"
"""Programs that search all folders below theirs, hidden ones too, know a checkpoint by either end of its name."""
POINTERS = ("latest", "last_checkpoint", "latest_checkpoint", "checkpoint")
"""Files of DeepSpeed, detectron2, mmengine and others that hold the name of the newest checkpoint, or its path."""
POINTER_LIMIT_BYTES = 4096
ENTRIES_LIMIT = 100_000
PART = ".rocm-supervisor-part"


def set_aside(attempt: str, chosen: Path, paths: list[Path]) -> list[Path]:
    """Move what is there of `paths`; return where it lies now. Raises OSError."""
    moved = []
    for path in paths:
        if os.path.lexists(path):
            moved.append(_find_free_name(path, attempt))
            path.rename(moved[-1])
    _repoint(chosen.parent, chosen.name, attempt)
    return moved


def _find_free_name(path: Path, attempt: str) -> Path:
    """Make the folder for what lies next to a path, and return a name in it that is not used."""
    folder = path.parent / FOLDER / attempt
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != path.parent.resolve() / FOLDER / attempt:
        raise OSError(f"{folder} is a link to another folder")
    aside, number = folder / f"{PREFIX}{path.name}{SUFFIX}", 1
    while os.path.lexists(aside):
        number += 1
        aside = folder / f"{PREFIX}{path.name}.{number}{SUFFIX}"
    return aside


def _repoint(folder: Path, chosen: str, attempt: str) -> None:
    """Have the links and files in a folder that name what was moved out of it name `chosen`, which lies in it."""
    aside = _list_aside(folder)
    if not aside:
        return
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in islice(entries, ENTRIES_LIMIT) if _may_point(entry)]
    for pointer in found:
        target = _read_target(pointer)
        name = target.rpartition("/")[2]
        if f"{PREFIX}{name}{SUFFIX}" in aside and not os.path.lexists(folder / name):
            _replace_pointer(pointer, target[: len(target) - len(name)] + chosen, attempt)


def _list_aside(folder: Path) -> set[str]:
    """Return the names under which the checkpoints of a folder were moved out of it, for any attempt."""
    return {path.name for path in (folder / FOLDER).glob("*/*")}


def _may_point(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or (entry.name in POINTERS and entry.is_file(follow_symlinks=False))


def _read_target(pointer: Path) -> str:
    """Return what a link or a file names; empty where that is no single name."""
    try:
        if pointer.is_symlink():
            return os.readlink(pointer).rstrip("/")  # noqa: PTH115 - the text, which may end in a slash
        with pointer.open("rb") as file:
            text = file.read(POINTER_LIMIT_BYTES).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "\n" in text else text.rstrip("/")


def _replace_pointer(pointer: Path, target: str, attempt: str) -> None:
    """Replace a link or a file by one that names `target`, and keep it as it was."""
    part, kept = pointer.with_name(pointer.name + PART), _find_free_name(pointer, attempt)
    part.unlink(missing_ok=True)
    if pointer.is_symlink():
        kept.symlink_to(os.readlink(pointer))  # noqa: PTH115 - the text as it is
        part.symlink_to(target)
    else:
        kept.write_bytes(pointer.read_bytes())
        part.write_text(target, "utf-8")
        part.chmod(pointer.stat().st_mode & 0o777)
    part.replace(pointer)


def main(arguments: list[str]) -> None:
    """Move the checkpoints, print what was done, and exec the command."""
    between = arguments.index("--")
    (attempt, chosen, *paths), command = arguments[:between], arguments[between + 1 :]
    try:
        for aside in set_aside(attempt, Path(chosen), [Path(path) for path in paths]):
            sys.stdout.write(f"rocm-supervisor: newer than the checkpoint to resume from, moved to {aside}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: a checkpoint could not be moved aside: {error}\n")
        sys.exit(COULD_NOT)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: command {command[0]!r} of the job: {error}\n")
        sys.exit(COULD_NOT)


if __name__ == "__main__":
    main(sys.argv[1:])
