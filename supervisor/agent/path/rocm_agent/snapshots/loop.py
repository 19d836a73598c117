"""The snapshots of a training loop of the user's own: its parts, its step, its epoch and its place in its data."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Dict, List, Optional

from rocm_agent import claim, events, save_command, script
from rocm_agent.fence import failed
from rocm_agent.layout import ENV_RESUME_FROM

from . import files, randomness
from .files import OURS
from .keeper import Keeper
from .position import Positioned, positioned
from .requests import at_boundary
from .scaling import scaler_state, settled_scaler


class State:
    """Where a loop stands; `step` and `epoch` go on over a resume."""

    def __init__(self, torch: Any, loader: Any, parts: Dict[str, Any]) -> None:
        self.step = 0
        """Steps made, counted from the beginning of the training."""
        self.torch = torch
        self._parts = parts
        self._data = None if loader is None else _data_of(torch, loader)
        self._first_epoch = 0
        self.keeper: Optional[Keeper] = None

    @property
    def epoch(self) -> int:
        """The epoch under way, or to begin with: a pass over the loader is one. Without a loader, 0."""
        return self._first_epoch + (self._data.passes_before_this if self._data is not None else 0)

    def collect(self) -> Dict[str, Any]:
        """Return the whole state as it is, of which nothing is copied yet."""
        random = randomness.capture(self.torch)
        return {
            "step": self.step,
            OURS: {
                "loop": 1,
                "step": self.step,
                "epoch": self.epoch,
                "random": random,
                "data": None if self._data is None else self._data.state(random),
            },
            **{name: _state_of(part) for name, part in self._parts.items()},
        }

    def finished(self, copied: Dict[str, Any]) -> Dict[str, Any]:
        """Return the copy as it is written."""
        scalers = [name for name, part in self._parts.items() if _is_scaler(part)]
        return {**copied, **{name: settled_scaler(copied[name]) for name in scalers}}

    def put_back(self, found: Dict[str, Any]) -> None:
        """Make everything as a snapshot has it; raise ValueError where its parts are others."""
        theirs = set(found) - {"step", OURS}
        if theirs != set(self._parts):
            raise ValueError("the snapshot holds %s, and asked for are %s" % (sorted(theirs), sorted(self._parts)))
        for name, part in self._parts.items():
            _load(part, found[name])
        ours = found[OURS]
        self.step, self._first_epoch = ours["step"], ours["epoch"]
        randomness.restore(self.torch, ours["random"])
        if self._data is not None and ours["data"] is not None:
            self._data.resume(ours["data"])


class _Batches:
    """The place in a torch DataLoader over a data set with an index."""

    def __init__(self, made: Positioned, loader: Any) -> None:
        self._positioned = made
        self._batch_size = loader.batch_size or 1
        self._skipped = 0
        self._resumed_pass = -1
        self._iterator: Any = lambda: None
        original = loader._get_iterator

        def get_iterator() -> Any:
            iterator = original()
            self._iterator = weakref.ref(iterator)
            return iterator

        loader._get_iterator = get_iterator

    @property
    def passes_before_this(self) -> int:
        return max(0, self._positioned.passes - 1)

    def state(self, random: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Return how the pass under way began and how many of its batches were given out; None before the first."""
        number, iterator = self._positioned.passes - 1, self._iterator()
        if number < 0 or iterator is None:
            return None
        made = iterator._num_yielded + (self._skipped if number == self._resumed_pass else 0)
        return {
            "begun": self._positioned.begun[number],
            "batches": made,
            "batch_size": self._batch_size,
            "random": self._positioned.random_from(made, random),
        }

    def resume(self, state: Dict[str, Any]) -> None:
        """Begin the next pass behind those batches."""
        samples = state["batches"] * state["batch_size"]
        self._positioned.resume(state["begun"], samples, state["batches"], state["random"])
        self._resumed_pass = self._positioned.passes
        self._skipped = -(-samples // self._batch_size)


class _Stateful:
    """The place in a loader that keeps account of itself, such as torchdata's StatefulDataLoader."""

    passes_before_this = 0

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state(self, random: Any) -> Any:
        return {"own": self._loader.state_dict()}

    def resume(self, state: Any) -> None:
        self._loader.load_state_dict(state["own"])


def _data_of(torch: Any, loader: Any) -> Any:
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return _Stateful(loader)
    made = positioned(torch, loader)
    if made is not None:
        return _Batches(made, loader)
    raise ValueError(
        "%s has no place to go back to: give a DataLoader over a data set with an index, or a loader with state_dict "
        "and load_state_dict" % type(loader).__name__
    )


def restore(loader: Any, parts: Dict[str, Any]) -> State:
    """See `snapshots.restore`."""
    import torch  # noqa: PLC0415 - the program's own

    for name, part in parts.items():
        if name in ("step", OURS) or not (isinstance(part, dict) or hasattr(part, "load_state_dict")):
            raise ValueError("%s: a part needs another name, or state_dict and load_state_dict" % name)
    state = State(torch, loader, parts)
    found = files.read(torch, os.environ.get(ENV_RESUME_FROM, ""), "loop")
    if found is not None:
        state.put_back(found)
        events.write("resumed", path=os.environ[ENV_RESUME_FROM], epoch=state.epoch - 1, step=state.step)
    return state


def step(state: State, loss: Any, lr: Any) -> None:
    """See `snapshots.step`."""
    state.step += 1
    save_command.listening = True
    script.step(loss, state.step, state.epoch, lr)
    ending = None
    try:
        recorder = claim.take(claim.EXPLICIT)
        if recorder is not None and claim.rank == 0:
            state.keeper = state.keeper or Keeper(state.torch, state.finished)
            ending = at_boundary(state.keeper, recorder, state.collect, state.step, state.epoch - 1)
    except Exception as error:
        failed("snapshots.step", error)
    if ending is not None:
        save_command.end_if_asked(ending)


def _state_of(part: Any) -> Any:
    if isinstance(part, dict):
        return part
    return scaler_state(part) if _is_scaler(part) else part.state_dict()


def _load(part: Any, found: Any) -> None:
    if isinstance(part, dict):
        part.clear()
        part.update(found)
    else:
        part.load_state_dict(found)


def _is_scaler(part: Any) -> bool:
    kinds: List[Any] = [getattr(sys.modules.get("torch.amp"), "GradScaler", None)]
    kinds.append(getattr(getattr(sys.modules.get("torch.cuda"), "amp", None), "GradScaler", None))
    return any(kind is not None and isinstance(part, kind) for kind in kinds)
