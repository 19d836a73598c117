"""Snapshot files: written atomically, each part with a checksum, a few kept.

torch's archive holds a CRC-32 of every entry, which torch itself does not look at when it loads. `verify` does.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import warnings
import zipfile
from contextlib import suppress
from typing import Any, Collection, Dict, List, Optional

from .copying import mapped

NAME = "step-%012d.pt"
OURS = "rocm_supervisor"
"""The key, in the file, of all that is not the framework's."""
KEPT = 2
COPIED_BYTES = 1 << 22
PART = ".part"
ROOM_LEFT_BYTES = 512 << 20
"""Left on the disk by a snapshot: the training's own checkpoints need room too."""


class NotFinite(ValueError):  # noqa: N818 - a verdict, no defect
    """A state with NaN or infinity in it: not worth keeping, least of all in place of a valid one."""


def write(torch: Any, state: Any, path: str, taken_ns: int, digest: Any = None) -> int:
    """Write a state to `path`, synced and dated `taken_ns` (Unix), and return its bytes; `digest` sees all of them.

    Raises OSError where the disk refuses; what was at `path` is then as it was.
    """
    part = part_of(path)
    try:
        with open(part, "wb", buffering=0) as file:
            unfailing = Unfailing(file, digest)
            torch.save(state, unfailing)
            if unfailing.error is not None:
                raise unfailing.error
            # The daemon proves it, and may be another user of the group.
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 | 0o640)
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        os.utime(part, ns=(taken_ns, taken_ns))  # the training as it was then, however long the writing took
        os.replace(part, path)
    except BaseException:
        remove(part)
        raise
    sync_folder(os.path.dirname(path))
    return size


def part_of(path: str) -> str:
    """Return under which name this process writes what is to be at `path`; `prune` leaves it, and no other's."""
    return "%s.%d%s" % (path, os.getpid(), PART)


def copy(source: Any, part: str, path: str) -> None:
    """Copy an open file to `path` whole or not at all, synced, by way of `part`; raise OSError where that fails."""
    try:
        with open(part, "wb", buffering=0) as file:
            source.seek(0)
            shutil.copyfileobj(source, file, COPIED_BYTES)
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 | 0o640)
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        remove(part)
        raise


class Unfailing:
    """A file for torch.save that keeps its first error to itself: torch's writer may abort the process over one."""

    of_the_agent = True

    def __init__(self, file: Any, digest: Any = None) -> None:
        self._file = file
        self._digest = digest
        self.error: Any = None

    def write(self, data: Any) -> int:
        """Write all of `data`, or pass over it once something has failed."""
        view = memoryview(data).cast("B")
        size = len(view)
        if self._digest is not None:
            self._digest.update(view)
        while len(view) and self.error is None:
            try:
                view = view[self._file.write(view) :]
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: the file has no buffer."""


BOUNDS = ("threshold", "_min", "_max", "min_val", "max_val")
"""How the names of bounds end that are measured: the thresholds of anomalib, the observers of quantization."""


def check_finite(torch: Any, state: Any, roots: Optional[Collection[str]] = None) -> None:
    """Raise NotFinite where a weight, an optimizer's state or an average is NaN or infinite.

    `roots` are the keys at the top of the state below which every number counts; None: all of them. Elsewhere a tensor
    of one number is the record of a metric, infinite until the first one came, and only larger ones are looked at.
    """

    def look(place: Any, tensor: Any) -> None:
        counts = roots is None or place[0] in roots or tensor.numel() > 1
        if counts and tensor.is_floating_point() and not _is_finite(torch, tensor):
            name = ".".join(str(part) for part in place)
            if not _is_by_design(torch, name, tensor):
                raise NotFinite("%s is not finite: this state is not worth saving" % name)

    with torch.no_grad():
        mapped(state, look)


def _is_by_design(torch: Any, name: str, tensor: Any) -> bool:
    """Whether what is not finite was so from the beginning, in a buffer that no loss changes.

    A bound is not set before something was measured. A mask of attention is minus infinity; the `anchors` of RT-DETR
    and its like are infinite at the image's edge.
    """
    last = name.rpartition(".")[2].lower()
    if tensor.numel() == 1 and (last in ("min", "max") or last.endswith(BOUNDS)):
        return True
    if "mask" in name.lower():
        other = math.inf
    elif last == "anchors":
        other = -math.inf
    else:
        return False
    return not bool((torch.isnan(tensor) | (tensor == other)).any())


def _is_finite(torch: Any, tensor: Any) -> bool:
    """Look through a sum in double precision, in which finite numbers stay finite, and which needs no memory.

    NumPy sums in this thread alone; torch would take the training's processors for it.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or tensor.dtype not in (torch.float32, torch.float64, torch.float16):
        return bool(torch.isfinite(tensor.sum(dtype=torch.float64)))
    return math.isfinite(tensor.numpy().sum(dtype=numpy.float64))


def check_room(folder: str, needed_bytes: int) -> None:
    """Raise OSError where the disk would be all but full afterwards."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < needed_bytes + ROOM_LEFT_BYTES:
        raise OSError("no room for a snapshot of %d MB: %d MB are free" % (needed_bytes >> 20, free >> 20))


def size_of(state: Any) -> int:
    """Return about how many bytes a state takes in a file."""
    sizes: List[int] = []
    mapped(state, lambda _, tensor: sizes.append(tensor.numel() * tensor.element_size()))
    return sum(sizes)


def prune(folder: str, kept: int = KEPT) -> None:
    """Remove all but the newest snapshots of a folder, and what killed processes left half written."""
    found = [os.path.join(folder, name) for name in os.listdir(folder)]
    snapshots = sorted((match for match in found if match.endswith(".pt")), key=_modified_ns)
    for snapshot in snapshots[:-kept]:
        remove(snapshot)
    for match in found:
        if match.endswith(PART) and not match.endswith(part_of("")):
            remove(match)


def verify(path: str) -> None:
    """Check the complete file against its checksums; raise ValueError if it is damaged, OSError if it is absent."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError("%s is damaged: %s" % (path, error)) from None
    if damaged is not None:
        raise ValueError("%s is damaged: %s does not match its checksum" % (path, damaged))


def read(torch: Any, path: str, kind: str) -> Optional[Dict[str, Any]]:
    """Return what a snapshot of a `kind` of training holds; None for any other checkpoint, which is others' to load.

    Raises ValueError where it is damaged.
    """
    if not path or not zipfile.is_zipfile(path):
        return None
    found = load(torch, path)
    ours = found.get(OURS) if isinstance(found, dict) else None
    return found if isinstance(ours, dict) and kind in ours else None


def load(torch: Any, path: str) -> Any:
    """Return what a file of ours holds; raise ValueError where it is damaged."""
    verify(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.0 and 2.1 warn of a class that they name themselves
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a state of the user's holds classes of its own; the file was proven not to be hostile
        return torch.load(path, map_location="cpu", weights_only=False)


def remove(path: str) -> None:
    """Remove a file that may be gone already."""
    with suppress(OSError):
        os.unlink(path)


def sync_folder(folder: str) -> None:
    """Make a rename last over a power cut."""
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
