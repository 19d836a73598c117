"""Saves an ultralytics training when it is asked to, at a batch's end; it never touches last.pt and best.pt.

ultralytics' own save_model writes the file, into a folder of its own, so that any version's own resume reads it. Its
epoch is the last that is contained whole, as always, so a training saved in mid-epoch repeats that epoch from its
start with the weights as they are, and the step told is the last one whose effect these weights contain. ultralytics
saves half-precision averages only; what it leaves out is added under a key that it ignores and our resume reads.
"""

# ruff: noqa: PLC0415 - torch and ultralytics are the user's: imported where they are sure to be loaded already

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

from . import claim, events
from .layout import ANSWER_CANNOT, ANSWER_SAVED, ANSWER_SAVING, CHECKPOINT
from .recorder import Recorder

if TYPE_CHECKING:
    from .ultralytics_hook import Run

NAME = "rocm_supervisor.pt"
SCRATCH = ".rocm_supervisor."
EXACT = "rocm_supervisor"
"""The key of what ultralytics leaves out: {"step", "model", "ema"} with full-precision state, and "optimizer"."""


def serve(trainer: Any, run: Run, recorder: Recorder, command: Tuple[int, int]) -> Optional[Tuple[int, int]]:
    """Save and answer; return the command where all went well and the caller is to do the rest of it."""
    if claim.rank != 0:
        return None
    before = recorder.stage
    recorder.answer(ANSWER_SAVING, command[1])
    recorder.stage = CHECKPOINT
    try:
        epoch = _whole_epoch(trainer, run)
        path = save(trainer, epoch, run.step)
        events.write("checkpoint_saved", paths=[path], epoch=epoch, step=run.step, requested=True)
        recorder.answer(ANSWER_SAVED, command[1])
    except Exception as error:
        events.write("save_failed", error="%s: %s" % (type(error).__name__, error))
        recorder.answer(ANSWER_CANNOT, command[1])
        return None
    finally:
        recorder.stage = before
    return command


def save(trainer: Any, epoch: int, step: int) -> str:
    """Write the checkpoint whole or not at all, and return its path.

    Raises ValueError where the weights are not finite, OSError where the file cannot be written.
    """
    import torch

    target = Path(trainer.wdir) / NAME
    with torch.inference_mode(mode=False), torch.no_grad(), _scratch(target.parent) as scratch:
        exact = _exact_state(torch, trainer, step)
        with _redirected(trainer, scratch, epoch):
            trainer.save_model()
        checkpoint = torch.load(str(scratch / "last.pt"), map_location="cpu", weights_only=False)
        checkpoint[EXACT] = exact
        with (scratch / NAME).open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(str(scratch / NAME), str(target))
    _sync_folder(target.parent)
    return os.path.abspath(str(target))


def _whole_epoch(trainer: Any, run: Run) -> int:
    """Return the last epoch contained whole: the present one after its last batch, unless nothing would be left."""
    whole = run.batches >= run.batches_per_epoch > 0 and trainer.epoch + 1 < trainer.epochs
    return int(trainer.epoch if whole else trainer.epoch - 1)


def _exact_state(torch: Any, trainer: Any, step: int) -> Dict[str, Any]:
    """Return model, average and optimizer as they are, on the CPU, after seeing that every number is finite."""
    model = trainer.model
    while isinstance(getattr(model, "module", None), torch.nn.Module):
        model = model.module  # DistributedDataParallel
    model = getattr(model, "_orig_mod", model)  # torch.compile
    state = {"model": model.state_dict(), "ema": trainer.ema.ema.state_dict()}
    for name, tensors in state.items():
        for key, value in tensors.items():
            if torch.is_tensor(value) and value.is_floating_point() and not torch.isfinite(value).all():
                raise ValueError("%s %s is not finite: this state is not worth saving" % (name, key))
    on_cpu = {name: {key: _on_cpu(value) for key, value in tensors.items()} for name, tensors in state.items()}
    return {"step": step, "optimizer": _on_cpu(trainer.optimizer.state_dict()), **on_cpu}


def _on_cpu(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(one) for one in value)
    return value


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Make an empty folder beside the target, on its file system, and take away what a killed save left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(SCRATCH + "*"):
        shutil.rmtree(str(old), ignore_errors=True)
    scratch = folder / (SCRATCH + str(os.getpid()))
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)


@contextmanager
def _redirected(trainer: Any, scratch: Path, epoch: int) -> Iterator[None]:
    """Have save_model write `scratch`/last.pt for `epoch` and nothing else."""
    last = scratch / "last.pt"
    changes = {"wdir": scratch, "last": last, "best": last, "save_period": -1, "epoch": epoch}
    if not Path(trainer.csv).exists():  # older versions read it without asking
        changes["csv"] = scratch / "results.csv"
        changes["csv"].write_text("epoch\n")
    before = {name: getattr(trainer, name) for name in changes}
    vars(trainer).update(changes)
    try:
        yield
    finally:
        vars(trainer).update(before)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(str(folder), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
