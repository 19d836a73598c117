"""Makes the first ultralytics training of a process resume from the checkpoint that the daemon chose.

It asks for what `yolo train resume=PATH` asks for, whichever way the training was started, and leaves the work and the
refusals to ultralytics: a checkpoint that cannot be resumed must not start a training from the beginning.
"""

# ruff: noqa: PLC0415 - torch is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import math
import os
import re
import sys
import weakref
import zipfile
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Tuple

from . import claim, ultralytics_results
from .fence import failed, fenced
from .layout import ENDED, ENV_RESUME_FROM
from .snapshots import files, replicas
from .snapshots.files import OURS
from .snapshots.ultralytics_models import models, unwrapped

NUMBER = re.compile(r"\d+")

_resuming: Optional[weakref.ref] = None
"""The trainer that this process resumes."""
_used = False
_exact: Optional[Dict[str, Any]] = None
"""What our own save had added to the checkpoint that is resumed, as far as it is of use here."""
_over = False
"""Whether all epochs were made before, and only what comes after them is left."""
_lost = ""
"""Why the training does not continue in mid-epoch."""


def install(module: ModuleType) -> None:
    """Wrap the places of `module` and its BaseTrainer where a resume is decided, loaded and applied."""
    trainer = module.BaseTrainer
    if hasattr(module, "attempt_load_one_weight"):
        module.attempt_load_one_weight = _with_a_model(module.attempt_load_one_weight)
    trainer.__init__ = _asked_to_resume(trainer.__init__)
    trainer.setup_model = _loading_the_checkpoint(trainer.setup_model)
    trainer.resume_training = _wrap_resume_training(trainer.resume_training)
    trainer._do_train = _wrap_do_train(trainer._do_train)
    if hasattr(trainer, "_model_train"):
        trainer._model_train = _or_over(trainer._model_train)
    else:  # until some release of ultralytics 8.3
        trainer.run_callbacks = _or_over(trainer.run_callbacks, "on_train_epoch_start")


