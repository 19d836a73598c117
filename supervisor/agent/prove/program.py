"""Answers about one file: its format, where its training was, whether it is valid. Nothing in the file can raise."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import stat
from typing import Any, BinaryIO, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from .contents import entries_of
from .formats import prove_legacy, prove_safetensors, prove_zip
from .kinds import Rejected
from .manifest import END, is_manifest, prove_generation
from .sharded import SHARD, is_sharded, open_shard, prove_sharded, shards_beside
from .tally import Numbers

INTEGER_MAX = 2**53
ALL = (0, 1)
REASON_CHARACTERS = 600


PICKLE_PROTOCOLS = (b"\2", b"\3", b"\4", b"\5")
"""What follows the first byte of a pickle. That byte alone is an empty map of msgpack, as spaCy saves one."""
STEP_NAMES = ("step", "global_step", "iter_num", "iteration", "iterations", "num_updates", "iter")
"""Entries in which scripts keep how far they are, the plainest first."""
LIGHTNING = "pytorch-lightning_version"
"""The entry by which a checkpoint is one of Lightning's."""


class Opened(NamedTuple):
    """All that is read of a checkpoint, opened before the process gives its rights away."""

    file: BinaryIO
    shards: Dict[str, BinaryIO]
    """Those of a distributed checkpoint, by name."""
    trainer_state: Optional[bytes]
    ours: bool = False
    """Whether the file is the manifest of shards that the agent saved."""
    share: Tuple[int, int] = ALL
    """Of those shards, which are read: every so-manieth rank's, as (first, of how many)."""

    def identities(self) -> Tuple[Tuple[int, int, int], ...]:
        """Return what changes when any of the files is written."""
        return tuple(identity(item) for item in (self.file, *self.shards.values()))


def kind_of(head: bytes, size: int) -> Tuple[str, Callable[[BinaryIO, int, Numbers, str], Any]]:
    """Return the format and its prover by the first bytes; raise Rejected where they are of none."""
    if not size:
        raise Rejected("empty")
    if head[:4] == b"PK\x03\x04":
        return "torch", prove_zip
    if head[:1] == b"\x80" and head[1:2] in PICKLE_PROTOCOLS:
        return "torch-legacy", prove_legacy
    if len(head) > 8 and head[8:9] == b"{":
        return "safetensors", prove_safetensors
    what = "" if head.strip(b"\0") else ", and its first bytes are zero"
    raise Rejected("no checkpoint: neither a torch file nor safetensors" + (", but text" if is_text(head) else what))


def is_text(head: bytes) -> bool:
    """Whether a file begins with printable ASCII: two random bytes of five are that, sixteen in a row are not."""
    return all(32 <= byte < 127 or byte in b"\t\n\r" for byte in head)


def position(entries: Dict[Any, Any], trainer_state: Optional[bytes]) -> Tuple[Optional[int], Optional[int]]:
    """Return (epoch, step) of a checkpoint according to its contents; None for what is not in it."""

    def first_integer(*names: str) -> Optional[int]:
        found = [item for item in (integer_of(entries.get(name)) for name in names) if item is not None]
        return found[0] if found else None

    own = entries_of(entries.get("rocm_supervisor"))  # what our agent adds to a checkpoint of ultralytics
    theirs = None if counts_every_optimizer(entries) else first_integer(*STEP_NAMES)
    epoch, step = first_integer("epoch"), own.get("step", theirs)
    if step is None and epoch is None and trainer_state is not None:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            step = json.loads(trainer_state, parse_int=bounded).get("global_step")
    return epoch, integer_of(step)


def counts_every_optimizer(entries: Dict[Any, Any]) -> bool:
    """Whether the step in a checkpoint is no number of steps of the optimizer that counts them.

    Lightning adds up those of all its optimizers, and leaves out those that a program makes past it: then it stays 0.
    """
    if LIGHTNING not in entries:
        return False
    optimizers = entries.get("optimizer_states")
    return (isinstance(optimizers, (list, tuple)) and len(optimizers) > 1) or not entries.get("global_step")


def bounded(digits: str) -> Optional[int]:
    """Return an integer of JSON; None for one with too many digits, whose conversion may take minutes."""
    return int(digits) if len(digits) < 20 else None


def integer_of(value: Any) -> Optional[int]:
    """Return an integer that can be written and compared; None for anything else."""
    return value if type(value) is int and abs(value) <= INTEGER_MAX else None


