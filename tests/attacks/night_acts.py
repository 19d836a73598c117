"""What a night does to a daemon and its trainings: kills, freezes, full disks, damaged files, commands of their user.

Each act draws its details from a seed of its own, so that leaving one out of a night changes no other.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.e2e.house import House

JOBS = ("two_lines", "patterns", "by_hand")
COMMANDS = (
    ("stop",), ("start",), ("restart",), ("restart",), ("account",), ("checkpoints",), ("history",), ("show",),
    ("status",), ("doctor",), ("du",), ("alerts",), ("reload",),
)  # fmt: skip
OF_A_JOB = frozenset({"stop", "start", "restart", "account", "checkpoints"})
REMAINS_A_FILE = ("truncate", "remove", "garbage", "empty")
FILLED_AT_MOST = 30_000
"""Files that take up the inodes of a disk for tests."""


class Acts:
    """The acts by name; `undo` ends what lasts once its time has come."""

    def __init__(self, home: House, disk: Path, reload: Callable[[random.Random], None]) -> None:
        """`disk` is a small file system with the daemon's state; `reload` writes another configuration."""
        self._home, self._small_disk, self._reload = home, disk, reload
        self._later: list[tuple[float, Callable[[], object]]] = []
        self.frozen_until = 0.0
        """Until when the daemon is stopped by an act, on the monotonic clock."""

    def perform(self, kind: str, seed: int) -> str:
        """Do one of `WEIGHTS`, and return it in words."""
        chance = random.Random(seed)
        try:
            return str(getattr(self, f"_{kind}")(chance))
        except (OSError, IndexError, subprocess.TimeoutExpired) as error:
            return f"not done: {error!r}"

    def undo(self, *, everything: bool = False) -> None:
        """End what lasts, once its time has come or at once."""
        now = time.monotonic()  # noqa: TID251 - a pace, not a judgement
        due = [item for item in self._later if everything or item[0] <= now]
        self._later = [item for item in self._later if item not in due]
        for _, end in due:
            with suppress(OSError):
                end()

    def _after(self, seconds: float, end: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, end))  # noqa: TID251 - the same

    # --- processes ------------------------------------------------------------------------------------------------

    def list_processes(self) -> list[int]:
        """Return the daemon, its children and every process of an attempt."""
        assert self._home.daemon is not None
        pids = {self._home.daemon.pid, *self._home.training_pids()}
        with suppress(psutil.Error):
            pids |= {child.pid for child in psutil.Process(self._home.daemon.pid).children(recursive=True)}
        return sorted(pids)

    def _kill(self, chance: random.Random) -> str:
        pid = chance.choice(self.list_processes())
        words = describe(pid)
        number = chance.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
        os.kill(pid, number)
        return f"{number.name} to {words}"

    def _daemon(self, chance: random.Random) -> str:
        assert self._home.daemon is not None
        number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
        self._home.daemon.send_signal(number)
        return number.name

    def _freeze(self, chance: random.Random) -> str:
        assert self._home.daemon is not None
        pid, seconds = chance.choice(self.list_processes()), chance.uniform(1, 14)
        words = describe(pid)
        os.kill(pid, signal.SIGSTOP)
        if pid == self._home.daemon.pid:
            self.frozen_until = time.monotonic() + seconds  # noqa: TID251 - the same
        self._after(seconds, lambda: os.kill(pid, signal.SIGCONT))
        return f"{words} for {seconds:.0f} s"

    def _group(self, chance: random.Random) -> str:
        """Freeze all that belongs to an attempt, as the freezer of a control group does, or the daemon for longer."""
        assert self._home.daemon is not None
        seconds, job = chance.uniform(5, 35), chance.choice((*JOBS, "daemon"))
        if job == "daemon":
            pids, seconds = [self._home.daemon.pid], 30.0
            self.frozen_until = time.monotonic() + seconds  # noqa: TID251 - the same
        else:
            marks = (str(self._home.folder / job), str(self._home.state / "jobs" / job))
            pids = [pid for pid in self._home.training_pids() if any(mark in name_of(pid) for mark in marks)]
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
                self._after(seconds, lambda pid=pid: os.kill(pid, signal.SIGCONT))  # type: ignore[misc]
        return f"{len(pids)} processes of {job} for {seconds:.0f} s"

    # --- files ----------------------------------------------------------------------------------------------------

    def _checkpoint(self, chance: random.Random) -> str:
        """Only what leaves it a file: what the program itself meets in its folder is not what is looked at here."""
        saved = sorted(path for job in JOBS for path in (self._home.folder / job).glob("state-*"))
        return damage(chance.choice(saved), chance, REMAINS_A_FILE)

    def _state(self, chance: random.Random) -> str:
        found = (path for path in self._home.state.rglob("*") if "code" not in path.parts)
        files = sorted(path for path in found if path.is_symlink() or not path.is_dir())
        path = chance.choice(files)
        # What is no file in the place of the database is moved aside by the next start, and the record waits for that.
        return damage(path, chance, REMAINS_A_FILE if path.name.startswith("supervisor.db") else tuple(DAMAGES))

    def _disk(self, chance: random.Random) -> str:
        filler, seconds = self._small_disk / "filler", chance.uniform(2, 40)
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(65536))
        self._after(seconds, lambda: filler.unlink(missing_ok=True))
        return f"full for {seconds:.0f} s"

    def _inodes(self, chance: random.Random) -> str:
        many, seconds = self._small_disk / "many", chance.uniform(2, 30)
        with suppress(OSError):
            many.mkdir(exist_ok=True)
            for number in range(FILLED_AT_MOST):
                (many / str(number)).touch()
        self._after(seconds, lambda: shutil.rmtree(many, ignore_errors=True))
        return f"none left for {seconds:.0f} s"

    def _readonly(self, chance: random.Random) -> str:
        """Have a folder of checkpoints be read-only for a while, for whoever is root too."""
        folder, seconds = str(self._home.folder / chance.choice(JOBS)), chance.uniform(2, 20)
        if os.path.ismount(folder):
            return f"{folder} is so already"
        done = [
            subprocess.run(["mount", *words, folder], capture_output=True, check=False).returncode
            for words in (("--bind", folder), ("-o", "remount,bind,ro"))
        ]
        self._after(seconds, lambda: subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False))
        return f"{folder} for {seconds:.0f} s" if done == [0, 0] else f"not done: mount ended with {done}"

    # --- its user -------------------------------------------------------------------------------------------------

    def _command(self, chance: random.Random) -> str:
        (name,), job = chance.choice(COMMANDS), chance.choice(JOBS)
        if name in ("start", "restart") and self._is_finished(job):
            return f"no {name} of {job}: it would train a second time, from the beginning"
        if name == "reload":
            self._reload(chance)
        done = self._home.ctl(name, *((job,) if name in OF_A_JOB else ()), limit_s=120)
        if name == "stop":
            self._after(chance.uniform(1, 20), lambda: self._is_finished(job) or self._home.ctl("start", job))
        wrong = f": A STACK TRACE {done.stdout}{done.stderr}" if "Traceback" in done.stdout + done.stderr else ""
        return f"{name} {job} ended with {done.returncode}{wrong}"

    def _is_finished(self, job: str) -> bool:
        """Whether it has come to its end, as far as the daemon answers."""
        status = self._home.status()
        return status is not None and any(
            found["name"] == job and found["phase"] == "finished" for found in status["jobs"]
        )


