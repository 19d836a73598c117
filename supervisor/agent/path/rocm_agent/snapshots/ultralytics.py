"""The complete state of an ultralytics training between two batches: how it is captured and how a training resumes it.

The file is a checkpoint of ultralytics (in full precision) that any version resumes by itself, at the start of the
epoch. Everything else is under a key of ours: the weights in addition to their average, the random states, the epoch's
position in its data and its gradients, and the running counts.
"""

# ruff: noqa: PLC0415 - ultralytics is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import builtins
import os
from itertools import islice
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from rocm_agent import claim, save_request, ultralytics_hours
from rocm_agent.fence import failed, fenced

from . import randomness, replicas
from .boundary import Boundary
from .files import OURS
from .keeper import PATIENCE_S, Form, Keeper
from .moment import Moment
from .position import Positioned
from .scaling import scaler_state, settled_scaler
from .ultralytics_epoch import cut, fill_buffer, on, shift, unshift
from .ultralytics_models import models, skeleton, unwrapped
from .ultralytics_validation import Validations

COUNTERS = ("tloss", "loss_names", "metrics", "fitness", "loss", "loss_items")

FINAL_PATIENCE_S = 5.0
"""Waited, after the very last batch, for a snapshot that is still being written: no other comes after it."""

OLDER_TRAINER = "ultralytics.yolo.engine.trainer"
"""Of releases before 8.0.136: their loaders and losses lack what a resume in mid-epoch sets."""

_snapshots: Optional[Snapshots] = None


