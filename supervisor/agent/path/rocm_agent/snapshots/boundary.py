"""The step boundaries of one training, at which it is saved where that is due or requested.

It is the same for every framework: the hook that counts the steps provides the training's position and state. A single
process saves alone; replicas of one machine save together; where each holds a part, or several machines train, each
writes a shard. A training that cannot be saved is reported once.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Tuple

from rocm_agent import claim, events, save_command
from rocm_agent.fence import failed
from rocm_agent.layout import ENV_FOLDER

from . import world
from .keeper import Form, Keeper
from .moment import Moment
from .requests import served

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .meeting import Meeting


class Boundary:
    """Of one training."""

    def __init__(
        self,
        torch: Any,
        name: str,
        source: int,
        form: Optional[Form] = None,
        keeper: Optional[Keeper] = None,
    ) -> None:
        """`name` is the hook's, `source` one of claim's; `keeper` None has one of `form` made at the first boundary."""
        self._torch = torch
        self._name = "snapshots." + name
        self._source = source
        self._form = form
        self._problem: Optional[str] = None
        """Why nothing can be saved; None before this was checked."""
        self._ranks: Optional[Meeting] = None
        self._keeper = keeper
        self._alone = False
        """Whether a single process trains; known from the first boundary on."""

    @property
    def listens(self) -> bool:
        """Whether a requested save is served, as far as is known."""
        return not self._problem

    @property
    def saves_at_any_step(self) -> bool:
        """Whether ranks save at the very step that was announced, whatever is held there."""
        return self._ranks is not None and self._ranks.saves_at_any_step

    def reached(self, look: Callable[[Any], Optional[Moment]]) -> None:
        """A step is over: save where that is due. Where the supervisor wants the process to stop, this ends it.

        `look(the recorder)` is called only where a hook represents the training; None: nothing can be saved here.
        """
        ending = None
        try:
            recorder = claim.take(self._source)
            if recorder is None or (self._alone and recorder.command() is None and not self._keeper.wants()):
                return
            moment = look(recorder)
            if moment is not None:
                ending = self.serve(recorder, moment)
        except Exception as error:
            failed(self._name, error)
        if ending is not None:
            save_command.end_if_asked(ending)

    def snapshot_at_save(self, moment: Moment) -> None:
        """Take a snapshot at a boundary at which the training saves by itself, where one process trains."""
        keeper = self._keeper
        if self._alone and keeper is not None and keeper.enabled:
            keeper.take_at_save(moment.collect, moment.step, moment.epoch)

    def settle(self) -> None:
        """The training is about to save by itself: see Keeper.settle."""
        if self._alone and self._keeper is not None:
            self._keeper.settle()

    def serve(self, recorder: Any, moment: Moment) -> Optional[Tuple[int, int]]:
        """Save where that was requested, else where a snapshot is due; return the command that was served."""
        keeper = self._keeper = self._keeper or Keeper(self._torch, self._form)
        if self._problem is None:
            self._find_world(moment)
        if self._problem:
            return None
        if self._ranks is not None:
            return self._ranks.at_boundary(keeper, recorder, moment)
        command = recorder.command()
        if command is None:
            if keeper.wants():
                keeper.take(moment.collect, moment.step, moment.epoch)
            return None
        return served(recorder, command, moment.saving(keeper), lambda path: keeper.save(moment.collect, path))

    def _find_world(self, moment: Moment) -> None:
        """Find the processes that train together."""
        found = world.of(self._torch, moment.replicas()[0])
        self._problem = found.problem or self._join_ranks(found)
        self._alone = found.size == 1 and not self._problem
        save_command.listening = self.listens
        if self._problem and found.rank == 0:
            every_s = None if self._keeper is None else self._keeper.every_s
            events.write("save_failed", error=self._problem, kind="snapshot", step=moment.step, every_s=every_s)

    def _join_ranks(self, found: world.World) -> str:
        """Join several ranks; return why that is impossible."""
        if found.size == 1:
            return ""
        try:
            self._ranks = self._meet(found)
        except (OSError, RuntimeError) as error:  # a later launch may have begun
            return "the ranks cannot meet: %s" % error
        return ""

    def _meet(self, found: world.World) -> Meeting:
        attempt = os.environ[ENV_FOLDER]
        if found.in_shards:
            from .shards import Shards  # noqa: PLC0415 - one process needs none of it

            return Shards(self._torch, found, attempt, self._form or Form())
        from .ranks import Ranks  # noqa: PLC0415 - the same

        return Ranks(self._torch, found, attempt)
