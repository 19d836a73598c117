"""Decides which process, and which hook in it, reports for the training, without blocking.

The recorder's lock is the claim. It is taken at the first sign of a training and not at the interpreter's start, so
launchers never have it; data loader workers that are forked fall silent, spawned ones make no step.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from . import events, exceptions
from .fence import failed, fenced
from .finder import begun
from .layout import RECORDER, SHIM, WARMUP

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from .recorder import Recorder

GENERIC, ULTRALYTICS, EXPLICIT = 1, 2, 3
"""Sources of step counts by rank: a higher one silences the lower."""
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
"""What Open MPI, and MPICH and Intel MPI, set where torchrun sets those: for Horovod, and what sums by mpi4py."""
RETRY_NS = 10_000_000_000
"""The process that holds the recorder may end, and this one take over."""

rank = 0
counting = None  # type: Optional[Recorder]
"""The recorder, while this process has claimed it and the steps that torch's hooks count are reported."""
_folder = None
_recorder = None
_source = 0
_silent = False
_next_try_ns = 0


def begin(folder: str) -> None:
    """Make claims in the attempt's folder possible."""
    global _folder, rank
    _folder = folder
    names = _list_names()
    rank = _read_count(names[0], _read_count(names[2], 0))


def world_size() -> int:
    """Return how many ranks the launcher started."""
    return _read_count(_list_names()[1], 1)


def local_rank() -> int:
    """Return this process's rank among those that the launcher started on this machine."""
    return _read_count(_list_names()[2], 0)


def _list_names() -> Tuple[str, str, str]:
    """Return the variables for rank, number of ranks and rank on this machine: torch's where there are any."""
    if "RANK" in os.environ or "LOCAL_RANK" in os.environ:
        return TORCH
    return next((names for names in MPI if names[0] in os.environ and names[1] in os.environ), TORCH)


def take(source: int) -> Optional[Recorder]:
    """Return the recorder if this process holds or can claim it, and no better source than `source` reports."""
    global _source, counting
    if _recorder is None and not _claim_recorder():
        return None
    if source < _source:
        return None
    _source = source
    counting = _recorder if source <= GENERIC else None
    return _recorder


def holding() -> Optional[Recorder]:
    """Return the recorder if this process has claimed it; claim nothing."""
    return _recorder


def is_reporting(source: int) -> bool:
    """Whether reports of `source` count: false in unsupervised processes and where a better source reports."""
    return _folder is not None and not _silent and source >= _source


def left_behind() -> int:
    """Return the stage that an earlier process of this attempt left in the recorder, 0 where none had it."""
    if _folder is None or _recorder is not None:
        return 0
    from .recorder import read_claim

    return read_claim(_recorder_path())[1]


def find_other_trainer() -> int:
    """Return the process that has claimed the recorder; 0 where it is this one, or this one is not the command."""
    if _folder is None or _silent or _recorder is not None:
        return 0
    import json

    from .recorder import read_claim

    try:
        with open(os.path.join(_folder, SHIM), encoding="utf-8") as file:
            command = json.load(file).get("training_pid")
    except OSError:
        return 0
    return read_claim(_recorder_path())[0] if command == os.getpid() else 0


def fork() -> None:
    """In a forked child: a claim stays with the parent, and the child never reports."""
    global _recorder, _silent, counting
    if _recorder is not None:
        recorder, _recorder, _silent, counting = _recorder, None, True, None
        recorder.abandon()


def _claim_recorder() -> bool:
    global _recorder, _next_try_ns
    if _folder is None or _silent or monotonic_ns() < _next_try_ns:
        return False
    _next_try_ns = monotonic_ns() + RETRY_NS
    from . import exiting
    from .recorder import open_recorder  # only the process that trains pays for it

    try:
        _recorder = open_recorder(_recorder_path(), rank)
    except OSError as error:
        failed("claim", error)
    exiting.begin(holding)
    if _recorder is None:
        exiting.report_training()
        return False
    fenced(exceptions.watch_thread)()
    _recorder.stage = WARMUP
    if world_size() > 1:
        from . import collectives

        collectives.begin(_recorder, holding)
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    version = torch and str(torch)
    events.write("claimed", rank=rank, world_size=world_size(), torch=version, imported=_list_slow_imports())
    return True


def _list_slow_imports() -> List[List[str]]:
    """Return what took long to import, in its order, each with the file that it came from."""
    files = [[name, getattr(sys.modules.get(name), "__file__", None)] for name in begun()]
    return [file for file in files if file[1] is not None]


def _recorder_path() -> str:
    name = RECORDER if rank == 0 else "recorder.rank%d.bin" % rank
    return os.path.join(_folder or "", name)


def _read_count(variable: str, otherwise: int) -> int:
    """Return a count from the environment; launchers write -1 for "not distributed"."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else otherwise
