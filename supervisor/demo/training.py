"""A YOLO training that injects each requested fault once; run by the training's own interpreter.

The wounds are real: a batch that never returns, a weight that becomes NaN, a SIGKILL. Each leaves a file behind
before it strikes, so that the resumed training passes that place unharmed.
"""

import argparse
import os
import signal
import time
from pathlib import Path

from ultralytics import YOLO


def hang(trainer):
    """Never come back from this batch, and be deaf to SIGTERM as a process inside a wedged driver is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def nan(trainer):
    """Spoil one weight: from here on every loss is NaN."""
    next(trainer.model.parameters()).data.view(-1)[0] = float("nan")


def kill(trainer):
    """Die as a process does that the kernel's out-of-memory killer chose."""
    os.kill(os.getpid(), signal.SIGKILL)


WOUNDS = {"hang": hang, "nan": nan, "kill": kill}


class Wounds:
    """Strikes each wound once, at its epoch (from 0) and batch (from 1)."""

    def __init__(self, plan, scars):
        self.plan, self.scars, self.batch = plan, scars, 0

    def epoch_begins(self, trainer):
        """Reset the batch count."""
        self.batch = 0

    def batch_begins(self, trainer):
        """Strike where the plan has a fault that no scar shows as done."""
        self.batch += 1
        for name, epoch, batch in self.plan:
            scar = self.scars / name
            if (trainer.epoch, self.batch) == (epoch, batch) and not scar.exists():
                scar.touch()
                WOUNDS[name](trainer)


def wound(text):
    """Read NAME:EPOCH:BATCH."""
    name, epoch, batch = text.split(":")
    if name not in WOUNDS:
        raise argparse.ArgumentTypeError("%s is not a fault of the demo; available: %s" % (name, ", ".join(WOUNDS)))
    return name, int(epoch), int(batch)


def main():
    """Train YOLOv8n from scratch on the CPU."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--scars", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--imgsz", type=int, default=160)
    parser.add_argument("--wound", type=wound, action="append", default=[])
    asked = parser.parse_args()
    asked.scars.mkdir(parents=True, exist_ok=True)
    wounds = Wounds(asked.wound, asked.scars)
    model = YOLO("yolov8n.yaml")
    model.add_callback("on_train_epoch_start", wounds.epoch_begins)
    model.add_callback("on_train_batch_start", wounds.batch_begins)
    model.train(
        data=str(asked.data),
        epochs=asked.epochs,
        batch=asked.batch,
        imgsz=asked.imgsz,
        project=str(asked.project),
        name="night",
        exist_ok=True,
        device="cpu",
        workers=0,
        amp=False,
        plots=False,
        seed=1,
    )


if __name__ == "__main__":
    main()
