"""What holds a training back, by measured shares of its step; a reading that is absent excludes its verdict."""

from __future__ import annotations

from dataclasses import dataclass

WAITING = 0.10
MOSTLY_WAITING = 0.99
"""Beyond it what is left of a step is less than its measurement errs by."""
HEADSPACE = 0.05
"""What batches from memory must gain before the loader is to blame."""
GPU_BUSY = 0.90
GPU_IDLE = 0.80
COMMUNICATING = 0.10
IDLE_BY_HOST = 0.5
MOSTLY = 0.5
ACHIEVED = 0.35
STEP_GROWS = 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of a step, each from 0 to 1; None where it was not measured."""

    wait: float | None = None
    headspace_gain: float | None = None
    """What batches from memory would gain: 0.5 is half as many samples a second more."""
    gpu_busy: float | None = None
    idle_by_host: float | None = None
    """Of the GPU's idle time, the part in which no kernel had been launched."""
    step_growth_at_double_batch: float | None = None
    gemm: float | None = None
    """Of the GPU's busy time, in matrix products and convolutions."""
    achieved: float | None = None
    """Of the measured peak of such kernels."""
    element_wise: float | None = None
    """Of the GPU's busy time, in element-wise kernels, norms, copies and the optimizer."""
    communication: float | None = None
    memory_limited: bool = False
    """Whether checkpointing, a small micro-batch or a remedy against OOM trades speed for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The verdict, and the measurement that it rests on."""

    name: str
    why: str


def find_bottlenecks(shares: Shares) -> tuple[Bottleneck, ...]:
    """Return every verdict whose definition holds, the one with most to gain first; none: nothing stands out."""
    checks = (_data(shares), _communication(shares), _host(shares), _gpu(shares), _memory(shares))
    return tuple(found for found in checks if found is not None)


def name_of(found: tuple[Bottleneck, ...]) -> str | None:
    """Return the one word of a verdict: `mixed` where several hold, None where none is known."""
    if not found:
        return None
    return found[0].name if len(found) == 1 else "mixed"


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
    return Bottleneck(name="data-bound", why=f"{shares.wait:.0%} of a step waits for its batch; {text}")


def _communication(shares: Shares) -> Bottleneck | None:
    share = shares.communication
    if share is None or not share >= COMMUNICATING:
        return None
    return Bottleneck(name="communication-bound", why=f"{share:.0%} of a step is spent on reducing gradients")


def _host(shares: Shares) -> Bottleneck | None:
    busy, idle, growth = shares.gpu_busy, shares.idle_by_host, shares.step_growth_at_double_batch
    waiting = shares.wait is not None and shares.wait >= WAITING
    if waiting or busy is None or not busy < GPU_IDLE or idle is None or not idle >= IDLE_BY_HOST:
        return None
    if growth is not None and not growth < STEP_GROWS:
        return None
    return Bottleneck(name="host-bound", why=f"the GPU is busy {busy:.0%}, {idle:.0%} of its idle time awaits launches")


def _gpu(shares: Shares) -> Bottleneck | None:
    busy = shares.gpu_busy
    if busy is None or not busy >= GPU_BUSY:
        return None
    if shares.element_wise is not None and shares.element_wise >= MOSTLY:
        return Bottleneck(name="bandwidth-bound", why=f"{shares.element_wise:.0%} of the GPU's time moves data")
    if shares.gemm is None or not shares.gemm >= MOSTLY:
        return Bottleneck(name="GPU-bound", why=f"the GPU is busy {busy:.0%}")
    slow = shares.achieved is not None and shares.achieved < ACHIEVED
    reached = "" if shares.achieved is None else f" at {shares.achieved:.0%} of the measured peak"
    name = "GPU-bound, slow kernels" if slow else "GPU-bound"
    return Bottleneck(name=name, why=f"{shares.gemm:.0%} of the GPU's time is matrix products{reached}")


def _memory(shares: Shares) -> Bottleneck | None:
    if not shares.memory_limited:
        return None
    return Bottleneck(name="memory-bound", why="checkpointing, micro-batch or a remedy trades speed for memory")
