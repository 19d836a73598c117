"""A generation of shards: one file of each rank, and the manifest without which they are none.

    step-000000000042/                    appears by one rename, once all is in it
        rocm-shards.json                  the manifest: step, epoch (of the relaunches), and each shard with its SHA-256
        rank-00000.shard.pt ...           what each rank held after that step
    step-000000000042.EPOCH-NUMBER.rocm-supervisor-part/
                                          while the ranks write: each its shard, then rank-00000.json about it

torch.distributed.checkpoint loads a shard of another step, or with a flipped bit, without an error. Here a shard is
read only where its bytes have the hash that the manifest names, and where it says itself that it is of that step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from typing import Any, Dict, List, NamedTuple, Optional

from . import files

FORMAT = 1
MANIFEST = "rocm-shards.json"
SHARD = "rank-%05d.shard.pt"
PART = "rank-%05d.json"
FOLDER = "step-%012d"
DRAFT = ".rocm-supervisor-part"
FENCE = "epoch"
"""File next to the generations: the highest epoch that has begun there."""
SHARD_KEY = "shard"
"""Under our key in a shard: of which rank, step, epoch and number of ranks it is."""
SAME = ("step", "epoch", "number")
"""What every shard says of itself as the manifest does."""
MANIFEST_LIMIT_BYTES = 1 << 24
HASHED_BYTES = 1 << 22
FINISHED = re.compile(r"step-\d{12}\Z")


class Incomplete(RuntimeError):  # noqa: N818 - a verdict, no defect
    """Shards that are no generation: one is missing, late, refused or of another step or epoch."""


class Shard(NamedTuple):
    """What a rank says about its shard."""

    rank: int
    step: int
    epoch: str
    number: int
    """Of the announcement: a launch that began again makes the same step twice."""
    size: int
    bytes: int
    sha256: str
    layout: str
    """Digest of the names, shapes and spreading of weights and optimizer; the same on every rank."""
    alike: str
    """Digest of a sample of what every rank holds a replica of; the same on every rank."""
    refused: str = ""
    """Why this rank has no shard; empty where it has one."""


def epoch_of(folder: str, given: str) -> str:
    """Return the epoch of this launch, as numbers joined by dots: `given`, or the attempt's number.

    `folder` is that of the attempt, STATE/jobs/JOB/ATTEMPT/run. A leader gives TRAINING.ENGINE_RESTARTS.RELAUNCH, of
    which the numbers count: the number of the attempt is each node's own, and differs between them.
    """
    if re.fullmatch(r"\d+(\.\d+)*", given):
        return given
    named = re.fullmatch(r"[A-Za-z0-9_-]+\.(\d+\.\d+)", given)
    if named:
        return named.group(1)
    attempt = os.path.basename(os.path.dirname(os.path.abspath(folder)))
    return attempt if attempt.isdigit() else "0"


def numbers(epoch: str) -> List[int]:
    """Return an epoch as what is compared."""
    return [int(part) for part in epoch.split(".") if part.isdigit()]


class Fence:
    """Keeps a launch that was overtaken from completing a generation in a folder that it still reaches."""

    def __init__(self, folder: str, epoch: str) -> None:
        self._path = os.path.join(folder, FENCE)
        self.epoch = epoch

    def raise_to_ours(self) -> None:
        """Have every earlier epoch refused from now on; raise Incomplete where a later one has begun."""
        self.check()
        draft = files.part_of(self._path)
        with open(draft, "w", encoding="ascii") as file:
            file.write(self.epoch)
        os.replace(draft, self._path)

    def check(self) -> None:
        """Raise Incomplete where a later epoch has begun."""
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                found = file.read(200).strip()
        except FileNotFoundError:
            return
        if numbers(found) > numbers(self.epoch):
            raise Incomplete("epoch %s has begun, and this is epoch %s" % (found, self.epoch))


def draft_of(folder: str, step: int, epoch: str, number: int) -> str:
    """Return the folder in which the shards of a step are put together."""
    return os.path.join(folder, "%s.%s-%d%s" % (FOLDER % step, epoch, number, DRAFT))


def make_draft(draft: str) -> None:
    """Have that folder; the daemon may be another user of the group."""
    os.makedirs(draft, exist_ok=True)
    with contextlib.suppress(PermissionError):
        os.chmod(draft, os.stat(draft).st_mode & 0o777 | 0o750)  # noqa: S103 - for the group of the daemon


def write_part(draft: str, shard: Shard) -> None:
    """Say that a shard is complete, or that there will be none."""
    _write_json(os.path.join(draft, PART % shard.rank), shard._asdict())


def read_part(draft: str, rank: int) -> Optional[Shard]:
    """Return what a rank says about its shard; None before it does."""
    try:
        return Shard(**_read_json(os.path.join(draft, PART % rank)))
    except (OSError, ValueError, TypeError):
        return None


def check_parts(parts: List[Shard], step: int, epoch: str) -> None:
    """Raise Incomplete unless all shards are of one step, one epoch and one layout."""
    for rank, part in enumerate(parts):
        if part.refused:
            raise Incomplete("rank %d has no shard of step %d: %s" % (rank, step, part.refused))
        if part[:5] != (rank, step, epoch, parts[0].number, len(parts)):
            raise Incomplete(
                "the shard of rank %d is of step %d in epoch %s, and not of step %d in epoch %s"
                % (rank, part.step, part.epoch, step, epoch)
            )
        if part.layout != parts[0].layout:
            raise Incomplete("rank %d has other weights than rank 0: their names, shapes or spreading differ" % rank)
        if part.alike != parts[0].alike:
            raise Incomplete("rank %d does not hold what rank 0 holds after step %d: no replica" % (rank, step))


def complete(draft: str, parts: List[Shard], taken_ns: int) -> str:
    """Write the manifest of the shards in a draft and give it its name, by one rename; return the new path.

    Raises OSError where the disk refuses or a generation of that step is there already.
    """
    shards = [
        {"rank": part.rank, "name": SHARD % part.rank, "bytes": part.bytes, "sha256": part.sha256} for part in parts
    ]
    facts = {"format": FORMAT, "step": parts[0].step, "epoch": parts[0].epoch, "number": parts[0].number}
    for part in parts:
        files.remove(os.path.join(draft, PART % part.rank))
    _write_json(
        os.path.join(draft, MANIFEST), {**facts, "world_size": len(parts), "layout": parts[0].layout, "shards": shards}
    )
    for name in os.listdir(draft):  # the training as it was then, by the clock of rank 0
        os.utime(os.path.join(draft, name), ns=(taken_ns, taken_ns))
    files.sync_folder(draft)
    target = os.path.join(os.path.dirname(draft), FOLDER % parts[0].step)
    with contextlib.suppress(FileNotFoundError):
        remove_folder(target)  # of an earlier epoch: this training has made that step again
    os.rename(draft, target)
    files.sync_folder(os.path.dirname(target))
    return target


def remove_folder(folder: str) -> None:
    """Remove a generation; it stops being one at once, whenever this process is killed."""
    going = "%s.0-%d%s" % (folder, os.getpid(), DRAFT)
    os.rename(folder, going)
    shutil.rmtree(going, ignore_errors=True)


def prune(folder: str, epoch: str, draft: str = "", kept: int = files.KEPT) -> None:
    """Remove all but the newest generations, and drafts that are not of a later epoch; `draft` stays.

    A later launch may have gone on from an older step: what it saves is newer than steps beyond it.
    """
    names = sorted(os.listdir(folder))
    finished = [name for name in names if FINISHED.match(name)]
    for name in sorted(finished, key=lambda name: (_epoch_of(os.path.join(folder, name)), name))[:-kept]:
        with contextlib.suppress(OSError):
            remove_folder(os.path.join(folder, name))
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(DRAFT) and path != draft and numbers(_epoch_in(name)) <= numbers(epoch):
            shutil.rmtree(path, ignore_errors=True)


def _epoch_of(path: str) -> List[int]:
    """Return the epoch of a generation; the lowest where it has no manifest, so that it is removed first."""
    try:
        return numbers(str(read_manifest(path).get("epoch")))
    except (OSError, ValueError):
        return []


def _epoch_in(name: str) -> str:
    return name[: -len(DRAFT)].partition(".")[2].partition("-")[0]


def is_generation(path: str) -> bool:
    """Whether a path is that of a complete generation."""
    return os.path.isfile(os.path.join(path, MANIFEST))


def read_manifest(folder: str) -> Dict[str, Any]:
    """Return the manifest; raise ValueError where it is none."""
    found = _read_json(os.path.join(folder, MANIFEST))
    shards = found.get("shards")
    if found.get("format") != FORMAT or not isinstance(shards, list) or len(shards) != found.get("world_size"):
        raise ValueError("%s is not the manifest of a generation that this version reads" % folder)
    return found


def read_shard(torch: Any, folder: str, manifest: Dict[str, Any], rank: int) -> Dict[str, Any]:
    """Return what a rank's shard holds; raise ValueError unless it is the one that the manifest names."""
    named = manifest["shards"][rank]
    path = os.path.join(folder, SHARD % rank)
    if hash_file(path) != named["sha256"]:
        raise ValueError("%s is damaged or of another save: it does not have the hash in the manifest" % path)
    found = files.load(torch, path)
    says = found[files.OURS].get(SHARD_KEY) if isinstance(found, dict) and files.OURS in found else None
    wanted = {"rank": rank, "size": manifest["world_size"], **{key: manifest.get(key) for key in SAME}}
    if says != wanted:
        raise ValueError("%s is %s, and the manifest wants %s" % (path, says, wanted))
    return dict(found)


def hash_file(path: str) -> str:
    """Return the SHA-256 of a file; raise ValueError where it is missing."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            piece = file.read(HASHED_BYTES)
            while piece:
                digest.update(piece)
                piece = file.read(HASHED_BYTES)
    except FileNotFoundError:
        raise ValueError("%s is missing" % path) from None
    return digest.hexdigest()


def copy(source: Any, draft: str, name: str) -> None:
    """Copy an open file into a draft elsewhere, synced; raise OSError where that fails."""
    make_draft(draft)
    path = os.path.join(draft, name)
    files.copy(source, files.part_of(path), path)


def _write_json(path: str, value: Dict[str, Any]) -> None:
    part = files.part_of(path)
    with open(part, "w", encoding="ascii") as file:
        json.dump(value, file)
        file.flush()
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o777 | 0o640)
        os.fsync(file.fileno())
    os.replace(part, path)


def _read_json(path: str) -> Dict[str, Any]:
    with open(path, "rb") as file:
        found = json.loads(file.read(MANIFEST_LIMIT_BYTES))
    if not isinstance(found, dict):
        raise ValueError("%s holds no object" % path)
    return found
