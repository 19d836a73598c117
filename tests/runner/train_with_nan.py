"""A tiny ultralytics training with one poisoned image, or one layer that overflows; run by a training environment."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def main(data: str, folder: str, wound: str) -> None:
    """Train on `data`; `wound` is `image:FILE`, `layer:EPOCH` (overflows from that epoch on) or `once`, which is sound.

    Where snapshots are taken, one of the first two epochs is laid aside, as a daemon keeps it.
    """
    detect = import_module("ultralytics.models.yolo.detect")
    kind, _, what = wound.partition(":")
    keeping = os.environ.get("ROCM_SUPERVISOR_SNAPSHOT_EVERY_S", "0") != "0"

    class Trainer(detect.DetectionTrainer):  # type: ignore[misc, name-defined]  # the class of another environment
        def preprocess_batch(self, batch: Any) -> Any:
            batch = super().preprocess_batch(batch)
            for row, file in enumerate(batch["im_file"]):
                if kind == "image" and file.endswith(what):
                    batch["img"][row, 0, 5, 7] = float("nan")
            return batch

    def wounded(value: Any) -> None:
        layer = value.model.model[1].conv
        sound = layer.forward
        layer.forward = lambda x: sound(x) * (float("inf") if kind == "layer" and value.epoch >= int(what) else 1.0)

    def slow(_: Any) -> None:
        time.sleep(0.1 if keeping else 0.0)  # a snapshot is written beside batches that take their time

    def keep(value: Any) -> None:
        found = sorted(Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt")) if keeping else []
        for snapshot in found if value.epoch == 1 else []:
            with suppress(FileNotFoundError):  # a newer one has just taken its place
                os.link(snapshot, Path(folder).parent / "kept.pt")
                break

    overrides = {
        "model": "yolov8n.yaml",
        "data": data,
        "epochs": 3,
        "imgsz": 64,
        "batch": 2,
        "nbs": 2,
        "workers": 0,
        "amp": False,
    }
    quiet = {
        "device": "cpu",
        "plots": False,
        "val": False,
        "save_period": 1,
        "mosaic": 0.0,
        "verbose": False,
        "seed": 3,
    }
    trainer = Trainer(overrides={**overrides, **quiet, "project": folder, "name": "run"})
    trainer.add_callback("on_train_start", wounded)
    trainer.add_callback("on_train_batch_end", slow)
    trainer.add_callback("on_train_epoch_end", keep)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:4])
