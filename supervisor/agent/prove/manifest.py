"""Proves a generation of shards that the agent saved: every rank's, of one step, with the hash in the manifest.

The manifest is written last, with the hash of what each rank wrote. A flipped bit is seen by it, and so is a sound
shard of another step under the right name, which in a checkpoint of torch.distributed.checkpoint nothing shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, BinaryIO, Callable, Dict, List, Tuple

from .contents import entries_of
from .kinds import Rejected
from .tally import Numbers

MANIFEST = "rocm-shards.json"
SHARD = "rank-%05d.shard.pt"
END = ".shard.pt"
FORMAT = 1
MANIFEST_BYTES_MAX = 1 << 24
HASHED_BYTES = 1 << 20
SAME = ("step", "epoch", "number")
"""What every shard says of itself as the manifest does."""

Prover = Callable[[BinaryIO, int, Numbers, str], Any]


def is_manifest(path: str) -> bool:
    """Whether a path is that of the manifest of such a generation."""
    return os.path.basename(path) == MANIFEST


def prove_generation(
    manifest: BinaryIO,
    shards: Dict[str, BinaryIO],
    numbers: Numbers,
    prover_of: Callable[[bytes, int], Prover],
    share: Tuple[int, int] = (0, 1),
) -> Dict[str, Any]:
    """Count the numbers of every shard; return the entries of the first, with the step of the manifest.

    Of a `share` (first, of how many) only the shards of every so-manieth rank are read, and of the others the sizes.
    """
    facts = read_manifest(manifest)
    named = facts["shards"]
    missing = [row["name"] for row in named if row["name"] not in shards]
    if missing:
        raise Rejected("incomplete: %s is missing, of %d shards" % (missing[0], len(named)))
    if len(shards) != len(named):
        raise Rejected("%d shards lie there, and its manifest names %d" % (len(shards), len(named)))
    first, of = share
    read = [row for row in named if row["rank"] % of == first]
    for row in named:
        check_size(shards[row["name"]], row)
    for row in read:
        check_hash(shards[row["name"]], row)
    entries: Dict[str, Any] = {}
    for row in read:
        rank = row["rank"]
        label = "rank%dof%d" % (rank, len(named))  # shards of another number of ranks are not compared with these
        found = prove_shard(shards[row["name"]], label, numbers, prover_of)
        check_identity(found, facts, rank)
        entries = entries or found
    return {"step": facts["step"], "rocm_supervisor": entries.get("rocm_supervisor")}


def read_manifest(file: BinaryIO) -> Dict[str, Any]:
    """Return the manifest; raise Rejected where it is none."""
    text = file.read(MANIFEST_BYTES_MAX)
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise Rejected("its manifest is cut short or no JSON") from None
    rows = facts.get("shards") if isinstance(facts, dict) else None
    if not isinstance(rows, list) or not rows or facts.get("format") != FORMAT:
        raise Rejected("its manifest is not one that this version reads")
    if facts.get("world_size") != len(rows) or type(facts.get("step")) is not int:
        raise Rejected("its manifest names %d shards of %s ranks" % (len(rows), facts.get("world_size")))
    check_rows(rows)
    return dict(facts)


def check_rows(rows: List[Any]) -> None:
    """Raise Rejected unless each row is of the rank that its place says."""
    for rank, row in enumerate(rows):
        known = isinstance(row, dict) and row.get("rank") == rank and row.get("name") == SHARD % rank
        if not known or type(row.get("bytes")) is not int or not isinstance(row.get("sha256"), str):
            raise Rejected("its manifest has no valid row of rank %d" % rank)


def check_size(file: BinaryIO, row: Dict[str, Any]) -> None:
    """Raise Rejected unless a shard has the size that the manifest names."""
    size = os.fstat(file.fileno()).st_size
    if size != row["bytes"]:
        raise Rejected("%s has %d bytes, and its manifest names %d" % (row["name"], size, row["bytes"]))


def check_hash(file: BinaryIO, row: Dict[str, Any]) -> None:
    """Raise Rejected unless a shard has the hash that the manifest names."""
    digest, left = hashlib.sha256(), row["bytes"]
    file.seek(0)
    while left > 0:
        piece = file.read(min(HASHED_BYTES, left))
        if not piece:
            break
        digest.update(piece)
        left -= len(piece)
    if digest.hexdigest() != row["sha256"]:
        raise Rejected("%s does not have the hash in its manifest: damaged, or of another save" % row["name"])


def prove_shard(
    file: BinaryIO, label: str, numbers: Numbers, prover_of: Callable[[bytes, int], Prover]
) -> Dict[str, Any]:
    """Count the numbers of one shard, their names behind its label; return its entries."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    head = file.read(16)
    file.seek(0)
    numbers.done.clear()  # it knows spans of bytes, and these belong to another file
    try:
        return entries_of(prover_of(head, size)(file, size, numbers, label))
    except Rejected as error:
        raise Rejected("%s: %s" % (label, error)) from None


def check_identity(entries: Dict[str, Any], facts: Dict[str, Any], rank: int) -> None:
    """Raise Rejected where a shard says that it is another than the one that the manifest means."""
    says = entries_of(entries_of(entries.get("rocm_supervisor")).get("shard"))
    wanted = {"rank": rank, "size": facts["world_size"], **{key: facts.get(key) for key in SAME}}
    if says != wanted:
        raise Rejected("%s is %s, and its manifest wants %s" % (SHARD % rank, says, wanted))
