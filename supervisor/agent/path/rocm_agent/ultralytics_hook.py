"""Reports the progress of an ultralytics training, batch by batch. Its callbacks and numbers stay as they are.

The methods are wrapped on BaseTrainer itself, so every trainer of every task has them. Step n is the n-th batch of the
whole training, `epoch * batches_per_epoch + batch + 1`, which goes on counting over a resume.
"""

# ruff: noqa: PLC0415 - torch and ultralytics are the user's: imported where they are sure to be loaded already

from __future__ import annotations

import os
import weakref
from functools import wraps
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import (
    batch_count,
    claim,
    events,
    remedies,
    save_request,
    torch_hook,
    tuning,
    ultralytics_hours,
    ultralytics_remedies,
    ultralytics_results,
    ultralytics_resume,
)
from .fence import failed, fenced
from .layout import CHECKPOINT, DATA_WAIT, ENDED, SETUP, STEP, VALIDATE, WARMUP
from .recorder import Recorder
from .save_command import end_if_asked
from .scalars import GpuMemory, number
from .shapes import Shapes
from .snapshots import ultralytics as snapshots

_run: Optional[Run] = None


class Run:
    """What is known of the current training."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._memory = _memory_of(trainer)
        self._files: Dict[str, Tuple[int, int, int]] = {}
        self.batches_per_epoch = 0
        self.batches = 0
        """Batches made of the present epoch."""
        self.step = 0
        self.shapes = Shapes(complete=True)
        self.final = False
        """Whether the epochs are over and only the best checkpoint is validated."""
        self.snapshots: Optional[snapshots.Snapshots] = None
        self._counts_on = False
        """Whether the hours of a training that ends by them include those of earlier processes."""
        self._last_end_ns = 0
        self._wait_s: Optional[float] = None
        self._metrics: Any = trainer.metrics

    @property
    def trainer(self) -> Any:
        """The trainer, None when it is gone."""
        return self._trainer()

    # --- the moments of a training, in their order --------------------------------------------------------------

    def train_starts(self, trainer: Any, recorder: Recorder) -> None:
        """The loaders are made and a resume is done."""
        self.batches_per_epoch = len(trainer.train_loader)
        self.changed_files(trainer)
        if trainer.start_epoch == 0:
            ultralytics_results.forget_best(trainer)
        _watch_shapes(type(trainer))
        ultralytics_remedies.leave_out(trainer, lambda: self.batches, self.batch_is_left_out)
        self.snapshots = snapshots.begin(trainer, lambda: self.batches)
        exact = ultralytics_resume.taken_up(trainer)
        if self.snapshots is not None and exact is not None:
            self.snapshots.resume(trainer, exact)
        if ultralytics_resume.is_resuming(trainer):
            self._counts_on = ultralytics_hours.count_on(trainer, exact)
        recorder.stage = WARMUP
        events.write(
            "plan",
            framework="ultralytics",
            version=_ultralytics_version(),
            epochs=trainer.epochs,
            start_epoch=trainer.start_epoch,
            batches_per_epoch=self.batches_per_epoch,
            save_dir=os.path.abspath(str(trainer.save_dir)),
            device=str(trainer.device),
            model=_model_name(trainer.model),
            batch=getattr(trainer, "batch_size", None),
            image_size=getattr(trainer.args, "imgsz", None),
            torch=_torch_version(),
            adjusts=list(ultralytics_remedies.ADJUSTS),
            saves_each_epoch=True,
        )
        _report_precision(trainer)

    def epoch_starts(self, trainer: Any, recorder: Recorder) -> None:
        """Also the second time for one epoch, when ultralytics repeats it with smaller batches or after NaN."""
        self.batches_per_epoch = len(trainer.train_loader)
        self.batches = 0 if self.snapshots is None else self.snapshots.epoch_starts(trainer)
        self.step = trainer.epoch * self.batches_per_epoch + self.batches
        self._last_end_ns = monotonic_ns()
        if recorder.stage != WARMUP:
            recorder.stage = STEP
        recorder.aside = DATA_WAIT

    def batch_starts(self, trainer: Any, recorder: Recorder) -> None:
        """The loader has returned a batch."""
        self._wait_s = (monotonic_ns() - self._last_end_ns) / 1e9
        recorder.aside = 0
        if self.snapshots is not None:
            self.snapshots.batch_starts(trainer)

    def batch_ends(self, trainer: Any, recorder: Recorder) -> None:
        """Record the step."""
        self.batches += 1
        epoch = trainer.epoch
        self.step = epoch * self.batches_per_epoch + self.batches
        norm = torch_hook.take_grad_norm()
        loss, grad_norm = (
            (_read_loss(trainer), None if norm is None else float(norm)) if _may_read(trainer) else (None, None)
        )
        lr = trainer.optimizer.param_groups[0]["lr"] * remedies.lr_factor
        memory = None if self._memory is None else self._memory.read()
        skipped, (samples, tokens) = torch_hook.take_skipped(), batch_count.drawn.take()
        recorder.record(self.step, epoch, loss, lr, grad_norm, self._wait_s, memory, skipped, samples, tokens)
        # Callbacks of the user come next: what they take is no batch's time either.
        recorder.stage, recorder.aside = STEP, DATA_WAIT

    def batch_is_left_out(self) -> None:
        """It keeps its number."""
        self.batches += 1

    def batch_is_over(self, trainer: Any, recorder: Recorder) -> Optional[Tuple[int, int]]:
        """Take a snapshot if one is due, or serve a command; return it where the process is to end now."""
        ending, command = None, recorder.command()
        taking = self.snapshots if recorder.stage == STEP else None
        if taking is not None and taking.together:
            ending = taking.batch_is_over_everywhere(trainer, self.step, recorder)
        elif command is not None:
            ending = save_request.serve(trainer, self.step, self.snapshots, recorder, command)
        elif taking is not None:
            taking.batch_is_over(trainer, self.step)
        tuning.step_ended(getattr(trainer, "optimizer", None), self.step, monotonic_ns())
        self._last_end_ns = monotonic_ns()
        return ending

    def epoch_ends(self, trainer: Any, recorder: Recorder) -> None:
        """Only validation and saving remain."""
        if self.snapshots is not None:
            self.snapshots.epoch_ends(trainer)
        if self._counts_on:
            ultralytics_hours.count_epochs(trainer)
        recorder.stage, recorder.aside = VALIDATE, 0

    def model_is_saved(self, trainer: Any, recorder: Recorder) -> None:
        """Report which checkpoints this call has rewritten."""
        paths = self.changed_files(trainer)
        if paths and claim.rank == 0:
            step = (trainer.epoch + 1) * self.batches_per_epoch
            events.write("checkpoint_saved", paths=paths, epoch=trainer.epoch, step=step, requested=False)

    def fit_epoch_ends(self, trainer: Any, recorder: Recorder) -> None:
        """Validation and saving are over; after the last epoch the call is repeated for the best checkpoint."""
        if not self.final:
            recorder.stage, recorder.aside = STEP, DATA_WAIT
            if claim.rank == 0:
                self._report_epoch(trainer)

    def _report_epoch(self, trainer: Any) -> None:
        """Report the epoch's results; metrics of an earlier validation are not repeated."""
        validated = trainer.metrics is not self._metrics and getattr(trainer, "fitness", None) is not None
        self._metrics = trainer.metrics
        metrics = {str(name): _read_metric(item) for name, item in (trainer.metrics or {}).items()} if validated else {}
        losses = [item for name, item in metrics.items() if name.startswith("val/") and item is not None]
        facts: Dict[str, Any] = {"epoch": trainer.epoch, "train_loss": _sum_losses(trainer.tloss), "metrics": metrics}
        if validated:
            facts.update(fitness=_read_metric(trainer.fitness), val_loss=sum(losses) if losses else None)
        events.write("epoch_end", **{name: item for name, item in facts.items() if item is not None})

    def train_ends(self, trainer: Any, recorder: Recorder) -> None:
        """The training is complete."""
        events.write("train_end", epoch=trainer.epoch, step=self.step)
        recorder.stage, recorder.aside = ENDED, 0

    def changed_files(self, trainer: Any) -> List[str]:
        """Return the checkpoints that are new or rewritten since the last call, by their inode, time and size."""
        changed = []
        for path in (trainer.last, trainer.best, trainer.wdir / ("epoch%d.pt" % getattr(trainer, "epoch", 0))):
            try:
                found = os.stat(str(path))
            except OSError:
                continue
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            name = os.path.abspath(str(path))
            if self._files.get(name) != mark:
                self._files[name] = mark
                changed.append(name)
        return changed


