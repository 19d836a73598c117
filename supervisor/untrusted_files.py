"""The only access to files that another user can write: follows no link and does not block.

Every function takes a folder that the daemon trusts and a name below it, with `/` between its parts. Links in the path
of the folder are the administrator's and are followed. Below it, each part is opened relative to the previous one
(openat2 with O_NOFOLLOW and RESOLVE_NO_XDEV), so that neither a link nor a rename during the access leads elsewhere,
and a file system that a user has mounted there, which may never answer, is asked nothing. Only a regular file on the
folder's own file system is opened, without blocking, and the checks are made on the descriptor that is read.

A refused file raises UntrustedFileError, an OSError whose message says what was found and what to do; a missing file
raises FileNotFoundError. `supervisor/runner/shim.py` runs as the training's user and has its own few lines for this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

NAMES_LIMIT = 4096
"""Default limit of the entries of a folder that are read."""
OFFSET_MAX = 2**63 - 1
"""Of off_t."""
PARTS_LIMIT = 32
TREE_DEPTH_LIMIT = 64
TREE_ENTRIES_LIMIT = 200_000
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20
_OPENAT2, _RESOLVE_NO_XDEV, _RESOLVE_NO_SYMLINKS = 437, 1, 4
"""openat2(2), the same number on every architecture."""
_OPEN_HOW = struct.Struct("=QQQ")
_NO_OPENAT2 = frozenset({errno.ENOSYS, errno.EPERM})
"""Linux before 5.6, units with RestrictSUIDSGID= (ours are), old containers."""
_refusals: list[OSError] = []
"""That of openat2 in this process; empty where it is allowed, or has not been called."""
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _STATX_MNT_ID = 0x1000, 0x4000, 0x1000
_STATX_BYTES, _MNT_ID_OFFSET = 256, 144
"""statx(2) of linux/stat.h."""
_libc = ctypes.CDLL(None, use_errno=True)
_WRONG_KIND = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISREG, "a file"),
)


class UntrustedFileError(OSError):
    """A file was refused; `strerror` says what it is and what to do."""


class LinkRefusedError(UntrustedFileError):
    """A part of the path is a symbolic link."""


class KindRefusedError(UntrustedFileError):
    """Not a regular file, not the required folder, or on another file system."""


class OwnerRefusedError(UntrustedFileError):
    """The file belongs to another user than required, or has further hard links."""


class SizeRefusedError(UntrustedFileError):
    """The file is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Names in a folder, sorted."""

    names: tuple[str, ...]
    more: bool = False
    """Whether the folder has more entries than the limit."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file."""

    content: bytes
    start: int
    """Offset of `content` in the file."""
    size: int


FileState: TypeAlias = tuple[int, int, int]
"""Device, inode number and size of a file; they change when it is replaced, shortened or appended to."""


def open_file(  # noqa: PLR0913 - what is opened, and what it must be
    folder: Path,
    name: str,
    flags: int = os.O_RDONLY,
    *,
    owner: int | None = None,
    only_name: bool = False,
    mode: int = 0o600,
) -> int:
    """Return a descriptor of a regular file below a trusted folder; the caller closes it.

    `owner` is the uid that it must belong to. `only_name` refuses a file with further hard links: required for writing,
    since another name may be a file of another user. Raises UntrustedFileError or OSError.
    """
    where = folder / name
    at = _open_parent(folder, name)
    try:
        _refuse_kind(at, _last_part(name), where)  # before it is opened: opening a device may act on it
        # Truncated below, after the checks.
        fd = _open_at(at, _last_part(name), (flags | _FILE) & ~os.O_TRUNC, mode)
    except OSError as error:
        raise _explain_error(error, at, _last_part(name), where) from None
    finally:
        os.close(at)
    try:
        _require_regular(os.fstat(fd), where, owner, only_name=only_name)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_bytes(folder: Path, name: str, limit_bytes: int, *, owner: int | None = None) -> bytes:
    """Return a file's content. Raises SizeRefusedError if it is longer than `limit_bytes`, or OSError."""
    fd = open_file(folder, name, owner=owner)
    try:
        size = os.fstat(fd).st_size
        content = _read_up_to(fd, limit_bytes + 1) if size <= limit_bytes else b""
    finally:
        os.close(fd)
    if size > limit_bytes or len(content) > limit_bytes:
        raise SizeRefusedError(
            errno.EFBIG, f"larger than the limit of {limit_bytes} bytes; remove it", str(folder / name)
        )
    return content


def read_part(folder: Path, name: str, start: int, limit_bytes: int, *, owner: int | None = None) -> bytes:
    """Return at most `limit_bytes` of a file from offset `start` on. Raises OSError if it cannot be read.

    `start` may come from the file itself: one that no file can have is refused.
    """
    if not 0 <= start <= OFFSET_MAX:
        raise SizeRefusedError(errno.EOVERFLOW, f"no file has an offset of {start}", str(folder / name))
    fd = open_file(folder, name, owner=owner)
    try:
        os.lseek(fd, start, os.SEEK_SET)
        return _read_up_to(fd, limit_bytes)
    finally:
        os.close(fd)


