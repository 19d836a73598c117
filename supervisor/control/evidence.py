"""An incident's evidence as the API returns it: the list of files, and the end of each."""

from __future__ import annotations

from pathlib import Path

from supervisor import untrusted_files
from supervisor.control import record_types

FILE_LIMIT_BYTES = 8 << 20
"""Of one file, counted from its end: the newest lines matter most."""


def evidence_files(folder: str) -> record_types.EvidenceFiles:
    """Return the files in an incident's folder; links to other places are left out. Raises OSError."""
    found = untrusted_files.list_files(*_split_folder(folder))
    files = [record_types.EvidenceFile(name=name, size_bytes=size) for name, size in found]
    return record_types.EvidenceFiles(folder=folder, files=files)


def evidence_part(folder: str, name: str, limit_bytes: int) -> record_types.EvidencePart:
    """Return the last bytes of one file of it, at most `limit_bytes` and 8 MiB; raise OSError."""
    attempt, below = _split_folder(folder)
    tail = untrusted_files.read_tail(attempt, f"{below}/{name}", min(limit_bytes, FILE_LIMIT_BYTES))
    return record_types.EvidencePart(name=name, size_bytes=tail.size, content=tail.content)


def _split_folder(folder: str) -> tuple[Path, str]:
    """Return the attempt's folder, up to which links are the administrator's, and the name of the evidence below it."""
    path = Path(folder)
    return path.parent.parent, f"{path.parent.name}/{path.name}"
