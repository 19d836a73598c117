"""Repeats the same work and reports how time, memory and results change."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from bench_model import Training
from bench_ways import BOUNDS, WARM_UPS, Clock, Layer, median, passes, using

ALLOWED_BYTES = 64 << 20
"""A CPU's allocator gives memory back late; a GPU's count is exact, and nothing is allowed there."""

Say = Callable[..., None]
Round = Callable[[], Tuple[float, List[Any]]]
"""One iteration: its milliseconds, and two sums over each result."""


def stability(name: str, layers: List[Layer], given: Dict[str, Any], device: str, say: Say) -> Dict[str, Any]:
    """Repeat the layers, or the model's training step, `given["stability"]` times; return what changed meanwhile.

    `drift` compares the medians of the last and the first quarter; `difference` is the largest relative distance of a
    result's sums to those of the first iteration, 0 where all were the same to the last bit.
    """
    clock, count = Clock(device), given["stability"]
    taken: List[float] = []
    first, finite, difference, memory = [], True, 0.0, 0
    with using(name, given["scope"]):
        once = _model_round(given, clock) if given["model"] else _layers_round(name, layers, given, clock)
        for _ in range(WARM_UPS):
            once()
        for number in range(count):
            ms, sums = once()
            taken.append(ms)
            values = torch.stack(sums).cpu().tolist()
            first = first or values
            finite = finite and all(math.isfinite(value) for pair in values for value in pair)
            difference = max([difference, *_iter_differences(values, first)])
            if number == count // 4:
                memory = clock.in_use()
            if (number + 1) % max(1, count // 10) == 0:
                say("progress", algorithm=name, done=number + 1, of=count, median_ms=median(taken))
        grown = clock.in_use() - memory
    steady = finite and difference <= BOUNDS[given["dtype"]] and grown <= (0 if clock.on_gpu else ALLOWED_BYTES)
    return {
        **_summarize_times(taken),
        "memory_grown_bytes": grown,
        "finite": finite,
        "difference": difference if math.isfinite(difference) else None,
        "steady": steady,
    }


def _summarize_times(taken: List[float]) -> Dict[str, Any]:
    quarter = max(1, len(taken) // 4)
    return {
        "iterations": len(taken),
        "min_ms": min(taken),
        "median_ms": median(taken),
        "max_ms": max(taken),
        "drift": median(taken[-quarter:]) / median(taken[:quarter]) - 1,
    }


def _layers_round(name: str, layers: List[Layer], given: Dict[str, Any], clock: Clock) -> Round:
    dtype, device = getattr(torch, given["dtype"]), clock.device
    torch.manual_seed(0)
    operands = []
    for x_size, w_size, options, _ in layers:
        x = torch.randn(x_size, device=device).to(dtype).requires_grad_()
        weight = (torch.randn(w_size, device=device) * 0.05).to(dtype).requires_grad_()
        with torch.no_grad():
            dy = torch.randn_like(passes(name, (x, weight), None, options, given["scope"])[0]())
        operands.append(passes(name, (x, weight), dy, options, given["scope"]))

    def once() -> Tuple[float, List[Any]]:
        total, sums = 0.0, []
        for forward, backward in operands:
            start = clock.mark()
            y = forward()
            gradients = backward(y)
            end = clock.mark()
            total += clock.between(start, end)
            sums += [_sum_values(tensor) for tensor in (y.detach(), *gradients)]
        return total, sums

    return once


def _model_round(given: Dict[str, Any], clock: Clock) -> Round:
    training = Training(given, clock.device)

    def once() -> Tuple[float, List[Any]]:
        torch.manual_seed(0)
        start = clock.mark()
        loss = training.step()
        ms = clock.between(start, clock.mark())
        made = [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]
        return ms, [_sum_values(tensor) for tensor in (loss, *made)]

    return once


def _sum_values(tensor: Any) -> Any:
    """Return the sum of the values and of their magnitudes: one that is not finite shows in both."""
    return torch.stack([tensor.sum(dtype=torch.float64), tensor.abs().sum(dtype=torch.float64)])


def _iter_differences(values: List[List[float]], first: List[List[float]]) -> Iterator[float]:
    for (total, size), (first_total, first_size) in zip(values, first):
        gap = max(abs(total - first_total), abs(size - first_size))
        yield gap if gap == 0 else gap / max(first_size, 1e-30)
