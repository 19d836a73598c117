"""Copies a checkpoint to where the training looks for it, then execs: `SOURCE TARGET [DAMAGED ...] -- COMMAND ...`.

It runs as the training's user, in the job's working directory, and imports only the standard library. The target
appears complete, by one rename; a file with other content at the target is kept in the same folder under another name,
unless a proven generation has it. DAMAGED are contents of the target that were proven damaged, as `SIZE:MODIFIED_NS`;
of those the newest two are kept. What may be the only copy of a state is never deleted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Collection

COULD_NOT = 78
"""EX_CONFIG of sysexits.h: the training was not started."""
PART = ".rocm-supervisor-part"
DAMAGED = ".damaged"
DAMAGED_KEPT = 2
PLACED_KEPT = 2
GENERATIONS, FACTS = "generations", "generation.json"
"""The folder of what a job has captured, each in a folder with a number, and what is known of one of these."""


def put(source: str, target: str, damaged: Collection[str] = ()) -> str | None:
    """Copy `source` to `target`; return where what it replaced is kept, None if there was none or it is a generation.

    `damaged` are the contents of the target that were proven damaged.
    """
    if _is_same_content(source, target):
        return None
    _check_target(source, target.rstrip("/"))
    part = target.rstrip("/") + PART
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)  # noqa: PTH103, PTH100, PTH120 - as in shim.py
    _remove_part(part)
    if os.path.isdir(source):  # noqa: PTH112 - as in shim.py
        shutil.copytree(source, part)
    else:
        shutil.copy2(source, part)
        _sync_file(part)
    _take_modes(part, target.rstrip("/"))
    if os.path.isdir(part) and os.path.islink(target.rstrip("/")):  # noqa: PTH112, PTH114 - as in shim.py
        return _point_link(target.rstrip("/"), part)
    if _is_generation(source, target.rstrip("/")):
        _replace_kept(part, target.rstrip("/"))
        return None
    is_damaged = _describe_content(target) in damaged
    aside = _set_aside(target.rstrip("/"), DAMAGED if is_damaged else "")
    os.replace(part, target.rstrip("/"))  # noqa: PTH105 - as in shim.py
    if aside is not None and is_damaged:
        _remove_damaged(aside)
    return aside


def _is_generation(source: str, target: str) -> bool:
    """Whether another generation, a proven one, has the content of the target, as far as this user may see."""
    place, name = os.path.split(source.rstrip("/"))
    folder, number = os.path.split(place)
    if os.path.basename(folder) != GENERATIONS or not number.isdecimal() or os.path.islink(target):  # noqa: PTH114, PTH119 - as in shim.py
        return False
    try:
        others = [other for other in os.listdir(folder) if other.isdecimal() and other != number]  # noqa: PTH208 - as in shim.py
        alike = (
            kept for kept in (f"{folder}/{other}" for other in others) if _is_same_content(f"{kept}/{name}", target)
        )
        return any(map(_is_proven, alike))
    except OSError:
        return False


def _is_proven(generation: str) -> bool:
    """Whether a generation is proven: one that is rejected is not kept."""
    try:
        with open(f"{generation}/{FACTS}", encoding="utf-8") as file:  # noqa: PTH123 - as in shim.py
            return bool(json.load(file)["verdict"] == "proven")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _replace_kept(part: str, target: str) -> None:
    """Replace a file or a folder of which a generation is kept."""
    if os.path.isdir(target):  # noqa: PTH112 - as in shim.py
        aside = _set_aside(target, "")
        os.replace(part, target)  # noqa: PTH105 - as in shim.py
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    else:
        os.replace(part, target)  # noqa: PTH105 - as in shim.py


def _describe_content(path: str) -> str:
    """Return size and time of a file, or of a folder's files, as the daemon knows its content by."""
    try:
        own, files = os.stat(path), _list_contents(path).values()  # noqa: PTH116 - as in shim.py
    except OSError:
        return ""
    found = [(size, modified_ns) for _, size, modified_ns in files] or [(own.st_size, own.st_mtime_ns)]
    return f"{sum(size for size, _ in found)}:{max(modified_ns for _, modified_ns in found)}"


def _list_numbered(path: str) -> list[str]:
    """Return what is kept under the name of a path with another number at its end, the newest first."""
    place, name = os.path.split(path)
    begin = re.sub(r"\d+$", "", name)
    numbers = [int(other[len(begin) :]) for other in os.listdir(place or ".") if _follows(begin, other)]  # noqa: PTH208 - as in shim.py
    return [os.path.join(place, f"{begin}{number}") for number in sorted(numbers, reverse=True)]  # noqa: PTH118 - as in shim.py


def _follows(begin: str, name: str) -> bool:
    return name.startswith(begin) and re.fullmatch(r"[1-9]\d*", name[len(begin) :]) is not None


def _remove_damaged(newest: str) -> None:
    """Remove what is kept of a name that was proven damaged, beyond the newest few: they would fill the disk."""
    with contextlib.suppress(OSError):
        for old in _list_numbered(newest)[DAMAGED_KEPT:]:
            _remove_part(old)


def _remove_placed(newest: str, named_before: str) -> None:
    """Remove the copied folders that a link has named, beyond the newest few and those that a training saved into."""
    with contextlib.suppress(OSError):
        for old in _list_numbered(newest)[PLACED_KEPT:]:
            if os.path.realpath(old) != named_before and _is_unchanged(old):
                shutil.rmtree(old)


