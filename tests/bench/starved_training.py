"""A training with bad settings: JPEGs decoded in the training's own process, single precision, no channels_last.

    python tests/bench/starved_training.py DEVICE STEPS BATCH

On `cuda` it is torchvision's ResNet-50 on 224 x 224, on `cpu` a small net whose data set sleeps in place of decoding,
which prints each loss and the settings that hold. The pictures are made, not read, so that no disk is measured.
Deterministic: the losses of two runs are equal on the CPU.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import io
import multiprocessing
import random
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PICTURES = 64
SLEEP_S = 0.002


class Jpegs(Dataset):  # type: ignore[type-arg, misc, unused-ignore] # torch is not there where types are checked
    """Pictures in memory, decoded and cut at each look as a training does."""

    def __init__(self, samples: int) -> None:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 - of the larger training

        self._open, self._samples = Image.open, samples
        chance = random.Random(0)
        self._files = []
        for _ in range(PICTURES):
            small = Image.frombytes("RGB", (32, 32), chance.randbytes(32 * 32 * 3))
            file = io.BytesIO()
            small.resize((224, 224)).save(file, "JPEG", quality=90)
            self._files.append(file.getvalue())

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        picture = self._open(io.BytesIO(self._files[index % PICTURES])).convert("RGB")
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return pixels.view(224, 224, 3).permute(2, 0, 1).float().div_(255), index % PICTURES


class Sleepy(Dataset):  # type: ignore[type-arg, misc, unused-ignore] # as above
    """Small tensors after a wait."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLEEP_S)
        return torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(index)), index % 10


def build_small() -> nn.Module:
    """Return a net that the processor trains in a few milliseconds a step."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10)
    )


def list_settings(model: nn.Module, optimizer: Any) -> list[object]:
    """Return what of a training its tuner may have changed, as the training itself finds it."""
    weights = all(weight.is_contiguous() for weight in model.parameters())
    state = all(value.is_contiguous() for row in optimizer.state.values() for value in row.values())
    group = optimizer.param_groups[0]
    called = "__call__" in vars(type(model))
    workers = len(multiprocessing.active_children())
    return [group.get("fused"), group.get("foreach"), weights, state, called, torch.get_num_threads(), workers]


def main() -> None:
    """Train, printing each loss on the CPU."""
    device, steps, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    on_card = device.startswith("cuda")
    if on_card:
        from torchvision.models import resnet50  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 - as above

        model, data = resnet50(num_classes=PICTURES).to(device), Jpegs(steps * batch)
    else:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        model, data = build_small(), Sleepy(steps * batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in DataLoader(data, batch_size=batch):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not on_card:
            print(repr(loss.item()), *list_settings(model, optimizer), flush=True)


if __name__ == "__main__":
    main()