def fitness_of(entries: Dict[Any, Any]) -> Optional[float]:
    """Return how well the saved model did at its validation, more being better; None where it does not say."""
    found = entries_of(entries.get("train_metrics")).get("fitness")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def examine(found: Opened, numbers: Numbers, answer: Dict[str, Any]) -> None:
    """Fill in the facts of a file, or of metadata with its shards; raise Rejected unless all numbers are valid."""
    file = found.file
    if found.ours:
        answer["kind"] = "shards"
        entries = prove_generation(file, found.shards, numbers, lambda head, size: kind_of(head, size)[1], found.share)
    elif found.shards:
        answer["kind"] = "torch-distributed"
        entries = prove_sharded(file, found.shards, numbers, lambda head, size: kind_of(head, size)[1])
    else:
        size = os.fstat(file.fileno()).st_size
        head = file.read(16)
        file.seek(0)
        answer["kind"], prover = kind_of(head, size)
        entries = entries_of(prover(file, size, numbers, ""))
    answer["epoch"], answer["step"] = position(entries, found.trainer_state)
    if numbers.tensors or found.share == ALL:  # more nodes than ranks: a share may be empty
        numbers.judge()
    if answer["epoch"] == -1 and "train_args" in entries and entries.get("optimizer") is None:
        raise Rejected("stripped at the end of a training: it holds no optimizer state to resume from")
    answer["fitness"] = fitness_of(entries)
    updates = entries.get("updates")
    answer["profile"] = {
        "tensors": numbers.rows,
        "optimizers": numbers.optimizers,
        "updates": integer_of(updates),
        "fit": integer_of(entries_of(entries.get("rocm_supervisor")).get("fit")),
    }


def identity(file: BinaryIO) -> Tuple[int, int, int]:
    """Return what changes when an open file is written; raise Rejected for what is no file."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise Rejected("no file")
    return found.st_size, found.st_mtime_ns, found.st_ino


def opened(path: str) -> BinaryIO:
    """Open a file without waiting for anybody to write into it; raise Rejected for what is none."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Rejected("no file")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


@contextlib.contextmanager
def opened_shards(path: str) -> Iterator[Dict[str, BinaryIO]]:
    """Open the shards next to the metadata of a distributed checkpoint, by name; none for any other file."""
    with contextlib.ExitStack() as stack:
        shards = {}
        if is_sharded(path) or is_manifest(path):
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            for name in shards_beside(path, SHARD if is_sharded(path) else END):
                shards[name] = stack.enter_context(open_shard(os.path.join(os.path.dirname(path), name)))
        yield shards


def read_trainer_state(path: str) -> Optional[bytes]:
    """Return the file in which the Trainer of Hugging Face keeps where it stands; None where there is none."""
    try:
        with opened(os.path.join(os.path.dirname(path), "trainer_state.json")) as file:
            return file.read(1 << 24)
    except (OSError, Rejected):
        return None


def prove(path: str, confined: Callable[[], None] = lambda: None, share: Tuple[int, int] = ALL) -> Dict[str, Any]:
    """Return the answer about one file as a dictionary; nothing in the file can make it raise.

    `confined` is called once everything is open and nothing of the checkpoint read.
    """
    names = ("verdict", "reason", "epoch", "step", "tensors", "non_finite", "kind", "fitness", "profile")
    answer: Dict[str, Any] = dict.fromkeys(names)
    numbers = Numbers()
    try:
        with opened(path) as file, opened_shards(path) as shards:
            found = Opened(file, shards, read_trainer_state(path), is_manifest(path), share)
            before = found.identities()
            confined()
            judge_open(found, before, numbers, answer)
    except Rejected as error:
        answer["reason"] = str(error)
    except OSError as error:
        answer["reason"] = "unreadable: %s" % (error.strerror or error)
    if answer["reason"]:
        # What a file names may be as long as the file.
        answer["reason"] = answer["reason"][:REASON_CHARACTERS]
    answer["verdict"] = "rejected" if answer["reason"] else "proven"
    answer["tensors"], answer["non_finite"] = numbers.tensors, numbers.non_finite
    return answer


def judge_open(
    found: Opened, before: Tuple[Tuple[int, int, int], ...], numbers: Numbers, answer: Dict[str, Any]
) -> None:
    """Examine open files; raise Rejected with the reason for whatever is wrong with them."""
    try:
        examine(found, numbers, answer)
    except (Rejected, OSError):
        if found.identities() != before:
            raise Rejected("changed while it was read") from None
        raise
    except MemoryError:
        raise Rejected("needs more memory than it may have while it is proved") from None
    except Exception as error:
        raise Rejected("damaged (%s: %s)" % (type(error).__name__, error)) from None
    if found.identities() != before:
        raise Rejected("changed while it was read")
