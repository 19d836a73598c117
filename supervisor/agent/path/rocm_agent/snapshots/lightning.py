"""Snapshots of a Lightning Trainer: its own checkpoint, taken at a step boundary, with its position in the data added.

Lightning's own resume reads the file and goes on in mid-epoch; its loaders begin at the beginning, and that is put
right here. A step is one of the optimizer that counts the steps: Lightning's `global_step` counts those of all its
optimizers, and none that a program calls past it.
"""

# ruff: noqa: PLC0415 - torch is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import math
import os
import sys
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from rocm_agent import claim, exceptions, origin, torch_hook
from rocm_agent.fence import fenced
from rocm_agent.plan import Plan

from . import files, fits, randomness, replicas
from .boundary import Boundary
from .keeper import Form
from .moment import Moment
from .position import Positioned, positioned

ROOTS = ("state_dict", "optimizer_states")
PICKLING_NOTHING = "_SubprocessScriptLauncher"
"""It starts the other ranks with the same script."""
BATCHES_SEEN = 20
"""By so many batches of manual optimization it is known whether each makes one step."""
EPOCHS_RECKONED = 100000
"""The steps of more epochs are not added up, where a schedule makes them differ."""


def install(module: ModuleType) -> None:
    """Have the Trainer of `module`, lightning.pytorch.trainer.trainer, follow its steps and resume from snapshots."""
    trainer = module.Trainer
    fit = trainer.fit

    @wraps(fit)
    def fit_or_resume(self: Any, *args: Any, **kwargs: Any) -> Any:
        followed = _follow_trainer(self, module.__name__.rpartition(".trainer.trainer")[0])
        path = None if followed is None else followed.begins(self)
        if path is not None:
            kwargs["ckpt_path"] = path
            args = args[:4]  # model, training, validation, data module; the fifth would be another path
            if "weights_only" in signature(fit).parameters:
                # From 2.6 on only tensors are loaded unless asked; hyperparameters may hold classes of the user's.
                kwargs["weights_only"] = False
        try:
            with exceptions.Training():
                result = fit(self, *args, **kwargs)
        finally:
            if followed is not None:
                followed.ends(self)
        torch_hook.fit_is_over()
        return result

    trainer.fit = fit_or_resume


@fenced
def _follow_trainer(trainer: Any, package: str) -> Optional[Snapshots]:
    """Return the snapshots of a trainer, with a callback telling them of its steps; None where it is to be pickled.

    What is put on it here cannot be.
    """
    import torch

    launcher = getattr(trainer.strategy, "launcher", None)
    if launcher is not None and type(launcher).__name__ != PICKLING_NOTHING:
        return None
    found = vars(trainer).get("_rocm_snapshots")
    if found is not None:
        return found
    trainer._rocm_snapshots = snapshots = Snapshots(torch, trainer, package.partition(".")[0])
    trainer.save_checkpoint = snapshots.around_saving(trainer.save_checkpoint)
    base = sys.modules[package + ".callbacks"].Callback

    class Following(base):  # type: ignore[misc] # a class of the user's environment
        """Tells the snapshots where the training stands."""

        def on_train_start(self, *_: Any, **__: Any) -> None:
            snapshots.train_starts(trainer)

        def on_train_epoch_start(self, *_: Any, **__: Any) -> None:
            torch_hook.epoch_is(int(trainer.current_epoch))

        def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            snapshots.batch_begins(trainer)

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            snapshots.plans(trainer)
            snapshots.batch_ends(trainer)

    trainer.callbacks.append(Following())
    return snapshots


