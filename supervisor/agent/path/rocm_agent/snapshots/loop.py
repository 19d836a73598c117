"""The snapshots of a training loop of the user's own: its parts, its step, its epoch and its place in its data."""

from __future__ import annotations

import os
import sys
import weakref
import zipfile
from typing import Any, Dict, List, Optional

from rocm_agent import claim, events, save_command, script
from rocm_agent.fence import failed
from rocm_agent.layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT, ENV_RESUME_FROM

from . import files, randomness
from .keeper import Keeper
from .position import Positioned
from .scaling import scaler_state, settled_scaler

OURS = "rocm_supervisor"


class State:
    """Where a loop stands; `step` and `epoch` go on over a resume."""

    def __init__(self, torch: Any, loader: Any, parts: Dict[str, Any]) -> None:
        self.step = 0
        """Steps made, counted from the beginning of the training."""
        self._torch = torch
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
        return {
            "step": self.step,
            OURS: {
                "loop": 1,
                "step": self.step,
                "epoch": self.epoch,
                "random": randomness.capture(self._torch),
                "data": None if self._data is None else self._data.state(),
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
        randomness.restore(self._torch, ours["random"])
        if self._data is not None and ours["data"] is not None:
            self._data.resume(ours["data"], ours["random"])


class _Batches:
    """The place in a torch DataLoader over a data set with an index."""

    def __init__(self, torch: Any, loader: Any) -> None:
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._positioned = Positioned(torch, getattr(loader, name), loader)
        self._batch_size = loader.batch_size or 1
        object.__setattr__(loader, name, self._positioned)  # the loader itself forbids it
        self._skipped = 0
        self._resumed_pass = -1
        self._iterator: Any = lambda: None
        original = loader._get_iterator

        def get_iterator() -> Any:
            made = original()
            self._iterator = weakref.ref(made)
            return made

        loader._get_iterator = get_iterator

    @property
    def passes_before_this(self) -> int:
        return max(0, self._positioned.passes - 1)

    def state(self) -> Optional[Dict[str, Any]]:
        """Return how the pass under way began and how many of its batches were given out; None before the first."""
        number, iterator = self._positioned.passes - 1, self._iterator()
        if number < 0 or iterator is None:
            return None
        made = iterator._num_yielded + (self._skipped if number == self._resumed_pass else 0)
        return {"begun": self._positioned.begun[number], "batches": made, "batch_size": self._batch_size}

    def resume(self, state: Dict[str, Any], now: Dict[str, Any]) -> None:
        """Begin the next pass behind those batches."""
        samples = state["batches"] * state["batch_size"]
        self._positioned.resume(state["begun"], samples, state["batches"], now)
        self._resumed_pass = self._positioned.passes
        self._skipped = -(-samples // self._batch_size)


class _Stateful:
    """The place in a loader that keeps account of itself, such as torchdata's StatefulDataLoader."""

    passes_before_this = 0

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state(self) -> Any:
        return {"own": self._loader.state_dict()}

    def resume(self, state: Any, now: Any) -> None:
        self._loader.load_state_dict(state["own"])


def _data_of(torch: Any, loader: Any) -> Any:
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return _Stateful(loader)
    data = torch.utils.data
    if isinstance(loader, data.DataLoader) and not isinstance(loader.dataset, data.IterableDataset):
        return _Batches(torch, loader)
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
    found = _snapshot(torch, os.environ.get(ENV_RESUME_FROM, ""))
    if found is not None:
        state.put_back(found)
        events.write("resumed", path=os.environ[ENV_RESUME_FROM], epoch=state.epoch - 1, step=state.step)
    return state


def _snapshot(torch: Any, path: str) -> Optional[Dict[str, Any]]:
    """Return what a snapshot of a loop holds; None for a checkpoint of another kind, which is the script's to load."""
    if not path or not zipfile.is_zipfile(path):
        return None
    files.verify(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a part of the user's has classes of its own in its state; the file was proven not to be hostile
        found = torch.load(path, map_location="cpu", weights_only=False)
    ours = found.get(OURS) if isinstance(found, dict) else None
    return found if isinstance(ours, dict) and "loop" in ours else None


def step(state: State, loss: Any, lr: Any) -> None:
    """See `snapshots.step`."""
    state.step += 1
    save_command.listening = True
    script.step(loss, state.step, state.epoch, lr)
    ending = None
    try:
        recorder = claim.take(claim.EXPLICIT)
        if recorder is not None and claim.rank == 0:
            ending = _at_boundary(state, recorder)
    except Exception as error:
        failed("snapshots.step", error)
    if ending is not None:
        save_command.end_if_asked(ending)


def _at_boundary(state: State, recorder: Any) -> Any:
    if state.keeper is None:
        state.keeper = Keeper(state._torch, state.finished)
    command = recorder.command()
    if command is not None:
        return _save(state, recorder, command)
    if state.keeper.wants():
        state.keeper.take(state.collect, state.step, state.epoch - 1)
    return None


def _save(state: State, recorder: Any, command: Any) -> Any:
    """Answer a command to save; return it where all went well."""
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        path = os.path.abspath(state.keeper.path(state.step))
        state.keeper.save(state.collect, path)
        events.write(
            "checkpoint_saved", paths=[path], epoch=state.epoch - 1, step=state.step, requested=True, kind="snapshot"
        )
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command


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
