"""Follows any PyTorch training through its optimizer, losses and loaders. No number and no RNG state is changed.

It has `step_watch` see what torch's own functions are called with. Hooks that know more (ultralytics', the script's own
calls) silence this one.
"""

from __future__ import annotations

import inspect
import threading
from functools import update_wrapper, wraps
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

from . import batch_count, claim, loader, origin, own_saves, script, tuning, workers
from .fence import failed, fenced
from .layout import CHECKPOINT, DATA_WAIT, ENDED, STEP, VALIDATE
from .recorder import ASIDE_HALF, ASIDE_SINCE_WORD, Recorder
from .scalars import is_scalar
from .step_watch import Watch

_watch: Optional[Watch] = None


@fenced
def _note_pass(loader: Any, step: int) -> None:
    from . import loops  # noqa: PLC0415 - only the process that trains pays for it

    loops.loader_begins(loader, step)


def install(torch: Any) -> None:
    """Watch every optimizer, backward pass, gradient scaler and loader made from now on."""
    global _watch
    _watch = watch = Watch(torch)
    tuning.count_calls_by(count_calls)
    _watch_optimizers(torch, watch)
    _watch_backward(torch, watch)
    _watch_scalers(torch, watch)
    _watch_clipping(torch, watch)
    _watch_loaders(torch, watch)
    _watch_saving(torch, watch)
    _watch_loading(torch)
    fenced(workers.install)(torch)
    fenced(watch.precision.begin)(torch)


def take_grad_norm() -> Any:
    """Return the newest result of clip_grad_norm_ once, None where none is new."""
    if _watch is None:
        return None
    norm, _watch.grad_norm = _watch.grad_norm, None
    return norm


def count_calls() -> int:
    """Return how many steps of optimizers were called in this process, those that a scaler skipped included."""
    return 0 if _watch is None else _watch.steps_called


def take_skipped() -> bool:
    """Whether a scaler has skipped a step since this was last asked."""
    if _watch is None:
        return False
    skipped, _watch.skipped = _watch.skipped, False
    return skipped


class Uncounted:
    """While it is entered, no call of an optimizer is a step."""

    def __init__(self) -> None:
        self._watch = None if _watch is None or _watch.stepping else _watch

    def __enter__(self) -> None:
        if self._watch is not None:
            self._watch.stepping = True

    def __exit__(self, *_: Any) -> None:
        if self._watch is not None:
            self._watch.stepping = False


@fenced
def step_was_made(optimizer: Any, *, skipped: bool) -> None:
    """Count a step of a scaler or an engine, which call the optimizer; `skipped`: the weights are as they were.

    Within another one's step it is that one which counts.
    """
    if _watch is None:
        return
    if skipped:
        _watch.skipped, _watch.alike = True, None
        _watch.steps_called += 1
    recorder = None if _watch.stepping else _take_recorder()
    if recorder is not None:
        _watch.counted(recorder, optimizer)


@fenced
def calls_were_no_steps(optimizer: Any, number: int) -> None:
    """Leave calls that are in an optimizer's own count, also in one that was saved, out of the training's steps."""
    if _watch is not None and number > 0:
        _watch.calls_in_making[optimizer] = number


@fenced
def loss_is(loss: Any) -> None:
    """Note what the newest backward pass was of, where an engine has called it on a multiple."""
    if _watch is not None and is_scalar(loss) and claim.is_reporting(claim.GENERIC):
        _watch.saw_backward(loss)


@fenced
def loss_was_scaled(loss: Any, scaled: Any) -> None:
    """Note that the program will call backward on a multiple of the loss."""
    if _watch is not None and claim.is_reporting(claim.GENERIC):
        _watch.saw_scaling(loss, scaled)


