"""Times and checks every Conv2d that this interpreter has, layer by layer and in a model's whole training step.

    python bench_conv2d.py '{"batch": 4, "size": 640, ...}'

Needs torch; a model needs ultralytics or torchvision. Prints one JSON object a line as it gets to know something:
kind "device", then "layer" for each layer and algorithm, then "step" for each algorithm. It changes nothing but its own
process and reads no data set: inputs and gradients are random numbers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "path"))

import torch
from rocm_agent.conv2d import ALGORITHMS, conv2d, patch, unpatch
from torch.nn import functional

PUBLISHED = ((3, 16, 2, 1), (16, 32, 2, 2), (32, 32, 1, 4), (64, 64, 1, 8), (128, 128, 1, 16), (256, 256, 1, 32))
"""The six layers of the published benchmark: channels in and out, stride, and what divides the image's side."""
BOUNDS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The relative L2 distance to float64 up to which a result is right; in float32 Winograd needs it."""
WARM_UPS = 2

Layer = Tuple[Tuple[int, ...], Tuple[int, ...], Dict[str, Any], int]
"""Sizes of input and weight, the options of F.conv2d, and how often the model has this layer."""


def say(kind: str, **facts: Any) -> None:
    """Print one line of the report."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


@contextmanager
def without_library() -> Iterator[None]:
    """Run ATen's own kernels instead of those of cuDNN or MIOpen."""
    before, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def using(name: str) -> Iterator[None]:
    """Have every Conv2d of a model computed by the algorithm `name`."""
    if name == "no-library":
        with without_library():
            yield
    elif name == "native":
        yield
    else:
        patch(name)
        try:
            yield
        finally:
            unpatch()


def passes(name: str, operands: Tuple[Any, ...], dy: Any, options: Dict[str, Any]) -> Tuple[Callable[[], Any], Any]:
    """Return the forward pass of `name`, and what makes of its result the gradients of input and weight."""
    if name in ALGORITHMS:
        return lambda: conv2d(*operands, **options, algorithm=name), lambda y: torch.autograd.grad(y, operands[:2], dy)
    return lambda: functional.conv2d(*operands, **options), lambda y: torch.autograd.grad(y, operands[:2], dy)


class Clock:
    """Milliseconds on a device: by its own events on a card, by the process's clock on a CPU."""

    def __init__(self, device: str) -> None:
        self.card = device == "cuda"

    def mark(self) -> Any:
        """Return a moment in the device's own order of work."""
        if not self.card:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Return the milliseconds from one moment to another."""
        if not self.card:
            return float(second - first) * 1e3
        second.synchronize()
        return float(first.elapsed_time(second))

    def start(self) -> int:
        """Begin to watch the device's memory and return what is in use, 0 on a CPU, where torch does not count."""
        if not self.card:
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())


