"""Finds a model's Conv2d layers by hooks, and times its complete training step on random input."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, List

import torch
from bench_ways import WARM_UPS, Clock, Layer, Refused, median, using

LEARNING_RATE = 1e-4


def model_named(name: str) -> Any:
    """Build a model: an ultralytics .yaml or .pt, or the name of a torchvision model. Raise Refused where it cannot."""
    package = "ultralytics" if name.endswith((".yaml", ".yml", ".pt")) else "torchvision"
    try:
        return _of_ultralytics(name) if package == "ultralytics" else _of_torchvision(name)
    except ImportError as error:
        raise Refused(f"model {name!r} needs {package}: {error}", "name an interpreter that has it: --python") from None


def _of_ultralytics(name: str) -> Any:
    if name.endswith(".pt") and not os.path.exists(name):
        raise Refused(f"no file {name}, and nothing is downloaded", "name a file, or the model's .yaml")
    os.environ.setdefault("YOLO_OFFLINE", "true")
    if "YOLO_CONFIG_DIR" not in os.environ:  # its settings are the user's, and stay as they are
        os.environ["YOLO_CONFIG_DIR"] = tempfile.mkdtemp(prefix="bench-conv2d-")
    from ultralytics import YOLO  # noqa: PLC0415 - seconds, and only a model needs it

    try:
        return YOLO(name).model
    except FileNotFoundError:
        raise Refused(f"ultralytics knows no {name}", "--model yolov8n.yaml") from None


def _of_torchvision(name: str) -> Any:
    import torchvision  # noqa: PLC0415 - the same

    made = getattr(torchvision.models, name, None) if name.islower() else None
    if not callable(made):
        raise Refused(f"torchvision has no model {name!r}", "--model resnet50, or ultralytics' yolov8n.yaml")
    return made()


def layers_of(model: Any, batch: int, size: int) -> List[Layer]:
    """Return the distinct Conv2d layers that one pass through `model` calls, most often called first.

    Raises Refused where the model does not take images of `size` pixels, or calls no Conv2d.
    """
    found: Dict[Any, int] = {}

    def seen(module: Any, inputs: Any, _output: Any) -> None:
        shape = (batch, *inputs[0].shape[1:])
        options = (module.stride, module.padding, module.dilation, module.groups)
        key = (shape, tuple(module.weight.shape), options)
        found[key] = found.get(key, 0) + 1

    hooks = [m.register_forward_hook(seen) for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    try:
        with torch.no_grad(), using("planned"):
            model.eval()(torch.zeros(1, 3, size, size))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Refused(f"the model does not take images of {size} pixels: {reason}", "--size 640") from None
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise Refused("the model calls no Conv2d", "there is nothing to compare")
    names = ("stride", "padding", "dilation", "groups")
    layers = [(x, w, dict(zip(names, options)), count) for (x, w, options), count in found.items()]
    return sorted(layers, key=lambda layer: -layer[3])


def tensors_in(value: Any) -> List[Any]:
    """Return the floating tensors in whatever a model gives back."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


class Training:
    """A new model in training on noise, with a stand-in loss: each call of `step` is one forward and backward pass."""

    def __init__(self, given: Dict[str, Any], device: str) -> None:
        torch.manual_seed(0)
        self.model = model_named(given["model"]).float().to(device).train()
        for parameter in self.model.parameters():
            parameter.requires_grad_()
        self._x = torch.rand(given["batch"], 3, given["size"], given["size"]).to(device)
        self._device, self._dtype = device, getattr(torch, given["dtype"])

    def step(self) -> Any:
        """Return the loss, with its gradients in the parameters."""
        with torch.autocast(self._device, enabled=self._dtype is not torch.float32, **self._dtype_options()):
            loss = sum((tensor.float() ** 2).mean() for tensor in tensors_in(self.model(self._x)))
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    def _dtype_options(self) -> Dict[str, Any]:
        return {} if self._dtype is torch.float32 else {"dtype": self._dtype}


def bench_step(name: str, given: Dict[str, Any], device: str) -> Dict[str, Any]:
    """Train a new model for some steps; return the median step, losses and peak.

    Raises RuntimeError where a loss is not finite.
    """
    training = Training(given, device)
    optimizer = torch.optim.SGD(training.model.parameters(), lr=LEARNING_RATE)
    clock, taken, losses = Clock(device), [], []
    with using(name, given["scope"]):
        clock.start()
        for _ in range(WARM_UPS + given["runs"]):
            start = clock.mark()
            loss = training.step()
            optimizer.step()
            taken.append(clock.between(start, clock.mark()))
            losses.append(float(loss))
    if not all(abs(loss) < float("inf") for loss in losses):
        raise RuntimeError(f"the loss is not finite: {losses}")
    return {"step_ms": median(taken[WARM_UPS:]), "peak_bytes": clock.peak(), "losses": losses[:3] + losses[-1:]}
