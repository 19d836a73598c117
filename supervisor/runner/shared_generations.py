"""What lies in a folder that all nodes of a training share: generations of shards, and what the program saved itself.

A generation is one only by its manifest. What lies there was written by ranks, so it is read through the gate; the
folder may hang, so this is done by `apart`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import STEP_MAX, as_int, as_text, read_json_object
from supervisor.runner.folder_checkpoints import TreeError, files_in

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


def list_own(paths: Iterable[str], since_unix_s: float, limit: int) -> tuple[Offer, ...]:
    """Return the newest checkpoints of the program's own among some paths. Raises OSError where one may not be read."""
    found = []
    for path in paths:
        try:
            offer = read_own(path)
        except (FileNotFoundError, TreeError):
            continue  # removed meanwhile, or no checkpoint
        if offer.saved_unix_s >= since_unix_s:
            found.append(offer)
    return tuple(sorted(found, key=lambda offer: offer.order, reverse=True)[:limit])


def read_own(path: str) -> Offer:
    """Return a file or folder that the program saved, by names, sizes and times of what is in it. Raises OSError."""
    files = files_in(Path(path)) if Path(path).is_dir() else (Path(path),)
    rows = [
        (os.path.relpath(file, path), found.st_size, found.st_mtime_ns) for file in files for found in [file.stat()]
    ]
    newest_ns = max((modified_ns for *_, modified_ns in rows), default=0)
    return Offer(name=path, digest=hashlib.sha256(repr(rows).encode()).hexdigest(), saved_unix_s=newest_ns / 1e9)