def _asked_to_resume(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        args, kwargs = _with_resume(self, args, kwargs) or (args, kwargs)
        path = os.environ.get(ENV_RESUME_FROM, "")
        if is_resuming(self) and zipfile.is_zipfile(path):
            files.verify(path)
        original(self, *args, **kwargs)

    return __init__


@fenced
def _with_resume(trainer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
    """Return the arguments (cfg, overrides, _callbacks) with a copy of the overrides that asks to resume."""
    global _resuming, _used
    path = os.environ.get(ENV_RESUME_FROM)
    if not path or _used:
        return None
    positional = len(args) > 1
    own = _without_example_data((args[1] if positional else kwargs.get("overrides")) or {})
    if _is_of_other_data(path, own.get("data")):
        return None
    _used = True
    if claim.left_behind() == ENDED:
        return None  # an earlier training of this attempt came to its end: this is the script's next one
    _resuming = weakref.ref(trainer)
    overrides = dict(own, resume=path)
    if positional:
        return ((args[0], overrides, *args[2:]), kwargs)
    return (args, dict(kwargs, overrides=overrides))


def _without_example_data(own: Dict[str, Any]) -> Dict[str, Any]:
    """Return the overrides without data that the program did not name.

    Where `resume=True` finds a last.pt whose optimizer was removed already, ultralytics starts a new training, of the
    data of its examples.
    """
    examples = getattr(sys.modules.get("ultralytics.cfg"), "TASK2DATA", {})
    example = examples.get(own.get("task"))
    if own.get("resume") is False and example is not None and own.get("data") == example:
        return dict(own, data=None)
    return own


def _is_of_other_data(path: str, data: object) -> bool:
    """Whether a checkpoint is one of another fold: it was trained on data whose name has other numbers.

    The file's name alone is compared: ultralytics replaces what it is given by the file that it found. A name that
    differs by more may be a new one for the same data, and a training is not started over for that.
    """
    if not isinstance(data, (str, os.PathLike)):
        return False
    wanted = _name_of(data)
    if NUMBER.search(wanted) is None:
        return False  # the file, as large as the model and its optimizer, need not be read for that
    import torch

    try:
        found = files.load(torch, path)
    except Exception:  # what is damaged is refused where it is resumed
        return False
    trained_on = (found.get("train_args") or {}).get("data") if isinstance(found, dict) else None
    if not isinstance(trained_on, (str, os.PathLike)):
        return False
    had = _name_of(trained_on)
    return wanted != had and NUMBER.sub("#", wanted) == NUMBER.sub("#", had)


def _name_of(path: Any) -> str:
    return os.path.basename(os.path.normpath(os.fspath(path)))


def is_resuming(trainer: Any) -> bool:
    """Whether this trainer was given a checkpoint by the daemon."""
    return _resuming is not None and _resuming() is trainer


def _loading_the_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def setup_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Model.train() hands over a model it has made, and then nothing would be loaded.
        if is_resuming(self) and not isinstance(self.model, (str, os.PathLike)):
            self.model = self.args.model
        return original(self, *args, **kwargs)

    return setup_model


def _with_a_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give a snapshot of ours the model that ultralytics 8.0 asks for: what it loaded, for a snapshot has none."""

    @wraps(original)
    def attempt_load_one_weight(*args: Any, **kwargs: Any) -> Any:
        weights, ckpt = original(*args, **kwargs)
        if isinstance(ckpt, dict) and OURS in ckpt and ckpt.get("model") is None:
            ckpt["model"] = weights
        return weights, ckpt

    return attempt_load_one_weight


def _wrap_resume_training(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resume_training(self: Any, ckpt: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_resuming(self) or not isinstance(ckpt, dict):
            return original(self, ckpt, *args, **kwargs)
        global _over
        ckpt = _with_exact(ckpt) or ckpt
        if ckpt.get("optimizer") is not None and _is_over(self, ckpt):
            _over = True
            _load_state(self, original, ckpt)
            self.start_epoch = int(ckpt["epoch"]) + 1
        elif ckpt.get("epoch") == -1 and ckpt.get("optimizer") is not None:
            _load_state(self, original, ckpt)
            self.start_epoch = 0
        else:
            original(self, ckpt, *args, **kwargs)
        _load_exact_model(self, ckpt)
        _complete_results(self, ckpt)
        _report_resume(self, ckpt)
        return None

    return resume_training


@fenced
def _with_exact(ckpt: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return the checkpoint with full-precision average and optimizer, where a save before snapshots added them."""
    exact = ckpt.get(OURS)
    if not exact or "ema" not in exact:
        return None
    ckpt["ema"].float().load_state_dict(exact["ema"])
    return dict(ckpt, optimizer=exact["optimizer"])


def _is_over(trainer: Any, ckpt: Dict[str, Any]) -> bool:
    """Whether the checkpoint holds the last epoch: of all, or that after which the training stopped early."""
    made = int(ckpt.get("epoch", -1)) + 1
    patience = getattr(trainer.args, "patience", 0) or math.inf
    best_epoch = (ckpt.get("stopper") or {}).get("best_epoch")
    stopped = made > 0 and best_epoch is not None and made - best_epoch >= patience
    return made >= trainer.epochs or stopped


def _load_state(trainer: Any, original: Callable[..., Any], ckpt: Dict[str, Any]) -> None:
    """Load the state of a checkpoint that ultralytics takes for one of a training that is finished.

    It calls the method that does not check this where there is one. For older versions the checkpoint is presented as
    epoch 0 of a long training, which is corrected afterwards.
    """
    if hasattr(trainer, "_load_checkpoint_state"):
        trainer._load_checkpoint_state(ckpt)
        return
    epochs = trainer.epochs
    trainer.epochs = epochs + int(getattr(trainer.args, "close_mosaic", 0) or 0) + 2
    try:
        original(trainer, dict(ckpt, epoch=0))
    finally:
        trainer.epochs = epochs


class _Over(BaseException):
    """All epochs are made: what is left is what comes after them."""


def _or_over(original: Callable[..., Any], *event: str) -> Callable[..., Any]:
    """Wrap a method that each epoch begins with, or its call with an event."""

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _over and args[: len(event)] == event and is_resuming(self):
            raise _Over
        return original(self, *args, **kwargs)

    return method


def _wrap_do_train(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have a training that had made its last epoch do what ultralytics does after it: validate, strip, plot."""

    @wraps(original)
    def _do_train(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _over
        try:
            return original(self, *args, **kwargs)
        except _Over:
            _over = False
        self.epoch = self.start_epoch - 1
        self.final_eval()
        if claim.rank == 0:
            if self.args.plots:
                self.plot_metrics()
            self.run_callbacks("on_train_end")
        getattr(self, "_clear_memory", lambda: None)()  # older releases have none
        for loader in (self.train_loader, self.test_loader):
            if hasattr(loader, "close"):
                loader.close()
        return None

    return _do_train


@fenced
def _load_exact_model(trainer: Any, ckpt: Dict[str, Any]) -> None:
    """Give the model its own weights back: ultralytics goes on from their average."""
    global _exact, _lost
    if ckpt.get(OURS):
        import torch

        found, _lost = replicas.of_this_rank(torch, ckpt)
        exact = found[OURS]
        unwrapped(torch, trainer.model).load_state_dict(exact["model"])
        replicas.put_buffers(torch, models(torch, trainer), exact.get(replicas.BUFFERS, {}))
        _exact = None if _lost else exact


@fenced
def _complete_results(trainer: Any, ckpt: Dict[str, Any]) -> None:
    ultralytics_results.complete(sys.modules.get("torch"), trainer, ckpt, os.environ[ENV_RESUME_FROM])


def taken_up(trainer: Any) -> Optional[Dict[str, Any]]:
    """Return once, to the trainer that resumes, what mid-epoch needs; None where it begins at an epoch's start."""
    global _exact
    exact, _exact = _exact, None
    return exact if exact is not None and exact.get("position") is not None and is_resuming(trainer) else None


def _report_resume(trainer: Any, ckpt: Dict[str, Any]) -> None:
    try:
        epoch = int(ckpt.get("epoch", -1))
        exact = ckpt.get(OURS) or {}
        step = exact.get("step", (epoch + 1) * len(trainer.train_loader))
        replicas.resumed(epoch, step, _lost and _lost + ", and the epoch starts over")
    except Exception as error:
        failed("ultralytics_resume.report", error)
