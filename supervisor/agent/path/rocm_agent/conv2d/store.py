"""Measurements of one device's algorithms, kept in a file for later processes.

FOLDER/DEVICE-TORCH.jsonl: a header, then one fact per line. Lines are appended under a lock, by several processes in
turn; of two about the same the later counts. A file that is damaged, too long or of another version is rewritten from
its readable lines. Nothing here raises: a folder that cannot be written is reported once; facts then stay in memory.

    {"conv2d": 1, "device": "...", "torch": "..."}
    {"timed": [PASS, LAYER, BUCKET], "ms": {NAME: cost}}
    {"right": [PASS, EXACT, NAME]}                      it agreed with im2col on exactly these sizes
    {"wrong": [PASS, LAYER or "*", NAME], "why": "..."}
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from contextlib import contextmanager
from time import monotonic_ns, sleep
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .crash_marker import CrashMarker
from .warn_once import warn_once

WAIT_S = 5.0
VERSION = 3
LIMIT_BYTES = 8 << 20
STRIKES = 3
"""Layers for which a name was wrong until it is used for none."""
HANGS = 2
"""Layers in whose trial of a name the process ended until it is used for none."""
UNANSWERED = "the process ended while it was tried"
EVERYWHERE = "*"

Key = Tuple[str, str, str]


class Store:
    """The facts of one device and PyTorch; `folder` None keeps them in memory."""

    def __init__(self, folder: Optional[str], device: str, torch_version: str) -> None:
        self._header = {"conv2d": VERSION, "device": device, "torch": torch_version}
        self.times: Dict[Key, Dict[str, float]] = {}
        """Milliseconds of each name, by pass, layer and bucket."""
        self._right: Set[Key] = set()
        self._wrong: Dict[Key, str] = {}
        self._path: Optional[str] = None
        self._trying: Optional[CrashMarker] = None
        if folder is not None:
            slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device}-{torch_version}").strip("-")[:80]
            slug = f"{slug}-{zlib.crc32(f'{device}|{torch_version}'.encode()):08x}"
            self._open_file(os.path.join(folder, slug))

    def _open_file(self, stem: str) -> None:
        try:
            os.makedirs(os.path.dirname(stem), mode=0o700, exist_ok=True)
            self._path = stem + ".jsonl"
            self._load_facts(self._path)
            self._trying = CrashMarker(stem)
            for kind, layer, name in self._trying.unanswered():
                self.hung(kind, layer, name)
        except OSError as error:
            self._path = None
            warn_once(f"plans are not kept: {error}")

    # --- asking ---------------------------------------------------------------------------------------------------

    def is_right(self, kind: str, exact: str, name: str) -> bool:
        """Whether `name` agreed with im2col on these very sizes."""
        return (kind, exact, name) in self._right

    def why_wrong(self, kind: str, layer: str, name: str) -> str:
        """Return why `name` is not used for this layer, "" where it may be."""
        return self._wrong.get((kind, layer, name), "") or self._wrong.get((kind, EVERYWHERE, name), "")

    def nearest(self, kind: str, layer: str, bucket: Tuple[int, int]) -> Optional[Dict[str, float]]:
        """Return the times of the layer's bucket most like this one, None where no bucket of it was timed."""
        found = [(_bucket_distance(key[2], bucket), ms) for key, ms in self.times.items() if key[:2] == (kind, layer)]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def buckets(self, kind: str, layer: str) -> int:
        """Return how many buckets of the layer were timed."""
        return sum(key[:2] == (kind, layer) for key in self.times)

    # --- learning -------------------------------------------------------------------------------------------------

    def timed(self, kind: str, layer: str, bucket: str, ms: Dict[str, float]) -> None:
        """Keep what each name cost."""
        self.times[kind, layer, bucket] = ms
        self._append_fact({"timed": [kind, layer, bucket], "ms": {name: round(item, 4) for name, item in ms.items()}})

    def right(self, kind: str, exact: str, name: str) -> None:
        """Keep that `name` agreed with im2col on these sizes."""
        if (kind, exact, name) not in self._right:
            self._right.add((kind, exact, name))
            self._append_fact({"right": [kind, exact, name]})

    def wrong(self, kind: str, layer: str, name: str, why: str) -> None:
        """Keep that `name` is not to be used for the layer; after STRIKES layers, for none on this device."""
        self._ban_algorithm(kind, layer, name, why, STRIKES)

    def hung(self, kind: str, layer: str, name: str) -> None:
        """Keep that the process ended, killed or crashed, while `name` was tried."""
        self._ban_algorithm(kind, layer, name, UNANSWERED, HANGS)

    def _ban_algorithm(self, kind: str, layer: str, name: str, why: str, limit: int) -> None:
        if self.why_wrong(kind, layer, name):
            return
        warn_once(f"{name} ({kind}) is not used for {layer} on this device: {why}")
        alike = sum(key[0] == kind and key[2] == name and key[1] != EVERYWHERE for key in self._wrong)
        for where in (layer, EVERYWHERE) if alike + 1 >= limit else (layer,):
            self._wrong[kind, where, name] = why
            self._append_fact({"wrong": [kind, where, name], "why": why[:500]})

    def trying(self, kind: str, layer: str, name: str) -> Any:
        """Return a context in which the next start will know, should this process not survive it, what was tried."""
        return (self._trying or CrashMarker(None)).about(kind, layer, name)

    # --- the file -------------------------------------------------------------------------------------------------

    def _load_facts(self, path: str) -> None:
        """Read the file; rewrite it where it is not exactly as this class writes it."""
        with locked(path):
            try:
                with open(path, "rb") as file:
                    lines = file.read(LIMIT_BYTES + 1)
            except FileNotFoundError:
                lines = b""
            facts = list(_parse_facts(lines))
            complete = len(lines) <= LIMIT_BYTES and lines.endswith(b"\n") and None not in facts
            if facts and facts[0] == self._header:
                for fact in facts[1:]:
                    if fact is not None and not self._take_fact(fact):
                        complete = False
            else:
                complete = False
            if not complete:
                if lines:
                    warn_once(f"{path} is damaged or another version's; what could be read of it was kept")
                self._rewrite_file(path)

    def _take_fact(self, fact: Dict[str, Any]) -> bool:
        """Take in one fact; return False for an invalid one."""
        for kind in ("timed", "right", "wrong"):
            key = fact.get(kind)
            if isinstance(key, list) and len(key) == 3 and all(isinstance(part, str) for part in key):
                return self._take_one(kind, (key[0], key[1], key[2]), fact)
        return False

    def _take_one(self, kind: str, key: Key, fact: Dict[str, Any]) -> bool:
        if kind == "right":
            self._right.add(key)
            return True
        if kind == "wrong":
            why = fact.get("why")
            self._wrong[key] = why if isinstance(why, str) and why else "no reason was kept"
            return True
        ms = fact.get("ms")
        if not isinstance(ms, dict) or not ms or not all(_is_time(item) for item in ms.values()):
            return False
        self.times[key] = {str(name): float(item) for name, item in ms.items()}
        return True

    def _rewrite_file(self, path: str) -> None:
        facts: List[Dict[str, Any]] = [self._header]
        facts += [{"timed": list(key), "ms": ms} for key, ms in self.times.items()]
        facts += [{"right": list(key)} for key in sorted(self._right)]
        facts += [{"wrong": list(key), "why": why} for key, why in self._wrong.items()]
        draft = f"{path}.{os.getpid()}.tmp"
        with open(draft, "w", encoding="ascii") as file:
            file.writelines(json.dumps(fact) + "\n" for fact in facts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)

    def _append_fact(self, fact: Dict[str, Any]) -> None:
        if self._path is None:
            return
        line = (json.dumps(fact) + "\n").encode("ascii")
        try:
            with locked(self._path):
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if os.write(file, line) != len(line):
                        raise OSError("the disk is full")
                finally:
                    os.close(file)
        except OSError as error:
            self._path = None
            warn_once(f"plans are no longer kept: {error}")


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _parse_facts(lines: bytes) -> Iterator[Optional[Dict[str, Any]]]:
    """Yield each line's object, None for one that holds none."""
    for line in lines.splitlines():
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            fact = None
        yield fact if isinstance(fact, dict) else None


def _bucket_distance(bucket: str, other: Tuple[int, int]) -> float:
    try:
        batch, pixels = (int(part) for part in bucket.split("x"))
    except ValueError:
        return float("inf")
    return abs(batch - other[0]) + abs(pixels - other[1])


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold PATH.lock for the block; raise OSError where it cannot be had within WAIT_S."""
    file = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = monotonic_ns() + int(WAIT_S * 1e9)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic_ns() > deadline:
                    raise
                sleep(0.01)
        yield
    finally:
        os.close(file)