def watch_state_dicts(module: ModuleType) -> None:
    """Count no step by which a state dict fills an optimizer's state; `module` is torch.distributed.checkpoint's.

    Its gradients and learning rate are zero. It comes before what is loaded, and would begin the count with 1.
    """
    original = getattr(module, "_init_optim_state", None)
    if original is None:
        return

    @wraps(original)
    def fill(*args: Any, **kwargs: Any) -> Any:
        with Uncounted():
            return original(*args, **kwargs)

    module._init_optim_state = fill  # type: ignore[attr-defined]


def steps_are_reported() -> None:
    """Count no backward passes: a framework whose optimizers are none of torch's reports its steps itself."""
    if _watch is not None:
        _watch.optimizers_made = True


def epoch_is(number: Optional[int]) -> None:
    """Note the epoch under way, as a framework counts it from 0."""
    if _watch is not None:
        _watch.epoch, _watch.alike = number, None


@fenced
def fit_is_over() -> None:
    """Note that a framework's training ended: what the script does afterwards makes no steps, but in a next one."""
    if _watch is not None:
        _watch.let_lead_go()
    recorder = claim.holding()
    if recorder is not None and claim.is_reporting(claim.GENERIC):
        recorder.stage, recorder.aside = ENDED, 0


def steps_were_made(number: int) -> None:
    """Continue from the step that a framework reports as its resume point; not every optimizer keeps a count."""
    if _watch is not None:
        _watch.resumed_step = number
        if _watch.step:  # an earlier training of this process counted
            _watch.step, _watch.alike = number, None


def step_number() -> int:
    """Return the number of the last counted step, 0 before the first: what a state that is saved now is of."""
    return 0 if _watch is None else _watch.step


def _watch_optimizers(torch: Any, watch: Watch) -> None:
    base = torch.optim.Optimizer
    compiler = getattr(torch, "compiler", None)
    # By either of them torch.compile knows that it traces; the first calls nothing else.
    compiling = getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", lambda: False)

    def step_is_watched(optimizer: Any, *_: Any, **__: Any) -> None:
        watch.optimizers_made = True
        kind = type(optimizer)
        if not hasattr(kind.step, "_watched_by_rocm_agent"):
            kind.step = _wrap_step(kind.step, watch, compiling)
        watch.optimizers.add(optimizer)

    # Whoever reports: without the count of calls every step under a scaler would be taken for a skipped one.
    _call_after(base, "__init__", step_is_watched, whoever_reports=True)
    _call_after(base, "__setstate__", step_is_watched, whoever_reports=True)  # an optimizer that was pickled itself


def _wrap_step(step: Callable[..., Any], watch: Watch, compiling: Callable[[], bool]) -> Callable[..., Any]:
    """Return `step` with its outermost calls counted.

    It looks like `step` to GradScaler, which reads the signature, and to torch, which marks steps as `hooked`. It has
    no __wrapped__: torch.compile of torch 2.0 takes such a layer off every optimizer, and we would be gone.
    """
    bare = getattr(step, "__wrapped__", step)

    def watched_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return bare(self, *args, **kwargs)
        watch.steps_called += 1
        recorder = None if watch.stepping else claim.counting or _take_recorder()
        if recorder is None:
            return step(self, *args, **kwargs)
        watch.stepping = True
        try:
            result = step(self, *args, **kwargs) if args or kwargs else step(self)
        finally:
            watch.stepping = False
        try:
            watch.counted(recorder, self)
        except Exception as error:
            failed("torch_hook.step", error)
        return result

    update_wrapper(watched_step, step)
    del watched_step.__wrapped__
    watched_step.__signature__ = inspect.signature(bare)
    watched_step._watched_by_rocm_agent = True
    watched_step._bare_step = bare
    return watched_step


@fenced
def _take_recorder() -> Optional[Recorder]:
    """Return the recorder, claimed at the first step, unless a better source reports."""
    return claim.take(claim.GENERIC)


