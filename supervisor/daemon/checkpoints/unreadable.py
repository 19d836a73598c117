"""Finds paths that a checkpoint pattern may match and that the daemon has no permission to read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from supervisor.checkpoint_patterns import place_of
from supervisor.children.files_apart import apart

LOOKED_AT_MOST = 4096
"""Entries of all folders of a pattern together."""
NAMED_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Closed:
    """Paths that cannot be read, each with what to do about it."""

    patterns: tuple[str, ...] = ()
    """Folders on the way of a pattern: whether anything lies there is unknown."""
    beneath: tuple[str, ...] = ()
    """Folders anywhere below a `**`, which may hold nothing of the training."""
    files: tuple[str, ...] = ()
    """Files that a pattern names and that may not be read."""

    @property
    def everything(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.patterns, *self.files, *self.beneath)


def find_unreadable(globs: Iterable[str], cwd: str) -> Closed:
    """Return which configured patterns cannot be read; relative ones start from the job's directory."""
    return apart(_look_at_patterns, tuple(globs), cwd)


def _look_at_patterns(globs: tuple[str, ...], cwd: str) -> Closed:
    look = _Look()
    for pattern in globs:
        path = Path(place_of(pattern, cwd))
        look.down(Path(path.anchor or "."), path.parts[1:] if path.anchor else path.parts)
    return Closed(tuple(look.patterns), tuple(look.beneath), tuple(look.files))


class _Look:
    def __init__(self) -> None:
        self.patterns: dict[str, None] = {}
        self.beneath: dict[str, None] = {}
        self.files: dict[str, None] = {}
        self._left = LOOKED_AT_MOST

    def down(self, folder: Path, parts: tuple[str, ...], *, anywhere: bool = False) -> None:
        """Match the remaining parts of a pattern below `folder`; `anywhere` below a `**`."""
        if not parts:
            return
        if not _is_magic(parts[0]):
            self._follow_name(folder, parts, anywhere=anywhere)
            return
        for entry in self._list_entries(folder, anywhere=anywhere):
            deep = parts[0] == "**"
            rest = parts if deep else parts[1:]
            if deep or fnmatch(entry.name, parts[0]):
                self._check_entry(Path(entry.path), rest, is_folder=_is_folder(entry), anywhere=anywhere or deep)
        if parts[0] == "**":
            self.down(folder, parts[1:], anywhere=True)

    def _follow_name(self, folder: Path, parts: tuple[str, ...], *, anywhere: bool) -> None:
        path = folder / parts[0]
        try:
            is_folder = path.is_dir()
            path.stat()
        except PermissionError:
            self._note_closed(folder, anywhere=anywhere)
        except OSError:
            return
        else:
            self._check_entry(path, parts[1:], is_folder=is_folder, anywhere=anywhere)

    def _check_entry(self, path: Path, rest: tuple[str, ...], *, is_folder: bool, anywhere: bool) -> None:
        if is_folder:
            self.down(path, rest, anywhere=anywhere)
        elif not rest and not os.access(path, os.R_OK):
            self.files[f"{path} may not be read by the daemon: `chmod g+r {path}`, and a umask of 027"] = None

    def _list_entries(self, folder: Path, *, anywhere: bool) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        return
                    yield entry
        except PermissionError:
            self._note_closed(folder, anywhere=anywhere)
        except OSError:
            return

    def _note_closed(self, folder: Path, *, anywhere: bool) -> None:
        shut = next((path for path in (*reversed(folder.parents), folder) if not os.access(path, os.X_OK)), folder)
        found = self.beneath if anywhere else self.patterns
        if len(found) < NAMED_AT_MOST:
            found[f"{shut} is closed to the daemon: `chmod g+rx {shut}`"] = None


def _is_magic(part: str) -> bool:
    return any(text in part for text in "*?[")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
