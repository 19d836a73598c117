"""Keeps copies of existing checkpoints in the place where a training is about to start from the beginning.

They may be the only ones, of an earlier training or from before the supervisor was installed. The copies are the
daemon's alone, in STATE/jobs/JOB/existing/ATTEMPT, and no retry resumes from them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.core.checkpoints.checkpoint import Fingerprint
from supervisor.runner.clone_file import NoRoomError, clone_file
from supervisor.runner.folder_checkpoints import files_in, fingerprint_of

FOLDER = "existing"
PATHS = "paths.json"
FILES_AT_MOST = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of keeping copies."""

    folder: Path
    copies: int = 0
    """Including copies of an earlier attempt with the same content."""
    left_out: tuple[str, ...] = ()
    """Paths without a copy, each with the reason."""


def keep_existing(
    job_folder: Path, attempt: int, paths: Iterable[str], *, limit_bytes: int, reserve_bytes: int
) -> Kept:
    """Copy what lies at `paths`, the newest first, unless a copy of the same content is there already.

    All copies of the job, those of earlier attempts included, take up `limit_bytes` at most.
    """
    base = job_folder / FOLDER
    known, folder = _list_copied(base), base / str(attempt)
    found = sorted(filter(None, map(_stat_path, paths)), key=lambda pair: pair[1].modified_ns, reverse=True)
    made: dict[str, str] = {}
    left_out: list[str] = []
    copies = 0
    limit_bytes -= sum(size_bytes for size_bytes, _ in known)
    for path, stated in found:
        if (stated.size_bytes, stated.modified_ns) in known:
            copies += 1
            continue
        limit_bytes -= stated.size_bytes
        number = f"{len(made) + 1:04d}"
        room = limit_bytes >= 0 and len(made) < FILES_AT_MOST
        why = (
            _copy_checkpoint(path, folder / number, reserve_bytes)
            if room
            else "checkpoints.limit_mb has no room for it"
        )
        if why is None:
            made[number] = path
        else:
            left_out.append(f"{path}: {why}")
    if made:
        (folder / PATHS).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8", errors="surrogateescape")
    return Kept(base, copies + len(made), tuple(left_out))


def _stat_path(path: str) -> tuple[str, Fingerprint] | None:
    """Return a path with its fingerprint; None where nothing is there, as in a folder that a save had only made."""
    try:
        stated = fingerprint_of(Path(path))
        return None if Path(path).is_dir() and not any(files_in(Path(path))) else (path, stated)
    except OSError:
        return None


def _list_copied(folder: Path) -> set[tuple[int, int]]:
    found = (_stat_path(str(path)) for path in folder.glob("*/*/*"))
    return {(pair[1].size_bytes, pair[1].modified_ns) for pair in found if pair is not None}


def _copy_checkpoint(path: str, folder: Path, reserve_bytes: int) -> str | None:
    """Copy a file, or a folder's files, into a folder; return why that could not be done, None where it was."""
    source = Path(path)
    if source.is_dir() and not source.is_symlink():
        return _copy_folder(source, folder / source.name, reserve_bytes)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return error.strerror or str(error)
    try:
        for made in (*reversed(folder.parents), folder):
            if FOLDER in made.parts:
                made.mkdir(mode=0o700, exist_ok=True)
        clone_file(fd, folder / Path(path).name, reserve_bytes=reserve_bytes, linked=False)
    except (OSError, NoRoomError) as error:
        return getattr(error, "strerror", None) or str(error)
    finally:
        os.close(fd)
    return None


def _copy_folder(source: Path, target: Path, reserve_bytes: int) -> str | None:
    try:
        files = files_in(source)
    except OSError as error:
        return str(error)
    found = (_copy_checkpoint(str(path), (target / path.relative_to(source)).parent, reserve_bytes) for path in files)
    return next((why for why in found if why is not None), None)