def _watch_backward(torch: Any, watch: Watch) -> None:
    original, plain, drawn = torch.Tensor.backward, torch.Tensor, batch_count.drawn

    @wraps(original)
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            result = original(self, *args, **kwargs)
        else:
            result = original(self)
            try:
                if watch.alike and type(self) is plain and drawn.joined == 1 and claim.counting and not self.is_cuda:
                    watch.loss = self.item()  # it has one element
                    return result
            except Exception as error:
                failed("torch_hook.backward", error)
        if claim.counting is not None or claim.is_reporting(claim.GENERIC):
            try:
                watch.saw_backward(self)
            except Exception as error:
                failed("torch_hook.backward", error)
        return result

    torch.Tensor.backward = backward


def _watch_scalers(torch: Any, watch: Watch) -> None:
    kinds = {getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler}
    for kind in kinds:
        if kind is not None and "scale" in vars(kind):
            _watch_scale(kind, fenced(watch.saw_scaling), fenced(watch.precision.saw_scaling))
            _watch_skipping(kind, watch)


def _watch_skipping(kind: Any, watch: Watch) -> None:
    """Count a step that a scaler skips: with a loss that stays NaN it skips every one, and that is to be seen."""
    original = kind.step

    @wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = watch.steps_called
        result = original(self, optimizer, *args, **kwargs)
        if watch.steps_called == before:
            step_was_made(optimizer, skipped=True)
        return result

    kind.step = step


def _watch_scale(kind: Any, saw_scaling: Callable[..., None], saw_scaler: Callable[..., None]) -> None:
    original = kind.scale

    @wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if claim.is_reporting(claim.GENERIC):
            saw_scaling(outputs, scaled)
            saw_scaler(self)
        return scaled

    kind.scale = scale


def _watch_clipping(torch: Any, watch: Watch) -> None:
    original = torch.nn.utils.clip_grad_norm_

    @wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        watch.grad_norm = norm = original(*args, **kwargs)
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    home = torch.nn.utils.clip_grad
    if isinstance(home, ModuleType):
        home.clip_grad_norm_ = clip_grad_norm_


def _watch_loaders(torch: Any, watch: Watch) -> None:
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    original, training = kind.__next__, torch.is_grad_enabled

    @wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        if not training():  # waiting for a validation batch belongs to no step
            watch.passes.ended_in = None
            _enter_validation()
            return original(self)
        began_ns, recorder, is_aside = monotonic_ns(), claim.counting, False
        if (
            recorder is None
            or recorder.is_elsewhere
            or id(self) != workers.drawn_from
            or get_ident() != recorder.main_thread
        ):
            recorder = _draw(watch, self, began_ns)
            is_aside = recorder is not None and recorder.stage == VALIDATE
        else:
            # As `turn_aside` does, but only for who reads the header.
            recorder.words[ASIDE_SINCE_WORD] = began_ns
            recorder.halves[ASIDE_HALF] = DATA_WAIT
        try:
            batch = original(self)
        except BaseException as error:
            watch.wait_ns += monotonic_ns() - began_ns
            _end_wait(watch, self, recorder, error)
            raise
        watch.wait_ns += monotonic_ns() - began_ns
        alike = False
        try:
            if recorder is not None:
                recorder.halves[ASIDE_HALF] = 0
                if recorder.is_elsewhere:
                    recorder.turn_aside(0, monotonic_ns())
            alike = drawn.saw_aside(batch, self, id(self._dataset)) if is_aside else drawn.saw(batch, self)
        except Exception as error:
            failed("batch_count.saw", error)
        if not (alike and watch.shape_is_seen and watch.settled):
            drew(batch, self, recorder, alike=alike)
        return batch

    drew, drawn = fenced(watch.drew), batch_count.drawn
    kind.__next__ = __next__
    _watch_worker_start(torch, watch)


