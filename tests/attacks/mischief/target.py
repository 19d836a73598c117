"""Where a hostile training may do damage, and how it opens files there without hurting the machine that runs the test.

It may be root in a test. So that a link which it laid itself does not carry its own writes to a real file, it opens
only regular files with one name, below the folders of its own job, and follows no link. What follows its links is
then the supervisor alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

KNOWN = (
    "launch.json", "remedies.json", "shim.json", "exit.json", "exit.json.tmp", "recorder.bin", "recorder.rank1.bin",
    "agent.jsonl", "output.log", "output.txt", "output.txt.new", "ranks.bin", "stacks", "evidence", "triage.json",
    "standby.json", "door", "going", "ready.json", "refused.json", "report.json", "lock",
    "tune.json", "tuned.json",
)  # fmt: skip
"""Names that daemon, shim and agent look for in an attempt's folder."""
OURS_TO_WRITE = ("output.txt", "output.txt.new", "evidence", "remedies.json", "launch.json", "launch.json.tmp")
"""Names under which the daemon alone writes: a link there must not lead its pen to another file."""
ENTRIES_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Target:
    """The folders of one job and what is planted around it."""

    folder: Path
    """The part of the attempt's folder that the training writes."""
    saves: Path
    """Where it keeps checkpoints."""
    canary: Path
    """A file that nobody may change."""
    canary_folder: Path
    secret: Path
    """A file whose content may turn up nowhere."""
    socket: Path
    doors: tuple[str, ...]
    """What else listens: paths of sockets, and HOST:PORT."""
    given_daemon_pid: int
    """0 where it has to look for the daemon itself."""
    tame: bool
    """Whether training, shim and daemon are one user, so that links to the canary are laid for the daemon alone."""

    @property
    def daemon_pid(self) -> int:
        """The daemon's process; raises OSError where there is none to be seen."""
        if self.given_daemon_pid:
            return self.given_daemon_pid
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"rocm-supervisord" in (place / "cmdline").read_bytes():
                    return int(place.name)
        raise OSError("no daemon is to be seen")

    @property
    def attempt(self) -> Path:
        """The attempt's folder, which is the daemon's."""
        return self.folder.parent

    @property
    def job(self) -> Path:
        """The job's folder, which is the daemon's."""
        return self.attempt.parent

    @property
    def tops(self) -> tuple[Path, ...]:
        """The folders below which it attacks: where all are one user, nothing but rights is between it and the rest."""
        if self.tame:
            return (self.folder, self.job / "snapshots", self.job / "conv2d", self.saves)
        return (self.job, self.saves)

    def place(self, chance: Random) -> Path:
        """Return a folder in which names are looked for."""
        return self.folder if self.tame or chance.random() < 0.7 else self.attempt

    def target(self, chance: Random) -> Path:
        """Return a file to attack: a name that is looked for, or anything that lies there."""
        if chance.random() < 0.6:
            return self.place(chance) / chance.choice(KNOWN)
        there = list(self._entries())
        return chance.choice(there) if there else self.folder / chance.choice(KNOWN)

    def lure(self, path: Path, chance: Random) -> str:
        """Return what a link at `path` shall lead to."""
        # Devices of its own: what is done to one by mistake is not done to the machine's.
        devices = [str(self.canary.parent / name) for name in ("zero", "full")]
        harmless = [*devices, "/proc/self/environ", "/nonexistent/x", path.name, "..", "/proc/1/mem"]
        choices = [*harmless, str(self.secret), str(self.secret)]
        if not self.tame or path.name in OURS_TO_WRITE:
            choices += [str(self.canary), str(self.canary_folder)] * 3
        return chance.choice(choices)

    def inside(self, path: Path) -> bool:
        """Whether the folder of `path` really is or lies below one of those that it attacks."""
        real = path.parent.resolve()
        return any(real == top or top in real.parents for top in map(Path.resolve, self.tops))

    def open(self, path: Path, flags: int) -> int:
        """Open a regular file of its own; raises OSError for anything else."""
        if not self.inside(path):
            raise OSError(f"{path} lies elsewhere")
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o660)
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode) or there.st_nlink != 1:
            os.close(fd)
            raise OSError(f"{path} is no file of its own")
        return fd

    def clear(self, path: Path) -> None:
        """Take away what lies at `path`, a folder by renaming it."""
        if not self.inside(path):
            raise OSError(f"{path} lies elsewhere")
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name[:100]}.away{os.urandom(4).hex()}"))
        else:
            path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[Path]:
        left = ENTRIES_LIMIT
        tops = list(self.tops)
        while tops and left > 0:
            try:
                found = sorted(os.scandir(tops.pop()), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in found:
                left -= 1
                if left > 0:
                    yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False) and entry.path.count("/") - str(self.job).count("/") < 5:
                    tops.append(Path(entry.path))
