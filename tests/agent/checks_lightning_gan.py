"""Two networks against each other under Lightning: manual optimization, an optimizer for each."""

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

parser = argparse.ArgumentParser()
parser.add_argument("--critic-steps", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--past-lightning", action="store_true")
parser.add_argument("--max-steps", type=int, default=-1, help="by Lightning's count")
parser.add_argument("--die-at-batch", type=int, default=0)
parser.add_argument("--folder", required=True)
parser.add_argument("--resume", default=None)
asked = parser.parse_args()


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((8,), index / 40.0) + torch.rand(8)


class Adversaries(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 8))
        self.critic = torch.nn.Linear(8, 1)
        self.made = 0

    def training_step(self, batch, index):
        generator, critic = self.optimizers(use_pl_optimizer=not asked.past_lightning)
        drawn = self.generator(torch.randn(len(batch), 4))
        self.descend(critic, self.critic(drawn.detach()).mean() - self.critic(batch).mean(), index)
        if index % asked.critic_steps == 0:
            self.descend(generator, -self.critic(drawn).mean(), index)

    def descend(self, optimizer, loss, index):
        if index % asked.accumulate == 0:
            optimizer.zero_grad()
        self.manual_backward(loss / asked.accumulate)
        if (index + 1) % asked.accumulate == 0:
            optimizer.step()

    def on_train_batch_end(self, *_):
        self.made += 1
        if asked.die_at_batch:
            time.sleep(0.05)
        if self.made == asked.die_at_batch:
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.critic)]


lightning.seed_everything(7)
model = Adversaries()
saving = ModelCheckpoint(dirpath=str(Path(asked.folder, "own")), save_top_k=-1, filename="{epoch}")
trainer = lightning.Trainer(
    max_epochs=3, max_steps=asked.max_steps, accelerator="cpu", logger=False, callbacks=[saving],
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(model, torch.utils.data.DataLoader(Points(), 4, shuffle=True), ckpt_path=asked.resume)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print("DIGEST", digest.hexdigest(), trainer.global_step, flush=True)
