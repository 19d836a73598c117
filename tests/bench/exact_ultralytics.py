"""A YOLOv8n on a few images: mosaics, gradients over two batches, warm-up, and the end of mosaics."""

import argparse
import hashlib
import os

from exact_dying import Dying, tell
from ultralytics import YOLO

parser = argparse.ArgumentParser()
parser.add_argument("--die-after", type=int, default=0)
parser.add_argument("--folder", required=True)
parser.add_argument("--data", required=True)
asked = parser.parse_args()
dying = Dying(asked.die_after)


def ends(trainer):
    """Tell of every bit of the state at the end."""
    digest = hashlib.sha256()
    for state in (trainer.model.state_dict(), trainer.ema.ema.state_dict(), *trainer.optimizer.state.values()):
        for value in state.values():
            digest.update(value.numpy().tobytes())
    tell(digest, trainer.epoch)


model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", lambda _: dying.batch())
model.add_callback("on_train_end", ends)
model.train(
    data=asked.data, project=os.path.abspath(asked.folder), name="run", exist_ok=True, epochs=8, imgsz=64, batch=3,
    workers=0, amp=False, plots=False, device="cpu", nbs=6, close_mosaic=2, warmup_epochs=1.5,
)  # fmt: skip
