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
from functools import partial
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.files_apart import apart_within
from supervisor.children.running_limit import RunningLimit
from supervisor.children.start import PIPE, start
from supervisor.core.attempt_files import SHARDS
from supervisor.core.checkpoints.checkpoint import (
    NO_TENSORS,
    NOTHING_KNOWN,
    OTHER_FORMATS,
    TEXT,
    Checkpoint,
    Verdict,
)
from supervisor.core.checkpoints.damaged import DAMAGED
from supervisor.core.checkpoints.tensor_stats import Profile, profile_of
from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX, as_float, as_int, as_message, cut, read_json_object
from supervisor.programs import read_output
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.folder_checkpoints import CAN_BE_PROVEN, MAY_BE_ANYTHING, files_in, fingerprint_of

BY_ITS_CONTENT = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
"""Signals by which a prover ends for what it reads. Others come from outside, most often where memory is short."""
EMPTY = "empty"
UNREADABLE = "unreadable: "
"""How the prover's reason begins where its disk has failed while it read."""
UNEXAMINED = "unexamined"
"""Marks an answer that says nothing of the content; no prover writes it."""
CUT = re.compile(
    r"truncated|damaged|empty\b"
    r"|its pickle is damaged or cut short \((?:\d+ bytes claimed|EOFError|UnpicklingError: pickle data was truncated)"
)
"""How the prover's reasons begin that are no matter of what a file is for; a pickle of a program's own classes, which
cannot be read here, is damaged by its reason as well (`core/checkpoints/damaged.py` has all of them)."""
ENDS_OF_A_SAVE = ((".distcp", ".metadata"), ("_METADATA", "_CHECKPOINT_METADATA"), (".shard.pt", SHARDS))
"""If a file of the first kind exists, the second is written last: torch.distributed.checkpoint, orbax, the agent."""
WITHOUT_SUFFIX_AT_MOST = 32
"""A folder with more files without a suffix holds the pieces of a format of its own."""
NICENESS = 5
LIMIT_S = 120.0
SLOWEST_BYTES_PER_S = 10e6
"""A file system that delivers less does not answer; a checkpoint of many gigabytes takes minutes to read."""
LONGEST_S = 4 * 3600.0
"""However long a file says that it is: one of zeros that take no room on the disk may say anything."""
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
    is_examined: bool = True
    """Whether the verdict is about the content: no disk, no want of memory and no limit has kept it from being read."""


