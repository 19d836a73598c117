"""A whole YOLOv8n under the patch: the same losses while it trains, and a checkpoint that loads anywhere."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from checks_saved import load_elsewhere
from comparing import distance
from patching import patched
from torch import nn


def yolo() -> Any:
    """Return an untrained YOLOv8n of one class, the same numbers each time, ready to compute its loss."""
    from ultralytics.cfg import get_cfg  # noqa: PLC0415 - takes seconds, and only these checks need it
    from ultralytics.nn.tasks import DetectionModel  # noqa: PLC0415 - the same

    torch.manual_seed(0)
    model = DetectionModel("yolov8n.yaml", nc=1, verbose=False)
    model.args = get_cfg()
    return model


def batch() -> dict[str, torch.Tensor]:
    """Return two random images of 64 pixels with one box each, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return {
        "img": torch.rand(2, 3, 64, 64, generator=generator),
        "cls": torch.zeros(2, 1),
        "bboxes": torch.tensor([[0.5, 0.5, 0.4, 0.3], [0.3, 0.6, 0.2, 0.5]]),
        "batch_idx": torch.tensor([0.0, 1.0]),
    }


def losses(steps: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[float]:
    """Train `steps` steps with plain SGD and return the loss before each of them."""
    model, output = yolo().train().to(device, dtype), []
    data = {name: value.to(device) for name, value in batch().items()}
    data["img"] = data["img"].to(dtype)
    # At ten times this rate, steps of an untrained model multiply rounding by five.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(steps):
        loss = model(data)[0].sum()
        output.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return output


def resnet_losses(steps: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[float]:
    """Train a ResNet of one block a stage on noise and return the loss before each step."""
    from torchvision.models.resnet import BasicBlock, ResNet  # noqa: PLC0415 - takes seconds

    torch.manual_seed(0)
    model, output = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4).train().to(device, dtype), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 48, 48, generator=generator, dtype=torch.float64).to(device, dtype)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), torch.arange(4, device=device))
        output.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return output


def assert_trains_alike(train: Any, device: str = "cpu") -> None:
    """Assert that each step's loss is native's, within what rounding makes of it.

    An untrained model multiplies rounding from step to step; two runs of one library on a card differ as much.
    """
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 5e-4)):
        expected = train(3, dtype, device)
        assert len(set(expected)) == len(expected)
        for scope in ("modules", "all"):
            with patched("planned", scope):
                got = train(3, dtype, device)
            gaps = [abs(a - e) / e for a, e in zip(got, expected, strict=True)]
            assert all(gap <= tolerance for gap in gaps), (scope, dtype, gaps)


def check_yolo_trains_with_natives_losses() -> None:
    assert_trains_alike(losses)


def check_a_resnet_trains_with_natives_losses() -> None:
    assert_trains_alike(resnet_losses)


def check_patched_yolo_saved_completely_loads_where_the_package_is_not() -> None:
    x = batch()["img"]
    native = yolo().eval()
    with torch.no_grad():
        expected = native(x)[0]
    with tempfile.TemporaryDirectory() as folder, patched(), torch.no_grad():
        model = yolo().eval()
        assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 50
        y = model(x)[0]
        assert distance(y, expected) < 1e-5
        assert torch.equal(copy.deepcopy(model)(x)[0], y)
        file = Path(folder) / "yolo.pt"
        torch.save((model, x, y), file)
        load_elsewhere(file)