class Snapshots:
    """Of the training under way in this process."""

    def __init__(self, torch: Any, trainer: Any, batches_made: Callable[[], int]) -> None:
        """Make ready in the set-up, where nothing waits; `batches_made` counts those of the present epoch."""
        self._torch = torch
        self._batches_made = batches_made
        self._size = max(getattr(trainer, "world_size", 0), 1)
        self._skeleton = skeleton(trainer) if claim.rank == 0 else None
        self.keeper = Keeper(torch, Form(self._finish_copy))
        self._together: Optional[Boundary] = None
        """Of several ranks; where they cannot be saved together rank 0 is saved when asked, and resumed by epochs."""
        if self._size > 1:
            self._together = Boundary(torch, "ultralytics", claim.ULTRALYTICS, keeper=self.keeper)
        self._positioned: Optional[Positioned] = None
        self._loader: Any = None
        self._pass: Optional[int] = None
        self._epoch: Optional[int] = None
        self._last_step = -1
        """The batch (counted over all epochs) after which the optimizer stepped last, as the trainer counts."""
        self._resuming: Optional[Dict[str, Any]] = None
        self._rates: List[float] = []
        """The groups' learning rates where the snapshot was taken: the scheduler knows nothing of a warm-up."""
        self._first = 0
        self._validations = Validations(trainer)
        self._watch_optimizer_steps(trainer)

    # --- taking ---------------------------------------------------------------------------------------------------

    def batch_is_over(self, trainer: Any, step: int) -> None:
        """Take a snapshot if one is due: where no gradient is held as a rule, for an optimizer's step is never far.

        Where it is far the interval goes by the clock nevertheless. After the last batch of an epoch one is taken out
        of turn: what ultralytics saves after its validation is in half precision.
        """
        if self._together is not None:
            return
        batches = len(trainer.train_loader)
        if step == (trainer.epoch + 1) * batches:
            final = step >= trainer.epochs * batches
            patience_s = FINAL_PATIENCE_S if final else PATIENCE_S
            collect = lambda: self.collect(trainer, step)  # noqa: E731 - called at once
            self.keeper.take_at_save(collect, step, trainer.epoch - 1, patience_s=patience_s)
        elif self.keeper.wants() and (self._last_step == step - 1 or not self.keeper.reserved or self.keeper.late):
            self.keeper.take(lambda: self.collect(trainer, step), step, trainer.epoch - 1)

    @fenced
    def save_begins(self) -> None:
        """The epoch is validated, and what ultralytics is about to save is in half precision."""
        if self._together is None:
            self.keeper.settle()

    @property
    def together(self) -> bool:
        """Whether several ranks are saved together, at `batch_is_over_everywhere` and nowhere else."""
        return self._together is not None and self._together.listens

    def batch_is_over_everywhere(self, trainer: Any, step: int, recorder: Any) -> Optional[Tuple[int, int]]:
        """Save what the ranks have in common where that is due or asked for; return a command that was served."""
        if self._last_step != step - 1:
            return None
        moment = Moment(
            step=step,
            epoch=trainer.epoch - 1,
            collect=lambda: self.collect(trainer, step),
            own=lambda: self._own_state(trainer, step),
            replicas=lambda: (models(self._torch, trainer), [trainer.optimizer]),
            asked=lambda: save_request.asked(trainer, step),
        )
        return self._together.serve(recorder, moment)

    def collect(self, trainer: Any, step: int) -> Dict[str, Any]:
        """Return the state after `step`, of which nothing is copied yet."""
        from ultralytics import __version__

        model = unwrapped(self._torch, trainer.model)
        stopper = trainer.stopper
        names = ("best_fitness", "best_epoch", "possible_stop")
        return {
            "epoch": trainer.epoch - 1,
            "best_fitness": trainer.best_fitness,
            "stopper": {name: getattr(stopper, name) for name in names if hasattr(stopper, name)},
            "model": None,
            "ema": trainer.ema.ema.state_dict(),
            "updates": trainer.ema.updates,
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": scaler_state(trainer.scaler),
            "train_args": dict(vars(trainer.args)),
            "train_metrics": {**(trainer.metrics or {}), "fitness": trainer.fitness},
            "train_results": {},
            "version": __version__,
            OURS: {
                "step": step,
                "model": model.state_dict(),
                "gradients": self._pending_gradients(model, step),
                replicas.SIZE: self._size,
                **self._own_state(trainer, step),
            },
        }

    def _own_state(self, trainer: Any, step: int) -> Dict[str, Any]:
        return {
            "random": randomness.capture(self._torch),
            "position": self._data_position(trainer, step),
            "counters": {name: getattr(trainer, name, None) for name in COUNTERS},
            "validations": self._validations.made,
            "spent_s": ultralytics_hours.read_spent_s(trainer),
        }

    def _data_position(self, trainer: Any, step: int) -> Optional[Dict[str, Any]]:
        """Return where the epoch stands in its data; None where its order was drawn before it could be recorded."""
        loader = trainer.train_loader
        begun = None if self._positioned is None else self._positioned.begun.get(self._pass)
        if begun is None or loader is not self._loader:
            return None
        buffer = getattr(loader.dataset, "buffer", None)
        return {
            "begun": begun,
            "batches": step - trainer.epoch * len(loader),
            "batch_size": loader.batch_size,
            "workers": self._positioned.workers_at(self._pass, step - trainer.epoch * len(loader)),
            "since_step": step - 1 - self._last_step,
            "buffer": list(buffer) if isinstance(buffer, list) and loader.num_workers == 0 else [],
            "csv_bytes": os.stat(str(trainer.csv)).st_size if os.path.exists(str(trainer.csv)) else 0,
        }

    def _pending_gradients(self, model: Any, step: int) -> Optional[Dict[str, Any]]:
        """Return the gradients that the optimizer has not stepped on yet, None right after its step."""
        if self._last_step == step - 1:
            return None
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    def _finish_copy(self, copied: Dict[str, Any]) -> Dict[str, Any]:
        """Return the copy as a checkpoint: the average as a module, numbers as numbers."""
        for name, tensor in self._skeleton.state_dict(keep_vars=True).items():
            tensor.data = copied["ema"][name].to(tensor.dtype)  # while it validates, ultralytics has it in half
        return {**copied, "ema": self._skeleton, "scaler": settled_scaler(copied["scaler"])}

    # --- following the trainer ------------------------------------------------------------------------------------

    def epoch_starts(self, trainer: Any) -> int:
        """Note how the epoch's data is drawn; return how many batches of the epoch are made already."""
        again = trainer.epoch == self._epoch
        self._epoch = trainer.epoch
        if again:  # ultralytics repeats it, with smaller batches or after NaN: its count of steps starts again
            self._last_step = -1
            self._resuming = None
            unshift(trainer)
        if trainer.train_loader is not self._loader:
            self._note_order(trainer.train_loader)
        return self._resume_position(trainer)

    def _note_order(self, loader: Any) -> None:
        self._loader, self._positioned, self._pass = loader, None, None
        repeating = loader.batch_sampler
        drawn = getattr(loader, "iterator", None) is not None and loader.num_workers
        if drawn or not hasattr(repeating, "sampler"):
            return
        self._positioned = repeating.sampler = Positioned(self._torch, repeating.sampler, loader)

    def _watch_optimizer_steps(self, trainer: Any) -> None:
        original = trainer.optimizer_step

        def optimizer_step(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._note_optimizer_step(trainer)
            return result

        trainer.optimizer_step = optimizer_step

    @fenced
    def _note_optimizer_step(self, trainer: Any) -> None:
        self._last_step = trainer.epoch * len(trainer.train_loader) + self._batches_made()
        unshift(trainer)

    # --- going on in mid-epoch ------------------------------------------------------------------------------------

    def resume(self, trainer: Any, exact: Dict[str, Any]) -> None:
        """Have the first epoch go on where `exact`, what our key held, stood."""
        self._resuming = exact
        self._rates = [group["lr"] for group in trainer.optimizer.param_groups]
        self._validations.resume(self._torch, exact.get("validations", 0))

    def _resume_position(self, trainer: Any) -> int:
        """Have the loader begin where the snapshot stood; return the batches that lie before."""
        self._first = 0
        exact = self._resuming
        if exact is None or self._positioned is None:
            return 0
        position, loader = exact["position"], trainer.train_loader
        total = len(getattr(self._positioned.inner, "sampler", ()))
        done = min(position["batches"] * position["batch_size"], total)
        left = -(-(total - done) // loader.batch_size)
        if getattr(self._positioned.inner, "drop_last", False):
            left = (total - done) // loader.batch_size
        self._first = max(0, len(loader) - left)
        random = {position["batches"]: exact["random"]}
        self._positioned.resume(position["begun"], done, position["batches"], random, position.get("workers"))
        self._last_step = trainer.epoch * len(loader) + self._first - 1 - position["since_step"]
        if claim.rank == 0:
            cut(str(trainer.csv), position["csv_bytes"])
        model = unwrapped(self._torch, trainer.model)
        if self._first == len(loader) and getattr(model, "criterion", None) is None:
            model.criterion = model.init_criterion()  # as the first batch would have, and there is none
        return self._first

    def enumerated(self, loader: Any) -> Iterator[Tuple[int, Any]]:
        """Return what `enumerate(loader)` returns for an epoch, from the batch on with which it goes on."""
        first = self._first
        self._reach_first_batch(loader, first)
        batches = iter(loader)
        yield from builtins.enumerate(islice(batches, len(loader) - first) if first else batches, first)

    @fenced
    def _reach_first_batch(self, loader: Any, first: int) -> None:
        if self._positioned is None:
            return
        fresh = getattr(loader, "iterator", None) is None or loader.num_workers == 0
        self._pass = self._positioned.passes if fresh or self._pass is None else self._pass + 1
        if self._resuming is None or self._resuming["position"] is None:
            return
        fill_buffer(loader.dataset, self._resuming["position"]["buffer"])
        if loader.num_workers:  # workers draw their own seeds from it: not those of another part of the epoch
            loader.generator.set_state(self._resuming["position"]["begun"]["generators"][0].cpu())
            self._torch.empty(first).random_(generator=loader.generator)
        if first == len(loader):  # nothing is left of it but its validation: the order is drawn nevertheless
            if loader.iterator is None:
                loader.iterator = loader._get_iterator()
            if not loader.num_workers:
                list(self._positioned)

    def batch_starts(self, trainer: Any) -> None:
        """Before the first batch that a resumed training makes, give it what the epoch had come to."""
        exact, self._resuming = self._resuming, None
        if exact is None or self._positioned is None:
            return
        self._give_back(trainer, exact, ("tloss",) if self._first else ())
        self._give_gradients_back(trainer, exact)

    def epoch_ends(self, trainer: Any) -> None:
        """Where a resumed epoch had no batch left to make, give it what it had come to."""
        exact, self._resuming = self._resuming, None
        if exact is not None and self._positioned is not None:
            self._give_back(trainer, exact, COUNTERS)
            trainer.lr = dict(zip(getattr(trainer, "lr", ()), self._rates))
            self._give_gradients_back(trainer, exact)

    def _give_gradients_back(self, trainer: Any, exact: Dict[str, Any]) -> None:
        """Give the model the gradients that wait for the optimizer's next step, be it in the next epoch only."""
        model = unwrapped(self._torch, trainer.model)
        for name, parameter in model.named_parameters():
            gradient = (exact["gradients"] or {}).get(name)
            if gradient is not None:
                parameter.grad = gradient.to(parameter.device)
        if self._last_step >= 0:
            shift(trainer, self._last_step + 1)

    def _give_back(self, trainer: Any, exact: Dict[str, Any], names: Tuple[str, ...]) -> None:
        for name in names:
            setattr(trainer, name, on(trainer.device, exact["counters"][name]))


def install(module: ModuleType) -> None:
    """Have the epochs of the trainer in `module`, ultralytics.engine.trainer, counted from where they go on."""

    def enumerate(iterable: Any, start: int = 0) -> Any:  # noqa: A001 - it takes that function's place in the module
        snapshots = _snapshots
        if snapshots is not None and snapshots._loader is iterable and start == 0:
            return snapshots.enumerated(iterable)
        return builtins.enumerate(iterable, start)

    module.enumerate = enumerate


def begin(trainer: Any, batches_made: Callable[[], int]) -> Optional[Snapshots]:
    """Return the snapshots of a training that is set up; None where its state is not all in its tensors."""
    global _snapshots
    _snapshots = None
    try:
        if any(kind.__module__ == OLDER_TRAINER for kind in type(trainer).__mro__):
            raise NotImplementedError("this release of ultralytics resumes at the start of an epoch only")
        import torch

        if getattr(trainer.args, "quantize", None) == 8:
            raise NotImplementedError("a model trained for quantization cannot be saved")
        _snapshots = Snapshots(torch, trainer, batches_made)
    except Exception as error:
        failed("snapshots.ultralytics", error)
    return _snapshots