def _is_unchanged(folder: str) -> bool:
    """Whether nothing in a folder was written, made or removed since it was given its name."""
    named_ns = os.lstat(folder).st_ctime_ns
    times = (os.lstat(path).st_ctime_ns for path in _list_below(folder))
    return os.lstat(folder).st_mtime_ns < named_ns and all(time_ns <= named_ns for time_ns in times)


def _take_modes(part: str, target: str) -> None:
    """Give the copy the permissions of what it replaces, or of a new file: those of a generation are the daemon's."""
    mask = os.umask(0o077)
    os.umask(mask)
    for path in (part, *_list_below(part)):
        is_folder = os.path.isdir(path)  # noqa: PTH112 - as in shim.py
        mode = (0o777 if is_folder else 0o666) & ~mask
        try:
            before = os.stat(target + path[len(part) :]).st_mode  # noqa: PTH116 - as in shim.py
        except OSError:
            before = 0
        os.chmod(path, before & 0o777 if before and stat.S_ISDIR(before) == is_folder else mode)  # noqa: PTH101 - as in shim.py


def _check_target(source: str, target: str) -> None:
    """Raise OSError where something lies at the target that no checkpoint of this kind takes the place of."""
    try:
        kind = stat.S_IFMT(os.lstat(target).st_mode)
    except FileNotFoundError:
        return
    if kind == stat.S_IFDIR and not os.path.isdir(source):  # noqa: PTH112 - as in shim.py
        raise IsADirectoryError(errno.EISDIR, "is a folder, and the checkpoint is a file: name a file in it")
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise OSError(errno.EINVAL, "is neither a file nor a folder")


def _is_same_content(source: str, target: str) -> bool:
    """Whether both files have the same size and time, or both folders the same files of these."""
    try:
        if os.path.isdir(source):  # noqa: PTH112 - as in shim.py
            is_folder = os.path.isdir(target)  # noqa: PTH112 - as in shim.py
            return is_folder and _list_contents(source) == _list_contents(target)
        return _look_at(source) == _look_at(target)
    except FileNotFoundError:
        return False


def _list_below(folder: str) -> list[str]:
    """Return each file and folder below one."""
    return [os.path.join(place, name) for place, *names in os.walk(folder) for kind in names for name in kind]  # noqa: PTH118 - as in shim.py


def _list_contents(folder: str) -> dict[str, tuple[int, int, int]]:
    """Return what each file below a folder looks like, by its path in there; nothing of a file."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)  # noqa: PTH118 - as in shim.py
    return {os.path.relpath(path, folder): _look_at(path) for path in paths}


def _look_at(path: str) -> tuple[int, int, int]:
    """Return kind, size and time of a file."""
    found = os.lstat(path)
    return stat.S_IFMT(found.st_mode), found.st_size, found.st_mtime_ns


def _point_link(link: str, part: str) -> str:
    """Have a link name the copied folder, which is kept next to it, hidden; return what it has named.

    A folder in the place of the link would end a program at its next save: it replaces a link.
    """
    before, (place, name) = os.path.realpath(link), os.path.split(link)
    folder = _find_free_name(os.path.join(place, f".{name}.placed-"))  # noqa: PTH118 - as in shim.py
    os.rename(part, folder)  # noqa: PTH104 - as in shim.py
    os.symlink(os.path.basename(folder), part)  # noqa: PTH119, PTH211 - as in shim.py
    os.replace(part, link)  # noqa: PTH105 - as in shim.py
    _remove_placed(folder, before)
    return before


def _find_free_name(begin: str) -> str:
    """Return a name with the number after the highest one that is used."""
    used = _list_numbered(f"{begin}0")
    return f"{begin}{int(used[0][len(begin) :]) + 1 if used else 1}"


def _set_aside(target: str, word: str) -> str | None:
    """Keep the file or folder at the target under an unused name; a file also keeps its name until it is replaced.

    A folder is hidden: programs that go on from the newest `checkpoint-N` read the number of each that begins so.
    """
    if not os.path.lexists(target):
        return None
    is_folder = os.path.isdir(target) and not os.path.islink(target)  # noqa: PTH112, PTH114 - as in shim.py
    place, name = os.path.split(target)
    kept = os.path.join(place, f".{name}") if is_folder else target  # noqa: PTH118 - as in shim.py
    aside = _find_free_name(f"{kept}{word}.aside-")
    if is_folder:
        os.rename(target, aside)  # noqa: PTH104 - as in shim.py
        return aside
    try:
        os.link(target, aside, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(target, aside, follow_symlinks=False)
    return aside


def _remove_part(part: str) -> None:
    """Remove a file or a folder, as the partial copy of an interrupted run."""
    if os.path.isdir(part) and not os.path.islink(part):  # noqa: PTH112, PTH114 - as in shim.py
        shutil.rmtree(part)
    elif os.path.lexists(part):
        os.unlink(part)  # noqa: PTH108 - as in shim.py


def _sync_file(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def main(arguments: list[str]) -> None:
    """Copy the checkpoint, print what was done, and exec the command."""
    between = arguments.index("--")
    (source, target, *damaged), command = arguments[:between], arguments[between + 1 :]
    try:
        aside = put(source, target, damaged)
        kept = f"; the previous file is kept as {aside}" if aside is not None else ""
        sys.stdout.write(f"rocm-supervisor: {target} now holds the checkpoint to resume from{kept}\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: {target}: the checkpoint could not be written: {error}\n")
        sys.exit(COULD_NOT)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"rocm-supervisor: command {command[0]!r} of the job: {error}\n")
        sys.exit(COULD_NOT)


if __name__ == "__main__":
    main(sys.argv[1:])
