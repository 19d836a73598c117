"""Spoils a real ultralytics checkpoint in every way: `python poison.py FOLDER KIND=COUNT ...`.

It runs with a training environment's own torch and ultralytics, trains YOLOv8n for a few short epochs, keeps two of its
checkpoints (`before.pt`, `after.pt`) and writes COUNT files KIND-NN.pt, made of the later one. Each is whole and can be
loaded, but for `truncated`, and differs from the others of its kind.
"""

import importlib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ultralytics import YOLO
from ultralytics.nn.tasks import DetectionModel


class Calls:
    """Calls something when it is unpickled by anything that trusts it."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.what = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.what


def load(path: Path) -> dict[str, Any]:
    safe = {"weights_only": False} if "weights_only" in torch.load.__code__.co_varnames else {}
    found: dict[str, Any] = torch.load(str(path), map_location="cpu", **safe)
    return found


def matrices(found: dict[str, Any]) -> list[torch.Tensor]:
    return [item for item in found["ema"].state_dict().values() if item.ndim > 1 and item.numel() >= 1024]


def states(found: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    kept: dict[int, dict[str, torch.Tensor]] = found["optimizer"]["state"]
    return list(kept.values())


def nan(found: dict[str, Any], number: int, chance: random.Random, _: Path) -> dict[str, Any]:
    """One number, some or all of a tensor, of the average or of the optimizer, are NaN or infinite."""
    value = [float("nan"), float("inf"), float("-inf")][number % 3]
    of_optimizer = [item for state in states(found) for item in state.values() if torch.is_tensor(item) and item.ndim]
    averages = [item for item in found["ema"].state_dict().values() if item.is_floating_point() and item.ndim]
    flat = chance.choice(of_optimizer if number % 2 else averages).view(-1)
    flat[chance.randrange(flat.numel()) :: 1 + number % 7 * 1000] = value
    return found


def optimizer(found: dict[str, Any], number: int, chance: random.Random, _: Path) -> dict[str, Any]:
    """The optimizer's state is that of another model, or its states belong to other parameters."""
    own = found["optimizer"]["state"]
    keys = sorted(own)
    by = chance.randrange(1, len(keys))
    shuffled = sorted(keys, key=lambda _: chance.random())
    made: Callable[[], dict[int, Any]] = [
        lambda: {key: _reshaped(own[key], lambda item: torch.cat([item, item])) for key in keys},  # another width
        lambda: {key: own[keys[(at + by) % len(keys)]] for at, key in enumerate(keys)},  # so many parameters on
        lambda: {key: own[old] for key, old in zip(keys, shuffled, strict=True)},  # another order of the parameters
        lambda: {key: own[key] for key in keys[: len(keys) // (2 + number % 4)]},  # a model with fewer parameters
        lambda: {**own, **{key: _reshaped(own[key], _of_classes(3 + number)) for key in keys[-20:]}},
    ][number % 5]
    found["optimizer"]["state"] = made()
    return found


def _reshaped(state: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {name: change(item) if item.ndim else item for name, item in state.items()}


def _of_classes(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda item: torch.randn(count, *item.shape[1:])


def average(found: dict[str, Any], number: int, chance: random.Random, _: Path) -> dict[str, Any]:
    """Every number of the running average is finite, and it is a ruin: what NaN becomes, other numbers, other sizes."""
    of = matrices(found)
    item = chance.choice(of)
    quarter = item.view(-1)[: item.numel() // 4]
    factor = chance.choice([0.01, 0.1, 30.0])
    variances = [each for name, each in found["ema"].state_dict().items() if name.endswith("running_var")]
    ruins: list[Callable[[], object]] = [
        item.zero_,
        quarter.zero_,
        lambda: item.view(-1)[:1].fill_(torch.finfo(item.dtype).max),
        lambda: [each.mul_(factor) for each in of],
        lambda: [each.copy_(torch.randn(each.shape) * each.float().std()) for each in of],
        lambda: item.copy_(torch.randn(item.shape) * item.float().std()),
        lambda: [each.copy_(each.view(-1)[torch.randperm(each.numel())].view(each.shape)) for each in of],
        chance.choice(variances).zero_,
    ]
    ruins[number % len(ruins)]()
    return found


def architecture(found: dict[str, Any], number: int, chance: random.Random, _: Path) -> dict[str, Any]:
    """The model is another one: more classes, another width or depth, a layer less, a tensor of another shape."""
    kind = number % 4
    if kind == 0:
        found["ema"] = DetectionModel("yolov8n.yaml", nc=3 + number, verbose=False).half()
    elif kind == 1:
        del found["ema"].model[chance.randrange(len(found["ema"].model) - 1)]
    elif kind == 2:
        layers = [
            module for module in found["ema"].modules() if isinstance(module, torch.nn.Conv2d) and module.groups == 1
        ]
        layer = chance.choice(layers)
        layer.weight = torch.nn.Parameter(torch.cat([layer.weight, layer.weight]))
    else:
        found["ema"].model[0].add_module(f"more{number}", torch.nn.Linear(3, 3 + number).half())
    return found


def hostile(found: dict[str, Any], number: int, chance: random.Random, folder: Path) -> dict[str, Any]:
    """Loading it runs a program; should anybody run it, a file tells."""
    trace = str(folder / "trace")
    calls: list[Any] = [
        Calls(os.system, "touch " + trace),
        Calls(eval, f"open({trace!r}, 'w')"),
        Calls(exec, f"open({trace!r}, 'w')"),
        Calls(__import__("subprocess").check_output, ["touch", trace]),
        Calls(__import__("shutil").copy, "/etc/hostname", trace),
        Calls(getattr, "text", "__class__"),
        Calls(__import__("importlib").import_module, "antigravity"),
    ]
    places = [found, found["train_args"], found["optimizer"], found["optimizer"]["state"]]
    chance.choice(places)[f"x{number}"] = calls[number % len(calls)]
    return found


KINDS: dict[str, Callable[[dict[str, Any], int, random.Random, Path], dict[str, Any]]] = {
    "nan": nan,
    "optimizer": optimizer,
    "average": average,
    "architecture": architecture,
    "hostile": hostile,
}


def train(folder: Path) -> None:
    """Train on images of a square each, and keep last.pt of the second and third epoch."""
    image = importlib.import_module("PIL.Image")  # by name: the checker of types does not know it
    for name in ("images/train", "labels/train"):
        (folder / "data" / name).mkdir(parents=True)
    for number in range(16):
        image.new("RGB", (64, 64), (number * 15, 90, 120)).save(str(folder / "data/images/train" / f"{number}.png"))
        (folder / "data/labels/train" / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    data = folder / "data.yaml"
    data.write_text(f"path: {folder / 'data'}\ntrain: images/train\nval: images/train\nnames: {{0: thing}}\n")

    def keep(trainer: Any) -> None:
        name = {1: "before.pt", 2: "after.pt"}.get(trainer.epoch)
        if name is not None:
            (folder / name).write_bytes(Path(trainer.last).read_bytes())

    model = YOLO("yolov8n.yaml")
    model.add_callback("on_model_save", keep)
    model.train(
        data=str(data), epochs=4, imgsz=32, batch=4, workers=0, device="cpu", amp=False, plots=False, val=False,
        project=str(folder / "runs"), name="one", verbose=False, nbs=4, optimizer="SGD", lr0=0.001,
    )  # fmt: skip


def write(kind: str, source: Path, folder: Path, count: int) -> None:
    torch.manual_seed(7)
    whole = source.read_bytes()
    for number in range(count):
        chance = random.Random(f"{kind} {number}")
        target = folder / f"{kind}-{number:02d}.pt"
        if kind == "truncated":
            target.write_bytes(whole[: chance.randrange(len(whole))])
        else:
            with torch.no_grad():
                torch.save(KINDS[kind](load(source), number, chance, folder), str(target))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if not (place / "after.pt").exists():
        train(place)
    for word in sys.argv[2:]:
        write(word.partition("=")[0], place / "after.pt", place, int(word.partition("=")[2]))
