"""A tiny YOLOv8n on the CPU that is poisoned with NaN in its second epoch, in as many attempts as asked."""

import os
import sys

import torch
from ultralytics import YOLO

data, folder, poisoned = sys.argv[1], sys.argv[2], int(sys.argv[3])


def poison(trainer):
    """Spoil one weight, so that every loss from the next batch on is NaN."""
    if trainer.epoch == 1 and int(os.environ["ROCM_SUPERVISOR_ATTEMPT"]) <= poisoned:
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(float("nan"))


model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_start", poison)
model.train(
    data=data,
    project=folder,
    name="run",
    epochs=3,
    batch=4,
    nbs=4,
    imgsz=32,
    device="cpu",
    workers=0,
    amp=False,
    plots=False,
    val=False,
    exist_ok=True,
    warmup_epochs=0,
    save_period=1,
)
