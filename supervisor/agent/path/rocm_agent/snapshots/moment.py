"""Where a training stands after a step, and how its state is had: what a hook hands to the step boundary."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .keeper import Collect, Keeper
from .requests import Save

Replicas = Callable[[], Tuple[Dict[str, Any], List[Any]]]
"""() -> the modules, by a name that stays, and the optimizers, of which every rank has a replica."""


class Moment(NamedTuple):
    """Where a training stands after a step, and how its state is had."""

    step: int
    """The same on every rank at the same boundary."""
    epoch: Optional[int]
    """The last complete epoch in the state, counted from 0."""
    collect: Collect
    """Returns the state as one process, or rank 0, writes it."""
    own: Collect
    """Returns what lies under our key in it and differs from rank to rank, without buffers."""
    replicas: Replicas
    asked: Optional[Callable[[], Save]] = None
    """Returns where a save that is asked for belongs, where it is not a snapshot among the others."""

    def saving(self, keeper: Keeper) -> Callable[[], Save]:
        """Return what a save that is asked for calls for its place."""
        return self.asked or (lambda: Save(keeper.path(self.step), self.step, self.epoch, kind="snapshot"))
