"""Times the first Conv2d algorithms against native: six layers of YOLOv8n at 640 pixels, forward and backward.

Run by a training environment's interpreter with supervisor/agent/path on PYTHONPATH:

    PYTHONPATH=supervisor/agent/path PYTHON tests/bench/conv2d_first.py [--batch 4] [--device cpu] [--repeats 7]

Prints the median milliseconds of forward and backward (input, weight and bias) a layer, and ratios to native. The
three are measured in turn within each repeat, so that a busy machine disturbs them alike. TF32 is off.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rocm_agent.conv2d import ALGORITHMS, conv2d

LAYERS = {
    "L1": (3, 16, 640, 2),
    "L2": (16, 32, 320, 2),
    "L3": (32, 32, 160, 1),
    "L4": (64, 64, 80, 1),
    "L5": (128, 128, 40, 1),
    "L6": (256, 256, 20, 1),
}
"""Channels in and out, input size, stride; all 3 x 3 with padding 1."""

CANDIDATES: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: functools.partial(conv2d, algorithm=name) for name in ("unfold_reference", "unfold") if name in ALGORITHMS
    },
    "native": torch.nn.functional.conv2d,
}


def once(function: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...], dy: torch.Tensor) -> float:
    """Return the milliseconds of one forward and backward."""
    for tensor in operands:
        tensor.grad = None
    began = time.perf_counter()
    function(*operands, padding=1).backward(dy)
    if dy.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def measure(layer: tuple[int, int, int, int], options: Any) -> dict[str, float]:
    """Return the median milliseconds of each candidate on one layer."""
    inputs, outputs, size, stride = layer
    shapes = ((options.batch, inputs, size, size), (outputs, inputs, 3, 3), (outputs,))
    operands = tuple(torch.randn(shape, device=options.device, requires_grad=True) for shape in shapes)
    dy = torch.randn(options.batch, outputs, size // stride, size // stride, device=options.device)
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for repeat in range(options.repeats + 1):
        for name, function in CANDIDATES.items():
            took_ms = once(functools.partial(function, stride=stride), operands, dy)
            if repeat:
                times[name].append(took_ms)
    return {name: statistics.median(values) for name, values in times.items()}


def line(label: str, medians: dict[str, float]) -> str:
    """Return one row of the table."""
    reference, unfold, native = (medians[name] for name in CANDIDATES)
    cells = (f"{reference:12.1f}", f"{unfold:8.1f}", f"{native:8.1f}", f"{reference / native:12.2f}")
    return " ".join((f"{label:5}", *cells, f"{unfold / native:10.2f}", f"{reference / unfold:12.2f}"))


def main() -> None:
    """Measure every layer and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sys.stdout.write(
        f"torch {torch.__version__}, {options.device}, {torch.get_num_threads()} threads, float32, batch "
        f"{options.batch}, median of {options.repeats}, ms\n"
        "layer    reference   unfold   native   ref/native unf/native   ref/unfold\n"
    )
    total = dict.fromkeys(CANDIDATES, 0.0)
    for label, layer in LAYERS.items():
        medians = measure(layer, options)
        total = {name: total[name] + medians[name] for name in CANDIDATES}
        sys.stdout.write(line(label, medians) + "\n")
    sys.stdout.write(line("sum", total) + "\n")


if __name__ == "__main__":
    main()
