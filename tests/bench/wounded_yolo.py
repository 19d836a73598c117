"""A YOLOv8n on thermal-like images that wounds itself in mid-training; what its card can hold may be made smaller."""

import argparse
import os
import time
from pathlib import Path

import torch
from ultralytics.models.yolo.detect import DetectionTrainer
from wounds import KINDS, OOM, Wound

parser = argparse.ArgumentParser()
parser.add_argument("wound", choices=KINDS)
parser.add_argument("--at", type=int, required=True, help="the batch before which it strikes")
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--size", type=int, required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("--device", default="cpu")
parser.add_argument("--step-s", type=float, default=0.12)
asked = parser.parse_args()
wound = Wound(asked.wound, asked.at, asked.device, asked.folder)
small = Path(asked.folder, "card_bytes")
SHARE = 0.75
"""Of what a whole batch takes of the card: half of one fits, a whole one does not."""


class Trainer(DetectionTrainer):
    """Poisons one image's batch, in the epoch in which it is to be."""

    def preprocess_batch(self, batch):
        """Put a NaN into the image whose name is 3.png."""
        batch = super().preprocess_batch(batch)
        bad_epoch = (asked.at - 1) // len(self.train_loader)
        if wound.kind == "nan" and wound.first and self.epoch >= bad_epoch:
            for row, file in enumerate(batch["im_file"]):
                if file.endswith("/3.png"):
                    wound.note()
                    batch["img"][row, 0, 5, 7] = float("nan")
        return batch


made = 0


def starts(trainer):
    """Tell what is trained with, and make the card as small as it was."""
    print("batch", trainer.batch_size, "accumulated", trainer.accumulate, flush=True)
    if wound.card and small.exists():
        shrink(int(small.read_text()))


def shrink(size):
    """Have the card be of so many bytes."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.get_device_properties(0).total_memory)


def before(trainer):
    """Strike."""
    global made
    made += 1
    if not wound.first or made != asked.at or wound.kind == "nan":
        return
    if wound.kind != "oom":
        wound.strike()
        return
    wound.note()
    if not wound.card:
        raise OOM("HIP out of memory. Tried to allocate 3200.00 MiB. GPU 0 has 6 GiB")
    small.write_text(str(int(SHARE * torch.cuda.max_memory_allocated())))
    shrink(int(small.read_text()))


overrides = {
    "model": "yolov8n.yaml", "data": asked.data, "epochs": asked.epochs, "imgsz": asked.size, "batch": asked.batch,
    "nbs": asked.batch, "device": asked.device.replace("cuda", "0"), "workers": 0, "amp": False, "plots": False,
    "mosaic": 0.0, "seed": 3, "project": os.path.abspath(asked.folder), "name": "run", "exist_ok": True,
}  # fmt: skip
trainer = Trainer(overrides=overrides)
trainer.add_callback("on_train_start", starts)
trainer.add_callback("on_train_batch_start", before)
trainer.add_callback("on_train_batch_end", lambda _: time.sleep(asked.step_s))
trainer.train()
Path(asked.folder, "done").write_text(str(trainer.epoch + 1))
