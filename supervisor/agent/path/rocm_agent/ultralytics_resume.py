"""Makes the first ultralytics training of a process go on from a given checkpoint; it chooses none.

It asks for what `yolo train resume=PATH` asks for, whichever way the training was started, and leaves the work and the
refusals to ultralytics: a checkpoint that cannot be resumed must not become a training from the beginning.
"""

# ruff: noqa: PLC0415 - torch is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import os
import weakref
import zipfile
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Tuple

from . import claim
from .fence import failed, fenced
from .layout import ENDED, ENV_RESUME_FROM
from .snapshots import files, replicas
from .snapshots.files import OURS
from .snapshots.ultralytics_models import models, unwrapped

_resuming: Optional[weakref.ref] = None
"""The trainer that this process resumes."""
_used = False
_exact: Optional[Dict[str, Any]] = None
"""What our own save had added to the checkpoint that is resumed, as far as it is of use here."""
_lost = ""
"""Why the training does not go on in mid-epoch."""


def install(module: ModuleType) -> None:
    """Wrap the three places of BaseTrainer in `module` where a resume is decided, loaded and applied."""
    trainer = module.BaseTrainer
    trainer.__init__ = _asked_to_resume(trainer.__init__)
    trainer.setup_model = _loading_the_checkpoint(trainer.setup_model)
    trainer.resume_training = _told(trainer.resume_training)


def _asked_to_resume(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        args, kwargs = _with_resume(self, args, kwargs) or (args, kwargs)
        path = os.environ.get(ENV_RESUME_FROM, "")
        if _is_resuming(self) and zipfile.is_zipfile(path):
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
    _used = True
    if claim.left_behind() == ENDED:
        return None  # an earlier training of this attempt came to its end: this is the script's next one
    _resuming = weakref.ref(trainer)
    positional = len(args) > 1
    overrides = dict((args[1] if positional else kwargs.get("overrides")) or {}, resume=path)
    if positional:
        return ((args[0], overrides, *args[2:]), kwargs)
    return (args, dict(kwargs, overrides=overrides))


def _is_resuming(trainer: Any) -> bool:
    return _resuming is not None and _resuming() is trainer


def _loading_the_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def setup_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Model.train() hands over a model it has made, and then nothing would be loaded.
        if _is_resuming(self) and not isinstance(self.model, (str, os.PathLike)):
            self.model = self.args.model
        return original(self, *args, **kwargs)

    return setup_model


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def resume_training(self: Any, ckpt: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_resuming(self) or not isinstance(ckpt, dict):
            return original(self, ckpt, *args, **kwargs)
        ckpt = _with_exact(ckpt) or ckpt
        if ckpt.get("epoch") == -1 and ckpt.get("optimizer") is not None:
            _resume_first_epoch(self, original, ckpt)
        else:
            original(self, ckpt, *args, **kwargs)
        _load_exact_model(self, ckpt)
        _report(self, ckpt)
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


def _resume_first_epoch(trainer: Any, original: Callable[..., Any], ckpt: Dict[str, Any]) -> None:
    """Resume into epoch 0, which ultralytics takes for a training that is finished.

    It loads the state without that question where it can. Older ones are told that epoch 0 is
    contained, of a training long enough for it to matter, and put right afterwards.
    """
    if hasattr(trainer, "_load_checkpoint_state"):
        trainer._load_checkpoint_state(ckpt)
    else:
        epochs = trainer.epochs
        trainer.epochs = epochs + int(getattr(trainer.args, "close_mosaic", 0) or 0) + 2
        try:
            original(trainer, dict(ckpt, epoch=0))
        finally:
            trainer.epochs = epochs
    trainer.start_epoch = 0


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


def taken_up(trainer: Any) -> Optional[Dict[str, Any]]:
    """Return once, to the trainer that resumes, what mid-epoch needs; None where it begins at an epoch's start."""
    global _exact
    exact, _exact = _exact, None
    return exact if exact is not None and exact.get("position") is not None and _is_resuming(trainer) else None


def _report(trainer: Any, ckpt: Dict[str, Any]) -> None:
    try:
        epoch = int(ckpt.get("epoch", -1))
        exact = ckpt.get(OURS) or {}
        step = exact.get("step", (epoch + 1) * len(trainer.train_loader))
        replicas.resumed(epoch, step, _lost and _lost + ", and the epoch begins anew")
    except Exception as error:
        failed("ultralytics_resume.report", error)
