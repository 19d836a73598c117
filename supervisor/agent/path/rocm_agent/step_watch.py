"""What the hooks of torch saw since the last counted step, and the record of a step from it.

It counts the steps of one optimizer. A GAN has two: the first that stepped leads, and another takes over only when the
leader has fallen silent.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable, Mapping, Optional

from . import batch_count, claim, origin, precision, remedies, save_command, tuning, workers
from .alike import AlikeSteps
from .fence import fenced
from .layout import DATA_WAIT, VALIDATE
from .leader import Leader
from .passes import Passes
from .recorder import Recorder
from .scalars import GpuMemory, LateScalars, is_scalar, number
from .shapes import Shapes

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from .loops.leaving import LoopWatch


class Watch:
    """What the hooks saw since the last counted step."""

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self.stepping = False
        self.steps_called = 0
        self.optimizers_made = False
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that were made and are still held."""
        self.skipped = False
        self.shapes = Shapes(complete=False)
        self.shape_is_seen = False
        """Whether `shapes` has seen a batch that looks like the newest one."""
        self.grad_norm: Any = None
        self.wait_ns = 0
        self.settled = False
        """Whether the last step was one of many alike: nothing is to be found out before the next is counted."""
        self.alike: Optional[AlikeSteps] = None
        """By it the next step is recorded where it differs from the last one in its numbers alone."""
        self.leads = 0
        """The identity of the optimizer that leads; 0 where there is none."""
        self._lead: Callable[[], Any] = lambda: None
        self.last_ns = 0
        """When that has stepped."""
        self._held: Optional[int] = None
        """Bytes of GPU memory."""
        self.loss: Any = None
        self._scaled: Callable[[], Any] = lambda: None
        self.unscaled: Any = None
        self._leader = Leader()
        self._lead_sought = False
        self.step = 0
        """Number of the last step; 0 before the first."""
        self.resumed_step = 0
        self.calls_in_making: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """By optimizer: how many of the steps that it has counted an engine made when it was made."""
        self.epoch: Optional[int] = None
        """Counted from 0; None where no framework tells it."""
        self._scalars = LateScalars(torch)
        self._memory = GpuMemory(torch)
        self.precision = precision.Watch()
        self.passes = Passes()
        self._loop: Optional[LoopWatch] = None
        self._loop_sought = False

    def saw_scaling(self, loss: Any, scaled: Any) -> None:
        """A GradScaler multiplied `loss`; what backward is then called on is not the loss."""
        self.alike = None
        if is_scalar(loss) and is_scalar(scaled):
            self._scaled, self.unscaled = weakref.ref(scaled), loss.detach()

    def saw_backward(self, tensor: Any, *_: Any, **__: Any) -> None:
        """Keep the value, without its graph."""
        if tensor.numel() == 1:
            # The precision is decided by where the first losses lie; a number is had without a tensor more. That of
            # a tensor which is spread over ranks is had from all of them together, at the end of the step.
            plain = type(tensor) is self._tensor and not tensor.is_cuda
            if plain and self.precision.decided and self.unscaled is None:
                self.loss = tensor.item()
            else:
                self.loss = self.unscaled if self._scaled() is tensor else tensor.detach()
            if batch_count.drawn.joined > 1:
                self.loss = self.loss / batch_count.drawn.joined
            if not self.optimizers_made:
                self._counted_alone()

    def _counted_alone(self) -> None:
        """Count a backward pass as a step, for a loop that changes its weights itself and made no optimizer."""
        recorder = claim.take(claim.GENERIC)
        if recorder is None or threading.current_thread() is not threading.main_thread():
            return
        self.step = self.step + 1 if self.step else self._first_step(None)
        self.passes.feeding = self.passes.drawn
        self._follow_loop()
        loss, grad_norm = self._scalars.exchange(self.loss, self.grad_norm)
        wait_s, self.wait_ns = self.wait_ns / 1e9 if self.wait_ns else None, 0
        self.loss = self.grad_norm = None
        recorder.record(
            self.step,
            self.epoch,
            loss,
            None,
            grad_norm,
            wait_s,
            self._memory.read(),
            0,
            *batch_count.drawn.take(self.passes.drawn),
        )
        recorder.stage, recorder.aside = self.passes.take_stage(), 0
        save_command.refuse_unheard(recorder)

    def counted(self, recorder: Recorder, optimizer: Any) -> None:
        """An optimizer has stepped, by itself and not within another's step, or its scaler has skipped that."""
        alike, now_ns = self.alike, monotonic_ns()
        try:
            if alike and alike.record(self, optimizer, now_ns):
                return
        except Exception:  # no number, or one that its field does not hold
            self.alike = None
        if id(optimizer) != self.leads:
            if not self._takes_lead(optimizer, now_ns):
                return
            recorder.begins = True
        self.last_ns = now_ns
        self._record(recorder, optimizer, now_ns)

    def _record(self, recorder: Recorder, optimizer: Any, now_ns: int) -> None:
        """Record a step in full: what it has in common with the next ones is taken from there."""
        drawn = batch_count.drawn
        if self.settled:
            self.step += 1
            samples, tokens = drawn.samples, drawn.tokens
            drawn.samples = drawn.tokens = 0
        else:
            self._settle(optimizer)
            samples, tokens = drawn.take(self.passes.drawn)
        is_due = now_ns >= tuning.due_ns
        if is_due:
            self._held = self._memory.read(now_ns)
        lr = optimizer.param_groups[0].get("lr")
        may_be_alike = self.settled and not (is_due or self.skipped) and type(self.loss) is float
        loss, grad_norm = self._scalars.exchange(self.loss, self.grad_norm)
        rate = number(lr)
        rate = None if rate is None else rate * remedies.lr_factor
        wait_s = self.wait_ns / 1e9 if self.wait_ns else None
        is_commanded = recorder.record(
            self.step, self.epoch, loss, rate, grad_norm, wait_s, self._held, self.skipped, samples, tokens, now_ns
        )
        alike = AlikeSteps(recorder) if may_be_alike else None
        self.alike = alike if alike and alike.takes_lr(lr) else None
        self.loss = self.unscaled = self.grad_norm = None
        self.wait_ns, self.skipped = 0, False
        if recorder.is_elsewhere:
            recorder.stage, recorder.aside = self.passes.take_stage(), 0
        if is_commanded and recorder.command() is not None:
            save_command.refuse_unheard(recorder)
        if is_due:
            tuning.step_ended(optimizer, self.step, now_ns)

    def _takes_lead(self, optimizer: Any, now_ns: int) -> bool:
        """Whether `optimizer`, which is not the one that led until now, leads."""
        if self.last_ns:
            self._leader.stepped(self.last_ns)
            self.last_ns = 0
        elif not (self.step or self._lead_sought):
            self._lead_sought = True
            self._find_former_lead(optimizer, now_ns)
        if not self._leader.takes_lead(optimizer, now_ns):
            return False
        self.leads = id(optimizer)
        self._lead = weakref.ref(optimizer, self._lead_is_gone)
        return True

    def _lead_is_gone(self, _: Any) -> None:
        """Have the next optimizer asked about, which may be given the identity of the one that led."""
        self.leads, self.alike = 0, None

    @fenced
    def _find_former_lead(self, optimizer: Any, now_ns: int) -> None:
        """Have that optimizer lead by whose steps the checkpoint is numbered from which this process goes on.

        In mid-epoch another one than at the beginning may step first: a generator that steps once for five steps of its
        critic led, and the critic would go on with its numbers five times as fast.
        """
        own = count_of(optimizer) if len(self.optimizers) > 1 else None
        made = None if own is None else self.resumed_step or origin.resumed_step()
        if not made or own in {made, made + 1}:  # a step that a scaler skipped is in no optimizer's count
            return
        former = next((other for other in self.optimizers if count_of(other) == made), None)
        if former is not None:
            self._leader.begin_with(former, now_ns)

    def let_lead_go(self) -> None:
        """The optimizer that leads steps no more, whoever still holds it: the next one that steps leads."""
        self._leader, self.leads, self.last_ns, self.alike = Leader(), 0, 0, None

    def _settle(self, optimizer: Any) -> None:
        """Number a step of which not all is known that is known of those alike."""
        self.step = self.step + 1 if self.step else self._first_step(optimizer)
        self.passes.feeding = self.passes.drawn
        if self._loop is not None or not self._loop_sought:
            self._follow_loop()
        if not self.precision.decided:
            self.precision.stepped(self.loss)
        origin.report_closed()
        self.settled = self.precision.decided and self._loop is None

    def draws(self, iterator: Any, now_ns: int) -> Optional[Recorder]:
        """Report that the next batch of `iterator` is waited for; return the recorder where that counts."""
        if id(iterator) != workers.drawn_from:
            workers.draws(iterator)
        recorder = claim.counting
        if recorder is None:
            return None
        if recorder.stage == VALIDATE:
            self.passes.begins(iterator._dataset)
        if get_ident() != recorder.main_thread:
            return None
        recorder.turn_aside(DATA_WAIT, now_ns)
        return recorder

    def drew(self, batch: Any, iterator: Any, recorder: Optional[Recorder], *, alike: bool) -> None:
        """A batch has come, which `recorder` has waited for; `alike`: as those before it."""
        self.passes.drawn = id(iterator._dataset)
        self.settled = self.settled and self.passes.feeding == self.passes.drawn
        self.alike = self.alike if self.settled else None
        if recorder is not None and not (alike and self.shape_is_seen):
            self.shapes.saw(batch, recorder)
        self.shape_is_seen = recorder is not None or (alike and self.shape_is_seen)

    def _follow_loop(self) -> None:
        """Have it noticed that the loop around the steps was left, where no loader's end tells that."""
        if self._loop is not None:
            if self._loop.is_elsewhere:
                self._loop.learn(sys._getframe())
        elif not self._loop_sought:
            self._loop_sought = True
            self._loop = None if self.passes.are_known else _begin_loop_watch()

    def _first_step(self, optimizer: Any) -> int:
        """Return the number of the first step; `optimizer` None: the loop has none that could keep count."""
        made = None if optimizer is None or self.resumed_step else _steps_made(optimizer, self.calls_in_making)
        first = self.resumed_step + 1 if self.resumed_step else origin.first_step(made)
        _read_loops(first)
        return first


@fenced
def _read_loops(first: int) -> None:
    """Report the totals of the loops around the first step; they are read once."""
    from . import loops  # noqa: PLC0415 - only the process that trains pays for it

    loops.begin(sys._getframe(), first - 1)


@fenced
def _begin_loop_watch() -> Optional[LoopWatch]:
    from .loops import leaving  # noqa: PLC0415 - only the process that trains pays for it

    return leaving.begin(sys._getframe())


def count_of(optimizer: Any) -> Optional[int]:
    """Return how many calls an optimizer has counted: Adam and its like do in their state, also over a resume.

    None: this one keeps no count, as SGD and LBFGS, or has none yet.
    """
    state = next(iter(optimizer.state.values()), {})
    made = number(state.get("step")) if hasattr(state, "get") else None
    return None if made is None or not math.isfinite(made) else int(made)


@fenced
def _steps_made(optimizer: Any, in_making: Mapping[Any, int]) -> Optional[int]:
    """Return the number of the step just made by an optimizer's own count; None where it keeps none."""
    made = count_of(optimizer)
    return None if made is None else max(1, made - in_making.get(optimizer, 0))