def read_tail(folder: Path, name: str, limit_bytes: int) -> Tail:
    """Return the last bytes of a file, at most `limit_bytes`. Raises OSError if it cannot be read."""
    fd = open_file(folder, name)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - limit_bytes)
        os.lseek(fd, start, os.SEEK_SET)
        return Tail(content=_read_up_to(fd, limit_bytes), start=start, size=size)
    finally:
        os.close(fd)


def file_status(folder: Path, name: str) -> os.stat_result | None:
    """Return size, times and owner of a regular file, None if it is missing. Raises OSError if it is refused.

    The file may change before a later `open_file`, which checks again.
    """
    try:
        found = entry_status(folder, name)
    except FileNotFoundError:
        return None
    _require_regular(found, folder / name, None, only_name=False)
    return found


def entry_status(folder: Path, name: str) -> os.stat_result:
    """Return the status of an entry of any kind; a link is not followed. Raises OSError."""
    at = _open_parent(folder, name)
    try:
        return _stat_at(at, _last_part(name))
    except OSError as error:
        raise _explain_error(error, at, _last_part(name), folder / name) from None
    finally:
        os.close(at)


def exists(folder: Path, name: str) -> bool:
    """Whether there is a regular file that `open_file` would not refuse."""
    try:
        return file_status(folder, name) is not None
    except OSError:
        return False


def state_of(status: os.stat_result) -> FileState:
    """Return the state of a file that `is_unchanged` compares."""
    return status.st_dev, status.st_ino, status.st_size


def is_unchanged(folder: Path, name: str, state: FileState) -> bool:
    """Whether a file has the same device, inode and size as before; follows no link. Raises OSError if it is missing.

    Saves opening and reading a file that is polled.
    """
    return state_of(_stat_quickly(folder, name) or entry_status(folder, name)) == state


def entry_exists(folder: Path, name: str) -> bool:
    """Whether there is an entry of any kind with that name; False also if the folder may not be read."""
    try:
        entry_status(folder, name)
    except OSError:
        return False
    return True


def list_files(folder: Path, name: str, limit: int = NAMES_LIMIT) -> tuple[tuple[str, int], ...]:
    """Return (relative path, size) of at most `limit` regular files in and below a folder.

    Raises OSError if the folder itself cannot be listed; subfolders that may not be read are skipped.
    """
    with _opened_folder(folder, name) as at:
        files = ((path, status.st_size) for path, status in _walk(at) if stat.S_ISREG(status.st_mode))
        return tuple(sorted(islice(files, limit)))


def tree_bytes(folder: Path, name: str, limit: int = TREE_ENTRIES_LIMIT) -> int:
    """Return the disk usage in bytes of at most `limit` entries below a folder."""
    try:
        with _opened_folder(folder, name) as at:
            found = (status for _, status in islice(_walk(at), limit))
            return sum(status.st_blocks * 512 for status in found if not stat.S_ISDIR(status.st_mode))
    except OSError:
        return 0


def make_folders(folder: Path, name: str, mode: int = 0o750) -> None:
    """Create a folder and its parents below a trusted one. Raises OSError if something else is in its place."""
    _require_plain_name(name, folder)
    for parent, _, leaf in (part.rpartition("/") for part in _list_prefixes(name)):
        at = _open_folder(folder, parent)
        try:
            os.mkdir(leaf, mode, dir_fd=at)
        except FileExistsError:
            pass  # if it is not a folder, opening it next is refused
        finally:
            os.close(at)
    os.close(_open_folder(folder, name))