def _watch_worker_start(torch: Any, watch: Watch) -> None:
    """Report waiting from the start of the workers on, which may take longer than many batches."""
    kind, training = torch.utils.data.DataLoader, torch.is_grad_enabled
    original, began, begins = kind.__iter__, fenced(loader.begins), fenced(watch.passes.begins)
    make_iterator = kind._get_iterator

    @wraps(make_iterator)
    def _get_iterator(self: Any) -> Any:
        # Some loaders begin with this one alone: that of ultralytics, which goes on with one iterator for all epochs.
        made = make_iterator(self)
        began(kind, self, made)
        return made

    @wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        if training():
            begins(self.dataset)
        _step_waits()
        if training() and claim.is_reporting(claim.GENERIC):
            _note_pass(self, watch.step)
        batch_count.drawn.begins()
        made = original(self)
        began(kind, self, made)
        return made

    kind.__iter__, kind._get_iterator = __iter__, _get_iterator


def _watch_saving(torch: Any, watch: Watch) -> None:
    """Report the stage checkpoint while a stepping training saves, and the step that the file holds."""
    original = torch.save

    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        target = args[1] if len(args) > 1 else kwargs.get("f")
        recorder, stage = _enter_checkpoint(target) or (None, STEP)
        try:
            result = original(*args, **kwargs)
        finally:
            own_saves.seen(target)
            if recorder is not None:
                recorder.stage = stage
        _report_saved(watch, target)
        return result

    torch.save = save


def _watch_loading(torch: Any) -> None:
    """Note what is loaded before the first step: a training that goes on loads what it goes on from."""
    torch.load = origin.watch_load(torch.load, "f")


@fenced
def _report_saved(watch: Watch, target: Any) -> None:
    """Report the step of a saved file, unless a framework's hook, which knows more, reports it."""
    if claim.holding() is None or threading.current_thread() is not threading.main_thread():
        return
    step = watch.step if claim.is_reporting(claim.GENERIC) else script.last_step()
    if step and origin.saves(target, step):
        watch.settled, watch.alike = False, None  # the next step reports it


@fenced
def _enter_checkpoint(target: object) -> Optional[Tuple[Recorder, int]]:
    """Report the stage checkpoint; return the stage that is resumed after it.

    The training goes on while the agent writes a snapshot in a thread of its own, so that the stage is not its.
    """
    recorder = claim.holding()
    if recorder is None or not claim.is_reporting(claim.GENERIC) or recorder.stage not in (STEP, VALIDATE):
        return None
    if get_ident() != recorder.main_thread and getattr(target, "of_the_agent", False):
        return None
    stage = recorder.stage
    recorder.stage, recorder.aside = CHECKPOINT, 0
    return recorder, stage


def _draw(watch: Watch, iterator: Any, now_ns: int) -> Optional[Recorder]:
    """Report that a batch is waited for; return the recorder where that counts."""
    try:
        return watch.draws(iterator, now_ns)
    except Exception as error:
        failed("torch_hook.draws", error)
        return None


@fenced
def _end_wait(watch: Watch, iterator: Any, recorder: Optional[Recorder], error: BaseException) -> None:
    """Report that a wait has ended without a batch."""
    if recorder is not None:
        recorder.halves[ASIDE_HALF] = 0
        recorder.turn_aside(0, monotonic_ns())
    if isinstance(error, StopIteration):
        watch.passes.ended(iterator._dataset)
        batch_count.drawn.ended(iterator)


@fenced
def _step_waits() -> None:
    """Report that the training waits for a batch; a thread that fetches ahead does not make it wait."""
    recorder = claim.counting
    if recorder is not None and get_ident() == recorder.main_thread:
        recorder.aside = DATA_WAIT


@fenced
def _enter_validation() -> None:
    """Report that batches are drawn with gradients off: a long validation is no stall. The next step ends it."""
    recorder = claim.holding()
    if recorder is not None and recorder.stage == STEP and claim.is_reporting(claim.GENERIC):
        recorder.stage = VALIDATE


def _call_after(kind: type, name: str, hook: Callable[..., None], *, whoever_reports: bool = False) -> None:
    """Have `hook` called with a method's arguments after each call of it that did not raise."""
    original = getattr(kind, name)

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if whoever_reports or claim.is_reporting(claim.GENERIC):
            try:
                hook(self, *args, **kwargs)
            except Exception as error:
                failed("torch_hook." + name, error)
        return result

    setattr(kind, name, method)
