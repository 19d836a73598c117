"""The snapshots of a training loop of the user's own: its parts, its step, its epoch and its place in its data."""

from __future__ import annotations

import os
import sys
import weakref
from time import monotonic_ns
from typing import Any, Dict, List, Optional, Tuple

from rocm_agent import claim, origin, save_command, script, torch_hook, tuning
from rocm_agent.layout import ENV_RESUME_FROM

from . import files, randomness, replicas
from .boundary import Boundary
from .copying import Later
from .files import OURS
from .keeper import Form
from .loop_data import place_in
from .moment import Moment
from .scaling import scaler_state, settled_scaler

CALLS_AWAITED = 32
"""After so many steps of a loop without a call of an optimizer none is expected: it may be compiled with the loop."""


class State:
    """Where a loop stands; `step` and `epoch` go on over a resume."""

    def __init__(self, torch: Any, loader: Any, named: Dict[str, Any]) -> None:
        self.step = 0
        """Steps made, counted from the beginning of the training."""
        self.counting = False
        """Whether it is known from where `step` goes on."""
        self.torch = torch
        self._parts = named
        self._data = None if loader is None else place_in(torch, loader)
        self._first_epoch = 0
        self._calls, self._without_call, self._calls_come = torch_hook.count_calls(), 0, False
        self._has_optimizers = bool(self.replicas()[1])
        self.boundary = Boundary(torch, "step", claim.EXPLICIT, Form(self.finished, self.roots))

    @property
    def epoch(self) -> int:
        """The epoch under way, or to begin with: a pass over the loader is one. Without a loader, 0."""
        return self._first_epoch + (self._data.passes_before_this if self._data is not None else 0)

    def holds_gradients(self) -> bool:
        """Whether gradients may wait for the optimizer's next step, which are in no snapshot; asked after every step.

        As where a loop counts batches and its optimizer steps once for several of them.
        """
        if not self._has_optimizers:
            return False
        before, self._calls = self._calls, torch_hook.count_calls()
        stepped = self._calls != before
        self._calls_come = self._calls_come or stepped
        self._without_call = 0 if stepped else self._without_call + 1
        return not stepped and (self._calls_come or self._without_call <= CALLS_AWAITED)

    def collect(self) -> Dict[str, Any]:
        """Return the complete state, nothing of it copied yet."""
        return {
            "step": self.step,
            **{name: _state_of(part) for name, part in self._parts.items()},
            OURS: Later(lambda: {"loop": 1, "step": self.step, "epoch": self.epoch, **self._data_position()}),
        }

    def _data_position(self) -> Dict[str, Any]:
        random = randomness.capture(self.torch)
        return {"random": random, "data": None if self._data is None else self._data.state(random)}

    def own(self) -> Dict[str, Any]:
        """Return what may differ between ranks: all but modules and optimizers, since its contents are unknown."""
        modules, optimizers = self.replicas()
        optimizing = {id(optimizer) for optimizer in optimizers}
        alone = [name for name, part in self._parts.items() if name not in modules and id(part) not in optimizing]
        return {**self._data_position(), "parts": {name: _state_of(self._parts[name]) for name in alone}}

    def replicas(self) -> Tuple[Dict[str, Any], List[Any]]:
        """Return the modules by their names, and the optimizers."""
        modules = {name: part for name, part in self._parts.items() if isinstance(part, self.torch.nn.Module)}
        optimizers = [part for part in self._parts.values() if isinstance(part, self.torch.optim.Optimizer)]
        return modules, optimizers

    def roots(self) -> List[str]:
        """Return the names of the modules and optimizers."""
        modules, optimizers = self.replicas()
        optimizing = {id(optimizer) for optimizer in optimizers}
        return [name for name, part in self._parts.items() if name in modules or id(part) in optimizing]

    def finished(self, copied: Dict[str, Any]) -> Dict[str, Any]:
        """Return the copy as it is written."""
        scalers = [name for name, part in self._parts.items() if _is_scaler(part)]
        for part in copied[OURS].get(replicas.RANKS, {}).values():
            part["parts"].update({name: settled_scaler(part["parts"][name]) for name in scalers})
        return {**copied, **{name: settled_scaler(copied[name]) for name in scalers}}

    def put_back(self, found: Dict[str, Any], *, exactly: bool) -> None:
        """Make everything as a snapshot has it; raise ValueError where its parts are others.

        Not `exactly`, the epoch under way starts again, and random states stay what they are on each rank.
        """
        theirs = set(found) - {"step", OURS}
        if theirs != set(self._parts):
            raise ValueError("the snapshot holds %s, and asked for are %s" % (sorted(theirs), sorted(self._parts)))
        ours = found[OURS]
        for name, part in self._parts.items():
            _load_part(part, ours.get("parts", {}).get(name, found[name]))
        replicas.put_buffers(self.torch, self.replicas()[0], ours.get(replicas.BUFFERS, {}))
        self.step, self._first_epoch = ours["step"], ours["epoch"]
        self.counting = True
        torch_hook.steps_were_made(self.step)  # the first is counted before the loop has reported any
        if not exactly:
            return
        randomness.restore(self.torch, ours["random"])
        if self._data is not None and ours["data"] is not None:
            self._data.resume(ours["data"], ours["random"])