def write_bytes(folder: Path, name: str, content: bytes, mode: int = 0o640) -> None:
    """Write a file below a trusted folder, truncating it first. Raises OSError if something else is in its place."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(open_file(folder, name, flags, only_name=True, mode=mode), "wb") as file:
        file.write(content)


def list_names(folder: Path, name: str = "", limit: int = NAMES_LIMIT) -> Listing:
    """Return the names of at most `limit` entries of a folder, of any kind. Raises OSError."""
    with _opened_folder(folder, name) as at, os.scandir(at) as entries:
        found = [entry.name for entry in islice(entries, limit + 1)]
    return Listing(tuple(sorted(found[:limit])), more=len(found) > limit)


def open_pipe(folder: Path, name: str) -> int:
    """Return a named pipe below a trusted folder, open for writing without blocking.

    Raises OSError (ENXIO) if no process reads it, UntrustedFileError if it is not a pipe.
    """
    leaf = _last_part(name)
    at = _open_parent(folder, name)
    try:
        found = _stat_at(at, leaf)
        if not stat.S_ISFIFO(found.st_mode):
            raise _kind_error(found.st_mode, folder / name, "a named pipe")
        fd = _open_at(at, leaf, os.O_WRONLY | _FILE)
    except OSError as error:
        raise _explain_error(error, at, leaf, folder / name) from None
    finally:
        os.close(at)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise KindRefusedError(errno.EINVAL, "replaced while it was opened", str(folder / name))
    return fd


def remove(folder: Path, name: str) -> bool:
    """Remove an entry that is not a folder; a link is not followed. Return whether it existed. Raises OSError."""
    try:
        at = _open_parent(folder, name)
        try:
            os.unlink(_last_part(name), dir_fd=at)
        finally:
            os.close(at)
    except FileNotFoundError:
        return False
    return True


def remove_tree(folder: Path, name: str, limit: int = TREE_ENTRIES_LIMIT) -> bool:
    """Remove a folder with its content without following links; return whether it was removed completely.

    Entries without permission, below `TREE_DEPTH_LIMIT` levels, or beyond `limit` entries remain.
    """
    try:
        at = _open_parent(folder, name)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return _remove_below(at, _last_part(name), [limit], TREE_DEPTH_LIMIT)
    finally:
        os.close(at)


# --- folders ------------------------------------------------------------------------------------------------------


def _open_parent(folder: Path, name: str) -> int:
    _require_plain_name(name, folder)
    return _open_folder(folder, name.rpartition("/")[0])


def _list_prefixes(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _open_folder(folder: Path, name: str) -> int:
    """Return a descriptor (O_PATH) of a folder below a trusted one; each part must be a folder on its file system."""
    if name:
        _require_plain_name(name, folder)
    at = os.open(folder, _FOLDER)
    if not name:
        return at
    where = folder
    for part in name.split("/"):
        where /= part
        try:
            below = _open_at(at, part, _FOLDER | os.O_NOFOLLOW)
        except OSError as error:
            raise _explain_error(error, at, part, where, "a directory") from None
        finally:
            os.close(at)
        at = below
    return at


@contextlib.contextmanager
def _opened_folder(folder: Path, name: str) -> Iterator[int]:
    """Give a descriptor of a folder below a trusted one by which it can be listed."""
    at = _open_folder(folder, name)
    try:
        listed = os.open(".", _LISTED, dir_fd=at)
    finally:
        os.close(at)
    try:
        yield listed
    finally:
        os.close(listed)


def _walk(at: int, place: str = "", depth: int = TREE_DEPTH_LIMIT) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and status of every entry below an open folder, as far as it may be read."""
    with os.scandir(at) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = _stat_at(at, entry.name)
                yield place + entry.name, status
                if depth and stat.S_ISDIR(status.st_mode):
                    inside = _open_at(at, entry.name, _LISTED | os.O_NOFOLLOW)
                    try:
                        yield from _walk(inside, f"{place}{entry.name}/", depth - 1)
                    finally:
                        os.close(inside)


def _open_at(at: int, part: str, flags: int, mode: int = 0) -> int:
    """Open an entry of an open folder, unless something is mounted on it: EXDEV, and that is asked nothing."""
    if not _refusals:
        try:
            return _openat2(at, part, flags, mode, _RESOLVE_NO_XDEV)
        except OSError as error:
            if error.errno not in _NO_OPENAT2:
                raise
            _keep_refusal()
    if not flags & os.O_PATH:
        with contextlib.suppress(FileNotFoundError):
            os.close(_open_at(at, part, _ENTRY))  # a path alone asks the file system nothing
        return os.open(part, flags, mode, dir_fd=at)
    fd = os.open(part, flags, dir_fd=at)
    try:
        if _mount_of(fd) == _mount_of(at):
            return fd
    except PermissionError:
        pass  # as a FUSE that another user has mounted answers
    os.close(fd)
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), part)


