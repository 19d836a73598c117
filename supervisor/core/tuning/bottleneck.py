"""What holds a training back: the share of its step that each thing takes, and the verdict that follows.

What does not compute is lost: waiting for data, for other ranks, for the host. The greatest loss is the verdict,
`mixed` where another is comparable; where little is lost, what computes holds it back. A reading that is absent
excludes its verdict. Of the time of other ranks no more is known than how long they are waited for: one that is slow
because it starves looks like a slow link from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.foreign_values import as_dict, as_float, as_int

WAITING = 0.10
MOSTLY_WAITING = 0.99
"""Beyond it what is left of a step is less than its measurement errs by."""
HEADSPACE = 0.05
"""What batches from memory must gain before the loader is to blame."""
COMMUNICATING = 0.10
HOST = 0.20
COMPUTING = 0.50
MOVING = 0.50
"""Of the computing time, what is no matrix product: such kernels are as fast as memory."""
COMPARABLE = 0.50
"""A loss that is this part of the greatest is a verdict too."""
SPAN_MAX_S = 1e6
PHASES = ("forward", "backward", "optimizer", "transfer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Some steps as the agent traced them: the seconds that they took, in all and in parts."""

    steps: int
    span_s: float
    waited_s: float
    """For data."""
    starved_s: float
    """Of it, in which nothing was computed either."""
    communication_s: float
    """Between ranks, while nothing was computed."""
    computing_s: float
    matrix_s: float
    """Of it, in matrix products, convolutions and attention."""
    on_gpu: bool
    phases: Mapping[str, float] = field(default_factory=dict)
    """Of the computing time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of a step, each from 0 to 1; None where it was not measured."""

    wait: float | None = None
    headspace_gain: float | None = None
    """What batches from memory would gain: 0.5 is half as many samples a second more."""
    communication: float | None = None
    host: float | None = None
    """In which neither anything was computed nor waited for: Python's own time, and that of launching."""
    computing: float | None = None
    moving: float | None = None
    """Of the computing time, in what is no matrix product: element-wise kernels, norms, copies and the optimizer."""
    on_gpu: bool = True
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The verdict, the share of a step that it is about, and the measurement that it rests on."""

    name: str
    share: float
    why: str


def traced_of(reported: object) -> Traced | None:
    """Return what the agent reports of steps that it traced; None where it is incomplete or cannot be."""
    fields = as_dict(reported)
    steps, span_s = as_int(fields.get("steps"), 1), as_float(fields.get("span_s"), 0.0, SPAN_MAX_S)
    names = ("waited_s", "starved_s", "communication_s", "computing_s", "matrix_s")
    parts = {name: as_float(fields.get(name), 0.0, SPAN_MAX_S) for name in names}
    known = {name: part for name, part in parts.items() if part is not None}
    if steps is None or not span_s or len(known) < len(names):
        return None
    phases = {name: as_float(as_dict(fields.get("phases")).get(name), 0.0, SPAN_MAX_S) or 0.0 for name in PHASES}
    return Traced(steps=steps, span_s=span_s, on_gpu=fields.get("on_gpu") is True, phases=phases, **known)


def share_out(wait: float | None, pace_s: float | None, traced: Traced | None) -> Shares:
    """Return the shares of a step; `wait` and the mean time of a step `pace_s` are of more steps, not traced.

    Batches lie ready when a trace begins, so that its few steps wait for less. Of a GPU the time without tracing
    counts, which slows the host alone; of a processor both the computing and the step are slowed.
    """
    if traced is None:
        return Shares(wait=wait)
    starved = traced.starved_s / traced.span_s
    if wait is not None:
        starved = wait * (traced.starved_s / traced.waited_s if traced.waited_s > 0 else 1.0)
    step_s = (traced.span_s - traced.starved_s) / traced.steps
    if traced.on_gpu and pace_s is not None:
        step_s = min(step_s, pace_s * (1 - starved))
    rest = 1 - starved
    computing = _part(traced.computing_s, traced.steps * step_s) * rest
    communication = min(_part(traced.communication_s, traced.steps * step_s) * rest, rest - computing)
    whole_s = traced.computing_s or 1.0
    return Shares(
        wait=starved,
        communication=communication,
        host=max(0.0, rest - computing - communication),
        computing=computing,
        moving=1 - _part(traced.matrix_s, traced.computing_s) if traced.computing_s > 0 else None,
        on_gpu=traced.on_gpu,
        phases={name: computing * part_s / whole_s for name, part_s in traced.phases.items()},
    )


def find_bottlenecks(shares: Shares) -> tuple[Bottleneck, ...]:
    """Return every verdict whose definition holds, the one with most to gain first; none: nothing stands out."""
    lost = [found for found in (_data(shares), _communication(shares), _host(shares)) if found is not None]
    lost = sorted(lost, key=lambda found: found.share, reverse=True)
    if lost:
        return tuple(found for found in lost if found.share >= COMPARABLE * lost[0].share)
    computing = _computing(shares)
    return (computing,) if computing is not None else ()


def name_of(found: tuple[Bottleneck, ...]) -> str | None:
    """Return the one word of a verdict: `mixed` where several hold, None where none is known."""
    if not found:
        return None
    return found[0].name if len(found) == 1 else "mixed"


def explain(shares: Shares) -> str:
    """Return the measurements that the verdict rests on, with the share of each part of a step."""
    parts = {"waiting": shares.wait, "other ranks": shares.communication, "host": shares.host, **shares.phases}
    known = [f"{name} {part:.0%}" for name, part in parts.items() if part is not None and round(part, 2) > 0]
    split = f"of a step: {', '.join(known)}" if shares.computing is not None and known else ""
    return "; ".join(text for text in (*(found.why for found in find_bottlenecks(shares)), split) if text)


def _part(part_s: float, of_s: float) -> float:
    return min(1.0, part_s / of_s) if of_s > 0 else 0.0


def _data(shares: Shares) -> Bottleneck | None:
    if shares.wait is None or not shares.wait >= WAITING:
        return None
    gain = shares.headspace_gain
    if gain is not None and not gain >= HEADSPACE:
        return None
    if gain is None:
        busy = 1 - min(shares.wait, MOSTLY_WAITING)
        bound = "at most" if shares.wait < MOSTLY_WAITING else "more than"
        text = f"an infinitely fast loader would gain {bound} {1 / busy - 1:.0%}"
    else:
        text = f"the same batches from memory gain {gain:.0%}"
    why = f"{shares.wait:.0%} of a step waits for its batch; {text}"
    return Bottleneck(name="data-bound", share=shares.wait, why=why)


def _communication(shares: Shares) -> Bottleneck | None:
    share = shares.communication
    if share is None or not share >= COMMUNICATING:
        return None
    why = f"{share:.0%} of a step waits for other ranks: their gradients, or themselves"
    return Bottleneck(name="communication-bound", share=share, why=why)


def _host(shares: Shares) -> Bottleneck | None:
    share = shares.host
    if share is None or not share >= HOST:
        return None
    idle = "the GPU has nothing to compute" if shares.on_gpu else "the program computes nothing of its model"
    return Bottleneck(name="host-bound", share=share, why=f"in {share:.0%} of a step {idle}, and waits for no data")


def _computing(shares: Shares) -> Bottleneck | None:
    share, moving = shares.computing, shares.moving
    if share is None or not share >= COMPUTING:
        return None
    what = "the GPU" if shares.on_gpu else "the processor"
    if moving is not None and moving >= MOVING:
        why = f"{what} is busy {share:.0%}, {moving:.0%} of that time with what moves data, and is no matrix product"
        return Bottleneck(name="memory-bound", share=share, why=why)
    name = "GPU-bound" if shares.on_gpu else "compute-bound"
    return Bottleneck(name=name, share=share, why=f"{what} is busy {share:.0%}, most of it in matrix products")
