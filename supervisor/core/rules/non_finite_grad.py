"""Non-finite gradients: the norm is NaN or infinite while the loss is a number. The size of a norm is not judged.

When it acts. Under automatic mixed precision some are normal: the scaler tries a scale that is too large, skips the
step and halves it. More than `tolerated` of them within `window_steps` are a warning. With `run_steps` of them in a row
every step is skipped or spoilt, so the training learns nothing, and it acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import History
from supervisor.core.readings import StepRecord
from supervisor.core.remedies import causes
from supervisor.core.rules.non_finite_loss import list_in_window, spoilt

_DIAGNOSIS = Diagnosis(
    ruled_out=("a scaler in search of its scale: that takes a handful of steps, and then they are finite",),
    causes=(
        "the scaler's scale has fallen to where every step is skipped, or the weights are spoilt (torch.amp's manual)",
        "a learning rate too high (ultralytics#17282), or half precision that overflows on this GPU",
    ),
    advice=("amp=False, or a lower learning rate, from the newest checkpoint before the first of them",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteGrad:
    """More than `tolerated` norms within `window_steps` are a warning, `run_steps` of them in a row act."""

    name: ClassVar[str] = "non_finite_grad"
    group: ClassVar[Group] = "losses"
    cause: ClassVar[str] = causes.NON_FINITE
    enabled: bool = True
    act: Act = True
    tolerated: int = 20
    window_steps: int = 1000
    run_steps: int = 200

    def may_flag(self, history: History) -> bool:
        """Whether more steps than are tolerated were not finite."""
        return len(history.non_finite) > self.tolerated

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many gradient norms in a row are not finite, and how many within the window.

        Losses that are not finite belong to `non_finite_loss`.
        """
        found = list_in_window(history, self.window_steps, _has_only_gradient)
        last = history.last_step
        if not found and (last is None or last.grad_norm is None):
            why = "gradient norm not reported by this training"
            return not_applicable("gradient norms that are not finite", why)
        run = _find_run(found, history)
        warns = Gauge(
            what=f"gradient norms that are not finite, within {self.window_steps} steps",
            unit="steps",
            now=len(found),
            limit=self.tolerated + 1,
            observe=partial(self._observe_window, found),
        )
        acts = Gauge(
            what="gradient norms in a row that are not finite",
            unit="steps",
            now=len(run),
            limit=self.run_steps,
            lacks=None if warns.reached else f"more than {self.tolerated} within {self.window_steps} steps",
            severity=Severity.acting(act=self.act),
            observe=partial(_observe_run, run),
        )
        return acts, warns

    def _observe_window(self, found: tuple[StepRecord, ...]) -> Observation:
        text = f"{len(found)} gradient norms within {self.window_steps} steps are not finite, the loss is"
        return Observation(message=f"{text} (tolerated: {self.tolerated})", diagnosis=_DIAGNOSIS)


def _observe_run(run: tuple[StepRecord, ...]) -> Observation:
    return Observation(
        message=f"{len(run)} gradient norms in a row are not finite, the loss is",
        since=run[0].at,
        since_step=run[0].step,
        diagnosis=_DIAGNOSIS,
    )


def _has_only_gradient(record: StepRecord) -> bool:
    return spoilt(record.grad_norm) and not spoilt(record.loss)


def _find_run(found: tuple[StepRecord, ...], history: History) -> tuple[StepRecord, ...]:
    """Return the newest of them that stand side by side, up to the last step."""
    wanted = history.steps[-1].step
    run: list[StepRecord] = []
    for record in reversed(found):
        if record.step != wanted:
            break
        run.append(record)
        wanted -= 1
    return tuple(reversed(run))
