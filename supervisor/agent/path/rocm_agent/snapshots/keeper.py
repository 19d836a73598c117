"""Takes the snapshots of one training: off the device at a step boundary, then onto the disk in the background.

It knows nothing of frameworks: whoever calls it collects the state. It raises nothing into the training, except where
a save was asked for and waits for its answer.
"""

from __future__ import annotations

import os
import time
from time import monotonic_ns
from typing import Any, Callable, Collection, NamedTuple, Optional

from rocm_agent import events, own_saves
from rocm_agent.fence import failed
from rocm_agent.layout import ENV_MEAN_FAULT, ENV_SNAPSHOT_EVERY, ENV_SNAPSHOTS

from . import files
from .background import Background
from .copying import Copier, all_made
from .interval import Interval

Collect = Callable[[], Any]
"""() -> the state, a nested structure of tensors and plain values; nothing of it is copied yet."""
Finish = Callable[[Any], Any]
"""(the copied state) -> what is written; called outside the step loop."""
Roots = Callable[[], Optional[Collection[str]]]
"""() -> the keys at the top of the state below which the weights and the optimizers' states lie; None: all of them."""
Join = Callable[[Any], Any]
"""(the copied state) -> it with what other processes add to it; called outside the step loop, may wait and raise."""
PATIENCE_S = 1.0
"""Waited at a save that the training makes itself, for a snapshot that is still being written."""
FIRST_PATIENCE_S = 10.0
"""Waited at the first save that the training makes itself, for the first snapshot's buffers, and for its file."""
WRITE_LIMIT_S = 60.0
"""A save that was asked for waits so long for a snapshot under way; both use the same buffers."""


class Form(NamedTuple):
    """What one kind of training makes of its copied state, and what of it must be finite."""

    finish: Finish = lambda copied: copied
    roots: Roots = lambda: None


def folder() -> Optional[str]:
    """Return the folder of this training's snapshots, None where none are configured."""
    return os.environ.get(ENV_SNAPSHOTS) or None


