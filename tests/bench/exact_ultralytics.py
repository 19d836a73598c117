"""A YOLOv8n on a few images: mosaics, gradients over two batches, warm-up, and the end of mosaics.

Under torchrun its ranks have a GPU each, or, without `--gpus`, are processes joined by gloo.
"""

import argparse
import hashlib
import os

import torch
from exact_dying import Dying, tell
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--die-after", type=int, default=0)
parser.add_argument("--folder", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--gpus", action="store_true")
parser.add_argument("--workers", type=int, default=0, help="processes that load the batches")
asked = parser.parse_args()
dying = Dying(asked.die_after)
ranks = int(os.environ.get("WORLD_SIZE", "1"))


class OnProcessors(DetectionTrainer):
    """Spreads a training over processors, which ultralytics by itself does with GPUs only."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.world_size = ranks

    def _setup_ddp(self):
        torch.distributed.init_process_group("gloo")

    def final_eval(self):
        """Do nothing: with several ranks it asks for a GPU."""


class Replica(torch.nn.parallel.DistributedDataParallel):
    """Takes no device where there is none."""

    def __init__(self, module, device_ids=None, **kwargs):
        super().__init__(module, **kwargs)


def ends(trainer):
    """Tell of every bit of the state at the end."""
    digest = hashlib.sha256()
    for state in (trainer.model.state_dict(), trainer.ema.ema.state_dict(), *trainer.optimizer.state.values()):
        for value in state.values():
            digest.update(value.cpu().numpy().tobytes())
    tell(digest, trainer.epoch, float(trainer.loss))


device = ",".join(map(str, range(ranks))) if asked.gpus else "cpu"
on_processors = ranks > 1 and not asked.gpus
if on_processors:
    torch.nn.parallel.DistributedDataParallel = Replica
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", lambda _: dying.batch())
model.add_callback("teardown", ends)
model.train(
    data=asked.data, project=os.path.abspath(asked.folder), name="run", exist_ok=True, epochs=8, imgsz=64,
    batch=3 * ranks, workers=asked.workers, amp=False, plots=False, device=device, nbs=6 * ranks, close_mosaic=2,
    warmup_epochs=1.5, trainer=OnProcessors if on_processors else None,
)  # fmt: skip
