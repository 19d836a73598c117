"""Copies a checkpoint to where the training looks for it, then execs the training: `SOURCE TARGET -- COMMAND ...`.

It runs as the training's user, in the job's working directory, and imports only the standard library. The target
appears complete, by one rename; a file with other content at the target is kept in the same folder under another name.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys

COULD_NOT = 78
"""EX_CONFIG of sysexits.h: the training was not started."""
PART = ".rocm-supervisor-part"


def put(source: str, target: str) -> str | None:
    """Copy `source` to `target`; return the new path of the file that was replaced, None if there was none."""
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
    aside = _set_aside(target.rstrip("/"))
    os.replace(part, target.rstrip("/"))  # noqa: PTH105 - as in shim.py
    return aside


def _take_modes(part: str, target: str) -> None:
    """Give the copy the permissions of what it replaces, or of a new file: those of a generation are the daemon's."""
    mask = os.umask(0o077)
    os.umask(mask)
    below = [os.path.join(place, name) for place, *names in os.walk(part) for kind in names for name in kind]  # noqa: PTH118 - as in shim.py
    for path in (part, *below):
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


def _list_contents(folder: str) -> dict[str, tuple[int, int, int]]:
    """Return what each file below a folder looks like, by its path in there."""
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
    before, (place, name), number = os.path.realpath(link), os.path.split(link), 1
    while os.path.lexists(folder := os.path.join(place, f".{name}.placed-{number}")):  # noqa: PTH118 - as in shim.py
        number += 1
    os.rename(part, folder)  # noqa: PTH104 - as in shim.py
    os.symlink(os.path.basename(folder), part)  # noqa: PTH119, PTH211 - as in shim.py
    os.replace(part, link)  # noqa: PTH105 - as in shim.py
    return before


def _set_aside(target: str) -> str | None:
    """Keep the file or folder at the target under an unused name; a file also keeps its name until it is replaced.

    A folder is hidden: programs that go on from the newest `checkpoint-N` read the number of each that begins so.
    """
    if not os.path.lexists(target):
        return None
    is_folder, number = os.path.isdir(target) and not os.path.islink(target), 1  # noqa: PTH112, PTH114 - as in shim.py
    place, name = os.path.split(target)
    kept = os.path.join(place, f".{name}") if is_folder else target  # noqa: PTH118 - as in shim.py
    while os.path.lexists(aside := f"{kept}.aside-{number}"):
        number += 1
    if is_folder:
        os.rename(target, aside)  # noqa: PTH104 - as in shim.py
        return aside
    try:
        os.link(target, aside, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(target, aside, follow_symlinks=False)
    return aside


def _remove_part(part: str) -> None:
    """Remove the partial copy of an interrupted run."""
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
    source, target, _, *command = arguments
    try:
        aside = put(source, target)
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
