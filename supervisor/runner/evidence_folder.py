"""The evidence folder of one incident: every file of the evidence is written or copied through it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supervisor import untrusted_files


@dataclass(frozen=True, slots=True)
class EvidenceFolder:
    """A folder below an attempt's; a link or a file in its place is refused with OSError."""

    attempt: Path
    name: str

    @property
    def path(self) -> Path:
        """Its path."""
        return self.attempt / self.name

    def make(self) -> None:
        """Create it if it is missing."""
        untrusted_files.make_folders(self.attempt, self.name)

    def below(self, name: str) -> EvidenceFolder:
        """Return a subfolder of it."""
        return EvidenceFolder(self.attempt, f"{self.name}/{name}")

    def write(self, name: str, text: str) -> None:
        """Write a file in it, replacing any earlier content."""
        self.write_bytes(name, text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file in it, replacing any earlier content."""
        untrusted_files.write_bytes(self.attempt, f"{self.name}/{name}", content)

    def open(self, name: str) -> IO[bytes]:
        """Return a file in it, truncated and open for unbuffered writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = untrusted_files.open_file(self.attempt, f"{self.name}/{name}", flags, only_name=True, mode=0o640)
        return os.fdopen(fd, "wb", buffering=0)
