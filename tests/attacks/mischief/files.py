"""Attacks on files: every kind of thing that can lie where a regular file is expected, and what happens to it then."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from mischief.target import KNOWN, Target

SIZES = (0, 1, 7, 63, 64, 4095, 4096, 65536, 300_000)
HELD: list[int] = []
"""Descriptors that keep locks and leases until the training ends."""


def write(target: Target, chance: Random) -> str:
    """Overwrite a piece of a file with random bytes."""
    path = target.target(chance)
    fd = target.open(path, os.O_RDWR | os.O_CREAT)
    try:
        end = os.fstat(fd).st_size
        at, size = chance.choice([0, 64, 128, max(end - 10, 0), end, chance.randrange(end + 1)]), chance.choice(SIZES)
        os.pwrite(fd, chance.randbytes(size), at)
    finally:
        os.close(fd)
    return f"{size} random bytes at {at} of {path}"


def truncate(target: Target, chance: Random) -> str:
    """Cut a file."""
    path = target.target(chance)
    fd = target.open(path, os.O_RDWR)
    try:
        size = chance.choice([0, 1, 100, os.fstat(fd).st_size // 2, 4096])
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    return f"{path} cut to {size}"


def delete(target: Target, chance: Random) -> str:
    """Take a file or folder away."""
    path = target.target(chance)
    target.clear(path)
    return f"{path} taken away"


def rename(target: Target, chance: Random) -> str:
    """Let two names change places, or one take the other's."""
    first, second = target.target(chance), target.target(chance)
    if not (target.inside(first) and target.inside(second)):
        raise OSError("one of them lies elsewhere")
    if target.tame and stat.S_ISREG((there := first.lstat()).st_mode) and there.st_nlink > 1:
        # As the training's output it would be read: where all are one user, the file outside is the training's own.
        raise OSError("a second name of a file outside stays where it is")
    first.rename(second)
    return f"{first} renamed to {second}"


def symlink(target: Target, chance: Random) -> str:
    """Replace something by a symbolic link."""
    path = target.target(chance)
    to = target.lure(path, chance)
    target.clear(path)
    path.symlink_to(to)
    return f"{path} -> {to}"


def symlink_folder(target: Target, chance: Random) -> str:
    """Replace a folder that the daemon writes into by a link."""
    path = target.place(chance) / chance.choice(["evidence", "stacks", "output.txt"])
    to = target.canary_folder if path.name == "evidence" or not target.tame else target.folder
    target.clear(path)
    path.symlink_to(to)
    return f"{path} -> {to}"


def hardlink(target: Target, chance: Random) -> str:
    """Give a file of somebody else a name of its own ground; needs fs.protected_hardlinks to be off, or root."""
    path = target.target(chance) if not target.tame else target.folder / "output.txt"
    target.clear(path)
    os.link(chance.choice([target.secret, target.canary]), path, follow_symlinks=False)
    return f"{path} is a second name of a file outside"


def fifo(target: Target, chance: Random) -> str:
    """A named pipe where a file is expected: whoever opens it waits."""
    path = target.target(chance)
    target.clear(path)
    os.mkfifo(path, 0o660)
    return f"{path} is a FIFO"


def unix_socket(target: Target, chance: Random) -> str:
    """A socket where a file is expected."""
    path = target.target(chance)
    target.clear(path)
    with socket.socket(socket.AF_UNIX) as made:
        place = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            made.bind(f"/proc/self/fd/{place}/{path.name}")  # the whole path may be longer than 107 bytes
        finally:
            os.close(place)
    return f"{path} is a socket"


def device(target: Target, chance: Random) -> str:
    """A device without end where a file is expected; root alone can."""
    path = target.target(chance)
    target.clear(path)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, chance.choice([5, 7, 8])))
    return f"{path} is a device"


def directory(target: Target, chance: Random) -> str:
    """A folder where a file is expected."""
    path = target.target(chance)
    target.clear(path)
    path.mkdir()
    for number in range(chance.randrange(5)):
        (path / f"{number}.pt").write_bytes(b"x")
    return f"{path} is a folder"


def deep_folders(target: Target, chance: Random) -> str:
    """Folders within folders, deeper than a path may be long."""
    top = target.folder / chance.choice(["evidence", "stacks", "deep", "snapshots"])
    target.clear(top)
    top.mkdir()
    depth, name = chance.choice([50, 300]), chance.choice(["d", "d" * 200])
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    return f"{depth} folders below {top}"


def sparse(target: Target, chance: Random) -> str:
    """A file that says it is enormous."""
    path, size = target.target(chance), chance.choice([1 << 32, 1 << 40, (1 << 43) - 4096])
    fd = target.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)
    return f"{path} is {size} bytes long"


