"""Writes checkpoints with a training environment's own torch and ultralytics: `python checkpoints_by_hand.py FOLDER`.

One import of torch makes all files of a test session. `trained.pt` is the last.pt of a real training of one epoch.
"""

import importlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ultralytics import YOLO


class CallsSystem:
    """Leaves a trace when it is unpickled by anything that trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return (os.system, (f"touch {self.trace}",))


class CallsEval(CallsSystem):
    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return (eval, (f"open({str(self.trace)!r}, 'w')",))


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return OrderedDict(
        [
            ("conv.weight", torch.randn(8, 4, 3, 3, generator=generator)),
            ("conv.bias", torch.zeros(8)),
            ("bn.num_batches_tracked", torch.tensor(7)),
            ("head.weight", torch.randn(10, 8, generator=generator).t()),
            ("half.weight", torch.randn(4, 4, generator=generator).half()),
            ("brain.weight", torch.randn(4, 4, generator=generator).bfloat16()),
            ("double.weight", torch.randn(4, 4, generator=generator).double()),
            ("complex.weight", torch.randn(4, 4, generator=generator).to(torch.complex64)),
        ]
    )


def save_as_cpp(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Save as C++ does: classes that have attributes and no function, one named by the address of a parameter."""
    root, state = torch.nn.Module(), torch.nn.Module()
    for name, value in tensors.items():
        root.register_buffer(name.replace(".", "_"), value)
    state.register_buffer("exp_avg", torch.ones(3, 3))
    root.add_module("94838916769728", state)
    root.__dict__["epoch"] = 3
    torch.jit.script(root).save(str(path))


def spoilt(name: str, value: float) -> dict[str, torch.Tensor]:
    made = weights()
    for at in (1, 2):
        made[name][(at,) * made[name].ndim] = value
    return made


def train(folder: Path) -> None:
    """Train YOLOv8n for one epoch on eight generated images, and keep last.pt as it was before it was stripped."""
    image = importlib.import_module("PIL.Image")  # by name: the checker of types does not know it
    for name in ("images/train", "labels/train"):
        (folder / "data" / name).mkdir(parents=True)
    for number in range(8):
        image.new("RGB", (64, 64), (number * 30, 90, 120)).save(str(folder / "data/images/train" / f"{number}.png"))
        (folder / "data/labels/train" / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    data = folder / "data.yaml"
    data.write_text(f"path: {folder / 'data'}\ntrain: images/train\nval: images/train\nnames: {{0: thing}}\n")
    model = YOLO("yolov8n.yaml")
    model.add_callback("on_model_save", lambda trainer: keep(trainer.last, folder / "trained.pt"))
    model.train(
        data=str(data), epochs=1, imgsz=32, batch=4, workers=0, device="cpu", amp=False, plots=False, val=False,
        project=str(folder / "runs"), name="one", verbose=False,
    )  # fmt: skip
    keep(folder / "runs/one/weights/last.pt", folder / "stripped.pt")
    (folder / "trained.count").write_text(str(count_tensors(folder / "trained.pt")))


def count_tensors(path: Path) -> int:
    """Return how many tensors torch finds in the state of a checkpoint's model and optimizer."""
    safe: dict[str, Any] = {"weights_only": False} if "weights_only" in torch.load.__code__.co_varnames else {}
    found: dict[str, Any] = torch.load(str(path), map_location="cpu", **safe)
    inner = found["optimizer"]["state"].values()
    tensors = sum(torch.is_tensor(item) for state in inner for item in state.values())
    return int(len(found["ema"].state_dict()) + tensors)


def keep(source: Path, target: Path) -> None:
    target.write_bytes(Path(source).read_bytes())


def write_all(folder: Path) -> None:
    save: Callable[[Any, str], None] = lambda what, name: torch.save(what, str(folder / name))  # noqa: E731 - a name
    save(weights(), "weights.pt")
    torch.save({"epoch": 4, "model": weights()}, str(folder / "legacy.pt"), _use_new_zipfile_serialization=False)
    torch.save(spoilt("conv.weight", float("nan")), str(folder / "legacy_nan.pt"), _use_new_zipfile_serialization=False)
    save({"epoch": 2, "global_step": 300, "model": weights(), "optimizer": {"state": {}}}, "position.pt")
    for name in ("conv", "head", "half", "brain", "double", "complex"):
        save(spoilt(name + ".weight", float("nan")), f"nan_{name}.pt")
        save(spoilt(name + ".weight", float("inf")), f"inf_{name}.pt")
    save(
        {"model": weights(), "optimizer": {"state": {0: {"exp_avg": torch.full((2, 2), float("nan"))}}}},
        "nan_optimizer.pt",
    )
    save({"w": torch.randn(3, 3), "attention_mask": torch.full((4, 4), float("-inf")).triu(1)}, "mask.pt")
    save({"w": torch.randn(3, 3), "weight": torch.full((4, 4), float("-inf"))}, "minus_infinite.pt")
    save({name: torch.zeros_like(value) for name, value in weights().items()}, "zero.pt")
    save({"lora_A": torch.randn(4, 4), "lora_B": torch.zeros(4, 4)}, "half_zero.pt")
    save({"epoch": 3, "note": "nothing here"}, "no_tensor.pt")
    save({"model": weights(), "x": CallsSystem(folder / "trace")}, "hostile.pt")
    save([CallsEval(folder / "trace"), CallsSystem(folder / "trace")], "hostile_too.pt")
    torch.save(CallsSystem(folder / "trace"), str(folder / "hostile_legacy.pt"), _use_new_zipfile_serialization=False)
    save(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)), "module.pt")
    save({"p": torch.nn.Parameter(torch.randn(3, 3)), "view": torch.randn(10, 10)[2:4, ::2]}, "views.pt")
    save(
        {
            "epoch": -1,
            "optimizer": {"state": {}},
            "train_args": {},
            "rocm_supervisor": {"step": 41},
            "w": torch.ones(2, 2),
        },
        "own.pt",
    )
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(folder / "script.pt"))
    save_as_cpp(weights(), folder / "cpp.pt")
    save_as_cpp(spoilt("conv.weight", float("nan")), folder / "cpp_nan.pt")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
    train(Path(sys.argv[1]))
