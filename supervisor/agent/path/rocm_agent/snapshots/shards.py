"""Saves a training of which each rank holds a part, or whose ranks run on several machines: each rank its own shard.

At the announced step each rank copies what it holds, without a collective operation, and a thread of its own writes it.
Rank 0 gives the folder its manifest, and with it its name, once the shard of every rank lies there, of one step, one
epoch and one layout. Until then there is no generation. A second folder, of another machine, gets the same afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from rocm_agent import events
from rocm_agent.fence import failed
from rocm_agent.layout import COMMAND_SAVE_AND_STOP, ENV_EPOCH, ENV_REPLICAS

from . import board, files, generation, replicas, sharding
from .background import Background
from .board import Announced
from .copying import Copier, Later, all_made, made_now
from .files import OURS
from .generation import Fence, Incomplete, Shard
from .keeper import Form, Keeper, folder
from .meeting import Meeting
from .moment import Moment
from .nodes import LEAD_S, Carrier
from .requests import Save, served
from .world import World

PARTS_LIMIT_S = 60.0
"""Rank 0 waits so long for the shards of a snapshot; in a save that was asked for the training waits for it."""
PARTS_LIMIT_NS = int(PARTS_LIMIT_S * 1e9)
LOOK_S = 0.02
ALIKE = "alike"
SPREAD = "spread"
"""Under our key: whether the weights are spread over the ranks, and not replicas."""


class Taken(NamedTuple):
    """A copy of what this rank holds, on its way to the disk."""

    due: Announced
    step: int
    epoch: Optional[int]
    """The last complete epoch of the data, as a snapshot reports it."""
    copied: Any
    wait: Callable[[], float]
    taken_ns: int
    stall_s: float


class Shards(Meeting):
    """One rank's view of them."""

    saves_at_any_step = True

    def __init__(self, torch: Any, world: World, attempt: str, form: Form) -> None:
        """Come forward in the `attempt`'s folder; raise OSError where its board or a folder cannot be had."""
        super().__init__(torch, world, attempt)
        self._form = form
        self._spread = world.spread
        self._epoch = generation.epoch_of(attempt, os.environ.get(ENV_EPOCH, ""))
        second = os.environ.get(ENV_REPLICAS) or None
        several = world.local_size != world.size
        found = [second] if several else [folder(), second]
        self._folders: List[str] = [os.path.abspath(path) for path in found if path]
        if not self._folders:
            raise OSError("no folder for snapshots")
        self._copier = Copier(torch, parts=world.spread)
        self._background = Background("snapshot-shard-writer")
        self._reserved = False
        self._reported = ""
        self._boundary_ns, self._step_s = 0, 0.0
        for path in self._folders:
            os.makedirs(path, exist_ok=True)
            if self._rank == 0:
                Fence(path, self._epoch).raise_to_ours()
                generation.prune(path, self._epoch)
        self._carrier = Carrier(self._folders[0], self._epoch, self._board) if several else None
        if self._carrier is not None and self._rank and self._place == 0:
            self._carrier.follow()

    def at_boundary(self, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Announce or save, as is due; return the command after which this process is to end."""
        self._note_pace()
        due = self.take_due(moment.step)
        if due is not None:
            return self._save(due, keeper, recorder, moment)
        if not self._reserved and keeper.enabled:
            self._reserve(keeper, moment)
        elif self._rank == 0 and self._pending is None:
            lead_s = LEAD_S if self._carrier is not None else 0.0
            wanted = self._reserved and keeper.wants(lead_s) and not self._background.busy
            ahead_steps = int(lead_s / max(self._step_s, 1e-4))
            announced = self.announce_if_due(keeper, recorder, wanted=wanted, ahead_steps=ahead_steps)
            if announced is not None and self._carrier is not None:
                self._carrier.publish(announced)
        return None

    def refuse(self, announced: Announced, why: str) -> None:
        """Show that this rank has no shard of an announced step, to ranks of other machines as well."""
        super().refuse(announced, why)  # a rank whose writer is busy shows it on its board alone
        shard = Shard(self._rank, announced.step, self._epoch, announced.number, self._size, 0, "", "", "", why)
        self._background.begin(lambda: self._write_refusal(shard))

    def _note_pace(self) -> None:
        now_ns = monotonic_ns()
        if self._boundary_ns:
            took_s = (now_ns - self._boundary_ns) / 1e9
            self._step_s = took_s if not self._step_s else 0.9 * self._step_s + 0.1 * took_s
        self._boundary_ns = now_ns

    def _reserve(self, keeper: Keeper, moment: Moment) -> None:
        """Have the buffers made in the background: making them takes longer than filling them."""
        self._reserved = True
        if self._rank == 0:
            keeper.open_shards()
        state = sharding.to_parts(all_made(self._collect(moment, board.Announced(0, 0, 0))))
        self._background.begin(lambda: self._copier.reserve(state))

    # --- each rank ------------------------------------------------------------------------------------------------

    def _save(self, due: Announced, keeper: Keeper, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Copy this rank's part, and have it written; where that was asked for, wait for all of it."""
        if self._rank == 0 and self.any_refused(due):
            self._board.settle(due.number, board.CANNOT)
            self._discard(due)
            return None
        asked = due.kind != board.SNAPSHOT
        if self._background.busy and not (asked and self._background.wait(PARTS_LIMIT_S)):
            self.refuse(due, "its last shard is still being written")
            return None
        try:
            taken = self._copy(due, moment)
        except Exception as error:
            failed("snapshots.shards", error)
            self.refuse(due, "%s: %s" % (type(error).__name__, error))
            return None
        if self._rank:
            self._background.begin(lambda: self._write(taken))
            return self._wait_for_outcome(due) if due.kind == board.SAVE_AND_STOP else None
        keeper.begun()
        if not asked:
            self._background.begin(lambda: self._write_and_complete(taken, keeper))
            return None
        return self._serve(taken, recorder)

    def _copy(self, due: Announced, moment: Moment) -> Taken:
        began_ns, taken_ns = monotonic_ns(), time.time_ns()
        copied, wait = self._copier.copy(self._collect(moment, due))
        return Taken(due, moment.step, moment.epoch, copied, wait, taken_ns, (monotonic_ns() - began_ns) / 1e9)

    def _collect(self, moment: Moment, due: Announced) -> Dict[str, Any]:
        """Return what this rank writes, nothing of it copied: all that it holds, or what rank 0 does not hold."""
        state = dict(moment.collect())
        modules, optimizers = moment.replicas()
        says = {
            "rank": self._rank, "size": self._size, "step": moment.step, "epoch": self._epoch, "number": due.number,
        }  # fmt: skip
        found = state.pop(OURS)
        ours = Later(lambda: {**made_now(found), generation.SHARD_KEY: says, SPREAD: self._spread})
        if self._spread:
            sample = Later(lambda: replicas.sample(sharding.replicas_in(modules)))
            return {**state, OURS: ours, ALIKE: sample}
        sample = Later(lambda: replicas.alike(modules, optimizers))
        if self._rank:
            own = {**moment.own(), replicas.BUFFERS: replicas.buffers(modules)}
            return {OURS: {**ours.make(), **own}, ALIKE: sample}
        return {**state, OURS: ours, ALIKE: sample}

    def _write(self, taken: Taken) -> Shard:
        """Write this rank's shard, say so in every folder, and return what is said; raise what prevents it."""
        drafts = [self._draft(path, taken.due) for path in self._folders]
        try:
            taken.wait()
            shard, path = self._write_shard(taken, drafts[0])
        except Exception as error:
            self._write_refusal(self._refusal(taken, error))
            raise
        with open(path, "rb", buffering=0) as source:  # rank 0 may give the folder another name from now on
            generation.write_part(drafts[0], shard)
            for draft in drafts[1:]:
                self._copy_elsewhere(source, draft, shard)
        return shard

    def _write_shard(self, taken: Taken, draft: str) -> Tuple[Shard, str]:
        if taken.step != taken.due.step:
            raise Incomplete("the boundary after step %d was not met" % taken.due.step)
        copied = dict(taken.copied)
        sample = copied.pop(ALIKE)
        roots = self._form.roots()
        files.check_finite(self._torch, copied, roots if self._holds_weights else (OURS,))
        copied = self._form.finish(copied) if self._holds_weights else copied
        generation.make_draft(draft)
        files.check_room(draft, files.size_of(copied))
        path, digest = os.path.join(draft, generation.SHARD % self._rank), hashlib.sha256()
        size = files.write(self._torch, copied, path, taken.taken_ns, digest)
        layout = sharding.layout_of(copied, roots) if self._spread else ""
        alike = _digest_of(self._torch, sample)
        says = (self._rank, taken.step, self._epoch, taken.due.number, self._size)
        return Shard(*says, size, digest.hexdigest(), layout, alike), path

    @property
    def _holds_weights(self) -> bool:
        return self._spread or self._rank == 0

    def _copy_elsewhere(self, source: Any, draft: str, shard: Shard) -> None:
        try:
            generation.copy(source, draft, generation.SHARD % self._rank)
            generation.write_part(draft, shard)
        except OSError as error:
            with suppress(OSError):
                generation.write_part(draft, shard._replace(refused="%s: %s" % (type(error).__name__, error)))

    def _refusal(self, taken: Taken, error: Exception) -> Shard:
        says = (self._rank, taken.due.step, self._epoch, taken.due.number, self._size)
        return Shard(*says, 0, "", "", "", "%s: %s" % (type(error).__name__, error))

    def _write_refusal(self, shard: Shard) -> None:
        for path in self._folders:
            with suppress(OSError):
                draft = generation.draft_of(path, shard.step, self._epoch, shard.number)
                generation.make_draft(draft)
                generation.write_part(draft, shard)

    def _draft(self, path: str, due: Announced) -> str:
        return generation.draft_of(path, due.step, self._epoch, due.number)

    def _wait_for_outcome(self, due: Announced) -> Optional[Tuple[int, int]]:
        """Wait for what becomes of the generation: rank 0 makes no further step until then, nor could this one."""
        deadline_ns = monotonic_ns() + PARTS_LIMIT_NS
        path = os.path.join(self._folders[0], generation.FOLDER % due.step)
        while monotonic_ns() < deadline_ns and self._board.outcome(due.number) is None:
            if not self._background.busy and _is_of(path, self._epoch, due.number):
                return COMMAND_SAVE_AND_STOP, 0
            time.sleep(LOOK_S)
        return (COMMAND_SAVE_AND_STOP, 0) if self._board.outcome(due.number) == board.SAVED else None

    # --- rank 0 ---------------------------------------------------------------------------------------------------

    def _serve(self, taken: Taken, recorder: Any) -> Optional[Tuple[int, int]]:
        """Make a generation that was asked for while the training waits; return the command where all succeeded."""
        command, ending = recorder.command(), None
        if command is not None:
            path = os.path.join(self._folders[0], generation.FOLDER % taken.step)
            saving = lambda: Save(path, taken.step, taken.epoch, kind="snapshot")  # noqa: E731 - a place and no more
            ending = served(recorder, command, saving, lambda _: self._make_generations(taken))
        self._board.settle(taken.due.number, board.CANNOT if ending is None else board.SAVED)
        return ending

    def _write_and_complete(self, taken: Taken, keeper: Keeper) -> None:
        """Make a generation in the background and report it; a failure is reported once until it succeeds again."""
        began_ns = monotonic_ns()
        try:
            path, size_bytes = self._make_generations(taken)
        except Exception as error:
            self._report_failure(taken, error, keeper)
            return
        write_s = (monotonic_ns() - began_ns) / 1e9
        keeper.cost(taken.stall_s, write_s)
        self._reported = ""
        cost = {"stall_s": taken.stall_s, "write_s": write_s, "size_bytes": size_bytes, "every_s": keeper.every_s}
        report = {"epoch": taken.epoch, "step": taken.step, "requested": False, "kind": "snapshot"}
        events.write("checkpoint_saved", paths=[path], **report, **cost)

    def _report_failure(self, taken: Taken, error: Exception, keeper: Keeper) -> None:
        text = "%s: %s" % (type(error).__name__, error)
        if text != self._reported:
            self._reported = text
            events.write("save_failed", error=text, kind="snapshot", step=taken.step, every_s=keeper.every_s)

    def _make_generations(self, taken: Taken) -> Tuple[str, int]:
        """Write rank 0's shard and complete the generation in the first folder, then in the second.

        Returns the path and bytes of the first; raises what prevents it. That of the second is reported and no more.
        """
        try:
            self._write(taken)
            path, size_bytes = self._complete(self._folders[0], taken)
        except BaseException:
            self._discard(taken.due)
            raise
        for other in self._folders[1:]:
            try:
                self._complete(other, taken)
            except Exception as error:
                shutil.rmtree(self._draft(other, taken.due), ignore_errors=True)
                failed("snapshots.replica", error)
        return path, size_bytes

    def _complete(self, place: str, taken: Taken) -> Tuple[str, int]:
        draft = self._draft(place, taken.due)
        parts = self._wait_for_parts(draft, taken)
        generation.check_parts(parts, taken.step, self._epoch)
        Fence(place, self._epoch).check()
        path = generation.complete(draft, parts, taken.taken_ns)
        generation.prune(place, self._epoch)
        return path, sum(part.bytes for part in parts)

    def _wait_for_parts(self, draft: str, taken: Taken) -> List[Shard]:
        deadline_ns = monotonic_ns() + PARTS_LIMIT_NS
        parts: Dict[int, Shard] = {}
        while len(parts) < self._size:
            for rank in range(self._size):
                found = None if rank in parts else generation.read_part(draft, rank)
                if found is not None:
                    parts[rank] = found
                    if found.refused:
                        raise Incomplete("rank %d has no shard of step %d: %s" % (rank, taken.step, found.refused))
            missing = [rank for rank in range(self._size) if rank not in parts]
            self._check_missing(missing, taken, late=monotonic_ns() >= deadline_ns)
            if missing:
                time.sleep(LOOK_S)
        return [parts[rank] for rank in range(self._size)]

    def _check_missing(self, missing: List[int], taken: Taken, *, late: bool) -> None:
        """Raise Incomplete where a shard that is missing will not come."""
        here = [rank for rank in missing if rank < self._here]  # rank 0 is the first of its machine
        if any(self._board.refused(rank, taken.due.number) for rank in here):
            raise Incomplete("rank %s has no shard of step %d" % (here[0], taken.step))
        gone = [rank for rank in self.list_absent() if rank in here]
        if gone:
            raise Incomplete("rank %d is gone" % gone[0])
        if missing and late:
            raise Incomplete("no shard of rank %s came within %d s" % (missing[0], PARTS_LIMIT_S))

    def _discard(self, due: Announced) -> None:
        for path in self._folders:
            shutil.rmtree(self._draft(path, due), ignore_errors=True)


def _digest_of(torch: Any, sample: List[Any]) -> str:
    digest = hashlib.sha256()
    for tensor in sample:
        digest.update(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return digest.hexdigest()


def _is_of(path: str, epoch: str, number: int) -> bool:
    """Whether a generation is that of an announcement."""
    try:
        found = generation.read_manifest(path)
    except (OSError, ValueError):
        return False
    return found.get("epoch") == epoch and found.get("number") == number
