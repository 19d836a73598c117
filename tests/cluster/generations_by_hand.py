"""Generations of shards as the agent's ranks write them, made without torch: a matrix of one rank, and whose it is."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import zipfile
from pathlib import Path

TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x04tQK\x00(K\x02K\x02t(K\x02K\x01t\x89ccollections\nOrderedDict\n)RtR"
)
"""What torch.save pickles for a tensor of two rows and two columns whose numbers lie in data/0."""


def write_generation(folder: Path, step: int, epoch: str, ranks: int) -> Path:
    """Write what `ranks` ranks save after a step, and return its folder."""
    place = folder / f"step-{step:012d}"
    place.mkdir(parents=True)
    shards = []
    for rank in range(ranks):
        path = place / f"rank-{rank:05d}.shard.pt"
        says = {"rank": rank, "size": ranks, "step": step, "epoch": epoch, "number": 1}
        write_shard(path, {"step": step, "rocm_supervisor": {"step": step, "shard": says}})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"rank": rank, "name": path.name, "bytes": path.stat().st_size, "sha256": digest})
    manifest = {"format": 1, "step": step, "epoch": epoch, "number": 1, "world_size": ranks, "shards": shards}
    (place / "rocm-shards.json").write_text(json.dumps(manifest))
    return place


def write_shard(path: Path, facts: dict[str, object]) -> None:
    """Write a file of torch.save's with some facts and one matrix."""
    pickled = pickle.dumps(facts, protocol=2)[:-1] + b"X\x06\x00\x00\x00weight" + TENSOR + b"s."
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (("data.pkl", pickled), ("data/0", struct.pack("<4f", 1, 2, 3, 4)), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", data)


def damage(generation: Path, rank: int) -> None:
    """Change one bit of a number in a rank's shard."""
    path = generation / f"rank-{rank:05d}.shard.pt"
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<4f", 1, 2, 3, 4))] ^= 1
    path.write_bytes(data)
