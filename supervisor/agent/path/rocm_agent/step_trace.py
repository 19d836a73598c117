"""Traces a few steps with torch's own profiler, and says what their time was spent on. Nothing of it is on otherwise.

On a GPU what computes is kernels and copies, on a processor operators of the training's own thread that take long
enough to be more than a call. On ROCm, whose tracer hangs with some GPUs, no GPU's kernels are traced.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from bisect import bisect_left, bisect_right
from functools import wraps
from typing import Any, Dict, List, Optional, Tuple

COMPILED = "Compiled"
PREFIX = "rocm_supervisor:"
STEP, WAIT, FORWARD = PREFIX + "step", PREFIX + "wait", PREFIX + "forward"
BACKWARD, OPTIMIZER = "autograd::engine::evaluate_function", "Optimizer.step#"
STEPS_MIN, STEPS_MAX, ENOUGH_NS = 4, 12, 1_000_000_000
LONG_NS = 1_500_000_000
"""By when fewer steps are enough, one at least: a step of a second may show a hundred thousand events."""
CALL_NS = 10_000
"""An operator that is faster on a processor is mostly its call, which is the host's time."""
EVENTS_MAX = 100_000
"""That are read, if one step has no more; a training waits meanwhile."""
QUIET = "KINETO_LOG_LEVEL"
"""The profiler's library reports on standard error, also that a machine has no GPU."""
MATRIX = re.compile(
    r"mm\b|mm_|gemm|matmul|einsum|linear|conv|cutlass|xmma|nvjet|wgrad|dgrad|Cijk|attention|fmha|flash|rnn|lstm|gru",
    re.IGNORECASE,
)
MOVES = re.compile(r"norm|bn_|nchwToNhwc|nhwcToNchw|elementwise|copy|contiguous", re.IGNORECASE)
RANKS = re.compile(r"gloo:|mpi:|nccl|rccl", re.IGNORECASE)

Span = Tuple[int, int]


