"""Which other program uses a GPU of a training: what that computes would be taken for an effect of the settings."""

from __future__ import annotations

from supervisor.core.history import History
from supervisor.core.readings import GpuProcess
from supervisor.core.stats.holds import FRESH_S

LEAST_BYTES = 100 << 20
"""What the servers of drivers and monitors hold is less; the context of a program that computes is more."""


def find_other_program(history: History) -> str | None:
    """Return which other program uses a GPU of the training, in words; None where none is known.

    A list of a GPU's processes in which none of the training's own is counts pids of another namespace, or is not
    complete: nothing is known by it.
    """
    newest = history.newest_processes
    if newest is None or newest.pids is None or history.now.seconds_since(newest.at) > FRESH_S:
        return None
    own = set(newest.pids)
    for gpu, reading in sorted(history.newest_by_gpu().items()):
        listed = reading.processes or ()
        if history.now.seconds_since(reading.at) > FRESH_S or own.isdisjoint(process.pid for process in listed):
            continue
        for process in listed:
            if process.pid not in own and (process.vram_bytes is None or process.vram_bytes >= LEAST_BYTES):
                return f"process {process.pid}{_describe(process)} uses its GPU {gpu} too"
    return None


def _describe(process: GpuProcess) -> str:
    held = None if process.vram_bytes is None else f"{process.vram_bytes / 2**30:.1f} GiB"
    known = ", ".join(text for text in (process.name, held) if text)
    return f" ({known})" if known else ""