class Prover:
    """Proves checkpoints one at a time, each in a fresh process with limits on time and memory."""

    def __init__(
        self,
        python: Path | None = None,
        limit_s: float = LIMIT_S,
        memory_limit_bytes: int | None = MEMORY_LIMIT_BYTES,
        program: Callable[[], Path] = lambda: INSTALLED.prover,
        look_limit_s: float | None = None,
    ) -> None:
        """`python` is any Python from 3.8 on, since proving needs no torch; None means the daemon's own.

        `limit_s` is that of a small file; a large one may take longer, see `find_limit_s`. `program` returns the file
        to run; called each time. `look_limit_s` is how long a file system may take to tell names and sizes; None waits
        until it does.
        """
        self._look_limit_s = look_limit_s
        self._program = program
        self._python = str(python or sys.executable)
        self._limit_s = limit_s
        self._memory_limit_bytes = memory_limit_bytes

    def prove(self, path: Path) -> Checkpoint:
        """Return the checkpoint of `examine` without its profile."""
        return self.examine(path).checkpoint

    def examine_share(self, folder: Path, share: int, shares: int) -> Proof:
        """Return the proof of a part of a generation of shards: those of every `shares`-th rank, from `share` on.

        The manifest, and that all shards are there in their sizes, is examined in any case.
        """
        if self._memory_limit_bytes is None:
            raise ValueError("a share is proven within limits")
        return self._judge(folder, lambda limit: self._run_prover(folder / SHARDS, limit, (share, shares)))

    def examine(self, path: Path) -> Proof:
        """Return the checkpoint with its verdict and, if rejected, the reason; takes at most what `find_limit_s` says.

        Time in which this process was stopped does not count. A file that is modified meanwhile is rejected. Raises
        OSError only if the file is missing, or its file system does not answer in time.
        """
        if apart_within(self._look_limit_s, os.path.isdir, path):
            return self._judge(path, partial(self._prove_folder, path))
        return self._judge(path, partial(self._run_prover, path))

    def _judge(self, path: Path, ask: Callable[[RunningLimit], dict[str, object]]) -> Proof:
        """Ask a prover, and return its answer as a proof; what changes meanwhile is rejected."""
        before = apart_within(self._look_limit_s, fingerprint_of, path)
        answer = ask(RunningLimit(find_limit_s(before.size_bytes, self._limit_s)))
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
        is_examined = proven or changed or UNEXAMINED not in answer
        profile = profile_of(raw_profile)
        return Proof(checkpoint=checkpoint, profile=profile, raw_profile=raw_profile, is_examined=is_examined)

    def _prove_folder(self, folder: Path, limit: RunningLimit) -> dict[str, object]:
        """Return the answer for a folder: proven if all files of known types are, and the last file of a save exists.

        Of a pickle only damage counts. Other files, and texts, are only checked to be unchanged. Where the name alone
        is of a known type, and nothing of the folder is proven, the folder is of another format, as spaCy's.
        """
        names = [str(path.relative_to(folder)) for path in apart_within(self._look_limit_s, files_in, folder)]
        missing = _find_missing_end(names)
        if missing is not None:
            return {"reason": f"incomplete: {missing} is missing"}
        if SHARDS in names:
            return self._run_prover(folder / SHARDS, limit)
        sharded = _find_sharded(names)
        proven: list[dict[str, object]] = []
        others: list[tuple[str, dict[str, object]]] = []
        for name in names:
            if not name.endswith((*CAN_BE_PROVEN, MAY_BE_ANYTHING)) and name not in sharded:
                continue
            if limit.next_wait_s() == 0:
                return _leave_unexamined(f"could not be proved within {limit.limit_s:.0f} s")
            answer = self._run_prover(folder / name, limit)
            if answer.get("verdict") == Verdict.PROVEN.value and not name.endswith(MAY_BE_ANYTHING):
                proven.append(answer)
            elif _is_of_another_format(name, answer):
                others.append((name, answer))
            elif not _is_passed_over(name, answer):
                return _name_file(name, answer)
        if not (proven or others or _has_end(names)):
            return self._prove_by_content(folder, names, limit)
        return _sum_up(names, proven, others)

    def _prove_by_content(self, folder: Path, names: list[str], limit: RunningLimit) -> dict[str, object]:
        """Return the answer for a folder without weights by their names: those without a suffix, as Sockeye's `params`.

        What such a file is, its content tells; one that is of no known format is none of them, nor is an empty mark.
        """
        plain = [name for name in names if not Path(name).suffix]
        proven: list[dict[str, object]] = []
        for name in plain if len(plain) <= WITHOUT_SUFFIX_AT_MOST else ():
            if limit.next_wait_s() == 0:
                return _leave_unexamined(f"could not be proved within {limit.limit_s:.0f} s")
            answer = self._run_prover(folder / name, limit)
            if answer.get("verdict") == Verdict.PROVEN.value:
                proven.append(answer)
            elif UNEXAMINED in answer or (answer.get("reason") != EMPTY and DAMAGED.match(str(answer.get("reason")))):
                return _name_file(name, answer)
        return _sum_up(names, proven, [])

    def _run_prover(self, path: Path, limit: RunningLimit, share: tuple[int, int] | None = None) -> dict[str, object]:
        command = [self._python, "-I", "-S", str(self._program()), str(path.absolute())]
        if self._memory_limit_bytes is not None:
            # Processor time as well: a prover whose daemon has ended then ends itself.
            command += [str(self._memory_limit_bytes), str(math.ceil(limit.limit_s) + 1)]
        command += [str(number) for number in share or ()]
        try:
            # Without the daemon's environment, so that a malicious checkpoint cannot read it.
            process = start(command, stdout=PIPE, stderr=PIPE, cwd="/", env={"LC_ALL": "C.UTF-8"})
        except OSError as error:
            return _leave_unexamined(f"could not be proved: {self._python}: {error.strerror}")
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        output = read_output(process, limit, ANSWER_LIMIT_BYTES)
        if not output.complete:
            process.end()
            if len(output.stdout) >= ANSWER_LIMIT_BYTES:
                return {"reason": f"the output of the prover exceeds {ANSWER_LIMIT_BYTES >> 20} MiB"}
            return _leave_unexamined(f"could not be proved within {limit.limit_s:.0f} s")
        status = process.returncode
        assert status is not None  # the output is complete
        return _parse_answer(output.stdout, output.stderr, status)


