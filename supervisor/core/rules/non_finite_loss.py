"""Non-finite loss: NaN or infinity, step by step. It never asks whether a loss is large, so NaN cannot slip through."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.flags import Act, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.readings import StepRecord


def _spoilt(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteLoss:
    """More than `tolerated` losses within `window_steps` that are no finite numbers act; isolated ones are told.

    The trouble begins with the first of that window. A gradient norm that is not finite is common under automatic
    mixed precision, whose scaler skips such a step: more than `tolerated_gradients` of them are told and never act.
    """

    name: ClassVar[str] = "non_finite_loss"
    enabled: bool = True
    act: Act = True
    tolerated: int = 2
    window_steps: int = 1000
    tolerated_gradients: int = 20

    def check(self, history: History) -> RedFlag | None:
        """Flag the losses first, then the gradients."""
        if not history.steps or not history.non_finite:
            return None
        losses = self._window(history, lambda record: _spoilt(record.loss))
        if losses:
            return self._of_losses(history, losses)
        gradients = self._window(history, lambda record: _spoilt(record.grad_norm))
        return self._of_gradients(history, gradients) if len(gradients) > self.tolerated_gradients else None

    def _window(self, history: History, chosen: Callable[[StepRecord], bool]) -> tuple[StepRecord, ...]:
        """Return the chosen records of the window that ends with the newest of them, if that is no older than one."""
        found = [record for record in history.non_finite if chosen(record)]
        if not found or history.steps[-1].step - found[-1].step >= self.window_steps:
            return ()
        return tuple(record for record in found if 0 <= found[-1].step - record.step < self.window_steps)

    def _of_losses(self, history: History, losses: tuple[StepRecord, ...]) -> RedFlag:
        first, last = losses[0], losses[-1]
        if len(losses) <= self.tolerated:
            message = f"loss {last.loss} at step {last.step}, one of {len(losses)} within {self.window_steps} steps"
            return RedFlag(
                rule=self.name,
                severity=Severity.WARNING,
                at=history.now,
                message=f"{message} (tolerated: {self.tolerated})",
                subject=f"step {last.step}",
            )
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"{len(losses)} losses within {self.window_steps} steps are not finite (tolerated: "
            f"{self.tolerated}), from step {first.step} on, last step {last.step}",
            since=first.at,
            since_step=first.step,
        )

    def _of_gradients(self, history: History, gradients: tuple[StepRecord, ...]) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.WARNING,
            at=history.now,
            message=f"{len(gradients)} gradient norms within {self.window_steps} steps are not finite, the loss is "
            f"(tolerated: {self.tolerated_gradients})",
            subject="gradients",
        )
