"""A tiny model under Lightning, with dropout and noise drawn while batches are loaded."""

import argparse
import hashlib
import random

import lightning
import torch
from exact_dying import RANK, Dying, tell

parser = argparse.ArgumentParser()
parser.add_argument("--die-after", type=int, default=0)
parser.add_argument("--folder", required=True)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--samples", type=int, default=46)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--schedule", default="", help="EPOCH:BATCHES,...: gradients over so many batches from an epoch on")
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--gpus", action="store_true")
parser.add_argument("--workers", type=int, default=0, help="processes that load the batches")
parser.add_argument("--saves", action="store_true")
asked = parser.parse_args()
dying = Dying(asked.die_after)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return asked.samples

    def __getitem__(self, index):
        return torch.full((8,), index / 46.0) + torch.rand(8) * random.random(), torch.tensor([index / 46.0])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        parts = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
        self.net = torch.nn.Sequential(*parts, torch.nn.Linear(32, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]

    def on_train_batch_end(self, *_):
        dying.batch()


lightning.seed_everything(7)
model = Model()
lightning.seed_everything(7 + RANK)
schedule = {
    int(epoch): int(batches) for epoch, batches in (pair.split(":") for pair in asked.schedule.split(",") if pair)
}
callbacks = [lightning.pytorch.callbacks.GradientAccumulationScheduler(schedule)] if schedule else []
several = {"devices": asked.ranks, "strategy": lightning.pytorch.strategies.DDPStrategy(broadcast_buffers=False)}
trainer = lightning.Trainer(
    max_epochs=asked.epochs, accelerator="gpu" if asked.gpus else "cpu", logger=False, enable_checkpointing=asked.saves,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=asked.folder,
    accumulate_grad_batches=asked.accumulate, callbacks=callbacks, **(several if asked.ranks > 1 else {}),
)  # fmt: skip
validation = torch.utils.data.DataLoader(Points(), 4) if asked.saves else None
trainer.fit(model, torch.utils.data.DataLoader(Points(), 4, shuffle=True, num_workers=asked.workers), validation)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
for state in trainer.optimizers[0].state_dict()["state"].values():
    for value in state.values():
        digest.update(value.cpu().numpy().tobytes())
tell(digest, trainer.global_step)
