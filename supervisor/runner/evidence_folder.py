"""The evidence folder of one incident: every file of the evidence is written or copied through it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supervisor import untrusted_files


@dataclass(frozen=True, slots=True)
class EvidenceFolder:
    """A folder below an attempt's; a link or a file that somebody put in its way is refused by OSError."""

    attempt: Path
    name: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.attempt / self.name

    def make(self) -> None:
        """Make it, where it is not there."""
        untrusted_files.make_folders(self.attempt, self.name)

    def below(self, name: str) -> EvidenceFolder:
        """Return a folder in it."""
        return EvidenceFolder(self.attempt, f"{self.name}/{name}")

    def write(self, name: str, text: str) -> None:
        """Write a file of it anew."""
        self.write_bytes(name, text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file of it anew."""
        untrusted_files.write_bytes(self.attempt, f"{self.name}/{name}", content)

    def open(self, name: str) -> IO[bytes]:
        """Return a file of it, emptied and open for writing; each write goes out at once."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = untrusted_files.open_file(self.attempt, f"{self.name}/{name}", flags, only_name=True, mode=0o640)
        return os.fdopen(fd, "wb", buffering=0)
