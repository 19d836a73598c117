"""Carries out what a tune asks for, at a step boundary: sets knobs, reverts them, reports what became of it.

The daemon writes `tune.json` into the attempt's folder; a look at it every quarter of a second costs a step nothing
that can be measured, and while settings are lent it is looked at more often: steps between an order and its answer are
steps of the tune. Settings are lent until `until_ns`: when the daemon that tunes is gone, the owner's come back.
"""

# ruff: noqa: PLC0415 - the knobs are imported once a tune begins: a training that is not tuned does not pay for them

from __future__ import annotations

import os
import sys

from . import claim, events, remedies
from .fence import failed, fenced
from .layout import COMPILE, TUNE

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

LOOK_EVERY_NS = 250_000_000
LOOK_WHILE_LENT_NS = 10_000_000
SIZE_LIMIT_BYTES = 65536
STOCK_STEPS, STOCK_NS = 8, 1_000_000_000
"""Steps after which a loader's batches are counted once more, or the time of fewer."""
CAPTURED_STEPS = 2
"""Steps that are followed first, where a replay has to prove a knob or the loader is not known yet."""

LOADER_KNOBS = frozenset({"workers", "prefetch_factor", "pin_memory"})
CARRY_NOTHING = LOADER_KNOBS | {"micro_batch"}
"""Knobs on which no other one's proof rests: single micro-batches are the calls that it was proven on, and smaller."""
REPLAYED = frozenset({"channels_last", "tf32", "autocast", "attention", "checkpointing", "micro_batch", "compile"})
"""Knobs that are proven on the model's own batches."""
OTHER_SUMS = frozenset({"threads", "cudnn_benchmark"})
"""Knobs that are not proven so and have sums computed in another order."""
UPDATES_MIN = 4
"""Of the optimizer, after which it is known how many steps each has."""
WARNINGS_KEPT = 8
WARNING_CHARACTERS = 200
ADVICE = ("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled",)
"""Beginnings of warnings of no harm. torch's compiler gives this one whenever it compiles in single precision."""
OF_VERSIONS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
"""Given by whatever calls an older API first, as a save of the training does: whose turn it is then is chance."""

due_ns = 0
"""When `step_ended` has something to do: until then a step need not call it."""
_path = ""
_seen = None  # type: Optional[Tuple[int, int]]
_tune = None  # type: Optional[Tune]
_count_calls = None  # type: Optional[Callable[[], int]]


def begin(folder: str) -> None:
    """Look for a tune in the folder above `folder`, where the training cannot write."""
    global _path
    _path = os.path.join(os.path.dirname(folder), TUNE)


def count_calls_by(count_calls: Callable[[], int]) -> None:
    """Take what counts the steps of optimizers that were called in this process."""
    global _count_calls
    _count_calls = count_calls


def step_ended(optimizer: Any, step: int, now_ns: int) -> None:
    """A step is over; `optimizer` made it."""
    global due_ns
    if now_ns < due_ns:
        return
    if _path and optimizer is not None:
        _look(optimizer, step, now_ns)
    due_ns = now_ns + (LOOK_WHILE_LENT_NS if _tune is not None and _tune.is_lent else LOOK_EVERY_NS)
    if _tune is not None and _tune.busy:
        due_ns = 0


@fenced
def _look(optimizer: Any, step: int, now_ns: int) -> None:
    global _seen, _tune
    try:
        found = os.stat(_path)
    except OSError:
        mark = None
    else:
        mark = (found.st_mtime_ns, found.st_ino)
    if mark != _seen:
        _seen = mark
        order = None if mark is None else _read()
        if _tune is None and order is not None:
            _tune = Tune(sys.modules["torch"])
        if _tune is not None:
            _tune.take(order, step)
    if _tune is not None:
        _tune.step_ended(optimizer, step, now_ns)


def _read() -> Optional[Dict[str, Any]]:
    """Return the order; None for a file that is none, which is as if there were none."""
    import json

    try:
        with open(_path, "rb") as file:
            order = json.loads(file.read(SIZE_LIMIT_BYTES))
        return order if isinstance(order.get("settings"), dict) else None
    except (OSError, ValueError, AttributeError) as error:
        failed("tuning.read", error)
        return None