def find_limit_s(size_bytes: int, limit_s: float = LIMIT_S) -> float:
    """Return how long the proof of a checkpoint may take: the limit of a small one, and the time to read a large one.

    A prover reads about 1 GB of numbers in a second of processor time, where the disk delivers it.
    """
    return min(limit_s + size_bytes / SLOWEST_BYTES_PER_S, max(limit_s, LONGEST_S))


def _parse_answer(printed: bytes, errors: bytes, status: int) -> dict[str, object]:
    if status < 0:
        by = signal.Signals(-status)
        reason = f"the prover was killed by {by.name}"
        return {"reason": reason} if by in BY_ITS_CONTENT else _leave_unexamined(reason)
    answer = read_json_object(printed)
    if status == 0 and answer is not None:
        known = {name: value for name, value in answer.items() if name != UNEXAMINED}
        return {**known, UNEXAMINED: True} if str(known.get("reason")).startswith(UNREADABLE) else known
    last = errors.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    return _leave_unexamined(f"could not be proved: {cut(last, REASON_CHARS_MAX) or 'no answer'}")


def _leave_unexamined(reason: str) -> dict[str, object]:
    """Return the answer where nothing is known of the content."""
    return {"reason": reason, UNEXAMINED: True}


def _has_file(names: Iterable[str], what: str) -> bool:
    """Whether there is a file named `what`, or with that suffix if it begins with a dot."""
    return any(name.rpartition("/")[2] == what or (what.startswith(".") and name.endswith(what)) for name in names)


def _find_missing_end(names: list[str]) -> str | None:
    """Return what is written last into such a folder, where that is not there yet."""
    return next((last for some, last in ENDS_OF_A_SAVE if _has_file(names, some) and not _has_file(names, last)), None)


def _has_end(names: list[str]) -> bool:
    """Whether a file is there that is written last into such a folder."""
    return any(_has_file(names, last) for _, last in ENDS_OF_A_SAVE)


def _is_passed_over(name: str, answer: dict[str, object]) -> bool:
    """Whether a file of a folder is none of its weights, and not damaged."""
    reason = str(answer.get("reason"))
    if name.endswith(MAY_BE_ANYTHING):
        return UNEXAMINED not in answer and CUT.match(reason) is None
    # SpeechBrain's counters and averages are texts by a suffix of torch's files.
    return reason == NO_TENSORS or (reason == TEXT and not name.endswith(".safetensors"))


def _sum_up(
    names: list[str], proven: list[dict[str, object]], others: list[tuple[str, dict[str, object]]]
) -> dict[str, object]:
    """Return the answer for a folder by those for its files: where each is proven, as far as the farthest of them."""
    if others:
        return _name_file(*others[0]) if proven else others[0][1]
    if not proven and not _has_end(names):
        return {"reason": NOTHING_KNOWN}
    found = [
        (as_int(answer.get("step"), maximum=STEP_MAX), as_int(answer.get("epoch"), -1, EPOCH_MAX)) for answer in proven
    ]
    return {
        "verdict": Verdict.PROVEN.value,
        "reason": None,
        "step": max((step for step, _ in found if step is not None), default=None),
        "epoch": max((epoch for _, epoch in found if epoch is not None), default=None),
    }


def _name_file(name: str, answer: dict[str, object]) -> dict[str, object]:
    """Return why a folder is rejected, by the answer for one of its files."""
    return {**answer, "reason": f"{name}: {answer.get('reason') or 'rejected without a reason'}"}


def _is_of_another_format(name: str, answer: dict[str, object]) -> bool:
    """Whether the name of a file alone is of a known type; `.safetensors` is the name of no other."""
    reason = answer.get("reason")
    return reason in OTHER_FORMATS and reason != TEXT and not name.endswith((".safetensors", MAY_BE_ANYTHING))


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