class Keeper:
    """The snapshots of one training."""

    def __init__(self, torch: Any, form: Optional[Form] = None) -> None:
        self._torch = torch
        self._finish, self._roots = form or Form()
        self._folder = folder()
        setting = os.environ.get(ENV_SNAPSHOT_EVERY, "") if self._folder else ""
        self._interval = Interval(setting, os.environ.get(ENV_MEAN_FAULT, ""), monotonic_ns())
        self._copier = Copier(torch)
        self._background = Background("snapshot-writer")
        self._reserved = False
        self._kept = False
        """Whether a snapshot of this process lies on the disk."""
        self._settled = False
        """Whether the first of them was waited for."""
        self._refused = ""
        self._saves = own_saves.made

    @property
    def every_s(self) -> Optional[float]:
        """Seconds between two snapshots at present, None where none are taken automatically."""
        return self._interval.every_s

    @property
    def enabled(self) -> bool:
        """Whether snapshots are taken automatically."""
        return self._interval.every_s is not None

    def wants(self, ahead_s: float = 0.0) -> bool:
        """Whether one is due, or the first is to be made ready, and the last is through; asked at every boundary.

        `ahead_s`: how long it takes until all ranks know of it, so that it is announced so much earlier.
        """
        if not self._reserved:
            return self.enabled
        now_ns = monotonic_ns()
        due = self._interval.due(now_ns + int(ahead_s * 1e9)) or (
            own_saves.made != self._saves and self._interval.may_follow_a_save(now_ns)
        )
        return due and not self._background.busy

    @property
    def late(self) -> bool:
        """Whether one has been due for so long that it is to be taken at a less convenient boundary too."""
        return self._interval.late(monotonic_ns())

    def take_at_save(
        self, collect: Collect, step: int, epoch: Optional[int], *, patience_s: float = PATIENCE_S
    ) -> None:
        """Take one at a boundary at which the training is about to save, or has: its own file need not be exact.

        Nothing is taken where the newest is hardly older, or one is being written for longer than `patience_s`. For the
        first one the training waits until its buffers are made: without it there is nothing exact to go on from.
        """
        if self._interval.none_taken:
            patience_s = max(patience_s, FIRST_PATIENCE_S)
        if self._interval.may_follow_a_save(monotonic_ns()) and self._background.wait(patience_s):
            self._announce_snapshots()
            self.take(collect, step, epoch)

    def settle(self) -> None:
        """Wait, once, until the first snapshot lies on the disk, for the training is about to save by itself.

        Whenever it is killed from then on there is an exact state that is hardly older than its own file.
        """
        if self.enabled and not self._kept and not self._settled:
            self._settled = True
            self._background.wait(FIRST_PATIENCE_S)

    def _announce_snapshots(self) -> None:
        if not self._reserved:
            self._reserved = True
            events.write("snapshots", every_s=self._interval.every_s)

    @property
    def reserved(self) -> bool:
        """Whether the first call of `take` has been: each later one takes."""
        return self._reserved

    def begun(self) -> None:
        """Count the interval from now: shards are being copied."""
        self._interval.taken(monotonic_ns())

    def cost(self, stall_s: float, write_s: float) -> None:
        """Choose the interval again from what shards have cost."""
        self._interval.measured(stall_s, write_s)

    def open_shards(self) -> None:
        """Say once that snapshots are taken, of which each rank writes its shard."""
        self._announce_snapshots()

    def take(self, collect: Collect, step: int, epoch: Optional[int], join: Join = lambda copied: copied) -> None:
        """Take a snapshot of the training as it stands after `step`; return as soon as its copy has begun.

        The first call only makes the buffers, in the background: making them takes longer than filling them.
        """
        try:
            if not self._reserved:
                self._announce_snapshots()
                state = all_made(collect())
                self._background.begin(lambda: self._copier.reserve(state))
                return
            began_ns, taken_ns = monotonic_ns(), time.time_ns()
            self._interval.taken(began_ns)
            self._saves = own_saves.made
            copied, wait = self._copier.copy(collect())
            stall_s = (monotonic_ns() - began_ns) / 1e9
            self._background.begin(lambda: self._write_copy(copied, wait, join, (step, epoch, taken_ns, stall_s)))
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
        files.check_finite(self._torch, copied, self._roots())
        files.write(self._torch, self._finish(join(copied)), path, time.time_ns())

    def path(self, step: int) -> str:
        """Return where the snapshot of a step belongs; raise ValueError where no folder is set."""
        if self._folder is None:
            raise ValueError("%s names no folder for snapshots" % ENV_SNAPSHOTS)
        return os.path.join(self._folder, files.NAME % step)

    def _write_copy(self, copied: Any, wait: Callable[[], float], join: Join, taken: Any) -> None:
        """Write a copy and report it; a failure is reported once until it succeeds again."""
        step, epoch, taken_ns, stall_s = taken
        try:
            path = self.path(step)
            folder = os.path.dirname(path)
            stall_s += wait()
            began_ns = monotonic_ns()
            files.check_finite(self._torch, copied, self._roots())
            copied = join(copied)
            files.check_room(folder, files.size_of(copied))
            size = files.write(self._torch, self._finish(copied), path, taken_ns)
            write_s = (monotonic_ns() - began_ns) / 1e9
            files.prune(folder)
        except Exception as error:
            text = "%s: %s" % (type(error).__name__, error)
            if text != self._refused:
                self._refused = text
                events.write("save_failed", error=text, kind="snapshot", step=step, every_s=self._interval.every_s)
            return
        self._refused, self._kept = "", True
        self._interval.measured(stall_s, write_s)
        cost = {"stall_s": stall_s, "write_s": write_s, "size_bytes": size, "every_s": self._interval.every_s}
        report = {"epoch": epoch, "step": step, "requested": False, "kind": "snapshot"}
        events.write("checkpoint_saved", paths=[os.path.abspath(path)], **report, **cost)