class StepTrace:
    """A trace under way, of a training whose first weight is on a GPU or not."""

    def __init__(self, torch: Any, *, on_gpu: bool) -> None:
        self._torch, self._on_gpu = torch, on_gpu
        self._label_span = torch.autograd.profiler.record_function
        self._trace: Any = None
        self._steps, self._began_ns = -1, 0
        """Counted from the second one: the first begins the profiler."""
        self._replaced: List[Tuple[Any, str, Any, Any]] = []
        self._depth = 0

    def why_not(self) -> Optional[str]:
        """Return why no steps can be traced."""
        if self._on_gpu and getattr(self._torch.version, "hip", None) is not None:
            return "no kernels are traced on ROCm"
        enabled = getattr(self._torch._C._autograd, "_profiler_enabled", lambda: False)
        return "the training is traced already" if enabled() else None

    def step_ended(self, now_ns: int) -> bool:
        """A step is over: begin, or go on; return whether enough were traced."""
        if self._trace is None:
            self._begin()
            return False
        with self._label_span(STEP):
            self._steps += 1
        if self._steps == 0:
            self._began_ns = now_ns
        return are_enough(self._steps, now_ns - self._began_ns)

    def _begin(self) -> None:
        torch = self._torch
        kinds = torch.profiler.ProfilerActivity
        trace = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if self._on_gpu else [kinds.CPU])
        own = os.environ.get(QUIET)
        os.environ[QUIET] = own or "99"
        trace.start()
        if own is None:
            del os.environ[QUIET]
        self._trace = trace
        self._replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", WAIT)
        self._replace(torch.nn.Module, "__call__", FORWARD)

    def _replace(self, kind: Any, name: str, label: str) -> None:
        """Have the outermost calls of a method by the training's thread seen in the trace."""
        original, mine = getattr(kind, name), threading.get_ident()
        label_span, training = self._label_span, self._torch.is_grad_enabled

        @wraps(original)
        def seen(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or threading.get_ident() != mine or not training():
                return original(this, *args, **kwargs)
            self._depth += 1
            try:
                with label_span(label):
                    return original(this, *args, **kwargs)
            finally:
                self._depth -= 1

        self._replaced.append((kind, name, original, seen))
        setattr(kind, name, seen)

    def stop(self) -> Optional[Dict[str, Any]]:
        """End the trace; return the seconds of its steps and of their parts, None where it shows no steps."""
        for kind, name, original, seen in reversed(self._replaced):
            if getattr(kind, name) is seen:
                setattr(kind, name, original)
        self._replaced, trace, self._trace = [], self._trace, None
        if trace is None:
            return None
        trace.stop()
        return sum_up(read(trace.profiler.kineto_results.events()), on_gpu=self._on_gpu)


def are_enough(steps: int, took_ns: int) -> bool:
    """Whether so many traced steps, which took so long, show what a step's time is spent on."""
    if steps >= STEPS_MAX or (steps >= STEPS_MIN and took_ns >= ENOUGH_NS):
        return True
    return steps >= 1 and took_ns >= LONG_NS


class Event:
    """One thing that a trace shows; times in nanoseconds."""

    __slots__ = ("begin", "end", "gpu", "linked", "name", "number", "thread")

    def __init__(self, name: str, span: Span, thread: int, *, gpu: bool = False, ids: Tuple[int, int] = (0, 0)) -> None:
        self.name, self.thread, self.gpu = name, thread, gpu
        self.begin, self.end = span
        self.number, self.linked = ids
        """The number of an operator; of a kernel, that of the operator which launched it."""


def read(events: Any, most: int = EVENTS_MAX) -> List[Event]:
    """Return the events of a trace in the order of their beginnings; of more than `most` those of its last steps."""
    found = []
    since = _find_first(events, most) if len(events) > most else 0
    for event in events:
        begin, end = _span(event)
        if end < since:
            continue
        gpu = _is_of_gpu(event)
        ids = (event.correlation_id(), event.linked_correlation_id())
        is_span = getattr(event, "is_user_annotation", None)  # of the program: a GPU's trace shows it once more
        if not (gpu and (event.name().startswith(PREFIX) or (is_span is not None and is_span()))):
            found.append(Event(event.name(), (begin, end), event.start_thread_id(), gpu=gpu, ids=ids))
    return sorted(found, key=lambda event: (event.begin, -event.end))


def _find_first(events: Any, most: int) -> int:
    """Return when the first of the last whole steps began that have no more than some events, or the last one did."""
    begins = sorted(_span(event)[0] for event in events)
    marks = sorted(_span(event)[0] for event in events if event.name() == STEP and not _is_of_gpu(event))
    few = [mark for mark in marks[:-1] if len(begins) - bisect_left(begins, mark) <= most]
    return (few or marks[-2:] or [0])[0]


def _span(event: Any) -> Span:
    if hasattr(event, "start_ns"):
        begin, took = event.start_ns(), event.duration_ns()
    else:  # before torch 2.4
        begin, took = 1000 * event.start_us(), 1000 * event.duration_us()
    return (begin, begin + took)


def _is_of_gpu(event: Any) -> bool:
    return "CPU" not in str(event.device_type())


def sum_up(events: List[Event], *, on_gpu: bool) -> Optional[Dict[str, Any]]:
    """Return what the time between the first and the last end of a step was spent on, in seconds."""
    marks = [event for event in events if event.name == STEP]
    if len(marks) < 2:
        return None
    window, thread = (marks[0].end, marks[-1].end), marks[0].thread
    own = [event for event in events if event.thread == thread and not event.gpu]
    waits = join([(event.begin, event.end) for event in own if event.name == WAIT], window)
    if on_gpu:
        computing = [event for event in events if event.gpu and not RANKS.search(event.name)]
    else:
        computing = [event for event in list_outermost(own) if event.end - event.begin >= CALL_NS]
        computing = [event for event in computing if not is_within(event.begin, waits)]
    spans = join([(event.begin, event.end) for event in computing], window)
    ranks = join([(event.begin, event.end) for event in events if _is_of_ranks(event)], window)
    products = [event for event in computing if _is_matrix(event)]
    if not on_gpu:
        products += list_within_compiled(own, computing)
    matrix = join([(event.begin, event.end) for event in products], window)
    return {
        "steps": len(marks) - 1,
        "span_s": (window[1] - window[0]) / 1e9,
        "waited_s": total(waits),
        "starved_s": total(without(waits, spans)),
        "communication_s": total(without(without(ranks, spans), waits)),
        "computing_s": total(spans),
        "matrix_s": min(total(matrix), total(spans)),
        "phases": _split(events, computing, window),
        "on_gpu": on_gpu,
    }


def list_outermost(events: List[Event]) -> List[Event]:
    """Return the operators of one thread that no other one has called."""
    found: List[Event] = []
    for event in events:
        if _is_operator(event.name) and (not found or event.begin >= found[-1].end):
            found.append(event)
    return found


def list_within_compiled(events: List[Event], computing: List[Event]) -> List[Event]:
    """Return the matrix products of one thread within what torch.compile has made, as far as a trace shows them."""
    compiled = join([(event.begin, event.end) for event in computing if COMPILED in event.name], (0, sys.maxsize))
    if not compiled:
        return []
    return [
        event
        for event in events
        if _is_operator(event.name) and COMPILED not in event.name and _is_matrix(event)
        if is_within(event.begin, compiled)
    ]


def join(spans: List[Span], window: Span) -> List[Span]:
    """Return spans in their order, without overlaps, and cut to a window."""
    found: List[Span] = []
    for span in sorted(spans):
        begin, end = max(span[0], window[0]), min(span[1], window[1])
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def without(spans: List[Span], others: List[Span]) -> List[Span]:
    """Return what of joined spans is not covered by others, which are joined too."""
    found: List[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        place, left = at, begin
        while place < len(others) and others[place][0] < end:
            if others[place][0] > left:
                found.append((left, others[place][0]))
            left = max(left, others[place][1])
            place += 1
        if left < end:
            found.append((left, end))
    return found


def total(spans: List[Span]) -> float:
    """Return the seconds of joined spans."""
    return sum(end - begin for begin, end in spans) / 1e9


def is_within(moment: int, spans: List[Span]) -> bool:
    """Whether one of joined spans covers a moment."""
    place = bisect_right(spans, (moment, sys.maxsize)) - 1
    return place >= 0 and moment < spans[place][1]


def _is_operator(name: str) -> bool:
    # What torch.compile has made is one call, whose parts are in no trace.
    return ("::" in name and not name.startswith(("autograd::", "c10d::"))) or COMPILED in name


def _is_of_ranks(event: Event) -> bool:
    if event.gpu:
        return RANKS.search(event.name) is not None
    return event.name.startswith(("gloo:", "mpi:"))  # NCCL's say when the call was made


def _is_matrix(event: Event) -> bool:
    return MATRIX.search(event.name) is not None and MOVES.search(event.name) is None


def _split(events: List[Event], computing: List[Event], window: Span) -> Dict[str, float]:
    """Return the seconds of computing for each phase of a step, by where it was called from."""
    called = {event.number: event.begin for event in events if not event.gpu}
    phases = {
        "forward": join([(event.begin, event.end) for event in events if event.name == FORWARD], window),
        "backward": join([(event.begin, event.end) for event in events if event.name.startswith(BACKWARD)], window),
        "optimizer": join([(event.begin, event.end) for event in events if event.name.startswith(OPTIMIZER)], window),
    }
    found = dict.fromkeys((*phases, "transfer"), 0.0)
    for event in computing:
        took_s = total(join([(event.begin, event.end)], window))
        if event.gpu and "HtoD" in event.name:
            found["transfer"] += took_s
            continue
        moment = called.get(event.linked, event.begin) if event.gpu else event.begin
        for name, spans in phases.items():
            if is_within(moment, spans):
                found[name] += took_s
                break
    return found
