"""Saves what several ranks of one machine train together, all at the same step, or not at all.

DDP keeps ranks in step by its own all-reduce; nothing is added to that. Rank 0 announces a step that none can have
reached yet, each rank sees it at a boundary of its own and copies its part there, and rank 0 joins the parts into its
file, which appears by one rename. A rank that is late, gone or beyond that step costs the snapshot and nothing else.
"""

from __future__ import annotations

import os
import time
from time import monotonic_ns
from typing import Any, Callable, Dict, Optional, Tuple

from rocm_agent.fence import failed
from rocm_agent.layout import COMMAND_SAVE_AND_STOP

from . import board, files, replicas
from .background import Background
from .board import Announced
from .copying import Copier
from .files import OURS
from .keeper import Collect, Keeper
from .meeting import Meeting
from .moment import Moment
from .requests import served
from .world import World

PARTS_LIMIT_S = 60.0
"""Rank 0 waits so long for the parts of a snapshot; in a save that was asked for the training waits for it."""
PARTS_LIMIT_NS = int(PARTS_LIMIT_S * 1e9)
LOOK_S = 0.01
PART = "rank%d.part.pt"
ALIKE = "alike"


class Missing(RuntimeError):  # noqa: N818 - a verdict, no defect
    """A rank has given no part, or not the part of a replica."""


class Ranks(Meeting):
    """One rank's view of them."""

    def __init__(self, torch: Any, world: World, folder: str) -> None:
        """Come forward in the attempt's `folder`; raise OSError where its board cannot be had."""
        super().__init__(torch, world, folder)
        self._copier = Copier(torch)
        self._background = Background("snapshot-part-writer")

    def at_boundary(self, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Announce, save or give a part, as is due; return the command after which this process is to end."""
        due = self.take_due(moment.step)
        if self._rank:
            return None if due is None else self._give_part(due, moment)
        if due is not None:
            return self._save_jointly(due, keeper, recorder, moment)
        wanted = self._pending is None and keeper.wants()
        if wanted and recorder.command() is None and not keeper.reserved:
            keeper.take(self._collect_with_sample(moment), moment.step, moment.epoch)
            return None
        self.announce_if_due(keeper, recorder, wanted=wanted)
        return None

    def clear_parts(self) -> None:
        """Remove the parts that an earlier save has left."""
        for rank in range(1, self._size):
            files.remove(self._part_path(rank))

    # --- rank 0 ---------------------------------------------------------------------------------------------------

    def _collect_with_sample(self, moment: Moment) -> Collect:
        return lambda: {**moment.collect(), ALIKE: replicas.alike(*moment.replicas())}

    def _save_jointly(self, due: Announced, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Take rank 0's part, and have the others' joined to it."""
        if self.any_refused(due):
            self._board.settle(due.number, board.CANNOT)
            return None
        collect = self._collect_with_sample(moment)
        join = lambda copied: self._join_parts(copied, due, moment.step)  # noqa: E731 - two arguments long
        if due.kind == board.SNAPSHOT:
            keeper.take(collect, moment.step, moment.epoch, join)
            return None
        command = recorder.command()
        ending = None
        if command is not None:
            ending = served(recorder, command, moment.saving(keeper), lambda path: keeper.save(collect, path, join))
        self._board.settle(due.number, board.CANNOT if ending is None else board.SAVED)
        return ending

    def _join_parts(self, copied: Dict[str, Any], due: Announced, step: int) -> Dict[str, Any]:
        """Return rank 0's copy with the parts of all others; raise Missing where one does not come."""
        sample = copied.pop(ALIKE)
        deadline_ns = monotonic_ns() + PARTS_LIMIT_NS
        own = {}
        try:
            for rank in range(1, self._size):
                part = self._wait_for_part(rank, due, deadline_ns)
                if part["step"] != step or not replicas.same(self._torch, sample, part[ALIKE]):
                    raise Missing("rank %d does not hold what rank 0 holds after step %d: no replica" % (rank, step))
                files.check_finite(self._torch, part["own"], (replicas.BUFFERS,))
                own[rank] = part["own"]
        finally:
            for rank in range(1, self._size):
                files.remove(self._part_path(rank))
        return {**copied, OURS: {**copied[OURS], replicas.SIZE: self._size, replicas.RANKS: own}}

    def _wait_for_part(self, rank: int, due: Announced, deadline_ns: int) -> Dict[str, Any]:
        path = self._part_path(rank)
        while monotonic_ns() < deadline_ns:
            if self._board.refused(rank, due.number):
                raise Missing("rank %d has no part in the snapshot of step %d" % (rank, due.step))
            if os.path.exists(path):
                part = files.load(self._torch, path)
                if part["number"] == due.number:
                    return part
            if rank in self.list_absent():
                raise Missing("rank %d is gone" % rank)
            time.sleep(LOOK_S)
        raise Missing("no part of rank %d came within %d s" % (rank, PARTS_LIMIT_S))

    def _part_path(self, rank: int) -> str:
        return os.path.join(self._folder, PART % rank)

    # --- the others -----------------------------------------------------------------------------------------------

    def _give_part(self, due: Announced, moment: Moment) -> Optional[Tuple[int, int]]:
        """Have this rank's part written; return the command to end where rank 0 has saved for a stop."""
        try:
            modules, optimizers = moment.replicas()
            own = {**moment.own(), replicas.BUFFERS: replicas.buffers(modules)}
            part = {"number": due.number, "step": moment.step, ALIKE: replicas.alike(modules, optimizers), "own": own}
            if not self._background.wait(PARTS_LIMIT_S):
                raise OSError("the last part is still being written")
            copied, wait = self._copier.copy(part)
            self._background.begin(lambda: self._write_part(due, copied, wait))
        except Exception as error:
            self._board.refuse(self._rank, due.number)
            failed("snapshots.ranks", error)
            return None
        return self._wait_for_outcome(due) if due.kind == board.SAVE_AND_STOP else None

    def _write_part(self, due: Announced, copied: Any, wait: Callable[[], float]) -> None:
        try:
            wait()
            files.write(self._torch, copied, self._part_path(self._rank), time.time_ns())
        except Exception:
            self._board.refuse(self._rank, due.number)
            raise

    def _wait_for_outcome(self, due: Announced) -> Optional[Tuple[int, int]]:
        """Wait for what rank 0 makes of it: it makes no further step until then, and neither could this rank."""
        deadline_ns = monotonic_ns() + PARTS_LIMIT_NS
        while self._board.outcome(due.number) is None and monotonic_ns() < deadline_ns:
            time.sleep(LOOK_S)
        return (COMMAND_SAVE_AND_STOP, 0) if self._board.outcome(due.number) == board.SAVED else None
