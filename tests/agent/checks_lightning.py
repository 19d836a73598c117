"""A Lightning training with its own callbacks as they come: checkpoints, early stopping, a progress bar."""

import argparse
import time

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pace-s", type=float, default=0.02)
parser.add_argument("--sanity", type=int, default=2)
asked = parser.parse_args()


class Paced(BoringModel):
    def training_step(self, batch, batch_idx):
        time.sleep(asked.pace_s)
        found = super().training_step(batch, batch_idx)
        self.log("train_loss", found["loss"])
        return found

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().validation_step(batch, batch_idx)["x"])


callbacks = [
    ModelCheckpoint(monitor="val_loss", save_last=True),
    EarlyStopping("val_loss", patience=50),
    ModelCheckpoint(),
]
torch.manual_seed(1)
trainer = lightning.Trainer(
    max_epochs=asked.epochs, accelerator="cpu", logger=False, callbacks=callbacks, enable_model_summary=False,
    limit_train_batches=20, limit_val_batches=3, num_sanity_val_steps=asked.sanity,
)  # fmt: skip
trainer.fit(Paced())
print("ENDED", trainer.global_step, flush=True)
