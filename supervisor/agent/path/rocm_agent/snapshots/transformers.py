"""Snapshots of a Hugging Face Trainer: taken by a callback at its steps, handed back as a checkpoint of its own form.

The Trainer's own resume does the work: it reads a folder that is made for it from the snapshot, and passes over the
batches that were made. Only the weights go straight into the model, and the random states come back batch by batch,
which the Trainer's own do a batch late. Weights that are spread over processes are left to the Trainer's own saving.
"""

# ruff: noqa: PLC0415 - torch is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import json
import os
import shutil
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

from rocm_agent import claim, events, exceptions, torch_hook
from rocm_agent.fence import fenced
from rocm_agent.layout import VALIDATE
from rocm_agent.plan import Plan

from . import files, fits, randomness, replicas
from .boundary import Boundary
from .keeper import Form
from .moment import Moment
from .position import Positioned, positioned
from .scaling import scaler_state, settled_scaler
from .transformers_checkpoint import STATE, WEIGHTS, facts_of, unpack
from .transformers_place import Place, given_step, lost_batches, place_of, release_here, resumed_place

ROOTS = ("model", "optimizer")
FOLDER = ".rocm_supervisor-resume"


def install(module: ModuleType) -> None:
    """Have every Trainer of `module`, transformers.trainer, follow its steps and resume from snapshots."""
    trainer = module.Trainer
    made, train = trainer.__init__, trainer.train

    @wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        made(self, *args, **kwargs)
        _follow_trainer(self, module.TrainerCallback)

    @wraps(train)
    def train_or_resume(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        snapshots = vars(self).get("_rocm_snapshots")
        if snapshots is None:
            return train(self, resume_from_checkpoint, *args, **kwargs)
        with snapshots.training(self):
            found = snapshots.begins(self, resume_from_checkpoint)
            try:
                with exceptions.Training():
                    result = train(self, found, *args, **kwargs)
            finally:
                snapshots.ends(self)
        torch_hook.fit_is_over()
        return result

    trainer.__init__, trainer.train = __init__, train_or_resume


@fenced
def _follow_trainer(trainer: Any, base: type) -> None:
    import torch

    trainer._rocm_snapshots = snapshots = Snapshots(torch, trainer)

    class Following(base):  # type: ignore[misc] # a class of the user's environment
        """Tells the snapshots where the training stands."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.train_begins(trainer)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.epoch_begins(trainer)

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.batches_made += 1

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.batches_made += 1
            snapshots.plans(state)
            snapshots.step_ends(trainer)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.saved(trainer)

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.evaluated()

    trainer.add_callback(Following())


class Snapshots:
    """Of one Trainer."""

    def __init__(self, torch: Any, trainer: Any) -> None:
        self._torch = torch
        self._boundary = Boundary(torch, "transformers", claim.GENERIC, Form(self._finish_copy, lambda: ROOTS))
        self._positioned: Optional[Positioned] = None
        self._data: Optional[Dict[str, Any]] = None
        self._buffers: Dict[str, Any] = {}
        self._folder = ""
        self._plan = Plan("transformers")
        self._replaced: List[str] = []
        self._place: Dict[str, int] = {fits.FIT: 1, fits.BEFORE: 0}
        self._epoch: Optional[int] = None
        """The one under way; None before the first that this process trains."""
        self.batches_made = 0
        """Of that epoch."""
        self._stood: Optional[Place] = None
        """Where the snapshot stood that is taken up, and by the Trainer's own count the steps made."""
        self._true_step: Optional[int] = None

    # --- while it trains ------------------------------------------------------------------------------------------

    def training(self, trainer: Any) -> Any:
        """Return a context in which the trainer's loaders are followed."""
        self._replace_method(trainer, "get_train_dataloader", self._follow_dataloader(trainer.get_train_dataloader))
        return _Leaving(lambda: self._restore_methods(trainer))

    def _replace_method(self, trainer: Any, name: str, function: Any) -> None:
        self._replaced.append(name)
        setattr(trainer, name, function)

    def _restore_methods(self, trainer: Any) -> None:
        for name in self._replaced:
            vars(trainer).pop(name, None)
        self._replaced = []
        self._remove_folder()

    def _follow_dataloader(self, original: Any) -> Any:
        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = original(*args, **kwargs)
            self._follow_loader(loader)
            return loader

        return get_train_dataloader

    @fenced
    def _follow_loader(self, loader: Any) -> None:
        self._positioned = positioned(self._torch, getattr(loader, "base_dataloader", loader), ahead=True)

    @fenced
    def train_begins(self, trainer: Any) -> None:
        """DDP has given every rank the buffers of rank 0: give this one its own; and the place in the data is found."""
        step, self._true_step = self._true_step, None
        if step is not None:
            trainer.state.global_step = step
        buffers, self._buffers = self._buffers, {}
        replicas.put_buffers(self._torch, {"model": trainer.model}, buffers)

    @fenced
    def epoch_begins(self, trainer: Any) -> None:
        """Count epochs and their batches, and go on in the first one where the snapshot stood.

        Not before: up to 4.35 the Trainer begins the passes of earlier epochs, for what they draw.
        """
        data, self._data = self._data, None
        stood, self._stood = self._stood, None
        if self._epoch is not None:
            self._epoch, self.batches_made = self._epoch + 1, 0
        elif stood is not None:
            self._epoch, self.batches_made = stood.epoch, stood.batches
        else:
            self._epoch, self.batches_made = int(trainer.state.epoch or 0), self._batches_passed_over(trainer)
        torch_hook.epoch_is(self._epoch)
        if data is not None and self._positioned is not None:
            left_out = 0 if stood is None else stood.batches - given_step(stood, 0, release_here())[1]
            size = getattr(self._positioned.inner, "batch_size", None) or 0
            self._positioned.resume(data["begun"], left_out * size, left_out, data["random"], data.get("workers"))

    def plans(self, state: Any) -> None:
        """Tell how long the training will be."""
        epochs, steps = state.num_train_epochs, state.max_steps
        self._plan.report(epochs, self._place[fits.BEFORE] + steps, steps / epochs if epochs else None)

    def step_ends(self, trainer: Any) -> None:
        """Save where that is due."""
        self._remove_folder()

        def look(recorder: Any) -> Optional[Moment]:
            if _is_sharded(trainer):
                raise NotImplementedError("weights spread over processes are not saved between two checkpoints")
            if self._epoch_is_over(trainer) and (trainer.args.world_size > 1 or recorder.command() is None):
                return None  # its evaluation is still to come, and would be skipped
            return self._moment_after(trainer)

        self._boundary.reached(look)

    def _moment_after(self, trainer: Any) -> Moment:
        step = self._place[fits.BEFORE] + int(trainer.state.global_step)
        return Moment(
            step=step,
            epoch=None,
            collect=lambda: self._collect_state(trainer, step),
            own=lambda: self._own_state(trainer),
            replicas=lambda: _list_replicas(trainer),
        )

    @fenced
    def saved(self, trainer: Any) -> None:
        """Report a checkpoint that the Trainer has saved itself."""
        if claim.holding() is None or claim.rank != 0:
            return
        made = int(trainer.state.global_step)
        if not _is_sharded(trainer):
            self._boundary.snapshot_at_save(self._moment_after(trainer))
        folder = os.path.abspath(os.path.join(trainer.args.output_dir, "checkpoint-%d" % made))
        paths = [os.path.join(folder, name) for name in WEIGHTS if os.path.isfile(os.path.join(folder, name))]
        if paths and os.path.isfile(os.path.join(folder, STATE)):
            step = self._place[fits.BEFORE] + made
            events.write("checkpoint_saved", paths=paths[:1], epoch=None, step=step, requested=False)

    @fenced
    def evaluated(self) -> None:
        """Say that this is no stall; the next step ends it."""
        recorder = claim.holding()
        if recorder is not None and claim.is_reporting(claim.GENERIC):
            recorder.stage = VALIDATE

    def _collect_state(self, trainer: Any, step: int) -> Dict[str, Any]:
        scaler = getattr(trainer.accelerator, "scaler", None)
        ours = {"transformers": 1, "step": step, **self._place, **self._where(trainer), **self._own_state(trainer)}
        return {
            "step": step,
            files.OURS: ours,
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler_state(scaler),
            "trainer_state": SimpleNamespace(**facts_of(trainer)),
        }

    def _where(self, trainer: Any) -> Dict[str, Any]:
        if self._positioned is None or self._epoch is None:
            return {}
        return {"place": list(place_of(trainer, self._epoch, self.batches_made, len(self._positioned)))}

    def _own_state(self, trainer: Any) -> Dict[str, Any]:
        random = randomness.capture(self._torch)
        return {"random": random, "data": self._data_position(trainer, random)}

    def _data_position(self, trainer: Any, random: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Return how the pass under way began and the random states to go on with; None between two passes."""
        made, batches = self._positioned, self.batches_made
        if made is None or not made.passes or not batches or batches >= len(made):
            return None
        number = made.passes - 1
        return {
            "begun": made.begun[number],
            "batches": batches,
            "random": made.random_from(batches, random),
            "workers": made.workers_at(number, batches),
        }

    def _batches_passed_over(self, trainer: Any) -> int:
        """Return how many batches of an epoch the Trainer passes over that resumes a checkpoint of its own."""
        accumulated = trainer.args.gradient_accumulation_steps
        return int(trainer.state.global_step % self._steps_per_epoch(trainer) * accumulated)

    def _steps_per_epoch(self, trainer: Any) -> int:
        """Return the steps of an epoch, 1 where its length is unknown."""
        size = 0 if self._positioned is None else len(self._positioned)
        return max(-(-size // trainer.args.gradient_accumulation_steps), 1)

    def _epoch_is_over(self, trainer: Any) -> bool:
        return self._steps_per_epoch(trainer) > 1 and self.batches_made >= len(self._positioned or ())

    def _finish_copy(self, copied: Dict[str, Any]) -> Dict[str, Any]:
        text = json.dumps(vars(copied["trainer_state"]))
        scaler = copied["scaler"]
        return {**copied, "trainer_state": text, "scaler": None if scaler is None else settled_scaler(scaler)}

    # --- going on -------------------------------------------------------------------------------------------------

    def begins(self, trainer: Any, asked: Any) -> Any:
        """Return the checkpoint to resume from: the supervisor's if it is this training's, else what the script wants.

        Raises ValueError where the snapshot is damaged.
        """
        self._place, self._epoch = fits.begin(counted=torch_hook.step_number()), None
        path, found = fits.find_checkpoint(lambda path: files.read(self._torch, path, "transformers"))
        if not path:
            return asked
        if found is None:
            folder = os.path.dirname(path)
            return folder if not asked and os.path.isfile(os.path.join(folder, STATE)) else asked
        found, problem = replicas.of_this_rank(self._torch, found)
        ours = found[files.OURS]
        self._place = {**self._place, fits.BEFORE: ours.get(fits.BEFORE, 0)}
        trainer.model.load_state_dict(found["model"])
        self._replace_method(trainer, "_load_from_checkpoint", lambda *_, **__: None)
        self._folder = os.path.join(trainer.args.output_dir, "%s%d" % (FOLDER, claim.rank))
        if problem:
            ours = {}
            problem += ", and the Trainer goes on by the number of its steps"
        self._data, self._buffers = ours.get("data"), ours.get(replicas.BUFFERS, {})
        self._stood = resumed_place(trainer, ours)
        if self._stood is not None:
            problem = problem or lost_batches(self._stood, release_here())
            found = {**found, "trainer_state": self._renumber(found["trainer_state"], self._stood)}
        unpack(self._torch, trainer, self._folder, found, ours)
        torch_hook.steps_were_made(found["step"])
        replicas.resumed(None, found["step"], problem)
        return self._folder

    def _renumber(self, text: str, stood: Place) -> str:
        """Return the Trainer's state numbered so that this release goes on there; note the true number."""
        facts = json.loads(text)
        self._true_step = facts["global_step"]
        facts["global_step"] = given_step(stood, self._true_step, release_here())[0]
        return json.dumps(facts)

    @fenced
    def ends(self, trainer: Any) -> None:
        """It has come to its end, or raised."""
        fits.end(self._place, int(trainer.state.global_step))

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


class _Leaving:
    def __init__(self, leave: Any) -> None:
        self._leave = leave

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        self._leave()


def _list_replicas(trainer: Any) -> Tuple[Dict[str, Any], List[Any]]:
    return {"model": trainer.model}, [trainer.optimizer]


def _is_sharded(trainer: Any) -> bool:
    """Whether no process has the complete state."""
    return getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False)
