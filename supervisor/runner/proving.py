"""Proves a checkpoint by running `agent/prove` in a separate process, since the daemon does not open checkpoints."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.files_apart import apart_within
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, start
from supervisor.core.attempt_files import SHARDS
from supervisor.core.checkpoints.checkpoint import TEXT, Checkpoint, Verdict
from supervisor.core.checkpoints.tensor_stats import Profile, profile_of
from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX, as_float, as_int, as_message, cut, read_json_object
from supervisor.programs import read_output
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.folder_checkpoints import files_in, fingerprint_of

CAN_BE_PROVEN = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
"""Files written by torch.save or safetensors."""
MAY_BE_ANYTHING = ".pkl"
"""Files that torch.save or pickle wrote: accelerate's random states and what a script registers with it."""
DAMAGE = ("truncated", "damaged", "empty")
"""How the prover's reasons begin that are no matter of what a file is for."""
ENDS_OF_A_SAVE = ((".distcp", ".metadata"), ("_METADATA", "_CHECKPOINT_METADATA"), (".shard.pt", SHARDS))
"""If a file of the first kind exists, the second is written last: torch.distributed.checkpoint, orbax, the agent."""
NO_TENSORS = "holds no tensor"
"""The prover's reason for a valid file without weights, such as one with settings."""
NICENESS = 5
MEMORY_LIMIT_BYTES = 2 << 30
"""Checkpoints are read in pieces: only a malicious file needs more."""
PYTHON_NAME = re.compile(r"python[0-9.]*\Z")
SCRIPT_HEAD_BYTES = 1024
WRAPPERS_FOLLOWED = 4
REASON_CHARS_MAX = 1000
ANSWER_LIMIT_BYTES = 16 << 20
"""Twice the longest profile, of 20,000 tensors with long names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of proving a checkpoint without comparing it with others."""

    checkpoint: Checkpoint
    profile: Profile | None = None
    raw_profile: object = None
    """The profile as the prover wrote it, to be stored."""


class Prover:
    """Proves checkpoints one at a time, each in a fresh process with limits on time and memory."""

    def __init__(
        self,
        python: Path | None = None,
        limit_s: float = 120.0,
        memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES,
        program: Callable[[], Path] = lambda: INSTALLED.prover,
        look_limit_s: float | None = None,
    ) -> None:
        """`python` is any Python from 3.8 on, since proving needs no torch; None means the daemon's own.

        `program` returns the file to run; called each time. `look_limit_s` is how long a file system may take to tell
        names and sizes; None waits until it does.
        """
        self._look_limit_s = look_limit_s
        self._program = program
        self._python = str(python or sys.executable)
        self._limit_s = limit_s
        # Processor time as well: a prover whose daemon has ended then ends itself.
        self._limits = [] if memory_limit_bytes is None else [str(memory_limit_bytes), str(math.ceil(limit_s) + 1)]

    def prove(self, path: Path) -> Checkpoint:
        """Return the checkpoint of `examine` without its profile."""
        return self.examine(path).checkpoint

    def examine_share(self, folder: Path, share: int, shares: int) -> Proof:
        """Return the proof of a part of a generation of shards: those of every `shares`-th rank, from `share` on.

        The manifest, and that all shards are there in their sizes, is examined in any case.
        """
        if not self._limits:
            raise ValueError("a share is proven within limits")
        return self._judge(folder, lambda: self._run_prover(folder / SHARDS, self._begin_limit(), (share, shares)))

    def examine(self, path: Path) -> Proof:
        """Return the checkpoint with its verdict and, if rejected, the reason; takes at most `limit_s`.

        Time in which this process was stopped does not count. A file that is modified meanwhile is rejected. Raises
        OSError only if the file is missing, or its file system does not answer in time.
        """
        if apart_within(self._look_limit_s, os.path.isdir, path):
            return self._judge(path, lambda: self._prove_folder(path))
        return self._judge(path, lambda: self._run_prover(path, self._begin_limit()))

    def _begin_limit(self) -> RunningLimit:
        return RunningLimit(self._limit_s)

    def _judge(self, path: Path, ask: Callable[[], dict[str, object]]) -> Proof:
        """Ask a prover, and return its answer as a proof; what changes meanwhile is rejected."""
        before = apart_within(self._look_limit_s, fingerprint_of, path)
        answer = ask()
        try:
            changed = apart_within(self._look_limit_s, fingerprint_of, path) != before
        except TimeoutError:
            raise  # what cannot be looked at has not changed
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
        raw_profile = answer.get("profile")
        return Proof(checkpoint=checkpoint, profile=profile_of(raw_profile), raw_profile=raw_profile)

    def _prove_folder(self, folder: Path) -> dict[str, object]:
        """Return the answer for a folder: proven if all files of known types are, and the last file of a save exists.

        Of a pickle only damage counts. Other files, and texts, are only checked to be unchanged.
        """
        names = [str(path.relative_to(folder)) for path in apart_within(self._look_limit_s, files_in, folder)]
        missing = next(
            (last for some, last in ENDS_OF_A_SAVE if _has_file(names, some) and not _has_file(names, last)), None
        )
        if missing is not None:
            return {"reason": f"incomplete: {missing} is missing"}
        if SHARDS in names:
            return self._run_prover(folder / SHARDS, self._begin_limit())
        sharded = _find_sharded(names)
        proven: list[dict[str, object]] = []
        limit = self._begin_limit()
        for name in names:
            if not name.endswith((*CAN_BE_PROVEN, MAY_BE_ANYTHING)) and name not in sharded:
                continue
            if limit.next_wait_s() == 0:
                return {"reason": f"could not be proved within {self._limit_s:.0f} s"}
            answer = self._run_prover(folder / name, limit)
            if name.endswith(MAY_BE_ANYTHING) and not str(answer.get("reason")).startswith(DAMAGE):
                continue
            if answer.get("verdict") == Verdict.PROVEN.value:
                proven.append(answer)
            elif answer.get("reason") != NO_TENSORS and not _is_note(name, answer):
                return {"reason": f"{name}: {answer.get('reason') or 'rejected without a reason'}"}
        if not proven and not any(_has_file(names, last) for _, last in ENDS_OF_A_SAVE):
            return {"reason": "the folder contains no file of a type that can be proven"}
        steps = [step for entry in proven if (step := as_int(entry.get("step"), maximum=STEP_MAX)) is not None]
        epochs = [epoch for entry in proven if (epoch := as_int(entry.get("epoch"), -1, EPOCH_MAX)) is not None]
        return {
            "verdict": Verdict.PROVEN.value,
            "reason": None,
            "step": max(steps, default=None),
            "epoch": max(epochs, default=None),
        }

    def _run_prover(self, path: Path, limit: RunningLimit, share: tuple[int, int] | None = None) -> dict[str, object]:
        command = [self._python, "-I", "-S", str(self._program()), str(path.absolute()), *self._limits]
        command += [str(number) for number in share or ()]
        try:
            # Without the daemon's environment, so that a malicious checkpoint cannot read it.
            process = start(command, stdout=PIPE, stderr=PIPE, cwd="/", env={"LC_ALL": "C.UTF-8"})
        except OSError as error:
            return {"reason": f"could not be proved: {self._python}: {error.strerror}"}
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        output = read_output(process, limit, ANSWER_LIMIT_BYTES)
        if not output.complete:
            process.end()
            if len(output.stdout) >= ANSWER_LIMIT_BYTES:
                return {"reason": f"the output of the prover exceeds {ANSWER_LIMIT_BYTES >> 20} MiB"}
            return {"reason": f"could not be proved within {self._limit_s:.0f} s"}
        status = process.returncode
        assert status is not None  # the output is complete
        return _parse_answer(output.stdout, output.stderr, status)