class Tune:
    """The knobs of this training, and what the daemon wants of them."""

    def __init__(self, torch: Any) -> None:
        from .knobs import loader, merging, replay

        self._torch = torch
        self._order = None  # type: Optional[Dict[str, Any]]
        self._answered = None  # type: Any
        self.is_lent = False
        """Whether settings hold for as long as the daemon renews them."""
        self._counted = (0, 0)
        """The step and the time at which the loader's batches were counted last."""
        self._warnings = Warnings()
        self._knobs = {}  # type: Dict[str, Any]
        self._applied = {}  # type: Dict[str, Any]
        self._calls = replay.Calls(torch)
        self._captured = 0
        self._loader = loader.Loader(torch)
        self._loader.install()
        self._merging = merging.Merging(torch)
        self._merging.install()
        self._trace = None  # type: Any
        self._traced = None  # type: Optional[Dict[str, Any]]
        """What the steps that were traced for the present order were spent on."""
        self._optimizer = None  # type: Any
        self._proven = set()  # type: Set[str]
        """Settings that held before in this tune: to set them again they are not replayed again."""

    @property
    def busy(self) -> bool:
        """Whether an order waits: every step is looked at then."""
        return self._order is not None and self._order.get("id") != self._answered

    def take(self, order: Optional[Dict[str, Any]], step: int) -> None:
        """Receive what is wanted now; None: the owner's settings."""
        held, self._order = self.is_lent or bool(self._applied), order
        if order is None:
            self._end()
            self._let_go()
            if held:
                self._report_end(step, "the order was withdrawn")
        elif order.get("id") != self._answered:
            self._captured = 0
        if order is None or order.get("until_ns") is None:
            self._proven.clear()  # what one tune has proven is not taken on trust by the next

    def step_ended(self, optimizer: Any, step: int, now_ns: int) -> None:
        """Carry out what waits, at the end of a step."""
        order = self._order
        if order is None:
            return
        until_ns = order.get("until_ns")
        if until_ns is not None and now_ns > until_ns:
            self._order = self._answered = None
            self._end()
            self._let_go()
            self._report_end(step, "the lease ran out", order.get("id"))
            return
        if self._warnings.new:
            events.write("tuning", id=self._answered, step=step, warned=self._warnings.take(), lent=self.is_lent)
        if self.is_lent:
            self._count_stock(step, now_ns)
        if not self.busy:
            return
        self._make_knobs(optimizer)
        if order.get("traces") and not self._has_traced(optimizer, now_ns):
            return
        if self._captured < CAPTURED_STEPS and self._has_to_see_steps(order):
            # What goes is gone in the steps that are followed: calls are replayed in the precision they were made in.
            self._take_off(order["settings"], LOADER_KNOBS)
            self._calls.keep()
            self._captured += 1
            return
        self._answered = order.get("id")
        self._mark(lent=until_ns is not None)
        self._carry_out_aside(order, optimizer, step)

    def _carry_out_aside(self, order: Dict[str, Any], optimizer: Any, step: int) -> None:
        recorder = claim.holding()
        if recorder is not None:
            # Replays and the start of workers take their time; that of a search for kernels is the one most like it.
            before, recorder.aside = recorder.aside, COMPILE
        try:
            self._carry_out(order, optimizer, step)
        finally:
            if recorder is not None:
                recorder.aside = before

    def _count_stock(self, step: int, now_ns: int) -> None:
        """Report every few steps what the loader's workers have made."""
        if step - self._counted[0] < STOCK_STEPS and now_ns - self._counted[1] < STOCK_NS:
            return
        self._counted = (step, now_ns)
        stock = self._loader.count_stock()
        if stock is not None:
            events.write(
                "stock",
                step=step,
                iterator=stock["iterator"],
                workers=stock["workers"],
                ahead=stock["ahead"],
                begun=stock["begun"],
                ready=stock["ready"],
                delivered=stock["delivered"],
            )

    def _carry_out(self, order: Dict[str, Any], optimizer: Any, step: int) -> None:
        other = self._name_other(order.get("proven_on"), optimizer)
        applied, refused = self._set({} if other else order["settings"])
        if other:
            refused = dict.fromkeys(order["settings"], other)
        facts = self._facts(optimizer) if order.get("facts") else None
        self._calls.stop()
        number, traced, self._traced = self._answered, self._traced, None
        lent = self.is_lent
        events.write(
            "tuning", id=number, step=step, applied=applied, refused=refused, facts=facts, lent=lent, traced=traced
        )

    def _mark(self, *, lent: bool) -> None:
        """Mark the steps that are made from now on, as those of a tune or as the owner's."""
        if lent and not self.is_lent:
            self._warnings.follow()
        elif not lent:
            self._warnings.leave()
        self.is_lent = lent
        recorder = claim.holding()
        if recorder is not None:
            recorder.tuning = lent

    def _report_end(self, step: int, why: str, number: Any = None) -> None:
        self._mark(lent=False)
        events.write("tuning", id=number, step=step, applied={}, refused={}, ended=why, lent=False)

    def _has_to_see_steps(self, order: Dict[str, Any]) -> bool:
        going = self._list_going(order["settings"])
        wanted = order["settings"].items()
        new = {name for name, value in wanted if name in going or self._applied.get(name) != value}
        replays = bool(new & REPLAYED) and _key(order["settings"]) not in self._proven
        return bool(replays or order.get("facts") or (new & LOADER_KNOBS and self._loader.workers is None))

    def _make_knobs(self, optimizer: Any) -> None:
        from .knobs import autocast, compiling, layout, switches, transformer
        from .knobs import optimizer as fused
        from .knobs.loader import LoaderSetting, Pinning

        if self._optimizer is optimizer:
            return
        self._end()
        self._optimizer = optimizer
        self._proven.clear()
        self._knobs = {
            "workers": self._loader,
            "threads": switches.Threads(self._torch),
            "cudnn_benchmark": switches.CudnnBenchmark(self._torch),
            "prefetch_factor": LoaderSetting(self._loader, "prefetch_factor"),
            "pin_memory": Pinning(self._torch, self._loader),
            "tf32": switches.Tf32(self._torch, optimizer, self._calls),
            "autocast": autocast.Autocast(self._torch, optimizer, self._calls),
            "fused_optimizer": fused.FusedOptimizer(self._torch, optimizer, self._calls),
            "channels_last": layout.ChannelsLast(self._torch, optimizer, self._calls),
            "attention": transformer.Attention(self._torch, optimizer, self._calls),
            "checkpointing": transformer.Checkpointing(self._torch, optimizer, self._calls),
            "micro_batch": self._merging.follow(optimizer, self._calls),
            "compile": compiling.Compiled(self._torch, optimizer, self._calls),
        }

    def _set(self, settings: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
        """Set the knobs; what is not named goes back to the owner's. Layout goes first on and last off.

        What was proven on top of what goes is proven once more without it: memory may have room for it no more.
        """
        from .knobs import Refused

        refused = {}
        self._calls.measured = None
        self._calls.trusted = _key(settings) in self._proven
        self._loader.deferred = True
        self._take_off(settings)
        for name, value in settings.items():
            if self._applied.get(name) == value:
                continue
            why = self._apply(name, value)
            if why is None:
                self._applied[name] = value
            else:
                refused[name] = why
        try:
            self._loader.settle()
        except Refused as error:
            for name in LOADER_KNOBS.intersection(self._applied):
                refused[name] = str(error)
                del self._applied[name]
        self._calls.trusted = False
        if not refused:
            self._proven.add(_key(settings))
        return dict(self._applied), refused

    def _take_off(self, settings: Dict[str, Any], kept: FrozenSet[str] = frozenset()) -> None:
        """Revert what is not set, and what was proven on top of it; `kept` knobs stay for now."""
        for name in self._list_going(settings):
            if name not in kept:
                self._knobs[name].revert()
                del self._applied[name]

    def _list_going(self, settings: Dict[str, Any]) -> List[str]:
        """Return the knobs to revert, last on first off, before those that are not set are set."""
        names = list(self._applied)
        going = [name for name in names if name not in settings]
        below = [names.index(name) for name in going if name not in CARRY_NOTHING]
        if below and _key(settings) not in self._proven:
            above = [name for name in names[min(below) :] if name not in LOADER_KNOBS]
            going = [name for name in names if name in going or name in above]
        return going[::-1]

    def _apply(self, name: str, value: Any) -> Optional[str]:
        """Set one knob; return why it is refused, None where it is set."""
        from .knobs import Refused

        knob = self._knobs.get(name)
        if knob is None:
            return "not known to the agent of this attempt"
        if claim.world_size() > 1 and name != "threads":
            return "the training has %d ranks" % claim.world_size()
        try:
            knob.apply(value)
        except Refused as error:
            return str(error)
        except Exception as error:  # a knob that breaks is one that is refused
            knob.revert()
            self._calls.measured = None
            self._applied.pop(name, None)
            return "%s: %s" % (type(error).__name__, error)
        if name in OTHER_SUMS:
            self._calls.measured = None
        return None

    def _has_traced(self, optimizer: Any, now_ns: int) -> bool:
        """Trace the steps from now on; return whether enough were traced, or none can be."""
        from .knobs import list_params
        from .step_trace import StepTrace

        if self._trace is None:
            params = list_params(optimizer)
            trace = StepTrace(self._torch, on_gpu=bool(params) and params[0].is_cuda)
            if trace.why_not() is not None:
                return True
            self._trace = trace
        try:
            if not self._trace.step_ended(now_ns):
                return False
            self._traced = self._trace.stop()
        except Exception as error:
            failed("tuning.trace", error)
            fenced(self._trace.stop)()
        self._trace = None
        return True

    def _name_other(self, proven_on: Any, optimizer: Any) -> Optional[str]:
        """Return why settings that were proven earlier do not hold here; None where they do."""
        found = self._identity(optimizer)
        for name, proven in (proven_on if isinstance(proven_on, dict) else {}).items():
            if name in found and found[name] != proven:
                return "proven with %s %s, and this is %s" % (name, proven, found[name])
        return None

    def _identity(self, optimizer: Any) -> Dict[str, Any]:
        """Return the torch and the GPU that the training uses; no GPU is None."""
        from .knobs import list_params

        torch = self._torch
        params = list_params(optimizer)
        on_gpu = bool(params) and params[0].is_cuda
        name = torch.cuda.get_device_name(params[0].device) if on_gpu else None
        return {"torch": str(torch.__version__), "gpu": name}

    def _end(self) -> None:
        """Put back everything of the owner's."""
        from .knobs import Refused

        self._loader.deferred = True
        for name in reversed(list(self._applied)):
            self._knobs[name].revert()
        self._applied = {}
        if self._trace is not None:
            trace, self._trace = self._trace, None
            fenced(trace.stop)()
        try:
            self._loader.settle()
        except Refused as error:
            failed("tuning.loader", error)
        self._calls.stop()

    def _let_go(self) -> None:
        """Hold nothing of the training's while no order does: it may make another model, and have no room for both."""
        self._optimizer, self._knobs = None, {}
        self._merging.follow(None, self._calls)
        self._proven.clear()

    def _facts(self, optimizer: Any) -> Dict[str, Any]:
        from .knobs import list_params

        torch, params = self._torch, list_params(optimizer)
        several = "the training has %d ranks" % claim.world_size() if claim.world_size() > 1 else None
        return {
            **self._identity(optimizer),
            "device": params[0].device.type if params else None,
            "cuda": bool(params) and params[0].is_cuda,
            "hip": getattr(torch.version, "hip", None) is not None,
            "processors": len(os.sched_getaffinity(0)),
            **self._list_loader_facts(several),
            "card_bytes": int(torch.cuda.mem_get_info()[1]) if bool(params) and params[0].is_cuda else None,
            "threads": torch.get_num_threads(),
            "optimizer": type(optimizer).__name__,
            "steps_per_update": _count_steps_per_update(),
            "convolves": any(param.dim() > 2 for param in params),
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
            **self._list_knob_facts(several),
        }

    def _list_knob_facts(self, several: Optional[str]) -> Dict[str, Any]:
        knobs, attention, checkpointing = self._knobs, self._knobs["attention"], self._knobs["checkpointing"]
        treated = any(remedies.wanted(name) is not None for name in ("lr_factor", "clip_norm", "skip_non_finite"))
        fused_why = (
            "a remedy or a tune changes the optimizer's steps" if treated else knobs["fused_optimizer"].why_not()
        )
        layout_why = knobs["channels_last"].why_not() or self._calls.why_not()
        return {
            "autocast": self._calls.casting,
            "autocast_why_not": several or knobs["autocast"].why_not() or self._calls.why_not(),
            "fused": knobs["fused_optimizer"].on,
            "fused_why_not": several or fused_why,
            "channels_last": knobs["channels_last"].on,
            "channels_last_why_not": several or layout_why,
            "attention": attention.value,
            "attention_why_not": several or attention.why_not() or self._calls.why_not(),
            "checkpointing": checkpointing.on,
            "checkpointing_why_not": several or checkpointing.why_not() or self._calls.why_not(),
            "micro_batches": self._merging.batches,
            "micro_batch_why_not": several or self._merging.why_not(),
            "compiled": knobs["compile"].on,
            "compile_why_not": several or knobs["compile"].why_not() or self._calls.why_not(),
            "tf32": knobs["tf32"].on,
        }

    def _list_loader_facts(self, several: Optional[str]) -> Dict[str, Any]:
        loader = self._loader
        larger_why = several or loader.why_not_larger()
        return {
            "workers": loader.workers,
            "loader_why_not": several or loader.why_not(),
            "pinned": getattr(loader.owners, "pin_memory", None),
            "prefetch": getattr(loader.owners, "prefetch_factor", None),
            "batch_size": getattr(loader.owners, "batch_size", None) if larger_why is None else None,
            "batch_why_not": larger_why,
            "batch_bytes": loader.batch_bytes,
            "shm_bytes": _free_bytes("/dev/shm"),  # noqa: S108 - where loaders' workers hand batches over
        }


def _count_steps_per_update() -> Optional[int]:
    """Return how many steps are recorded for each that the optimizer makes: 1, or as many as a loop adds up.

    None where so few were made that it is not clear.
    """
    recorder, calls = claim.holding(), 0 if _count_calls is None else _count_calls()
    if recorder is None or calls < UPDATES_MIN:
        return None
    return max(1, round(recorder.written / calls))


class Warnings:
    """Python's warnings while a tune is under way; they go on to wherever they went before."""

    def __init__(self) -> None:
        self.new = []  # type: List[str]
        self._seen = set()  # type: Set[str]
        self._original = None  # type: Any

    def follow(self) -> None:
        """Note each warning that was not seen before."""
        import warnings

        original = self._original = warnings.showwarning

        def showwarning(message: Any, *args: Any, **kwargs: Any) -> None:
            text = str(message)[:WARNING_CHARACTERS]
            is_of_a_knob = not (isinstance(message, OF_VERSIONS) or text.startswith(ADVICE))
            if is_of_a_knob and text not in self._seen and len(self.new) < WARNINGS_KEPT:
                self._seen.add(text)
                self.new.append(text)
            original(message, *args, **kwargs)

        self._mine = warnings.showwarning = showwarning

    def leave(self) -> None:
        """Note no more, unless someone else has taken the place since."""
        import warnings

        if self._original is not None and warnings.showwarning is self._mine:
            warnings.showwarning = self._original
        self._original = None

    def take(self) -> List[str]:
        """Return the new ones, once."""
        new, self.new = self.new, []
        return new


def _key(settings: Dict[str, Any]) -> str:
    """Return what stands for settings of knobs other than the loader's, which are not replayed."""
    return repr(sorted((name, repr(value)) for name, value in settings.items() if name not in LOADER_KNOBS))


def _free_bytes(folder: str) -> Optional[int]:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
