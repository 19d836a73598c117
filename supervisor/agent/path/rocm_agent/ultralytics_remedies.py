"""Changes an ultralytics training's arguments after its checkpoint was read and before anything is built.

A resumed trainer takes its arguments from the checkpoint, so that new ones on the command line are lost. These are set
on the trainer that is ready to build, and taken off while it saves: a checkpoint holds what its owner asked for, and
a factor is not applied to itself.
"""

from __future__ import annotations

import os
import weakref
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Tuple

from . import remedies
from .fence import failed, fenced

ADJUSTS = ("batch_factor", "image_factor", "skip_batches")
"""Settings of remedies that need this framework's trainer; the plan names them."""
PIXELS = 32
MARK = "ROCM_SUPERVISOR_REMEDIES_MADE"
"""Set once they are made: the ranks that ultralytics starts get arguments that are changed already."""
_inherited = os.environ.get(MARK) is not None
_owners: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""By trainer: the arguments as its owner had them."""


def install(module: ModuleType) -> None:
    """Wrap the places of BaseTrainer in `module` where arguments are taken in and saved."""
    if _inherited or not remedies.any_wanted():
        return
    trainer = module.BaseTrainer
    trainer.__init__ = _wrap_init(trainer.__init__)
    trainer.save_model = _as_asked_for(trainer.save_model)


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that method's place
        args, kwargs = _with_device(args, kwargs) or (args, kwargs)
        original(self, *args, **kwargs)
        _change_arguments(self)

    return __init__


@fenced
def _with_device(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return the arguments (cfg, overrides, _callbacks) with the requested device, before it is opened."""
    device = remedies.wanted("device")
    if device is None:
        return None
    positional = len(args) > 1
    overrides = dict((args[1] if positional else kwargs.get("overrides")) or {}, device=device)
    remedies.report_applied("device", "device %s" % device)
    if positional:
        return ((args[0], overrides, *args[2:]), kwargs)
    return (args, dict(kwargs, overrides=overrides))


@fenced
def _change_arguments(trainer: Any) -> None:
    owners = {}
    for name, setting, value in _list_changes(trainer.args):
        before = getattr(trainer.args, name, None)
        if before == value:
            continue
        owners[name] = before
        setattr(trainer.args, name, value)
        remedies.report_applied(setting, "%s %s -> %s" % (name, before, value))
    if "batch" in owners:
        trainer.batch_size = trainer.args.batch
    if "epochs" in owners:
        trainer.epochs = trainer.args.epochs
    _owners[trainer] = owners
    os.environ[MARK] = "1"


def _list_changes(args: Any) -> Iterator[Tuple[str, str, Any]]:
    """Yield argument, setting and value of each change; a factor of what ultralytics works out itself is none."""
    batch, size = getattr(args, "batch", None), getattr(args, "imgsz", None)
    for name in ("batch", "imgsz", "epochs"):
        if remedies.wanted(name) is not None:
            yield (name, name, remedies.wanted(name))
    factor = remedies.wanted("batch_factor")
    if factor is not None and remedies.wanted("batch") is None and isinstance(batch, int) and batch > 1:
        yield ("batch", "batch_factor", max(1, int(batch * factor)))
    factor = remedies.wanted("image_factor")
    if factor is not None and remedies.wanted("imgsz") is None and isinstance(size, int):
        yield ("imgsz", "image_factor", max(PIXELS, int(size * factor) // PIXELS * PIXELS))
    for name in ("amp", "compile"):
        if remedies.wanted(name) is False and getattr(args, name, False) is not False:
            yield (name, name, False)


def _as_asked_for(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def save_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        owners = _owners.get(self, {})
        made = {name: getattr(self.args, name) for name in owners}
        vars(self.args).update(owners)
        try:
            return original(self, *args, **kwargs)
        finally:
            vars(self.args).update(made)

    return save_model


def leave_out(trainer: Any, made: Callable[[], int], skipped: Callable[[], None]) -> None:
    """Leave out the batches that are to be skipped; `skipped` is called for each, in its place.

    `made` counts the batches of the epoch, left out ones too: an epoch that is resumed does not begin with its first.
    """
    window = remedies.wanted("skip_batches")
    if window is None:
        return
    first, last = int(window[0]), int(window[1])
    loader, kind = trainer.train_loader, type(trainer.train_loader)
    known = weakref.ref(trainer)

    def __iter__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        for batch in kind.__iter__(self):
            owner = known()
            step = 0 if owner is None else owner.epoch * len(self) + made() + 1
            if first <= step <= last:
                skipped()
            else:
                yield batch

    try:
        loader.__class__ = type(kind.__name__, (kind,), {"__iter__": __iter__})
        remedies.report_applied("skip_batches", "batches %d to %d left out" % (first, last))
    except TypeError as error:  # a loader of the owner's own that cannot have it
        failed("ultralytics_remedies.leave_out", error)
