"""Has a checkpoint proved by `agent/prove` in a process of its own; no checkpoint is ever opened in the daemon."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import supervisor
from supervisor.core.checkpoints import Checkpoint, Fingerprint, Verdict
from supervisor.core.profile import Profile, profile_of

PROGRAM = Path(supervisor.__file__).resolve().parent / "agent" / "prove" / "__main__.py"
NICENESS = 5
MEMORY_LIMIT_BYTES = 2 << 30
"""Proving reads in pieces: what needs more was made to need more."""
PYTHON_NAME = re.compile(r"python[0-9.]*\Z")
SCRIPT_HEAD_BYTES = 1024
WRAPPERS_FOLLOWED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What came of looking into a checkpoint by itself."""

    checkpoint: Checkpoint
    profile: Profile | None = None
    said: object = None
    """The profile as the prover wrote it, to be kept."""


class Prover:
    """Proves checkpoints one at a time, each in a fresh process with limits on time and memory."""

    def __init__(
        self, python: Path | None = None, limit_s: float = 120.0, memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES
    ) -> None:
        """`python` is any Python from 3.8 on, as proving needs no torch; None means the daemon's own."""
        self._python = str(python or sys.executable)
        self._limit_s = limit_s
        # Processor time as well: a prover that its daemon does not outlive ends by itself.
        self._limits = [] if memory_limit_bytes is None else [str(memory_limit_bytes), str(math.ceil(limit_s) + 1)]

    def prove(self, path: Path) -> Checkpoint:
        """Return the checkpoint of `examine` alone."""
        return self.examine(path).checkpoint

    def examine(self, path: Path) -> Proof:
        """Return the checkpoint with its verdict and, where rejected, the reason; it takes at most `limit_s`.

        Raises OSError only where the file is not there at all. A file that is written meanwhile is rejected.
        """
        before = fingerprint_of(path)
        answer = self._ask(path)
        try:
            changed = fingerprint_of(path) != before
        except OSError:
            changed = True
        reason = "changed while it was read" if changed else _text(answer.get("reason"))
        proven = answer.get("verdict") == Verdict.PROVEN.value and reason is None
        fitness = answer.get("fitness")
        checkpoint = Checkpoint(
            path=str(path),
            fingerprint=before,
            epoch=_whole(answer.get("epoch")),
            step=_whole(answer.get("step")),
            verdict=Verdict.PROVEN if proven else Verdict.REJECTED,
            reason=None if proven else reason or "rejected without a reason",
            fitness=fitness if isinstance(fitness, float) and math.isfinite(fitness) else None,
        )
        said = answer.get("profile")
        return Proof(checkpoint=checkpoint, profile=profile_of(said), said=said)

    def _ask(self, path: Path) -> dict[str, object]:
        command = [self._python, "-I", "-S", str(PROGRAM), str(path.absolute()), *self._limits]
        try:
            # No environment of the daemon's: what it holds is none of a checkpoint's business.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"LC_ALL": "C.UTF-8"},
            )
        except OSError as error:
            return {"reason": f"could not be proved: {self._python}: {error.strerror}"}
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        try:
            said, complaint = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a read that hangs in the kernel outlives the kill
                process.communicate(timeout=1.0)
            return {"reason": f"could not be proved within {self._limit_s:.0f} s"}
        return _answer(said, complaint, process.returncode)


def _answer(said: bytes, complaint: bytes, status: int) -> dict[str, object]:
    if status < 0:
        return {"reason": f"proving it died of {signal.Signals(-status).name}"}
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    if status == 0 and isinstance(answer, dict):
        return answer
    last = complaint.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    return {"reason": f"could not be proved: {last or 'no answer'}"}


def fingerprint_of(path: Path) -> Fingerprint:
    """Return what tells this content of a file from another; raise OSError where there is no file."""
    found = path.stat()
    return Fingerprint(size_bytes=found.st_size, modified_ns=found.st_mtime_ns, inode=found.st_ino)


def interpreter_of(command: Sequence[str], cwd: str, env_path: str) -> Path | None:
    """Return the Python that a command runs: itself, or the one that its script names; None where that is unclear.

    `env_path` is the PATH of the job. Links are not followed: a virtual environment is known by its own link.
    """
    words = list(command)
    for _ in range(WRAPPERS_FOLLOWED):
        if words and Path(words[0]).name == "env":
            words = _without_env(words)
        program = _find(words[0], cwd, env_path) if words else None
        if program is None:
            return None
        if PYTHON_NAME.match(program.name):
            return program
        words = _named_by_script(program)
    return None


def _find(word: str, cwd: str, env_path: str) -> Path | None:
    found = shutil.which(str(Path(cwd) / word) if "/" in word else word, path=env_path)
    return Path(found) if found else None


def _without_env(words: list[str]) -> list[str]:
    """Return what `env` runs: behind its options and assignments."""
    rest = words[1:]
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        rest = rest[2:] if rest[0] in ("-u", "-C", "--unset", "--chdir") else rest[1:]
    return rest


def _named_by_script(path: Path) -> list[str]:
    """Return the command line of a script's first line, or of the detour that pip makes around a long one."""
    try:
        with path.open("rb") as file:
            head = file.read(SCRIPT_HEAD_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return []
    first, _, rest = head.partition("\n")
    if not first.startswith("#!"):
        return []
    detour = re.match(r"'''exec' (.+?) \"\$0\" \"\$@\"", rest)
    try:
        return shlex.split(detour.group(1)) if detour else first[2:].split()
    except ValueError:
        return []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
