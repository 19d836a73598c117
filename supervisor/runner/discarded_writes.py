"""Runs a command so that whatever it writes is discarded: over every file system lies a layer in memory.

    python discarded_writes.py SCRATCH -- COMMAND...

Standard library only. SCRATCH is the one folder whose writes stay. Without the right to make a mount namespace, of
its own user where that is allowed, it exits with CANNOT and its reason on stderr before the command is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

CANNOT = 126
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
LAYER_LIMIT = "2g"
KERNELS_OWN = frozenset(
    {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "debugfs", "tracefs", "bpf"}
    | {"securityfs", "pstore", "configfs", "fusectl", "binfmt_misc", "autofs", "nsfs", "rpc_pipefs", "efivarfs"}
)
LIVE = ("/dev", "/proc", "/sys", "/run")
"""Devices, sockets and the kernel's own files: these are used, not written over."""


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, options)]
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _unshare() -> bool:
    """Take a mount namespace; one of an own user namespace, and False, where privileges lack."""
    user, group = os.geteuid(), os.getegid()
    library = ctypes.CDLL(None, use_errno=True)
    if user == 0 and library.unshare(CLONE_NEWNS) == 0:
        return True
    if library.unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    return False


def _list_mounts() -> list[tuple[str, str]]:
    """Return the mounts of this namespace as (place, kind), parents first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        found.append((place, after.split()[0]))
    return sorted(dict(found).items())


def _is_live(place: str, kind: str) -> bool:
    return kind in KERNELS_OWN or place in LIVE or place.startswith(tuple(f"{name}/" for name in LIVE))


def enter(scratch: str) -> None:
    """Make everything but `scratch` a layer that ends with the process; raise OSError where that cannot be done.

    Without privileges the kernel allows a layer only where nothing else is mounted below: the working directory and
    the home directory get one.
    """
    mounts, privileged = _list_mounts(), _unshare()
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    layers = Path(scratch) / "layers"
    layers.mkdir()
    _mount("tmpfs", str(layers), "tmpfs", 0, f"size={LAYER_LIMIT}")
    here = Path.cwd()
    if privileged:
        root = layers / "root"
        root.mkdir()
        for number, (place, kind) in enumerate(_outermost_live(mounts)):
            _cover(place, kind, str(root) + (place if place != "/" else ""), layers, number)
        (root / scratch.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _mount(scratch, str(root) + scratch, None, MS_BIND)
        os.chroot(root)
    else:
        home = Path.home()
        for number, covered in enumerate([home] if here.is_relative_to(home) else [home, here]):
            _lay_over(str(covered), str(covered), layers, number, ",userxattr")
    os.chdir(here)


def _outermost_live(mounts: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the mounts without those below a live one, which come with it."""
    live: list[str] = []
    for place, kind in mounts:
        if any(place == top or place.startswith(f"{top}/") for top in live):
            continue
        if _is_live(place, kind):
            live.append(place)
        yield place, kind


def _cover(place: str, kind: str, target: str, layers: Path, number: int) -> None:
    if _is_live(place, kind):
        _mount(place, target, None, MS_BIND | MS_REC)
    elif kind.startswith("fuse") or not os.path.isdir(place):  # noqa: PTH112 - pathlib raises for a broken mount
        # A FUSE file system may hang, and a file has no layer: these are shown read-only, or not at all.
        with contextlib.suppress(OSError):
            _mount(place, target, None, MS_BIND)
            _mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    else:
        _lay_over(place, target, layers, number)


def _lay_over(place: str, target: str, layers: Path, number: int, options: str = "") -> None:
    upper, work = (layers / f"{name}{number}" for name in ("upper", "work"))
    work.mkdir()
    upper.mkdir()
    upper.chmod(Path(place).stat().st_mode & 0o7777)
    _mount("overlay", target, "overlay", 0, f"lowerdir={place},upperdir={upper},workdir={work}{options}")


def main() -> None:
    """Enter the namespace and become the command."""
    scratch, _, *command = sys.argv[1:]
    try:
        enter(scratch)
    except OSError as error:
        sys.stderr.write(f"writes cannot be discarded: {error.filename}: {error.strerror}\n")
        sys.exit(CANNOT)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the job's command
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
