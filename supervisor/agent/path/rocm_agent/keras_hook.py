"""Follows `fit` of Keras on any backend through Keras' own list of callbacks, without waiting for a device.

A batch counts as a step: `epoch * steps an epoch + batch`, which goes on over a resume with `initial_epoch`.
"""

from __future__ import annotations

import math
import sys
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Optional

from . import claim, xla_memory
from .fence import failed, fenced
from .layout import DATA_WAIT, ENDED, STEP, VALIDATE
from .plan import Plan, count_of
from .scalars import EagerTensor, LateArray, LateScalars


class Fit:
    """One call of `fit`."""

    def __init__(self, callbacks: Any) -> None:
        params = callbacks.params or {}
        self.epochs, self.steps = count_of(params.get("epochs")), count_of(params.get("steps"))
        self.epoch = 0
        self.made = 0
        """Steps up to the newest."""
        self._begun_with = 0
        """Steps before this epoch."""
        self._batch: Optional[int] = None
        """The batch with which the newest execution began."""
        self._is_open = False
        """Whether that execution has not ended."""
        self._tells_last = False
        """Whether the end of an execution is reported with its last batch, as Keras 2 does and newer releases of 3."""
        self.plan = Plan("keras")
        model = getattr(callbacks, "_model", None) or getattr(callbacks, "model", None)  # Keras 3, Keras 2
        together = getattr(model, "steps_per_execution", 1)
        self._together = together if type(together) is int else 1
        """Batches of one execution, at whose end alone Keras calls back."""
        optimizer = getattr(model, "optimizer", None)
        if self.steps is None:
            self.made = _count_iterations(optimizer) or 0
        self._read_loss = _LossReader(optimizer)

    def epoch_begins(self, epoch: int) -> None:
        """Count its batches from the end of the one before."""
        self.epoch = epoch
        self._begun_with = epoch * self.steps if self.steps is not None else self.made

    def batch_begins(self, batch: int) -> None:
        """Note with which batch an execution begins."""
        self._batch, self._is_open = batch, True

    def batch_ends(self, batch: int, logs: Any) -> None:
        """Record the steps up to the last one of an execution that ends."""
        self._is_open = False
        self._record_up_to(self._last_of(int(batch)), logs)

    def data_ends(self, logs: Any = None) -> None:
        """Record the last steps of an epoch, whose execution had fewer batches than it can have.

        Keras 3.1 to 3.6 calls back at the end of none on TensorFlow in which the data came to its end.
        """
        is_open, self._is_open = self._is_open, False
        begun = self._batch or 0
        if is_open and self.steps is not None and begun < self.steps < begun + self._together:
            self._record_up_to(self.steps - 1, logs)

    def _record_up_to(self, batch: int, logs: Any) -> None:
        """Record a step with its loss, which Keras means over the epoch."""
        recorder = claim.take(claim.GENERIC)
        if recorder is None:
            return
        self.made = self._begun_with + batch + 1
        loss = logs.get("loss") if isinstance(logs, dict) else None
        recorder.record(self.made, self.epoch, self._read_loss(loss))
        recorder.stage, recorder.aside = STEP, DATA_WAIT
        total = self.steps * self.epochs if self.steps is not None and self.epochs is not None else None
        self.plan.report(self.epochs, total, self.steps)
        xla_memory.name_setting_of_keras()

    def _last_of(self, batch: int) -> int:
        """Return the last batch of an execution that ends with `batch`, which may be its first."""
        self._tells_last = self._tells_last or batch != self._batch
        if self._tells_last or batch % self._together:
            return batch  # where the steps of an epoch are not known, 3.1 to 3.6 begin with the last one as well
        last = batch + self._together - 1
        return last if self.steps is None else min(last, self.steps - 1)


@fenced
def _count_iterations(optimizer: Any) -> Optional[int]:
    """Return the batches that an optimizer has been given, those before a resume included; None where unknown."""
    read = getattr(getattr(optimizer, "iterations", None), "numpy", None)
    return None if read is None else int(read())


class _LossReader:
    """Reads the loss of a batch from whatever the backend has, a step late where it is computed in the background."""

    def __init__(self, optimizer: Any) -> None:
        self._skips = hasattr(optimizer, "inner_optimizer")
        """Whether the optimizer makes no step of a batch that overflowed; the mean stays spoilt, the weights do not."""
        self._late: Any = None

    def __call__(self, loss: Any) -> Optional[float]:
        """Return a loss, None where there is none or it cannot be had without waiting."""
        value = self._read(loss)
        return None if value is not None and self._skips and not math.isfinite(value) else value

    def _read(self, loss: Any) -> Optional[float]:
        if loss is None or isinstance(loss, (int, float)):
            return loss
        if hasattr(loss, "is_cuda"):
            self._late = self._late or LateScalars(sys.modules["torch"])
            return self._late.exchange(loss, None)[0]  # type: ignore[no-any-return]
        if hasattr(loss, "is_ready"):
            self._late = self._late or LateArray()
            return self._late.exchange(loss)  # type: ignore[no-any-return]
        if hasattr(loss, "device") and hasattr(loss, "dtype"):
            self._late = self._late or EagerTensor()
            return self._late.read(loss)  # type: ignore[no-any-return]
        return None


def install(module: ModuleType) -> None:
    """Wrap the CallbackList that `module` defines: keras.src.callbacks in Keras 2, a module of that in Keras 3."""
    kind = getattr(module, "CallbackList", None)
    if kind is None or kind.__module__ != module.__name__:
        return
    _call_after(kind, "on_train_begin", lambda *_, **__: None)
    _call_after(kind, "on_epoch_begin", lambda fit, epoch, *_, **__: fit.epoch_begins(int(epoch)))
    _call_after(kind, "on_train_batch_begin", lambda fit, batch, *_, **__: fit.batch_begins(int(batch)))
    _call_after(kind, "on_train_batch_end", lambda fit, batch, logs=None: fit.batch_ends(batch, logs))
    _call_after(kind, "on_epoch_end", lambda fit, epoch, logs=None: fit.data_ends(logs))
    _call_after(kind, "on_test_begin", lambda fit, *_, **__: (fit.data_ends(), _in_stage(VALIDATE)))
    _call_after(kind, "on_test_end", lambda fit, *_, **__: _in_stage(STEP))
    _call_after(kind, "on_train_end", lambda fit, *_, **__: _in_stage(ENDED))


def _begin_fit(callbacks: Any) -> None:
    if "torch" in sys.modules:
        from . import torch_hook  # noqa: PLC0415 - a training on another backend has no torch

        torch_hook.steps_are_reported()
    callbacks._rocm_fit = Fit(callbacks)


def _in_stage(stage: int) -> None:
    recorder = claim.holding()
    if recorder is not None and claim.is_reporting(claim.GENERIC):
        recorder.stage, recorder.aside = stage, 0


def _call_after(kind: type, name: str, hook: Callable[..., None]) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            if name == "on_train_begin":
                _begin_fit(self)
            else:
                fit: Optional[Fit] = vars(self).get("_rocm_fit")
                if fit is not None:
                    hook(fit, *args, **kwargs)
        except Exception as error:
            failed("keras_hook." + name, error)
        return result

    setattr(kind, name, method)
