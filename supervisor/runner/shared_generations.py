"""The generations of shards in a folder that all nodes of a training share, by their manifests.

A generation is one only by its manifest. What lies there was written by ranks, so it is read through the gate; the
folder may hang, so this is done by `apart`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import STEP_MAX, as_int, as_text, read_json_object

MANIFEST_BYTES_MAX = 1 << 24
GENERATION = re.compile(names.SHARDED_SNAPSHOT)


def list_generations(folder: Path, limit: int) -> tuple[Offer, ...]:
    """Return at most `limit` generations of a folder, newest first. Raises OSError where it cannot be read."""
    return tuple(sorted(_read_all(folder), key=lambda offer: offer.order, reverse=True)[:limit])


def remove_generations(folder: Path) -> None:
    """Remove all generations of a folder. Raises OSError where it cannot be read."""
    for offer in tuple(_read_all(folder)):
        untrusted_files.remove_tree(folder, offer.name)


def read_generation(folder: Path, name: str) -> Offer:
    """Return a generation by its manifest, rejected where that is none. Raises OSError."""
    text = untrusted_files.read_bytes(folder, f"{name}/{names.SHARDS}", MANIFEST_BYTES_MAX)
    digest, facts = hashlib.sha256(text).hexdigest(), read_json_object(text)
    step = as_int((facts or {}).get("step"), maximum=STEP_MAX)
    epoch = as_text((facts or {}).get("epoch"))
    if facts is None or step is None or epoch is None or f"step-{step:012d}" != name:
        return Offer(name=name, digest=digest, proven=False, reason="its manifest is damaged, or of another step")
    parts = (as_int(int(part)) for part in epoch.split(".") if part.isdecimal())
    numbers = tuple(number for number in parts if number is not None)
    return Offer(name=name, digest=digest, epoch=numbers, step=step)


def _read_all(folder: Path) -> Iterable[Offer]:
    try:
        there = untrusted_files.list_names(folder).names
    except FileNotFoundError:
        return  # made by the first rank that saves
    for name in there:
        if GENERATION.fullmatch(name) is None:
            continue
        try:
            yield read_generation(folder, name)
        except FileNotFoundError:
            continue  # a folder without a manifest is no generation
