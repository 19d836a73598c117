"""A real YOLOv8n training on the CPU that keeps a log of its own and hurts itself when a file orders it to.

Each line of the log is `Unix time, process, what, number`: `step` and `validation` are numbered by the count of updates
that ultralytics keeps beside its average and saves with it, so that a number that comes twice is work done twice.
An order is a file named after its fault. It is taken by renaming it, so it strikes once whatever comes after.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from ultralytics import YOLO
from ultralytics.data.dataset import YOLODataset
from ultralytics.models.yolo.detect import DetectionTrainer

NAN_BATCHES = 6

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1000)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--imgsz", type=int, required=True)
parser.add_argument("--workers", type=int, default=1)
asked = parser.parse_args()
orders = asked.folder / "orders"
log = (asked.folder / "training.log").open("a", buffering=1)


class InjectedError(Exception):
    """A bug of the script."""


class State:
    """Of this process."""

    nan_batches = 0
    """To come."""


def note(what, number=0):
    """Write a line of the log."""
    log.write(f"{time.time():.6f} {os.getpid()} {what} {number}\n")  # noqa: TID251 - held against the record


def ordered(fault):
    """Whether this fault is to strike now; it is from here on struck."""
    order = orders / fault
    if not order.exists():
        return False
    order.write_text(f"{time.time():.6f}")  # noqa: TID251 - held against the record
    order.rename(orders / (fault + ".struck"))
    return True


def wait_for_ever():
    """Hang."""
    while True:
        time.sleep(3600)


def batch_begins(trainer):
    """Raise what is ordered."""
    if ordered("exception"):
        raise InjectedError("a bug of the script")
    if ordered("out_of_memory"):
        raise getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)(
            "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 5.98 GiB of which 1.02 GiB "
            "is free. Of the allocated memory 4.31 GiB is allocated by PyTorch, and 412.50 MiB is reserved by PyTorch "
            "but unallocated."
        )
    if ordered("nan"):
        State.nan_batches = NAN_BATCHES


def spoil(module, inputs):
    """Make the images of a batch NaN, as a broken file would."""
    if State.nan_batches and module.training and isinstance(inputs[0], dict):
        State.nan_batches -= 1
        inputs[0]["img"].fill_(float("nan"))


def train_begins(trainer):
    """Have the batches of the model pass by `spoil`."""
    trainer.model.register_forward_pre_hook(spoil)


def validation_batch_begins(_):
    """Never come back where that is ordered."""
    if ordered("validation_stall"):
        wait_for_ever()


def item(self, index, original=YOLODataset.__getitem__):
    """Return an image of the training's, or never where that is ordered."""
    if self.augment and ordered("loader_stall"):
        wait_for_ever()
    return original(self, index)


class Trainer(DetectionTrainer):
    """One that has its loader workers on the CPU too, where ultralytics takes them away."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.args.workers = asked.workers


YOLODataset.__getitem__ = item
note("start")
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_start", train_begins)
model.add_callback("on_train_batch_start", batch_begins)
model.add_callback("on_train_batch_end", lambda trainer: note("step", trainer.ema.updates))
model.add_callback("on_fit_epoch_end", lambda trainer: note("validation", trainer.ema.updates))
model.add_callback("on_val_batch_start", validation_batch_begins)
model.train(
    trainer=Trainer, data=asked.data, project=str(asked.folder), name="run", exist_ok=True, epochs=asked.epochs,
    patience=0, imgsz=asked.imgsz, batch=asked.batch, nbs=asked.batch, workers=asked.workers, amp=False, plots=False,
    device="cpu", seed=1,
)  # fmt: skip
