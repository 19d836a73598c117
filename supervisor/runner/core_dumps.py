"""Copies the core dumps of drivers after a GPU hang (devcoredump) into the evidence; the originals are not deleted.

The kernel deletes a dump after five minutes, or when it is written to.
"""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.runner.evidence_folder import EvidenceFolder

DEVCOREDUMP = Path("/sys/class/devcoredump")
LIMIT_BYTES = 32 << 20
"""Limit for all dumps together."""
_CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"devcd(\d{1,9})")


def take_core_dumps(root: Path, target: EvidenceFolder, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Copy the dumps below `root`, newest first, each named after its device; return the problems."""
    missing: list[str] = []
    for _, dump in sorted(_list_dumps(root), reverse=True):
        try:
            limit_bytes -= _copy_dump(dump, target, f"{dump.name}-{_device_name(dump)}.bin", limit_bytes)
        except OSError as error:
            missing.append(f"core dump {dump.name}: {error.strerror}")
            continue
        if limit_bytes <= 0:
            missing.append(f"core dump {dump.name}: size limit reached; this and earlier core dumps are truncated")
            break
    return missing


def _list_dumps(root: Path) -> list[tuple[int, Path]]:
    try:
        return [(int(found[1]), path) for path in root.iterdir() if (found := _NAME.fullmatch(path.name))]
    except OSError:
        return []  # no driver has written a dump since boot


def _device_name(dump: Path) -> str:
    try:
        return re.sub(r"[^A-Za-z0-9_.:-]", "_", (dump / "failing_device").readlink().name)
    except OSError:
        return "unknown"


def _copy_dump(dump: Path, target: EvidenceFolder, name: str, limit_bytes: int) -> int:
    copied = 0
    with (dump / "data").open("rb") as source, target.open(name) as copy:
        while copied < limit_bytes and (chunk := source.read(min(limit_bytes - copied, _CHUNK_BYTES))):
            copied += copy.write(chunk) or 0
    return copied