class Snapshots:
    """Of one Trainer."""

    def __init__(self, torch: Any, trainer: Any, package: str) -> None:
        self._torch = torch
        self._boundary = Boundary(torch, "lightning", claim.GENERIC, Form(roots=lambda: ROOTS))
        self._positioned: Optional[Positioned] = None
        self._resuming: Optional[Dict[str, Any]] = None
        """The snapshot, until the ranks are known."""
        self._data: Optional[Dict[str, Any]] = None
        self._buffers: Dict[str, Any] = {}
        self._restarted = False
        self._amid_epoch: Optional[int] = None
        """How many batches of its epoch a snapshot which was taken up had made, until the loops are restored."""
        self._plan = Plan(package)
        self._in_setup = False
        self._loaders = 0
        self._place: Dict[str, int] = {fits.FIT: 1, fits.BEFORE: 0}
        self._last_step = 0
        """At the end of the batch before."""
        self._stepped = False
        """Whether that batch made a step."""
        self._batches, self._steps = 0, 0
        """Made since this process began the training."""
        self._places = 0
        """Batches of this epoch at whose end a snapshot could be taken."""
        self._own_steps = 0
        """How many the earlier calls of fit made."""
        self._follow_loaders(trainer)

    def _follow_loaders(self, trainer: Any) -> None:
        owner, name = _find_loader_setup(trainer)
        setup, process = getattr(owner, name), trainer.strategy.process_dataloader

        def setup_data(*args: Any, **kwargs: Any) -> Any:
            self._in_setup, self._loaders = True, 0
            if self._resuming is not None:
                self._find_place(trainer)
            try:
                return setup(*args, **kwargs)
            finally:
                self._in_setup = False

        def process_dataloader(loader: Any) -> Any:
            made = process(loader)
            if self._in_setup:
                self._follow_loader(made)
            return made

        setattr(owner, name, setup_data)
        trainer.strategy.process_dataloader = process_dataloader

    @fenced
    def _follow_loader(self, loader: Any) -> None:
        """Follow the one loader of the training before its first pass; of several none, for they have no one place."""
        self._loaders += 1
        self._positioned = positioned(self._torch, loader) if self._loaders == 1 else None
        data, self._data = self._data, None
        if data is not None and self._positioned is not None:
            samples = data["batches"] * self._positioned.batch_samples
            self._positioned.resume(data["begun"], samples, data["batches"], data["random"], data.get("workers"))

    def batch_begins(self, trainer: Any) -> None:
        """Save where that is due before the first batch of an epoch, where the epoch before it had no other place.

        As with one batch an epoch, or one step of all its batches.
        """
        if _batches_ready(trainer) == 1:
            places, self._places = self._places, 0
            if self._stepped and not places:
                self._boundary.reached(lambda _: self._moment_after(trainer, 0))

    def batch_ends(self, trainer: Any) -> None:
        """Save where that is due, after a batch that made a step, and not at the end of an epoch.

        The last place before that end is at the checkpoint that Lightning saves there, without its random states.
        """
        before, self._last_step = self._last_step, torch_hook.step_number()
        self._stepped = self._last_step != before
        made = _batches_ready(trainer) or 0
        is_place = self._stepped and 0 < made < trainer.num_training_batches
        self._places += is_place
        self._batches, self._steps = self._batches + 1, self._steps + self._last_step - before

        def look(_: Any) -> Optional[Moment]:
            return self._moment_after(trainer, made) if is_place else None

        self._boundary.reached(look)
        self._snapshot_at_save(trainer, look)

    def _moment_after(self, trainer: Any, made: int) -> Moment:
        return Moment(
            step=self._last_step,
            epoch=int(trainer.current_epoch) - 1,
            collect=lambda: self._collect_state(trainer, made),
            own=lambda: self._own_state(made),
            replicas=lambda: _list_replicas(trainer),
        )

    @fenced
    def _snapshot_at_save(self, trainer: Any, look: Callable[[Any], Optional[Moment]]) -> None:
        last = (_batches_ready(trainer) or 0) + trainer.accumulate_grad_batches >= trainer.num_training_batches
        moment = look(None) if last and trainer.checkpoint_callbacks else None
        if moment is not None:
            self._boundary.snapshot_at_save(moment)

    def around_saving(self, save: Any) -> Any:
        """Return Lightning's `save_checkpoint`, which waits for the first snapshot and reports the step of its file."""
        settle = fenced(self._boundary.settle)

        @wraps(save)
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            settle()
            result = save(filepath, *args, **kwargs)
            _report_saved(filepath)
            return result

        return save_checkpoint

    def plans(self, trainer: Any) -> None:
        """Tell how long the training will be; whether its program steps at each batch is seen from its first ones."""
        automatic = trainer.lightning_module.automatic_optimization
        if not self._plan.reported:
            self._report_plan(trainer, steps_are_known=automatic)
        elif not automatic and self._batches == min(trainer.num_training_batches, BATCHES_SEEN) == self._steps:
            self._plan.reported = False
            self._report_plan(trainer, steps_are_known=True)

    @fenced
    def _report_plan(self, trainer: Any, *, steps_are_known: bool) -> None:
        """Report epochs and steps; Lightning's own estimate takes the present accumulation for that of all epochs.

        Its limit of steps is of Lightning's count, which has a step for each optimizer that steps: with several of them
        it is not known how many will be recorded. In manual optimization it takes each batch for a step.
        """
        if not steps_are_known:
            self._plan.report(trainer.max_epochs, None, None)
            return
        batches, schedules = trainer.num_training_batches, _list_schedules(trainer)
        limit = trainer.max_steps if (trainer.max_steps or 0) > 0 else math.inf
        if schedules:
            steps, planned = None, min(_steps_by_schedule(schedules[-1], trainer.max_epochs, batches), limit)
        else:
            accumulated = max(int(trainer.accumulate_grad_batches), 1)
            steps = -(-int(batches) // accumulated) if batches != math.inf else None
            planned = trainer.estimated_stepping_batches
        is_known = planned > 0 and not (len(trainer.optimizers) > 1 and limit < math.inf)
        self._plan.report(trainer.max_epochs, self._place[fits.BEFORE] + planned if is_known else None, steps)

    def _collect_state(self, trainer: Any, made: int) -> Dict[str, Any]:
        ours = {"lightning": 1, "step": torch_hook.step_number(), "batches": made, **self._place}
        ours.update(self._own_state(made))
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if not made:
            _take_begun_batch_back(state)
        return {**state, files.OURS: ours}

    def _own_state(self, made: int) -> Dict[str, Any]:
        random = randomness.capture(self._torch)
        place, data = self._positioned, None
        if place is not None and place.passes:
            begun, workers = place.begun[place.passes - 1], place.workers_at(place.passes - 1, made)
            # A pass of which no batch is made is drawn again from its beginning, with its first batch.
            random_by_batch = place.random_from(made, random) if made else {}
            data = {"begun": begun, "batches": made, "random": random_by_batch, "workers": workers}
        return {"random": random, "data": data}

    def begins(self, trainer: Any) -> Optional[str]:
        """Return the supervisor's snapshot where it is one of this training; raise ValueError where it is damaged."""
        self._place = fits.begin(self._own_steps, torch_hook.step_number())
        path, found = fits.find_checkpoint(lambda path: files.read(self._torch, path, "lightning"))
        self._last_step = torch_hook.step_number()
        if found is None:
            return None
        self._resuming = found
        self._place = {**self._place, fits.BEFORE: found[files.OURS].get(fits.BEFORE, 0)}
        self._last_step = found[files.OURS]["step"]
        torch_hook.steps_were_made(self._last_step)
        return path

    @fenced
    def ends(self, trainer: Any) -> None:
        """It has come to its end, or raised."""
        self._own_steps = max(torch_hook.step_number() - self._place[fits.BEFORE], 0)
        fits.end(self._place, self._own_steps)

    @fenced
    def _find_place(self, trainer: Any) -> None:
        """Find this rank's part of the snapshot, now that ranks are known, before any loader is followed."""
        found, self._resuming = self._resuming, None
        found, problem = replicas.of_this_rank(self._torch, found)
        ours = found[files.OURS]
        if problem:
            problem += ", and the epoch starts over"
            self._restarted = True
        else:
            self._data, self._buffers = ours["data"], ours.get(replicas.BUFFERS, {})
            self._amid_epoch = ours.get("batches", 1)
        replicas.resumed(int(found["epoch"]) - 1, ours["step"], problem)

    @fenced
    def train_starts(self, trainer: Any) -> None:
        """All is restored, and DDP has given every rank the buffers of rank 0: give this one its own."""
        restarted, self._restarted = self._restarted, False
        if restarted:
            trainer.fit_loop.epoch_loop.restarting = False
        batches, self._amid_epoch = self._amid_epoch, None
        if batches is not None:
            _go_on_amid_epoch(trainer.fit_loop, batches)
            _enter_epoch(trainer)
        buffers, self._buffers = self._buffers, {}
        replicas.put_buffers(self._torch, _list_replicas(trainer)[0], buffers)


@fenced
def _report_saved(path: Any) -> None:
    """Report the step of what Lightning has saved; a file that is written in the background is not there yet."""
    step, reports = torch_hook.step_number(), claim.holding() is not None and claim.is_reporting(claim.GENERIC)
    if step and reports and claim.rank == 0 and os.path.isfile(path):
        origin.saves(path, step)


def _find_loader_setup(trainer: Any) -> Tuple[Any, str]:
    """Return what sets up the loaders of a training and the name of the method, in Lightning 2 or 1."""
    if hasattr(trainer.fit_loop, "setup_data"):
        return trainer.fit_loop, "setup_data"
    return trainer, "reset_train_dataloader"


def _go_on_amid_epoch(fit_loop: Any, batches: int) -> None:
    """Put right how Lightning goes on from a state that was taken after so many batches of an epoch.

    A fit that restarts does not step the schedulers of the learning rate that follow a metric when its epoch ends, and
    up to 2.4 it steps the others twice. Up to 2.4 it also trains again on that last batch, which it counts as completed
    after the callbacks of its end; later releases see by the other counts that it was made.
    """
    fit_loop._restarting = False  # of this loop alone: that of the batches restarts
    if not batches:
        fit_loop.epoch_loop.restarting = False
    elif not hasattr(type(fit_loop.epoch_loop), "restarted_on_train_batch_end"):
        fit_loop.epoch_loop.batch_progress.increment_completed()


def _enter_epoch(trainer: Any) -> None:
    """Do what callbacks do when an epoch begins: from 2.5 on none is told that one goes on."""
    epoch = int(trainer.current_epoch)
    torch_hook.epoch_is(epoch)
    for schedule in _list_schedules(trainer):
        trainer.accumulate_grad_batches = schedule(epoch)


def _steps_by_schedule(schedule: Callable[[int], int], epochs: Optional[int], batches: float) -> float:
    """Return the steps of all epochs; infinite where they are not counted."""
    if batches == math.inf or not 0 < (epochs or 0) <= EPOCHS_RECKONED:
        return math.inf
    return sum(-(-int(batches) // max(schedule(epoch), 1)) for epoch in range(epochs or 0))


def _list_schedules(trainer: Any) -> List[Callable[[int], int]]:
    """Return of each callback that changes over how many batches gradients are accumulated: epoch -> batches."""
    changing = [item for item in trainer.callbacks if len(set(getattr(item, "scheduling", None) or ())) > 1]
    found = [getattr(callback, "get_accumulate_grad_batches", None) for callback in changing]
    return [schedule for schedule in found if schedule is not None]


@fenced
def _batches_ready(trainer: Any) -> int:
    """Return the number of the epoch's newest batch, from 1."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def _take_begun_batch_back(state: Dict[str, Any]) -> None:
    """Have a state that was taken when the first batch of an epoch had begun say that none has."""
    progress = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts["ready"] -= 1
    progress["is_last_batch"] = False


def _list_replicas(trainer: Any) -> Tuple[Dict[str, Any], List[Any]]:
    return {"model": trainer.lightning_module}, list(trainer.optimizers)