def _parse_answer(printed: bytes, errors: bytes, status: int) -> dict[str, object]:
    if status < 0:
        return {"reason": f"the prover was killed by {signal.Signals(-status).name}"}
    answer = read_json_object(printed)
    if status == 0 and answer is not None:
        return answer
    last = errors.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    return {"reason": f"could not be proved: {cut(last, REASON_CHARS_MAX) or 'no answer'}"}


def _has_file(names: Iterable[str], what: str) -> bool:
    """Whether there is a file named `what`, or with that suffix if it begins with a dot."""
    return any(name.rpartition("/")[2] == what or (what.startswith(".") and name.endswith(what)) for name in names)


def _is_note(name: str, answer: dict[str, object]) -> bool:
    """Whether a file of a folder is a text by a suffix of torch's files, as SpeechBrain's counters and averages are."""
    return answer.get("reason") == TEXT and not name.endswith(".safetensors")


def _find_sharded(names: Iterable[str]) -> set[str]:
    """Return each `.metadata` next to the shards of torch.distributed.checkpoint, which are proven with it."""
    folders = {name.rpartition("/")[0] for name in names if name.endswith(".distcp")}
    return {f"{folder}/.metadata".lstrip("/") for folder in folders}


def interpreter_of(command: Sequence[str], cwd: str, env_path: str) -> Path | None:
    """Return the Python that a command runs: the program, or the one in its script's first line; None if unknown.

    `env_path` is the PATH of the job. Links are not resolved, because a virtual environment is identified by its link.
    """
    argv = list(command)
    for _ in range(WRAPPERS_FOLLOWED):
        if argv and Path(argv[0]).name == "env":
            argv = _skip_env(argv)
        program = _find_program(argv[0], cwd, env_path) if argv else None
        if program is None:
            return None
        if PYTHON_NAME.match(program.name):
            return program
        argv = _read_shebang(program)
    return None


def _find_program(name: str, cwd: str, env_path: str) -> Path | None:
    found = shutil.which(str(Path(cwd) / name) if "/" in name else name, path=env_path)
    return Path(found) if found else None


def _skip_env(argv: list[str]) -> list[str]:
    """Return the command that `env` runs, without its options and assignments."""
    rest = argv[1:]
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        rest = rest[2:] if rest[0] in ("-u", "-C", "--unset", "--chdir") else rest[1:]
    return rest


def _read_shebang(path: Path) -> list[str]:
    """Return the command of a script's first line, or of the `exec` line that pip writes if that is too long."""
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
