"""A tiny ultralytics training with one poisoned image, or one layer that overflows; run by a training environment."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main(data: str, folder: str, wound: str) -> None:
    """Train on `data`; `wound` is `image:FILE`, `layer:COUNT` (overflows from its COUNT-th pass on) or `once`."""
    torch, detect = import_module("torch"), import_module("ultralytics.models.yolo.detect")
    kind, _, what = wound.partition(":")

    class Trainer(detect.DetectionTrainer):  # type: ignore[misc, name-defined]  # the class of another environment
        def preprocess_batch(self, batch: Any) -> Any:
            batch = super().preprocess_batch(batch)
            for row, file in enumerate(batch["im_file"]):
                if kind == "image" and file.endswith(what):
                    batch["img"][row, 0, 5, 7] = float("nan")
            return batch

    def overflow(_module: Any, _args: Any, output: Any) -> Any:
        return output * torch.tensor(3e38) * 10 if kind == "layer" and trainer.epoch >= int(what) else None

    overrides = {
        "model": "yolov8n.yaml",
        "data": data,
        "epochs": 3,
        "imgsz": 64,
        "batch": 2,
        "workers": 0,
        "amp": False,
    }
    quiet = {"device": "cpu", "plots": False, "val": False, "mosaic": 0.0, "verbose": False, "seed": 3}
    trainer = Trainer(overrides={**overrides, **quiet, "project": folder, "name": "run"})
    trainer.add_callback("on_train_start", lambda one: one.model.model[1].conv.register_forward_hook(overflow))
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:4])