def restore(loader: Any, named: Dict[str, Any]) -> State:
    """See `snapshots.restore`."""
    import torch  # noqa: PLC0415 - the program's own

    for name, part in named.items():
        if name in ("step", OURS) or not (isinstance(part, dict) or hasattr(part, "load_state_dict")):
            raise ValueError("%s: a part needs another name, or state_dict and load_state_dict" % name)
    state = State(torch, loader, named)
    found, problem = _resumed_from(torch, state)
    if found is not None:
        state.put_back(found, exactly=not problem)
        replicas.resumed(state.epoch - 1, state.step, problem and problem + ", and the epoch starts over")
    return state


def _resumed_from(torch: Any, state: State) -> Tuple[Optional[Dict[str, Any]], str]:
    """Return what this rank goes on from, and why that is not in mid-epoch; (None, "") where it begins."""
    path = os.environ.get(ENV_RESUME_FROM, "")
    if os.path.isdir(path):
        from . import generation  # noqa: PLC0415 - most trainings need none of it

        if not generation.is_generation(path):
            return None, ""
        return replicas.of_shards(torch, path, "loop", state.replicas()[0])
    found = files.read(torch, path, "loop")
    return (None, "") if found is None else replicas.of_this_rank(torch, found)


def step(state: State, loss: Any, lr: Any) -> None:
    """See `snapshots.step`."""
    if not state.counting:
        # It was not put back by `restore`: the script went on from a checkpoint of its own, or begins.
        state.step, state.counting = origin.first_step(None) - 1, True
    state.step += 1
    save_command.listening = state.boundary.listens
    script.step(loss, state.step, state.epoch, lr)
    now_ns = monotonic_ns()
    if now_ns >= tuning.due_ns:
        tuning.step_ended(next(iter(state.replicas()[1]), None), state.step, now_ns)
    waits = state.holds_gradients() and not state.boundary.saves_at_any_step

    def look(_: Any) -> Optional[Moment]:
        return None if waits else Moment(state.step, state.epoch - 1, state.collect, state.own, state.replicas)

    state.boundary.reached(look)


def _state_of(part: Any) -> Any:
    if isinstance(part, dict):
        return part
    if _is_scaler(part):
        return scaler_state(part)
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    if module is not None and getattr(type(part), "state_dict", None) is module.state_dict:
        return part.state_dict(keep_vars=True)  # all is copied: detaching each weight first only takes time
    state = part.state_dict()
    if isinstance(state, dict) and any(isinstance(value, weakref.ref) for value in state.values()):
        # CyclicLR of torch 1.13 refers so to a method of its own: that cannot be pickled, and is there without.
        return {name: value for name, value in state.items() if not isinstance(value, weakref.ref)}
    return state


def _load_part(part: Any, found: Any) -> None:
    if isinstance(part, dict):
        part.clear()
        part.update(found)
    else:
        part.load_state_dict(found)


def _is_scaler(part: Any) -> bool:
    kinds: List[Any] = [getattr(sys.modules.get("torch.amp"), "GradScaler", None)]
    kinds.append(getattr(getattr(sys.modules.get("torch.cuda"), "amp", None), "GradScaler", None))
    return any(kind is not None and isinstance(part, kind) for kind in kinds)
