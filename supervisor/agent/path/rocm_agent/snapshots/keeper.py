"""Takes snapshots of one training: when they are due, off the device at a step boundary, onto the disk beside it.

It knows nothing of frameworks: whoever calls it collects the state. It raises nothing into the training, except where
a save was asked for and waits for its answer.
"""

from __future__ import annotations

import os
import time
from time import monotonic_ns
from typing import Any, Callable, Optional

from rocm_agent import events
from rocm_agent.fence import failed
from rocm_agent.layout import ENV_MEAN_FAULT, ENV_SNAPSHOT_EVERY, ENV_SNAPSHOTS

from . import files
from .background import Background
from .copying import Copier
from .interval import Interval

Collect = Callable[[], Any]
"""() -> the state, a nested structure of tensors and plain values; nothing of it is copied yet."""
Finish = Callable[[Any], Any]
"""(the copied state) -> what is written; called outside the step loop."""
Join = Callable[[Any], Any]
"""(the copied state) -> it with what other processes add to it; called outside the step loop, may wait and raise."""
WRITE_LIMIT_S = 60.0
"""A save that was asked for waits so long for a snapshot under way; both use the same buffers."""


def folder() -> Optional[str]:
    """Return where this training's snapshots belong, None where nobody wants any."""
    return os.environ.get(ENV_SNAPSHOTS) or None


class Keeper:
    """The snapshots of one training."""

    def __init__(self, torch: Any, finish: Finish = lambda copied: copied) -> None:
        self._torch = torch
        self._finish = finish
        self._folder = folder()
        setting = os.environ.get(ENV_SNAPSHOT_EVERY, "") if self._folder else ""
        self._interval = Interval(setting, os.environ.get(ENV_MEAN_FAULT, ""), monotonic_ns())
        self._copier = Copier(torch)
        self._background = Background("snapshot-writer")
        self._reserved = False
        self._refused = ""

    @property
    def enabled(self) -> bool:
        """Whether snapshots are taken by themselves."""
        return self._interval.every_s is not None

    def wants(self) -> bool:
        """Whether one is due, or the first is to be made ready, and the last is through; asked at every boundary."""
        if not self._reserved:
            return self.enabled
        return self._interval.due(monotonic_ns()) and not self._background.busy

    @property
    def reserved(self) -> bool:
        """Whether the first call of `take` has been: each later one takes."""
        return self._reserved

    def take(self, collect: Collect, step: int, epoch: Optional[int], join: Join = lambda copied: copied) -> None:
        """Take a snapshot of the training as it stands after `step`; return as soon as its copy has begun.

        The first call only has the buffers made, beside the training: making them takes longer than filling them.
        """
        try:
            if not self._reserved:
                self._reserved = True
                state = collect()
                self._background.begin(lambda: self._copier.reserve(state))
                return
            began_ns, taken_ns = monotonic_ns(), time.time_ns()
            self._interval.taken(began_ns)
            copied, wait = self._copier.copy(collect())
            stall_s = (monotonic_ns() - began_ns) / 1e9
            self._background.begin(lambda: self._keep(copied, wait, join, (step, epoch, taken_ns, stall_s)))
        except Exception as error:
            failed("snapshots.take", error)

    def save(self, collect: Collect, path: str, join: Join = lambda copied: copied) -> None:
        """Write the training as it stands to `path` before anything goes on.

        Raises NotFinite where the state is not worth it, OSError where it cannot be written, and what `join` raises.
        """
        if not self._background.wait(WRITE_LIMIT_S):
            raise OSError("the last snapshot is still being written")
        copied, wait = self._copier.copy(collect())
        wait()
        files.check_finite(self._torch, copied)
        files.write(self._torch, self._finish(join(copied)), path, time.time_ns())

    def path(self, step: int) -> str:
        """Return where the snapshot of a step belongs; raise ValueError where nobody has said."""
        if self._folder is None:
            raise ValueError("%s names no folder for snapshots" % ENV_SNAPSHOTS)
        return os.path.join(self._folder, files.NAME % step)

    def _keep(self, copied: Any, wait: Callable[[], float], join: Join, taken: Any) -> None:
        """Write a copy and tell of it; what does not work out is told once until it works again."""
        step, epoch, taken_ns, stall_s = taken
        try:
            path = self.path(step)
            folder = os.path.dirname(path)
            stall_s += wait()
            began_ns = monotonic_ns()
            files.check_finite(self._torch, copied)
            copied = join(copied)
            files.check_room(folder, files.size_of(copied))
            size = files.write(self._torch, self._finish(copied), path, taken_ns)
            write_s = (monotonic_ns() - began_ns) / 1e9
            files.prune(folder)
        except Exception as error:
            text = "%s: %s" % (type(error).__name__, error)
            if text != self._refused:
                self._refused = text
                events.write("save_failed", error=text, kind="snapshot", step=step)
            return
        self._refused = ""
        self._interval.measured(stall_s, write_s)
        cost = {"stall_s": stall_s, "write_s": write_s, "size_bytes": size, "every_s": self._interval.every_s}
        told = {"epoch": epoch, "step": step, "requested": False, "kind": "snapshot"}
        events.write("checkpoint_saved", paths=[os.path.abspath(path)], **told, **cost)
