"""Times and checks every Conv2d that this interpreter has, layer by layer and in a model's complete training step.

    python bench_conv2d.py '{"batch": 4, "size": 640, ...}'

Needs torch; a model needs ultralytics or torchvision. Prints one JSON object a line as it gets to know something:
kind "device", then "layer" for each layer and algorithm, "step" and "stability" for each algorithm, or "refused" and
status 2. It changes nothing but its own process and reads no data set: inputs and gradients are random numbers.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List

try:
    import torch
    from bench_model import bench_step, layers_of, model_named
    from bench_stability import stability
    from bench_ways import ALGORITHMS, BOUNDS, WARM_UPS, Clock, Layer, Refused, conv2d, distance, median, passes, using
    from torch.nn import functional
except ImportError as error:
    text, remedy = f"{sys.executable} cannot import torch: {error}", "name a training's interpreter: --python PATH"
    sys.stdout.write(json.dumps({"kind": "refused", "message": text, "remedy": remedy}) + "\n")
    sys.exit(2)

PUBLISHED = ((3, 16, 2, 1), (16, 32, 2, 2), (32, 32, 1, 4), (64, 64, 1, 8), (128, 128, 1, 16), (256, 256, 1, 32))
"""The six layers of the published benchmark: channels in and out, stride, and what divides the image's side."""


def say(kind: str, **facts: Any) -> None:
    """Print one line of the report."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def errors(name: str, layer: Layer, device: str, dtype: Any, scope: str) -> List[float]:
    """Return the distances of y, dx and dw to float64, over at most two samples of the layer."""
    x_size, w_size, options, _ = layer
    x_size = (min(x_size[0], 2), *x_size[1:])
    generator = torch.Generator().manual_seed(11)
    made = [torch.randn(size, generator=generator) for size in (x_size, w_size)]
    made = [tensor.to(device=device, dtype=dtype) for tensor in made]
    with torch.no_grad():
        y = functional.conv2d(made[0].cpu().float(), made[1].cpu().float(), **options)
    dy = torch.randn(y.shape, generator=generator).to(device=device, dtype=dtype)
    results = []
    for which, operands in ((name, made), ("unfold_reference", [tensor.double() for tensor in made])):
        leaves = tuple(tensor.requires_grad_() for tensor in operands)
        ours = scope if which == name else "modules"
        forward, backward = passes(which, leaves, dy.to(leaves[0].dtype), options, ours)
        y = forward()
        results.append((y.detach(), *backward(y)))
    return [distance(a, e) for a, e in zip(*results)]


def bench_layer(name: str, layer: Layer, device: str, dtype: Any, given: Dict[str, Any]) -> Dict[str, Any]:
    """Return medians in milliseconds, and bytes held between the passes and at their peak (None on a CPU)."""
    x_size, w_size, options, _ = layer
    x = torch.randn(x_size, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(w_size, device=device) * 0.05).to(dtype).requires_grad_()
    with torch.no_grad():
        dy = torch.randn_like(conv2d(x, weight, **options, algorithm="planned"))
    forward, backward = passes(name, (x, weight), dy, options, given["scope"])
    clock = Clock(device)
    forward_ms, backward_ms, total_ms = _time_passes(clock, forward, backward, given["runs"])
    before = clock.start()
    y = forward()
    held = clock.in_use() - before if clock.on_gpu else None
    backward(y)
    peak = clock.peak() - before if clock.on_gpu else None
    return {
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "total_ms": total_ms,
        "held_bytes": held,
        "peak_bytes": peak,
    }


def _time_passes(clock: Clock, forward: Callable[[], Any], backward: Callable[[Any], Any], runs: int) -> List[float]:
    """Return the medians in milliseconds of the forward pass, of the backward pass and of both."""
    taken = []
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
    return [median(list(column)) for column in zip(*taken)]


def attempt(kind: str, names: Dict[str, Any], work: Callable[[], Dict[str, Any]]) -> None:
    """Report what `work` returns, or why it failed: one algorithm's failure is a result too."""
    try:
        facts = work()
    except Refused:
        raise
    except Exception as error:  # out of memory, a dtype that the device lacks, a library that fails
        facts = {"problem": f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]}
    say(kind, **names, **facts)


def main(given: Dict[str, Any]) -> None:
    """Run what `given` asks for: device, batch, size, dtype, runs, threads, model, algorithms, scope, stability.

    Raises Refused for what cannot be measured here.
    """
    device = _choose_device(given)
    hip = getattr(torch.version, "hip", None)
    known = [*ALGORITHMS, *(["no-library"] if device == "cuda" else []), *([] if hip else ["native"])]
    names = given["algorithms"] or known
    layers = _list_layers(given)
    dtype = getattr(torch, given["dtype"])
    for number, layer in enumerate(layers, 1):
        about = {"layer": number, "of": len(layers), "input": layer[0], "weight": layer[1], "count": layer[3]}
        for name in names:
            what = {**about, **layer[2], "algorithm": name}
            attempt("layer", what, lambda: check_layer(name, layer, device, dtype, given))  # noqa: B023 - called at once
    for name in names if given["model"] else ():
        attempt("step", {"algorithm": name}, lambda: bench_step(name, given, device))  # noqa: B023 - the same
    for name in names if given["stability"] else ():
        attempt("stability", {"algorithm": name}, lambda: stability(name, layers, given, device, say))  # noqa: B023


def _choose_device(given: Dict[str, Any]) -> str:
    """Choose the device and report it."""
    seen = torch.cuda.is_available()
    if given["device"] == "cuda" and not seen:
        raise Refused(f"torch {torch.__version__} sees no GPU", "rocm-smi or nvidia-smi should; or --device cpu")
    device = given["device"] if given["device"] != "auto" else "cuda" if seen else "cpu"
    if given["threads"]:
        torch.set_num_threads(given["threads"])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device_name = torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    hip = getattr(torch.version, "hip", None)
    say("device", device=device, name=device_name, torch=str(torch.__version__), hip=hip, python=sys.executable)
    return device


def _list_layers(given: Dict[str, Any]) -> List[Layer]:
    if given["model"]:
        return layers_of(model_named(given["model"]).float(), given["batch"], given["size"])
    batch, size = given["batch"], given["size"]
    return [
        ((batch, c, size // part, size // part), (o, c, 3, 3), {"stride": s, "padding": 1}, 1)
        for c, o, s, part in PUBLISHED
    ]


def check_layer(name: str, layer: Layer, device: str, dtype: Any, given: Dict[str, Any]) -> Dict[str, Any]:
    """Check and time one algorithm on one layer."""
    with using(name, given["scope"]):
        found = errors(name, layer, device, dtype, given["scope"])
        right = all(error <= BOUNDS[given["dtype"]] for error in found)  # a comparison that NaN fails
        return {**bench_layer(name, layer, device, dtype, given), "errors": found, "right": right}


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Refused as reason:
        say("refused", message=reason.args[0], remedy=reason.args[1])
        sys.exit(2)
