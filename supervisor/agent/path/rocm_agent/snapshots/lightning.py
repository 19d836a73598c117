"""Snapshots of a Lightning Trainer: its own checkpoint, taken at a step boundary, with the place in the data beside it.

Lightning's own resume reads the file and goes on in mid-epoch; its loaders begin at the beginning, and that is put
right here.
"""

# ruff: noqa: PLC0415 - torch is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import os
import sys
from functools import wraps
from types import ModuleType
from typing import Any, Dict, Optional

from rocm_agent import claim, events, save_command, torch_hook
from rocm_agent.fence import failed, fenced
from rocm_agent.layout import ENV_RESUME_FROM

from . import files, randomness
from .keeper import Keeper
from .position import Positioned, positioned
from .requests import at_boundary

_used = False


def install(module: ModuleType) -> None:
    """Have the Trainer of `module`, lightning.pytorch.trainer.trainer, follow its steps and resume from snapshots."""
    trainer = module.Trainer
    fit = trainer.fit

    @wraps(fit)
    def fit_or_resume(self: Any, *args: Any, **kwargs: Any) -> Any:
        followed = _follow(self, module.__name__.rpartition(".trainer.trainer")[0])
        path = None if followed is None else followed.resumed_from()
        if path is not None:
            kwargs["ckpt_path"] = path
            args = args[:4]  # model, training, validation, data module; the fifth would be another path
        return fit(self, *args, **kwargs)

    trainer.fit = fit_or_resume


@fenced
def _follow(trainer: Any, package: str) -> Optional[Snapshots]:
    """Return the snapshots of a trainer, with a callback of it telling them of its steps; None where it is to spread.

    What spreads a training over processes may pickle the trainer, and what is put on it here cannot be.
    """
    import torch

    if getattr(trainer.strategy, "launcher", None) is not None:
        return None
    found = vars(trainer).get("_rocm_snapshots")
    if found is not None:
        return found
    trainer._rocm_snapshots = snapshots = Snapshots(torch, trainer)
    base = sys.modules[package + ".callbacks"].Callback

    class Following(base):  # type: ignore[misc] # a class of the user's environment
        """Tells the snapshots where the training stands."""

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            snapshots.batch_ends(trainer)

    trainer.callbacks.append(Following())
    return snapshots


class Snapshots:
    """Of one Trainer."""

    def __init__(self, torch: Any, trainer: Any) -> None:
        self._torch = torch
        self._keeper: Optional[Keeper] = None
        self._positioned: Optional[Positioned] = None
        self._resuming: Optional[Dict[str, Any]] = None
        self._in_setup = False
        self._loaders = 0
        self._follow_loaders(trainer)

    def _follow_loaders(self, trainer: Any) -> None:
        setup, process = trainer.fit_loop.setup_data, trainer.strategy.process_dataloader

        def setup_data(*args: Any, **kwargs: Any) -> Any:
            self._in_setup, self._loaders = True, 0
            try:
                return setup(*args, **kwargs)
            finally:
                self._in_setup = False

        def process_dataloader(loader: Any) -> Any:
            made = process(loader)
            if self._in_setup:
                self._follow_loader(made)
            return made

        trainer.fit_loop.setup_data, trainer.strategy.process_dataloader = setup_data, process_dataloader

    @fenced
    def _follow_loader(self, loader: Any) -> None:
        """Follow the one loader of the training before its first pass; of several none, for they have no one place."""
        self._loaders += 1
        self._positioned = positioned(self._torch, loader) if self._loaders == 1 else None
        exact, self._resuming = self._resuming, None
        if exact is not None and self._positioned is not None:
            data, size = exact["data"], loader.batch_size or 1
            self._positioned.resume(data["begun"], data["batches"] * size, data["batches"], data["random"])

    def batch_ends(self, trainer: Any) -> None:
        """Take a snapshot if one is due, between two steps of the optimizer and not at the end of an epoch."""
        ending = None
        try:
            recorder = claim.take(claim.GENERIC)
            if recorder is None or claim.rank != 0 or trainer.world_size > 1:
                return
            self._keeper = self._keeper or Keeper(self._torch)
            save_command.listening = True
            made = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            if made % trainer.accumulate_grad_batches or made >= trainer.num_training_batches:
                return
            step = int(trainer.global_step)
            collect = lambda: self._collect(trainer, made)  # noqa: E731 - two arguments long
            ending = at_boundary(self._keeper, recorder, collect, step, int(trainer.current_epoch) - 1)
        except Exception as error:
            failed("snapshots.lightning", error)
        if ending is not None:
            save_command.end_if_asked(ending)

    def _collect(self, trainer: Any, made: int) -> Dict[str, Any]:
        random = randomness.capture(self._torch)
        place, data = self._positioned, None
        if place is not None and place.passes:
            begun = place.begun[place.passes - 1]
            data = {"begun": begun, "batches": made, "random": place.random_from(made, random)}
        ours = {"lightning": 1, "step": int(trainer.global_step), "random": random, "data": data}
        return {**trainer._checkpoint_connector.dump_checkpoint(weights_only=False), files.OURS: ours}

    def resumed_from(self) -> Optional[str]:
        """Return the supervisor's snapshot, once; raise ValueError where it is damaged."""
        global _used
        path = os.environ.get(ENV_RESUME_FROM, "")
        if not path or _used:
            return None
        _used = True
        found = files.read(self._torch, path, "lightning")
        if found is None:
            return None
        ours = found[files.OURS]
        self._resuming = ours if ours["data"] is not None else None
        torch_hook.steps_were_made(ours["step"])
        events.write("resumed", path=path, epoch=int(found["epoch"]) - 1, step=ours["step"])
        return path
