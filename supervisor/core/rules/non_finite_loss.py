"""Non-finite loss: NaN or infinity, step by step, however large the finite losses are.

When it acts. One NaN may be a bad batch, and where a gradient scaler skipped its step it has changed nothing: it is a
warning. More than `tolerated` within `window_steps` are systematic: a recorded training of 18 November made 73 of them
in 7,550 batches, one in a hundred, with finite losses in between, and every checkpoint after the first was spoilt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.readings import StepRecord
from supervisor.core.remedies import causes


def spoilt(value: float | None) -> bool:
    """Whether a value is known and is no finite number."""
    return value is not None and not math.isfinite(value)


def list_in_window(history: History, window_steps: int, chosen: Callable[[StepRecord], bool]) -> tuple[StepRecord, ...]:
    """Return the chosen records of the window that ends with the newest of them, if that is no older than one."""
    found = [record for record in history.non_finite if chosen(record)]
    if not found or history.steps[-1].step - found[-1].step >= window_steps:
        return ()
    return tuple(record for record in found if 0 <= found[-1].step - record.step < window_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteLoss:
    """More than `tolerated` losses within `window_steps` that are not finite act; isolated ones are a warning.

    The fault begins with the first of that window.
    """

    name: ClassVar[str] = "non_finite_loss"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.NON_FINITE
    enabled: bool = True
    act: Act = True
    tolerated: int = 2
    window_steps: int = 1000

    def may_flag(self, history: History) -> bool:
        """Whether a step was not finite."""
        return bool(history.non_finite)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many losses of the window are not finite: more than are tolerated act, the first ones warn."""
        what, found = f"losses that are not finite, within {self.window_steps} steps", self._list_found(history)
        last = history.last_step
        if not found and (last is None or last.loss is None):
            return not_applicable(what, "loss not reported by this training")
        acts = Gauge(
            what=what,
            unit="steps",
            now=len(found),
            limit=self.tolerated + 1,
            severity=Severity.acting(act=self.act),
            observe=partial(self._observe_many, found),
        )
        warns = replace(acts, limit=1, severity=Severity.WARNING, observe=partial(self._observe_few, found))
        return (acts, warns) if self.tolerated else (acts,)

    def _observe_few(self, losses: tuple[StepRecord, ...]) -> Observation:
        last = losses[-1]
        text = f"loss {last.loss} at step {last.step}, one of {len(losses)} within {self.window_steps} steps"
        return Observation(
            message=f"{text} (tolerated: {self.tolerated})" + ("; its step was skipped" if last.skipped else ""),
            subject=f"step {last.step}",
            diagnosis=_diagnose(losses),
        )

    def _observe_many(self, losses: tuple[StepRecord, ...]) -> Observation:
        first, last = losses[0], losses[-1]
        return Observation(
            message=f"{len(losses)} losses within {self.window_steps} steps are not finite (tolerated: "
            f"{self.tolerated}), from step {first.step} on, last step {last.step}",
            since=first.at,
            since_step=first.step,
            diagnosis=_diagnose(losses),
        )

    def _list_found(self, history: History) -> tuple[StepRecord, ...]:
        return list_in_window(history, self.window_steps, lambda record: spoilt(record.loss))


def _diagnose(losses: tuple[StepRecord, ...]) -> Diagnosis:
    first, skipped = losses[0], sum(record.skipped for record in losses)
    in_a_row = len(losses) > 1 and losses[-1].step - first.step == len(losses) - 1
    ruled_out = []
    if skipped == len(losses):
        ruled_out.append("spoilt weights: a gradient scaler skipped every one of these steps")
    if in_a_row:
        ruled_out.append("one bad batch: the losses after it are no numbers either")
    weights = "the weights are spoilt: the step of an earlier NaN was taken, so all later ones are (ultralytics#24986)"
    batch = "a batch with a broken label, or one that overflows in half precision (ultralytics' own NaN recovery)"
    rate = (
        "a learning rate too high, most of all right after a resume "
        "(ultralytics#17282; robust-thermal-image-object-detection, 18 November 2025)"
    )
    return Diagnosis(
        ruled_out=tuple(ruled_out),
        causes=(weights, rate, batch) if in_a_row else (batch, rate),
        advice=(
            f"go on from a checkpoint of before step {first.step}; one saved later may be finite and still spoilt",
            "if it comes back at the same step, look at that batch; if not, lower the learning rate or set amp=False",
        ),
    )
