"""Proves a checkpoint by running `agent/prove` in a separate process; the daemon never opens a checkpoint."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.core.checkpoints.tensor_stats import Profile, profile_of
from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX, as_float, as_int, as_message, cut, read_json_object
from supervisor.programs import listen
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.folder_checkpoints import files_in, fingerprint_of

CAN_BE_PROVEN = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Files of a folder that torch.save or safetensors wrote."""
ENDS_OF_A_SAVE = ((".distcp", ".metadata"), ("_METADATA", "_CHECKPOINT_METADATA"))
"""Where the first is, the second is written last: torch.distributed.checkpoint, orbax."""
NO_TENSORS = "holds no tensor"
"""So files beside the weights are rejected that are sound and hold settings."""
NICENESS = 5
MEMORY_LIMIT_BYTES = 2 << 30
"""Proving reads in pieces: what needs more was made to need more."""
PYTHON_NAME = re.compile(r"python[0-9.]*\Z")
SCRIPT_HEAD_BYTES = 1024
WRAPPERS_FOLLOWED = 4
REASON_CHARS_MAX = 1000
ANSWER_LIMIT_BYTES = 16 << 20
"""The longest profile, 20,000 tensors with long names, is half of it."""


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
        self,
        python: Path | None = None,
        limit_s: float = 120.0,
        memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES,
        program: Callable[[], Path] = lambda: INSTALLED.prover,
    ) -> None:
        """`python` is any Python from 3.8 on, as proving needs no torch; None means the daemon's own.

        `program` returns the file to run, and is asked each time.
        """
        self._program = program
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
        answer = self._ask_folder(path) if path.is_dir() else self._ask(path, self._limit_s)
        try:
            changed = fingerprint_of(path) != before
        except OSError:
            changed = True
        reason = "changed while it was read" if changed else as_message(answer.get("reason"), REASON_CHARS_MAX)
        proven = answer.get("verdict") == Verdict.PROVEN.value and reason is None
        checkpoint = Checkpoint(
            path=str(path),
            fingerprint=before,
            epoch=as_int(answer.get("epoch"), -1, EPOCH_MAX),
            step=as_int(answer.get("step"), maximum=STEP_MAX),
            verdict=Verdict.PROVEN if proven else Verdict.REJECTED,
            reason=None if proven else reason or "rejected without a reason",
            fitness=as_float(answer.get("fitness")),
        )
        said = answer.get("profile")
        return Proof(checkpoint=checkpoint, profile=profile_of(said), said=said)

    def _ask_folder(self, folder: Path) -> dict[str, object]:
        """Return the answer about a folder: every file that can be looked into is sound, and what ends a save is there.

        Of other files nothing can be told but that they are there and unchanged.
        """
        names = [str(path.relative_to(folder)) for path in files_in(folder)]
        missing = next((last for some, last in ENDS_OF_A_SAVE if _has(names, some) and not _has(names, last)), None)
        if missing is not None:
            return {"reason": f"incomplete: {missing} is missing"}
        told: list[dict[str, object]] = []
        until_s = time.perf_counter() + self._limit_s
        for name in names:
            if not name.endswith(CAN_BE_PROVEN):
                continue
            left_s = until_s - time.perf_counter()
            if left_s <= 0:
                return {"reason": f"could not be proved within {self._limit_s:.0f} s"}
            answer = self._ask(folder / name, left_s)
            if answer.get("verdict") == Verdict.PROVEN.value:
                told.append(answer)
            elif answer.get("reason") != NO_TENSORS:
                return {"reason": f"{name}: {answer.get('reason') or 'rejected without a reason'}"}
        if not told and not any(_has(names, last) for _, last in ENDS_OF_A_SAVE):
            return {"reason": "the folder contains no file of a type that can be proven"}
        steps = [step for entry in told if (step := as_int(entry.get("step"), maximum=STEP_MAX)) is not None]
        epochs = [epoch for entry in told if (epoch := as_int(entry.get("epoch"), -1, EPOCH_MAX)) is not None]
        return {
            "verdict": Verdict.PROVEN.value,
            "reason": None,
            "step": max(steps, default=None),
            "epoch": max(epochs, default=None),
        }

    def _ask(self, path: Path, limit_s: float) -> dict[str, object]:
        command = [self._python, "-I", "-S", str(self._program()), str(path.absolute()), *self._limits]
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
        said = listen(process, limit_s, ANSWER_LIMIT_BYTES)
        if not said.whole:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a read that hangs in the kernel outlives the kill
                process.wait(timeout=1.0)
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
            if len(said.printed) >= ANSWER_LIMIT_BYTES:
                return {"reason": f"the output of the prover exceeds {ANSWER_LIMIT_BYTES >> 20} MiB"}
            return {"reason": f"could not be proved within {self._limit_s:.0f} s"}
        return _answer(said.printed, said.complained, process.returncode)


def _answer(said: bytes, complaint: bytes, status: int) -> dict[str, object]:
    if status < 0:
        return {"reason": f"the prover was killed by {signal.Signals(-status).name}"}
    answer = read_json_object(said)
    if status == 0 and answer is not None:
        return answer
    last = complaint.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    return {"reason": f"could not be proved: {cut(last, REASON_CHARS_MAX) or 'no answer'}"}


def _has(names: Iterable[str], what: str) -> bool:
    """Whether there is a file of that name, or with that ending where it begins with a dot."""
    return any(name.rpartition("/")[2] == what or (what.startswith(".") and name.endswith(what)) for name in names)


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
        program = path.resolve()
        head = untrusted_files.read_part(program.parent, program.name, 0, SCRIPT_HEAD_BYTES)
    except OSError:
        return []
    first, _, rest = head.decode("utf-8", "surrogateescape").partition("\n")
    if not first.startswith("#!"):
        return []
    detour = re.match(r"'''exec' (.+?) \"\$0\" \"\$@\"", rest)
    try:
        return shlex.split(detour.group(1)) if detour else first[2:].split()
    except ValueError:
        return []