def _mount_of(fd: int) -> int | None:
    """Return the number of the mount that a descriptor is of, without a question to its file system.

    None before Linux 5.8. Raises OSError.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _STATX_MNT_ID, found):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    (known,), (mount,) = struct.unpack_from("=I", found, 0), struct.unpack_from("=Q", found, _MNT_ID_OFFSET)
    return int(mount) if known & _STATX_MNT_ID else None


def _keep_refusal() -> None:
    """Keep that openat2 is refused, if it is for the folder of all files too: one file may be refused for itself."""
    try:
        os.close(_openat2(-1, "/", _ENTRY, 0, 0))
    except OSError as error:
        if error.errno in _NO_OPENAT2:
            _refusals.append(error)


def _openat2(at: int, name: str, flags: int, mode: int, resolve: int) -> int:
    """Call openat2(2). Raises OSError."""
    how = _OPEN_HOW.pack(flags, mode if flags & os.O_CREAT else 0, resolve)
    error = errno.EINTR
    while error == errno.EINTR:
        fd: int = _libc.syscall(_OPENAT2, at, os.fsencode(name), how, _OPEN_HOW.size)
        if fd >= 0:
            return fd
        error = ctypes.get_errno()
    raise OSError(error, os.strerror(error), name)


def _stat_quickly(folder: Path, name: str) -> os.stat_result | None:
    """Return the status of a file in one step; None where that fails, for whatever reason."""
    _require_plain_name(name, folder)
    if _refusals:
        return None
    at = os.open(folder, _FOLDER)
    try:
        entry = _openat2(at, name, _ENTRY, 0, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS)
    except OSError:
        return None
    finally:
        os.close(at)
    try:
        return os.fstat(entry)
    finally:
        os.close(entry)


def _stat_at(at: int, part: str) -> os.stat_result:
    """Return the status of an entry of an open folder, of whatever kind it is. Raises OSError."""
    entry = _open_at(at, part, _ENTRY)
    try:
        return os.fstat(entry)
    finally:
        os.close(entry)


def _require_plain_name(name: str, folder: Path) -> None:
    parts = name.split("/")
    if len(parts) > PARTS_LIMIT or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise KindRefusedError(errno.EINVAL, "not a name below this folder", f"{folder}/{name[:200]!r}")


def _refuse_kind(at: int, leaf: str, where: Path) -> None:
    try:
        found = _stat_at(at, leaf)
    except FileNotFoundError:
        return  # the open creates it, or raises
    if not stat.S_ISREG(found.st_mode):
        raise _kind_error(found.st_mode, where)


def _require_regular(found: os.stat_result, where: Path, owner: int | None, *, only_name: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _kind_error(found.st_mode, where)
    if owner is not None and found.st_uid != owner:
        raise OwnerRefusedError(
            errno.EPERM, f"belongs to uid {found.st_uid}, not to uid {owner}; it is not used", os.fspath(where)
        )
    if only_name and found.st_nlink != 1:
        raise OwnerRefusedError(
            errno.EMLINK, f"has {found.st_nlink} names, so it may be another's file; it is not used", os.fspath(where)
        )


def _explain_error(error: OSError, at: int, part: str, where: Path, wanted: str = "a file") -> OSError:
    """Return the error; if it was caused by the kind of entry, one that names the kind."""
    if isinstance(error, UntrustedFileError):
        return error
    if error.errno == errno.EXDEV:
        text = "another file system is mounted there; unmount it"
        return KindRefusedError(errno.EXDEV, text, os.fspath(where))
    if error.errno not in _WRONG_KIND:
        return OSError(error.errno, error.strerror, os.fspath(where))
    try:
        mode = _stat_at(at, part).st_mode
    except OSError:
        mode = 0
    if error.errno == errno.ENXIO and stat.S_ISFIFO(mode):
        return OSError(error.errno, error.strerror, os.fspath(where))  # a pipe without a reader
    if mode == 0 or (stat.S_ISDIR(mode) if wanted == "a directory" else stat.S_ISREG(mode)):
        return KindRefusedError(errno.ESTALE, "was replaced while it was opened; the next read tries again", str(where))
    return _kind_error(mode, where, wanted)


def _kind_error(mode: int, where: Path, wanted: str = "a file") -> UntrustedFileError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "of unknown type")
    text = f"is {kind}, not {wanted}; it is not read: remove it"
    if stat.S_ISLNK(mode):
        return LinkRefusedError(errno.ELOOP, text, os.fspath(where))
    return KindRefusedError(errno.EINVAL, text, os.fspath(where))


def _read_up_to(fd: int, limit_bytes: int) -> bytes:
    pieces, left = [], limit_bytes
    while left > 0 and (piece := os.read(fd, min(_PIECE_BYTES, left))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _remove_below(at: int, name: str, left: list[int], depth: int) -> bool:
    """Remove one entry of an open folder; `left` counts down the entries that may still be removed."""
    left[0] -= 1
    if left[0] < 0 or depth == 0:
        return False
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):  # POSIX specifies EPERM for a folder
        return _remove_folder(at, name, left, depth)
    except OSError:
        return False
    return True


def _remove_folder(at: int, name: str, left: list[int], depth: int) -> bool:
    try:
        inside = _open_at(at, name, _LISTED | os.O_NOFOLLOW)
    except OSError:
        return False  # closed by its owner, or a file system is mounted on it
    try:
        with os.scandir(inside) as entries:
            names = [entry.name for entry, _ in zip(entries, range(max(0, left[0]) + 1), strict=False)]
        gone = True
        for below in names:  # continues after a failure
            gone = _remove_below(inside, below, left, depth - 1) and gone
        os.rmdir(name, dir_fd=at)
    except OSError:
        return False
    finally:
        os.close(inside)
    return gone
