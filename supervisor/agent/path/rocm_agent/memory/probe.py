"""Follows the first steps of a training, reports the memory that they took, and ends the process.

Only the process that makes steps reports; nothing that the training would save is saved.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from functools import wraps
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Tuple

from rocm_agent.batch_count import count_samples, expected_samples
from rocm_agent.fence import fenced
from rocm_agent.layout import ENV_MEMORY_PROBE
from rocm_agent.loader import owner_of
from rocm_agent.shapes import shape_of

from .composed_batches import Compositions
from .gauges import CpuGauge, GpuGauge, why_no_account
from .repeated_batches import Repeats
from .serving import Server, write_report
from .what_if import Outermost, Samplers

STEPS = 2
WARM_UPS = 3
"""Steps that are not timed: kernels are chosen, memory is taken."""
"""In the first step an optimizer makes its state; the second has all that every later one has."""
TEXT_LIMIT = 2000
OTHER_SIZES = 3
"""Steps that are passed over at another micro-batch than was asked for: the rest of an epoch is a smaller one."""

_probe: Optional["Probe"] = None


def asked() -> Optional[Dict[str, Any]]:
    """Return what is to be probed; None in an ordinary training."""
    text = os.environ.get(ENV_MEMORY_PROBE)
    return json.loads(text) if text else None


def begin() -> None:
    """Report also a process that ends before its second step."""
    global _probe
    wanted = asked()
    if wanted is None:
        return
    _probe = Probe(wanted)
    if wanted.get("lean"):
        from . import lean_imports, lean_torch  # noqa: PLC0415 - where they are asked for

        lean_torch.begin()
        lean_imports.begin()
    probe, hook = _probe, sys.excepthook

    def saw(kind: Any, error: Any, traceback: Any) -> None:
        hook(kind, error, traceback)
        fenced(probe.failed)(error)

    sys.excepthook = saw
    atexit.register(fenced(probe.ended))
    if wanted.get("guard"):
        from .guard import begin as guard  # noqa: PLC0415 - only where writes cannot be discarded

        guard(probe.refused_write, os.path.dirname(wanted["report"]))


def install(torch: Any) -> None:
    """Follow steps, loaders and modules once torch is imported."""
    if _probe is not None:
        _probe.install(torch)


class Probe:
    """One run of the training, with one micro-batch."""

    def __init__(self, wanted: Dict[str, Any]) -> None:
        self._server = Server(wanted, self._adopt) if wanted.get("requests") else None
        self._torch: Any = None
        self._gauge: Any = None
        self._outermost: Any = None
        self._samplers: Any = None
        self._repeats: Any = None
        self._compositions: Any = None
        self._inside = False
        self._end_fills: Callable[[], None] = lambda: None
        self._asks_compiler = False
        self._alike = False
        """Whether the loader at work draws another micro-batch as soon as it is asked to."""
        self._optimizers: List[Any] = []
        self._stateless: List[Any] = []
        """Those of them that had no state before their first update, and make it where there is none."""
        self._begin(wanted)

    def _begin(self, wanted: Dict[str, Any]) -> None:
        """Begin with a request, in a process that has made no step for it."""
        self._wanted = wanted
        self._pid = os.getpid()
        self._steps = 0
        self._passed_over = 0
        self._written = False
        self._shapes: List[Tuple[int, ...]] = []
        self._taken: List[Tuple[float, float]] = []
        """Seconds of each step after the warm-up, and those of them spent waiting for the loader."""
        self._timing: Dict[str, Any] = {}
        self._batch: Optional[int] = None
        self._configured: Optional[int] = None
        self._drawn = 0
        self._graph_bytes = 0
        self._pass_peaks: Dict[str, Optional[int]] = {}
        self._gradient_bytes = 0
        self._base_bytes = 0
        self._waited_s = 0.0
        self._stepped_s = 0.0

    def _adopt(self, wanted: Dict[str, Any]) -> None:
        """Begin with a further request, as a new fork or after one that was met here."""
        self._begin(wanted)
        self._change_batch()
        self._gauge.computes = bool(wanted.get("computes"))
        self._outermost.begin(wanted)
        self._repeats.begin(allowed=bool(wanted.get("repeats")))
        self._compositions.begin(allowed=bool(wanted.get("composes")), proves=self._count_steps() > STEPS)
        fenced(self._gauge.trace.begin)(wanted=bool(wanted.get("traces")))
        if wanted.get("forgets"):
            self._forget_steps()
        cuda = self._torch.cuda
        if self._optimizers and self._gauge.kind == "cuda":
            # What earlier micro-batches left in the allocator would be taken for what this one needs.
            cuda.synchronize()
            cuda.empty_cache()
        if self._optimizers:
            self._gauge.take_peak_bytes()

    def _forget_steps(self) -> None:
        """Have the next step be like a training's first: with neither gradients nor states of optimizers."""
        for optimizer in self._stateless:
            optimizer.state.clear()
        for parameter in self._list_parameters():
            parameter.grad = None

    def _change_batch(self) -> None:
        batch, configured = self._wanted.get("batch"), self._wanted.get("configured")
        if batch and configured:
            self._samplers.change(int(configured), int(batch))

    def install(self, torch: Any) -> None:
        """Set the hooks."""
        self._torch = torch
        if self._wanted.get("lean"):
            from . import lean_imports, quick_fill  # noqa: PLC0415 - where they are asked for

            lean_imports.leave_compiler(torch)
            quick_fill.begin(torch)
            self._end_fills = quick_fill.end
        if self._server is not None:
            self._server.install(torch)
        on_gpu = torch.cuda.is_available()
        wanted = self._wanted
        self._gauge = (
            GpuGauge(torch) if on_gpu else CpuGauge(counts=not wanted.get("timed"), needs_values=self._needs_values)
        )
        self._gauge.computes = bool(wanted.get("computes"))
        problem = None if on_gpu or wanted.get("timed") else why_no_account(torch)
        if problem is not None:
            self._report(problem)
        self._follow_compiler(torch)
        self._repeats, self._compositions = Repeats(torch), Compositions(torch)
        self._compositions.install()
        self._samplers = Samplers(torch)
        self._samplers.install()
        self._change_batch()
        self._outermost = Outermost(torch, precision=wanted.get("precision"), checkpointing=wanted.get("checkpointing"))
        self._outermost.install()
        self._outermost.begin(wanted)
        self._follow_loaders()
        self._follow_steps()
        self._gauge.follow_passes()
        fenced(self._gauge.trace.begin)(wanted=bool(wanted.get("traces")))

    def _follow_compiler(self, torch: Any) -> None:
        """Note that the training asks for torch.compile: where tensors are counted nothing is compiled."""
        original = getattr(torch, "compile", None)
        if original is None:
            return

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - it takes its place
            self._asks_compiler = True
            return original(*args, **kwargs)

        torch.compile = compile

    def _follow_loaders(self) -> None:
        iterators = self._torch.utils.data.dataloader._BaseDataLoaderIter
        original, training = iterators.__next__, self._torch.is_grad_enabled

        @wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it takes its place
            if not training() or os.getpid() != self._pid:
                return original(iterator)
            self._gauge.loader_works(works=True)
            began, batch = perf_counter(), self._repeat(iterator)
            is_drawn = batch is None
            try:
                batch = original(iterator) if is_drawn else batch
            finally:
                self._gauge.loader_works(works=False)
            waited_s = perf_counter() - began
            self._waited_s += waited_s
            fenced(self._saw_batch)(iterator, batch)
            if is_drawn:
                fenced(self._repeats.saw)(iterator, batch, self._batch, waited_s)
            if self._is_outdated() and self._pass_over():
                return __next__(iterator)
            if self._wanted.get("draws"):
                fenced(self._draw_more)(iterator, original)
            return batch

        iterators.__next__ = __next__

    def _repeat(self, iterator: Any) -> Any:
        """Return a batch that was drawn before, None where a new one is to be drawn."""
        return fenced(self._repeats.take)(iterator, self._wanted.get("batch"))

    def _saw_batch(self, iterator: Any, batch: Any) -> None:
        self._end_fills()
        self._gauge.begin()
        self._limit_memory()
        self._gauge.batch_drawn(batch)
        if not self._drawn and not self._steps:
            fenced(self._gauge.trace.mark_first)()
        loader = owner_of(iterator)
        sampler = getattr(loader, "batch_sampler", None)
        size = getattr(sampler, "batch_size", None) or getattr(getattr(sampler, "sampler", None), "batch_size", None)
        self._configured = int(size) if isinstance(size, int) else None
        self._batch = count_samples(batch, expected_samples(iterator))
        shape = shape_of(batch)
        self._alike = getattr(loader, "num_workers", None) == 0 and self._samplers.follows(sampler)
        self._drawn += 1
        if shape is not None:
            self._shapes.append(shape)
        if self._wanted.get("look"):
            self._report("only a look at the first batch")

    def _is_outdated(self) -> bool:
        """Whether a batch was drawn for a look, after which another micro-batch was asked for."""
        return self._alike and not self._steps and self._wanted.get("batch") not in (None, self._batch)

    def _limit_memory(self) -> None:
        """Have the GPU be as small as it is asked about; its allocator then returns what it holds in vain."""
        room, self._wanted["room_bytes"] = self._wanted.get("room_bytes"), None
        cuda = self._torch.cuda
        if room and cuda.is_available():
            cuda.set_per_process_memory_fraction(min(1.0, room / cuda.get_device_properties(0).total_memory))

    def _draw_more(self, iterator: Any, original: Any) -> None:
        """Draw batches and nothing else, and report how long each took."""
        taken: List[float] = []
        for _ in range(int(self._wanted["draws"])):
            began = perf_counter()
            try:
                original(iterator)
            except StopIteration:
                break
            taken.append((perf_counter() - began) * 1e3)
        workers = getattr(owner_of(iterator), "num_workers", None)
        mean_ms = sum(taken) / len(taken) if taken else None
        self._timing = {"draw_ms": mean_ms, "draws": len(taken), "workers": workers}
        self._report("only the loader was timed")

    def _follow_steps(self) -> None:
        kind = self._torch.optim.Optimizer
        for name in ("__init__", "__setstate__"):
            self._follow_made(kind, name)

    def _follow_made(self, kind: Any, name: str) -> None:
        original = getattr(kind, name)

        @wraps(original)
        def method(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            fenced(self._wrap_step)(type(optimizer))
            return result

        setattr(kind, name, method)

    def _wrap_step(self, kind: Any) -> None:
        step = kind.step
        if hasattr(step, "_probed"):
            return

        @wraps(step)
        def probed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:  # an optimizer around another
                return step(optimizer, *args, **kwargs)
            self._inside = True
            try:
                fenced(self._before_update)(optimizer)
                result = step(optimizer, *args, **kwargs)
            finally:
                self._inside = False
            fenced(self._after_update)(optimizer)
            return result

        probed._probed = True
        kind.step = probed

    def _before_update(self, optimizer: Any) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
            if not optimizer.state:
                self._stateless.append(optimizer)
        self._gauge.begin()
        self._pass_peaks = self._gauge.pass_peaks()
        self._graph_bytes = self._gauge.take_peak_bytes()
        self._gradient_bytes = self._sum_bytes(
            parameter.grad for parameter in self._list_parameters() if parameter.grad is not None
        )

    def _after_update(self, optimizer: Any) -> None:
        update_bytes = self._gauge.take_peak_bytes()
        if self._wanted.get("timed"):
            self._gauge.synchronize()
            now = perf_counter()
            if self._steps >= WARM_UPS:
                self._taken.append((now - self._stepped_s, self._waited_s))
            self._stepped_s, self._waited_s = now, 0.0
        if optimizer is self._optimizers[0]:
            if self._batch not in (None, self._wanted.get("batch") or self._batch) and self._pass_over():
                return
            self._steps += 1
            fenced(self._gauge.trace.mark)()
            if self._steps >= self._count_steps():
                self._report(None, update_bytes=update_bytes)
            self._drawn = 0
            self._base_bytes = self._gauge.allocated_bytes()

    def _count_steps(self) -> int:
        """Return how many steps are made: in a process that has made some the optimizer's state is there in each."""
        wanted = int(self._wanted.get("steps") or STEPS)
        further = self._server is not None and self._server.way == "further" and not self._wanted.get("timed")
        return max(STEPS, wanted - 1) if further else wanted

    def _pass_over(self) -> bool:
        """Pass over what is of another micro-batch, some times in a process that has made other probes; else False."""
        if self._server is None or self._server.way != "further" or self._passed_over >= OTHER_SIZES:
            return False
        self._passed_over += 1
        self._drawn = 0
        return True

    def _list_parameters(self) -> List[Any]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    def _sum_bytes(self, tensors: Any) -> int:
        return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)

    def _optimizer_bytes(self) -> int:
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        values = [value for state in states if hasattr(state, "values") for value in state.values()]
        return self._sum_bytes(value for value in values if hasattr(value, "element_size") and value.dim())

    # --- ends that are no second step ---------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """Report what ended the training."""
        text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
        out_of_memory = "out of memory" in str(error).lower()
        self._report(text[:TEXT_LIMIT], out_of_memory=out_of_memory)

    def ended(self) -> None:
        """Report a training that came to its end without a second step."""
        if self._torch is not None:
            self._report("the command ended after %d of %d steps of an optimizer" % (self._steps, STEPS))

    def _needs_values(self, operation: str) -> None:
        """Report an operation by whose result the training decides, where nothing is computed."""
        self._report("%s takes values, and shapes alone were reckoned" % operation, reads_values=operation)

    def refused_write(self, path: str) -> None:
        """Report a file of the training's that it would have written over."""
        self._report("before its second step the command writes over %s" % path)

    def _report(
        self,
        problem: Optional[str],
        *,
        out_of_memory: bool = False,
        update_bytes: int = 0,
        reads_values: Optional[str] = None,
    ) -> None:
        if self._written or os.getpid() != self._pid or os.environ.get("RANK", "0") not in ("", "0", "-1"):
            return
        self._written = True
        report: Dict[str, Any] = {"problem": problem, "out_of_memory": out_of_memory, "steps": self._steps}
        report.update(batch=self._batch, configured=self._configured, reads_values=reads_values)
        if self._taken:
            step_s, wait_s = (sorted(column)[len(column) // 2] for column in zip(*self._taken))
            self._timing = {"step_ms": step_s * 1e3, "wait_ms": wait_s * 1e3, "steps": len(self._taken)}
        report.update(timing=self._timing or None)
        if self._torch is not None:
            report.update(alike=self._repeats.alike)
            report.update(self._measured(update_bytes) if self._steps else {})
            report.update({"torch": str(self._torch.__version__)}, **self._gauge.describe())
            report.update(trace=fenced(self._gauge.trace.describe)() if problem is None else None)
        server = self._server
        if server is not None:
            report.update(way=server.way, why_alone=server.why_alone, loaded_s=server.loaded_s)
        sys.stdout.flush()
        sys.stderr.flush()
        write_report(self._wanted["report"], report)
        if server is None:
            os._exit(0)
        done = problem is None or (bool(self._wanted.get("look")) and self._batch is not None)
        server.ask_next(can_go_on=done and self._alike and not _has_compiled())

    def _measured(self, update_bytes: int) -> Dict[str, Any]:
        outermost = self._outermost
        return {
            "micro_batches": self._drawn,
            "shapes": len({shape[1:] for shape in self._shapes}),
            "weights_bytes": self._sum_bytes(self._list_parameters()),
            "gradient_bytes": self._gradient_bytes,
            "optimizer_bytes": self._optimizer_bytes(),
            "base_bytes": self._base_bytes,
            "graph_bytes": self._graph_bytes,
            **self._pass_peaks,
            "update_bytes": update_bytes,
            "largest_output": outermost.largest or None,
            "checkpointed": outermost.checkpointed,
            "compiled": _has_compiled() or (self._asks_compiler and self._gauge.kind == "cpu"),
            "ranks": _count_ranks(),
            "without_cudnn": outermost.convolutions.is_skipped,
            "without_cudnn_attention": outermost.attention.is_skipped,
        }


def _count_ranks() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything."""
    home = sys.modules.get("torch._dynamo.utils")
    counters = vars(home).get("counters") if home is not None else None  # to ask for it would import the compiler
    return bool(counters and counters.get("frames", {}).get("total"))