Moment = Callable[[Run, Any, Recorder], Any]
SETTING_UP = ("on_pretrain_routine_start", "on_pretrain_routine_end")
"""The first is called on rank 0 only since ultralytics 8.4."""
BEFORE: Dict[str, Moment] = {
    "on_train_start": Run.train_starts,
    "on_train_epoch_start": Run.epoch_starts,
    "on_train_batch_start": Run.batch_starts,
    "on_train_batch_end": Run.batch_ends,
    "on_train_epoch_end": Run.epoch_ends,
    "on_model_save": Run.model_is_saved,
    "on_fit_epoch_end": Run.fit_epoch_ends,
}
"""Before the callbacks of the user, which may raise: a step that was made is in the record."""
AFTER: Dict[str, Moment] = {"on_train_batch_end": Run.batch_is_over, "on_train_end": Run.train_ends}
"""After them: what a callback takes is no wait for data, and what it changed is saved."""


def install(module: ModuleType) -> None:
    """Wrap the trainer in `module`: ultralytics.engine.trainer, before 8.0.136 ultralytics.yolo.engine.trainer."""
    trainer = module.BaseTrainer
    trainer.run_callbacks = _with_moments(trainer.run_callbacks)
    trainer.save_model = _in_stage(trainer.save_model, CHECKPOINT)
    trainer.final_eval = _in_stage(trainer.final_eval, VALIDATE, final=True)
    snapshots.install(module)


