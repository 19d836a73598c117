"""Saves what several ranks of one machine train together, all at the same step, or not at all.

DDP keeps ranks in step by its own all-reduce; nothing is added to that. Rank 0 announces a step that none can have
reached yet, each rank sees it at a boundary of its own and copies its part there, and rank 0 joins the parts into its
file, which appears by one rename. A rank that is late, gone or beyond that step costs the snapshot and nothing else.
"""

from __future__ import annotations

import os
import time
from time import monotonic_ns
from typing import Any, Callable, Dict, List, Optional, Tuple

from rocm_agent import events
from rocm_agent.fence import failed
from rocm_agent.layout import ANSWER_CANNOT, COMMAND_SAVE_AND_STOP

from . import board, files, replicas
from .background import Background
from .board import Announced, Board
from .copying import Copier
from .files import OURS
from .keeper import Collect, Keeper
from .moment import Moment
from .requests import served
from .world import World

MARGIN_STEPS, MARGIN_LIMIT_STEPS = 2, 256
"""Announced so far ahead; more where the processors of other ranks run ahead of their GPUs."""
PARTS_LIMIT_S = 60.0
"""Rank 0 waits so long for the parts of a snapshot; in a save that was asked for the training waits for it."""
FORWARD_LIMIT_S, FORWARD_COMMAND_LIMIT_S = 60.0, 10.0
"""So long after rank 0 every other is to have come forward, and where a command waits for it."""
PARTS_LIMIT_NS = int(PARTS_LIMIT_S * 1e9)
LOOK_S = 0.01
PART = "rank%d.part.pt"
ALIKE = "alike"

_trainings = 0
"""Of this process; those of its fellows are counted alike."""


class Missing(RuntimeError):  # noqa: N818 - a verdict, no defect
    """A rank has given no part, or not the part of a replica."""


class Ranks:
    """One rank's view of them."""

    def __init__(self, torch: Any, world: World, folder: str) -> None:
        """Come forward in the attempt's `folder`; raise OSError where its board cannot be had."""
        global _trainings
        _trainings += 1
        self._torch = torch
        self._rank, self._size = world.rank, world.size
        self._folder = folder
        self._who = os.getpid() << 16 | _trainings & 0xFFFF
        self._board = Board(folder, world.size)
        self._seen = self._board.announced  # of a training that is over
        self._pending: Optional[Announced] = None
        self._before = -1
        self._margin = MARGIN_STEPS
        self._alone_ns: Optional[int] = None
        self._reported_alone = False
        self._copier = Copier(torch)
        self._background = Background("snapshot-part-writer")

    def at_boundary(self, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Announce, save or give a part, as is due; return the command after which this process is to end."""
        due = self._take_due(moment.step)
        if self._rank:
            return None if due is None else self._give_part(due, moment)
        if due is not None:
            return self._save_jointly(due, keeper, recorder, moment)
        if self._pending is None:
            self._announce_if_due(keeper, recorder, moment)
        return None

    def _take_due(self, step: int) -> Optional[Announced]:
        """Show where this rank stands; return what was announced for this very boundary."""
        announced = self._board.announced
        if announced != self._seen:
            self._seen = announced
            if announced.step <= self._before:
                self._board.refuse(self._rank, announced.number)
            else:
                self._pending = announced
        self._before = step
        self._board.stand(self._rank, self._who, step)
        if self._pending is None or step < self._pending.step:
            return None
        due, self._pending = self._pending, None
        return due

    # --- rank 0 ---------------------------------------------------------------------------------------------------

    def _announce_if_due(self, keeper: Keeper, recorder: Any, moment: Moment) -> None:
        """Announce a save where one is due or asked for."""
        command = recorder.command()
        if command is None and not keeper.wants():
            return
        if command is None and not keeper.reserved:
            keeper.take(self._collect_with_sample(moment), moment.step, moment.epoch)
            return
        absent = self._list_absent()
        if absent:
            self._report_absent(absent, recorder, command)
            return
        self._alone_ns = None
        kind = board.SNAPSHOT
        if command is not None:
            kind = board.SAVE_AND_STOP if command[0] == COMMAND_SAVE_AND_STOP else board.SAVE
        for rank in range(1, self._size):
            files.remove(self._part_path(rank))
        furthest = max(standing.step for standing in self._board.standings())
        self._seen = self._pending = self._board.announce(kind, furthest + self._margin)

    def _list_absent(self) -> List[int]:
        """Return the ranks that are not seen in this training."""
        others = [standing for standing in self._board.standings() if standing.rank]
        return [
            other.rank for other in others if other.who & 0xFFFF != self._who & 0xFFFF or not _is_alive(other.who >> 16)
        ]

    def _report_absent(self, absent: List[int], recorder: Any, command: Optional[Tuple[int, int]]) -> None:
        """Say once that ranks are missing, and refuse a command that has waited long enough."""
        self._alone_ns = self._alone_ns or monotonic_ns()
        waited_s = (monotonic_ns() - self._alone_ns) / 1e9
        text = "no report from rank %s on this machine: nothing is saved in mid-epoch" % ", ".join(map(str, absent))
        if waited_s >= FORWARD_LIMIT_S and not self._reported_alone:
            self._reported_alone = True
            events.write("save_failed", error=text, kind="snapshot")
        if command is not None and waited_s >= FORWARD_COMMAND_LIMIT_S:
            events.write("save_failed", error=text)
            recorder.answer(ANSWER_CANNOT, command[1])

    def _collect_with_sample(self, moment: Moment) -> Collect:
        return lambda: {**moment.collect(), ALIKE: replicas.alike(*moment.replicas())}

    def _save_jointly(self, due: Announced, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Take rank 0's part, and have the others' joined to it."""
        if any(self._board.refused(rank, due.number) for rank in range(1, self._size)):
            self._margin = min(self._margin * 2, MARGIN_LIMIT_STEPS)  # a rank was beyond it before it could see it
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
            if rank in self._list_absent():
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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return pid != 0
