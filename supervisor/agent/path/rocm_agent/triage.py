"""Repeats a training up to a step that went wrong, looks for non-finite values on the way, reports and exits.

The training itself resumes and computes, with all that belongs to it; this only looks. It never lets the process
live on past the step, and what ultralytics writes goes into the triage's own folder.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from collections import deque
from functools import wraps
from types import ModuleType
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

from .fence import fenced
from .layout import ENV_TRIAGE

WATCHED_STEPS = 2
"""From so many steps before the bad one, every module's output is checked; before that only the loss."""
PAST_STEPS = 1
"""Steps made beyond the bad one before it counts as not reproduced: counts of a resume differ by one."""
FILES_KEPT = 256
LOSSES_KEPT = 64
GRADIENT = "Parameter"
"""The kind of what a gradient belongs to; every other place is a module."""
GROUP_MODE = 0o2770
"""What ultralytics writes can be cleared away by whoever shares the attempt's group."""

_replay: Optional["Replay"] = None


class Replay:
    """What was requested, and what was seen so far."""

    def __init__(self, asked: Dict[str, Any]) -> None:
        self.torch: Any = None
        """None until the process imports it: of a training without it, only what it records is seen."""
        self._asked = asked
        self.bad_step = int(asked["step"])
        self._gradients = asked.get("looked_for") == "gradients"
        self._other_batch = bool(asked.get("other_batch"))
        self._losses: Deque[Tuple[int, float]] = deque(maxlen=LOSSES_KEPT)
        self._made: Optional[int] = None
        """The step that was made last; None before the first is known."""
        self._first: Optional[int] = None
        self._top: Any = None
        self._outermost: Any = None
        self._names: Dict[int, str] = {}
        self._where: Optional[Dict[str, Any]] = None
        self._batch: Dict[str, Any] = {}
        self._device: Optional[str] = None
        self._half = False
        self._kept: Any = None
        self._given_other = False

    # --- the way there ------------------------------------------------------------------------------------------------

    def recorded(self, step: int, loss: Optional[float], grad_norm: Optional[float]) -> None:
        """Note that a step is over; end at gradients that are looked for, and once the bad one is well past."""
        self._first = step if self._first is None else self._first
        self._top = None
        suspect = grad_norm if self._gradients else loss
        if step >= self.bad_step - PAST_STEPS and not _is_finite(suspect):
            self.end(seen=True, loss=None if loss is None else str(loss), step=step)
        self._made = step
        if step < self.bad_step and loss is not None:
            self._losses.append((step, float(loss)))
        if step >= self.bad_step + PAST_STEPS:
            self.end(seen=False)

    @property
    def _is_near_bad_step(self) -> bool:
        # Before the first step the number of the present one is unknown: it is then examined.
        return self._made is None or self._made + 1 >= self.bad_step - WATCHED_STEPS

    @property
    def _in_gradient(self) -> bool:
        # Of a GPU the norm that ends the replay is read a step late: the next forward must not hide the place.
        return self._where is not None and self._where["kind"] == GRADIENT

    # --- modules ------------------------------------------------------------------------------------------------------

    def entered(self, module: Any, args: Tuple[Any, ...]) -> Optional[Tuple[Any, ...]]:
        """Check the batch given to the outermost module; return another in its place where requested."""
        if self._top is not None or not module.training or not args:
            return None
        self._top = self._outermost = module
        if not self._in_gradient:
            self._where = None
        if self._other_batch and self._made is not None and self._made + 1 == self.bad_step and self._kept is not None:
            self._given_other = True
            args = self._kept
        elif self._other_batch:
            self._kept = _copy_args(args)
        if self._is_near_bad_step:
            self._names = {id(item): name for name, item in module.named_modules()}
            self._batch = _batch_of(self.torch, args)
        return args if self._given_other else None

    def left(self, module: Any, args: Any, output: Any) -> None:
        """Check what a module returns: the first with a non-finite output of finite inputs is the place."""
        if module is self._top:
            self._top = None
        if not module.training or self._where is not None or not self._is_near_bad_step:
            return
        tensors = list(_iter_tensors(self.torch, output))
        self._half = self._half or any(tensor.dtype in (self.torch.float16, self.torch.bfloat16) for tensor in tensors)
        bad = [tensor for tensor in tensors if not _is_tensor_finite(self.torch, tensor)]
        if bad:
            self._where = {
                "module": self._names.get(id(module), ""),
                "kind": type(module).__name__,
                "dtype": str(bad[0].dtype),
                "inputs_finite": all(
                    _is_tensor_finite(self.torch, tensor) for tensor in _iter_tensors(self.torch, args)
                ),
                "weights_finite": all(_is_tensor_finite(self.torch, parameter) for parameter in module.parameters()),
            }

    def backward(self, loss: Any) -> None:
        """Check the loss; a non-finite one ends the replay."""
        self._device = str(loss.device)
        if self._gradients:
            self._top = None
            return
        if loss.numel() == 1 and not _is_tensor_finite(self.torch, loss):
            self.end(seen=True, loss=str(float(loss.detach())))
        self._top = None

    def after_backward(self) -> None:
        """Find the first non-finite gradient, where gradients were the fault."""
        if not self._gradients or not self._is_near_bad_step or self._where is not None or self._outermost is None:
            return
        for name, parameter in self._outermost.named_parameters():
            if parameter.grad is not None and not _is_tensor_finite(self.torch, parameter.grad):
                self._where = {
                    "module": "the gradient of " + name,
                    "kind": GRADIENT,
                    "dtype": str(parameter.grad.dtype),
                }
                return

    # --- the end ------------------------------------------------------------------------------------------------------

    def process_ends(self) -> None:
        """Report the outcome of a training whose last step was the bad one."""
        if self._made is not None and self._made >= self.bad_step:
            self.end(seen=False)

    def end(self, *, seen: bool, loss: Optional[str] = None, step: Optional[int] = None) -> None:
        """Write the report and end the process at once: nothing of the training shall be saved."""
        if step is None and self._made is not None:
            step = self._made + (1 if seen else 0)
        report = {
            "seen": seen,
            "step": step,
            "first_step": self._first,
            "loss": loss,
            "where": self._where if seen else None,
            "batch": self._batch if seen else {},
            "losses": [[made, value] for made, value in self._losses if _is_finite(value)],
            "device": self._device,
            "half": self._half,
            "other_batch": self._given_other,
            "torch": None if self.torch is None else str(self.torch.__version__),
        }
        draft = self._asked["report"] + ".tmp"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(draft, self._asked["report"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def asked() -> Optional[Dict[str, Any]]:
    """Return what is to be replayed, None in an ordinary training."""
    text = os.environ.get(ENV_TRIAGE)
    return json.loads(text) if text else None


def begin() -> None:
    """Check every step from now on, where a triage was requested."""
    global _replay
    wanted = asked()
    if wanted is None:
        return
    _replay = Replay(wanted)
    _watch_steps(_replay)
    atexit.register(fenced(_replay.process_ends))


def install(torch: Any) -> None:
    """Check every module and loss as well, once torch is imported."""
    replay = _replay
    if replay is None:
        return
    replay.torch = torch
    modules = torch.nn.modules.module
    modules.register_module_forward_pre_hook(fenced(replay.entered))
    modules.register_module_forward_hook(fenced(replay.left))
    backward = torch.Tensor.backward

    @wraps(backward)
    def looked_at(self: Any, *args: Any, **kwargs: Any) -> Any:
        fenced(replay.backward)(self)
        result = backward(self, *args, **kwargs)
        fenced(replay.after_backward)()
        return result

    torch.Tensor.backward = looked_at


def install_trainer(module: ModuleType) -> None:
    """Have what an ultralytics trainer in `module` writes go into the triage's folder."""
    from pathlib import Path  # noqa: PLC0415 - ultralytics wants one; nothing else here does

    wanted = asked()
    if wanted is None:
        return
    folder = Path(wanted["report"]).parent / "run"
    for item in (folder, folder / "weights"):
        item.mkdir(exist_ok=True)
        item.chmod(GROUP_MODE)
    module.get_save_dir = lambda *_, **__: folder


def _watch_steps(replay: Replay) -> None:
    from .recorder import Recorder  # noqa: PLC0415 - as the rest of the agent does, where it is needed

    record = Recorder.record

    @wraps(record)
    def recording(self: Any, step: int, *args: Any, **kwargs: Any) -> None:
        record(self, step, *args, **kwargs)
        values = {**dict(zip(("epoch", "loss", "lr", "grad_norm"), args)), **kwargs}
        fenced(replay.recorded)(step, values.get("loss"), values.get("grad_norm"))

    Recorder.record = recording


# --- looking ----------------------------------------------------------------------------------------------------------


def _is_tensor_finite(torch: Any, tensor: Any) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def _is_finite(value: Optional[float]) -> bool:
    return value is None or math.isfinite(value)


def _iter_tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, (list, tuple)):
        for item in value:
            yield from _iter_tensors(torch, item, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from _iter_tensors(torch, item, depth + 1)


def _copy_args(args: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return the arguments with dictionaries of their own: a loss may take things out of them."""
    return tuple(dict(arg) if isinstance(arg, dict) else arg for arg in args)


def _batch_of(torch: Any, args: Tuple[Any, ...]) -> Dict[str, Any]:
    """Return what is wrong with a batch by itself, and the files that it is made of where it names them."""
    batch = args[0] if args and isinstance(args[0], dict) else None
    if batch is None:
        bad = [
            str(number)
            for number, arg in enumerate(args)
            if not all(_is_tensor_finite(torch, t) for t in _iter_tensors(torch, arg))
        ]
        return {"not_finite": bad, "out_of_range": [], "files": [], "bad_files": []}
    files = [str(item) for item in batch.get("im_file") or ()][:FILES_KEPT]
    bad_names, bad_rows = [], set()
    for name, value in batch.items():
        for tensor in _iter_tensors(torch, value):
            if not _is_tensor_finite(torch, tensor):
                bad_names.append(str(name))
                bad_rows |= _find_bad_images(torch, batch, name, tensor)
    out, rows = _out_of_range(torch, batch)
    bad_files = [files[row] for row in sorted(bad_rows | rows) if row < len(files)]
    return {"not_finite": bad_names, "out_of_range": out, "files": files, "bad_files": bad_files}


def _find_bad_images(torch: Any, batch: Dict[str, Any], name: str, tensor: Any) -> Any:
    """Return which images of the batch a tensor is not finite for."""
    bad = (~torch.isfinite(tensor.detach())).reshape(len(tensor), -1).any(1).nonzero().flatten().tolist()
    return _images_of_labels(batch, bad) if name in ("bboxes", "cls") else set(bad)


def _images_of_labels(batch: Dict[str, Any], labels: List[int]) -> Any:
    """Return the images that labels belong to, as ultralytics numbers them."""
    owner = batch.get("batch_idx")
    return set() if owner is None else {int(owner[label]) for label in labels}


def _out_of_range(torch: Any, batch: Dict[str, Any]) -> Tuple[List[str], Any]:
    """Return the labels of ultralytics that are outside their range: boxes within 0 to 1, classes from 0."""
    found, rows = [], set()
    for name, low, high in (("bboxes", 0.0, 1.0), ("cls", 0.0, None)):
        value = batch.get(name)
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        outside = value < low if high is None else (value < low - 1e-3) | (value > high + 1e-3)
        bad = outside.reshape(len(value), -1).any(1).nonzero().flatten().tolist()
        if bad:
            found.append(name)
            rows |= _images_of_labels(batch, bad)
    return found, rows