WEIGHTS = {
    "kill": 3, "daemon": 2, "freeze": 2, "group": 1, "checkpoint": 2, "readonly": 1, "state": 3, "disk": 1,
    "inodes": 1, "command": 3,
}  # fmt: skip
"""How often each act comes."""


def describe(pid: int) -> str:
    """Return the end of the command line of a process."""
    try:
        return " ".join(psutil.Process(pid).cmdline())[-90:]
    except psutil.Error:
        return "a process that has ended"


def name_of(pid: int) -> str:
    """Return the command line of a process, empty once it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def _overwrite(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(chance.randrange(max(1, path.stat().st_size)))
        file.write(chance.randbytes(200))


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "truncate": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path, _: os.truncate(path, 0),
    "remove": lambda path, _: path.unlink(),
    "garbage": _overwrite,
    "directory": lambda path, _: _replace(path, Path.mkdir),
    "link to itself": lambda path, _: _replace(path, lambda at: at.symlink_to(at)),
    "link to nothing": lambda path, _: _replace(path, lambda at: at.symlink_to("/nowhere")),
    "pipe": lambda path, _: _replace(path, os.mkfifo),
}


def damage(path: Path, chance: random.Random, kinds: Sequence[str]) -> str:
    """Damage a file in one of the ways of `DAMAGES`, and return it in words."""
    kind = chance.choice(list(kinds))
    DAMAGES[kind](path, chance)
    return f"{path}: {kind}"