def median(values: List[float]) -> float:
    """Return the middle value, the upper of two."""
    return sorted(values)[len(values) // 2]


def distance(actual: Any, expected: Any) -> float:
    """Return the L2 distance relative to `expected`."""
    gap, size = (actual.double() - expected).norm(), expected.norm()
    return float(gap / size) if float(size) else float(gap)


def errors(name: str, layer: Layer, device: str, dtype: Any) -> List[float]:
    """Return the distances of y, dx and dw to float64, over at most two samples of the layer."""
    x_size, w_size, options, _ = layer
    x_size = (min(x_size[0], 2), *x_size[1:])
    generator = torch.Generator().manual_seed(11)
    made = [torch.randn(size, generator=generator) for size in (x_size, w_size)]
    made = [tensor.to(device=device, dtype=dtype) for tensor in made]
    results, dy = [], None
    for which, operands in ((name, made), ("unfold_reference", [tensor.double() for tensor in made])):
        leaves = tuple(tensor.requires_grad_() for tensor in operands)
        if dy is None:
            with torch.no_grad():
                y = functional.conv2d(made[0].cpu().float(), made[1].cpu().float(), **options)
            dy = torch.randn(y.shape, generator=generator).to(device=device, dtype=dtype)
        forward, backward = passes(which, leaves, dy.to(leaves[0].dtype), options)
        y = forward()
        results.append((y.detach(), *backward(y)))
    return [distance(a, e) for a, e in zip(*results)]


def bench_layer(name: str, layer: Layer, device: str, dtype: Any, runs: int) -> Dict[str, Any]:
    """Return medians in milliseconds, and bytes held between the passes and at their peak (None on a CPU)."""
    x_size, w_size, options, _ = layer
    x = torch.randn(x_size, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(w_size, device=device) * 0.05).to(dtype).requires_grad_()
    with torch.no_grad():
        dy = torch.randn_like(conv2d(x, weight, **options, algorithm="planned"))
    forward, backward = passes(name, (x, weight), dy, options)
    clock, taken = Clock(device), []
    for _ in range(WARM_UPS):
        backward(forward())
    for _ in range(runs):
        start = clock.mark()
        y = forward()
        middle = clock.mark()
        gradients = backward(y)
        end = clock.mark()
        taken.append((clock.between(start, middle), clock.between(middle, end), clock.between(start, end)))
        del y, gradients
    before = clock.start()
    y = forward()
    held = int(torch.cuda.memory_allocated()) - before if clock.card else None
    backward(y)
    peak = int(torch.cuda.max_memory_allocated()) - before if clock.card else None
    forward_ms, backward_ms, total_ms = (median(list(column)) for column in zip(*taken))
    return {
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "total_ms": total_ms,
        "held_bytes": held,
        "peak_bytes": peak,
    }


def model_named(name: str) -> Any:
    """Build a model: an ultralytics .yaml or .pt, or the name of a torchvision model. Raise where there is none."""
    if name.endswith((".yaml", ".yml", ".pt")):
        from ultralytics import YOLO  # noqa: PLC0415 - seconds, and only a model needs it

        return YOLO(name).model
    import torchvision  # noqa: PLC0415 - the same

    return getattr(torchvision.models, name)()


def layers_of(model: Any, batch: int, size: int) -> List[Layer]:
    """Return the distinct Conv2d layers that one pass through `model` calls, most often called first."""
    found: Dict[Any, int] = {}

    def seen(module: Any, inputs: Any, _output: Any) -> None:
        shape = (batch, *inputs[0].shape[1:])
        options = (module.stride, module.padding, module.dilation, module.groups)
        key = (shape, tuple(module.weight.shape), options)
        found[key] = found.get(key, 0) + 1

    hooks = [m.register_forward_hook(seen) for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    with torch.no_grad(), using("planned"):
        model.eval()(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    names = ("stride", "padding", "dilation", "groups")
    layers = [(x, w, dict(zip(names, options)), count) for (x, w, options), count in found.items()]
    return sorted(layers, key=lambda layer: -layer[3])


def tensors_in(value: Any) -> List[Any]:
    """Return the floating tensors in whatever a model gives back."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def bench_step(name: str, given: Dict[str, Any], device: str) -> Dict[str, Any]:
    """Train a new model for some steps on noise with a stand-in loss; return the median step, losses and peak.

    Raises RuntimeError where a loss is not finite.
    """
    torch.manual_seed(0)
    model = model_named(given["model"]).float().to(device).train()
    for parameter in model.parameters():
        parameter.requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.rand(given["batch"], 3, given["size"], given["size"]).to(device)
    clock, taken, losses = Clock(device), [], []
    lower = {"enabled": given["dtype"] != "float32", "dtype": getattr(torch, given["dtype"])}
    with using(name):
        clock.start()
        for _ in range(WARM_UPS + given["runs"]):
            start = clock.mark()
            with torch.autocast(device, **(lower if lower["enabled"] else {"enabled": False})):
                loss = sum((tensor.float() ** 2).mean() for tensor in tensors_in(model(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(clock.between(start, clock.mark()))
            losses.append(float(loss.detach()))
    if not all(abs(loss) < float("inf") for loss in losses):
        raise RuntimeError(f"the loss is not finite: {losses}")
    peak = int(torch.cuda.max_memory_allocated()) if clock.card else None
    return {"step_ms": median(taken[WARM_UPS:]), "peak_bytes": peak, "losses": losses[:3] + losses[-1:]}


def attempt(kind: str, names: Dict[str, Any], work: Callable[[], Dict[str, Any]]) -> None:
    """Say what `work` returns, or in a word why it failed: one algorithm's failure is a result too."""
    try:
        facts = work()
    except Exception as error:  # out of memory, a dtype that the device lacks, a library that fails
        facts = {"problem": f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]}
    say(kind, **names, **facts)


def main(given: Dict[str, Any]) -> None:
    """Run what `given` asks for: device, batch, size, dtype, runs, threads, model, algorithms."""
    device = given["device"] if given["device"] != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    hip = getattr(torch.version, "hip", None)
    card = torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    say("device", device=device, name=card, torch=str(torch.__version__), hip=hip, python=sys.executable)
    known = [*ALGORITHMS, *(["no-library"] if device == "cuda" else []), *([] if hip else ["native"])]
    names = given["algorithms"] or known
    dtype, size = getattr(torch, given["dtype"]), given["size"]
    if given["model"]:
        layers = layers_of(model_named(given["model"]).float(), given["batch"], size)
    else:
        layers = [
            ((given["batch"], c, size // part, size // part), (o, c, 3, 3), {"stride": s, "padding": 1}, 1)
            for c, o, s, part in PUBLISHED
        ]
    for number, layer in enumerate(layers, 1):
        about = {"layer": number, "of": len(layers), "input": layer[0], "weight": layer[1], "count": layer[3]}
        for name in names:
            attempt("layer", {**about, **layer[2], "algorithm": name}, lambda: one(name, layer, device, dtype, given))  # noqa: B023 - called at once
    for name in names if given["model"] else ():
        attempt("step", {"algorithm": name}, lambda: bench_step(name, given, device))  # noqa: B023 - the same


def one(name: str, layer: Layer, device: str, dtype: Any, given: Dict[str, Any]) -> Dict[str, Any]:
    """Check and time one algorithm on one layer."""
    context = without_library() if name == "no-library" else using("native")
    with context:
        found = errors(name, layer, device, dtype)
        right = all(error <= BOUNDS[given["dtype"]] for error in found)  # a comparison that NaN fails
        return {**bench_layer(name, layer, device, dtype, given["runs"]), "errors": found, "right": right}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