def install_validator(module: ModuleType) -> None:
    """Answer commands between the batches of a validation too, which can take as long as many steps."""
    validator = module.BaseValidator
    original = validator.run_callbacks

    @wraps(original)
    def run_callbacks(self: Any, event: str, *args: Any, **kwargs: Any) -> Any:
        result = original(self, event, *args, **kwargs)
        ending = _between_validations() if event == "on_val_batch_end" else None
        if ending is not None:
            end_if_asked(ending)
        return result

    validator.run_callbacks = run_callbacks


def _with_moments(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run_callbacks(self: Any, event: str, *args: Any, **kwargs: Any) -> Any:
        if event in SETTING_UP:
            _begin_run(self)
        before = BEFORE.get(event)
        if before is not None:
            _pass_moment(before, self, event)
        result = original(self, event, *args, **kwargs)
        after = AFTER.get(event)
        ending = None if after is None else _pass_moment(after, self, event)
        if ending is not None:
            end_if_asked(ending)  # outside the fence: a handler of the user's may raise what it likes
        return result

    return run_callbacks


def _watch_shapes(kind: Any) -> None:
    """Check each batch once it has its final size: some trainings scale it after the loader."""
    original = kind.preprocess_batch
    if hasattr(original, "_watched_by_rocm_agent"):
        return

    @wraps(original)
    def preprocess_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        _saw_batch(self, batch)
        return batch

    preprocess_batch._watched_by_rocm_agent = True
    kind.preprocess_batch = preprocess_batch


@fenced
def _saw_batch(trainer: Any, batch: Any) -> None:
    run, recorder = _run, claim.holding()
    if run is not None and recorder is not None and run.trainer is trainer:
        run.shapes.saw(batch, recorder)


def _in_stage(original: Callable[..., Any], stage: int, *, final: bool = False) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run, recorder = _run, claim.holding()
        if run is None or recorder is None or run.trainer is not self:
            return original(self, *args, **kwargs)
        run.final = run.final or final
        if stage == CHECKPOINT and run.snapshots is not None:
            run.snapshots.save_begins()
        before, recorder.stage = recorder.stage, stage
        try:
            return _in_safety(original, self, *args, **kwargs) if final else original(self, *args, **kwargs)
        finally:
            recorder.stage = before

    return method


def _in_safety(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Evaluate the best checkpoint, whose optimizer is removed in place, while a copy of it exists."""
    ultralytics_results.keep_best(trainer)
    result = original(trainer, *args, **kwargs)
    ultralytics_results.forget_best(trainer)
    return result


def _begin_run(trainer: Any) -> None:
    """A training is being set up in this process; ultralytics' parent of several ranks trains nothing itself."""
    global _run
    try:
        if getattr(trainer, "ddp", False) or (_run is not None and _run.trainer is trainer):
            return
        recorder = claim.take(claim.ULTRALYTICS)
        if recorder is not None:
            recorder.stage = SETUP
            _run = Run(trainer)
    except Exception as error:
        failed("ultralytics_hook.begin", error)


def _pass_moment(moment: Moment, trainer: Any, event: str) -> Any:
    """Pass a callback of the training to its run."""
    try:
        run, recorder = _run, claim.take(claim.ULTRALYTICS)
        if run is None or recorder is None or run.trainer is not trainer:
            return None
        return moment(run, trainer, recorder)
    except Exception as error:
        failed("ultralytics_hook." + event, error)
        return None


def _between_validations() -> Optional[Tuple[int, int]]:
    run = _run
    if run is None or run.final or run.trainer is None:
        return None
    return _pass_moment(Run.batch_is_over, run.trainer, "on_val_batch_end")


def _report_precision(trainer: Any) -> None:
    """Report the requested arithmetic; ultralytics tries AMP once and leaves it off where the results differ."""
    wanted, amp = getattr(trainer.args, "amp", None), getattr(trainer, "amp", None)
    if wanted is None or amp is None:
        return
    asked = "single" if wanted in {False, "fp32"} else "bfloat16" if wanted == "bf16" else "half"
    used = asked if bool(amp) else "single"
    why = "" if used == asked else "ultralytics' own check of AMP did not pass"
    events.write("precision", asked=asked, used=used, why=why, device=trainer.device.type)


def _read_loss(trainer: Any) -> Optional[float]:
    """Return the sum of the newest batch's losses."""
    return _sum_losses(trainer.loss_items)


def _read_metric(value: Any) -> Optional[float]:
    try:
        return number(value)
    except (TypeError, ValueError):
        return None


def _sum_losses(items: Any) -> Optional[float]:
    """Return the sum of loss items: a dict of tensors since ultralytics 8.4, one tensor before."""
    if isinstance(items, dict):
        return sum([float(item) for item in items.values()])
    return float(items.sum()) if hasattr(items, "sum") else None


def _may_read(trainer: Any) -> bool:
    """Whether reading a tensor waits for nothing: ultralytics has just read them for its progress bar, on rank 0."""
    return claim.rank == 0 or trainer.device.type == "cpu"


def _memory_of(trainer: Any) -> Optional[GpuMemory]:
    if trainer.device.type != "cuda":
        return None
    import torch

    return GpuMemory(torch)


def _model_name(model: Any) -> Optional[str]:
    """Return what the model was built from, which a resumed one still knows."""
    described = getattr(getattr(model, "module", model), "yaml", None)
    name = described.get("yaml_file") if isinstance(described, dict) else None
    return None if name is None else os.path.basename(str(name))


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _ultralytics_version() -> Optional[str]:
    import ultralytics

    return getattr(ultralytics, "__version__", None)