def mode(target: Target, chance: Random) -> str:
    """Rights that let nobody in, or everybody."""
    path, bits = target.target(chance), chance.choice([0, 0o200, 0o666, 0o6777])
    if path.is_symlink() or not target.inside(path) or (path.is_file() and path.stat().st_nlink != 1):
        raise OSError("a file of somebody else")
    path.chmod(bits)
    return f"{path} has mode {bits:o}"


def many_files(target: Target, chance: Random) -> str:
    """Hundreds of files with names that are looked for."""
    name = chance.choice(
        ["recorder.rank{}.bin", "evidence/{}", "stacks/{}.txt", "output.txt.{}", "recorder.rank{}².bin"]
    )
    count = chance.choice([50, 400])
    for number in range(count):
        path = target.folder / name.format(number + 2)
        path.parent.mkdir(exist_ok=True)
        os.close(target.open(path, os.O_RDWR | os.O_CREAT))
    return f"{count} files like {name}"


def race(target: Target, chance: Random) -> str:
    """Change what lies at a name as fast as it goes."""
    place = target.place(chance)
    path, to = place / chance.choice(KNOWN), place / f"racer{os.getpid()}"
    lure, changes = target.lure(path, chance), 0
    end = time.perf_counter() + chance.choice([0.05, 0.3])
    while time.perf_counter() < end:
        target.clear(to)
        if changes % 3 == 0:
            to.symlink_to(lure)
        elif changes % 3 == 1:
            os.mkfifo(to)
        else:
            to.write_bytes(b"{}")
        if path.is_dir() and not path.is_symlink():
            target.clear(path)
        to.rename(path)
        changes += 1
    return f"{path} changed {changes} times"


def lease(target: Target, chance: Random) -> str:
    """Take a lease: who opens the file waits for lease-break-time, 45 s, unless it does not wait at all."""
    path = target.target(chance)
    fd = target.open(path, os.O_RDONLY)
    HELD.append(fd)
    fcntl.fcntl(fd, fcntl.F_SETSIG, 23)  # SIGURG, which is ignored, in place of SIGIO, which ends it
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return f"a lease on {path}"


def lock(target: Target, chance: Random) -> str:
    """Hold a lock for as long as it lives."""
    path = target.target(chance) if chance.random() < 0.5 else target.job / "lock"
    fd = target.open(path, os.O_RDWR)
    HELD.append(fd)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return f"a lock on {path}"


def next_attempt(target: Target, chance: Random) -> str:
    """Lay out the folder of an attempt that is still to come."""
    number = int(target.attempt.name) + chance.choice([1, 1, 1, 2, 1000]) if target.attempt.name.isdecimal() else 99
    folder = target.job / str(number)
    if not target.inside(folder):
        raise OSError("not its own")
    kind = chance.choice(["folder", "link", "fifo", "file"])
    if kind == "link":
        folder.symlink_to(target.canary_folder if not target.tame else "/nonexistent/x")
    elif kind == "fifo":
        os.mkfifo(folder)
    elif kind == "file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        for name in chance.sample(KNOWN, 4):
            chance.choice([os.mkfifo, lambda path: path.symlink_to("/nonexistent/x"), Path.touch])(folder / name)
    return f"{folder} is laid out as a {kind}"


def swap_folder(target: Target, chance: Random) -> str:
    """Rename a folder that the daemon made and leave something else in its place, or nothing."""
    folder = chance.choice([target.folder, target.attempt, target.job / "snapshots", target.job / "conv2d"])
    away = folder.with_name(f"away{chance.randrange(1 << 30)}")
    if not target.inside(folder):
        raise OSError("not its own")
    kind = chance.choice(["nothing", "link", "copy"])
    folder.rename(away)
    if kind == "link":
        folder.symlink_to(target.canary_folder)
    elif kind == "copy":
        folder.mkdir()
    return f"{folder} renamed, {kind} in its place"


def xattr(target: Target, chance: Random) -> str:
    """Attributes that tools may read."""
    path = target.target(chance)
    os.setxattr(path, "user.note", chance.randbytes(2000), follow_symlinks=False)
    return f"an attribute on {path}"


ACTIONS: Mapping[str, Callable[[Target, Random], str]] = {
    made.__name__: made
    for made in (
        write, truncate, delete, rename, symlink, symlink_folder, hardlink, fifo, unix_socket, device, directory,
        deep_folders, sparse, mode, many_files, race, lease, lock, next_attempt, swap_folder, xattr,
    )
}  # fmt: skip
