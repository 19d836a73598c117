"""A training loop of somebody's own, with all that makes one hard to repeat: order, dropout, augmentation, schedule."""

import argparse
import hashlib
import os
import random
import signal
import time
from pathlib import Path

import numpy
import torch
from rocm_agent import snapshots

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1, help="batches of one step of the optimizer")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--die-after", type=int, default=0, help="batches and a snapshot of this process; 0: not at all")
parser.add_argument("--poison-from", type=int, default=0, help="step from which on a weight is NaN; 0: never")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--order", help="file to append the indices of each batch to")
asked = parser.parse_args()


class Images(torch.utils.data.Dataset):
    """Augmented by Python's generator and by NumPy's, as data sets are."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        noise = numpy.random.rand(3, 8, 8).astype("float32") * random.random()
        return index, torch.full((3, 8, 8), index / 30.0) + torch.from_numpy(noise)


torch.manual_seed(3)
torch.backends.cudnn.deterministic = True
random.seed(3)
numpy.random.seed(3)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Flatten(),
    torch.nn.Linear(288, 1),
).to(asked.device)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
loader = torch.utils.data.DataLoader(Images(), asked.batch, shuffle=True, num_workers=asked.workers)
counts = {"seen": 0}
state = snapshots.restore(model=model, optimizer=optimizer, scheduler=scheduler, counts=counts, loader=loader)


def snapshots_there():
    """Return the names of the snapshots."""
    return {path.name for path in Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt")}


made = 0
before = snapshots_there() if asked.die_after else set()
for epoch in range(state.epoch, asked.epochs):
    for indices, images in loader:
        if state.step % asked.accumulate == 0:
            optimizer.zero_grad()
        wanted = indices[:, None].to(asked.device) / 30.0
        loss = ((model(images.to(asked.device)) - wanted) ** 2).mean()
        loss.backward()
        if (state.step + 1) % asked.accumulate == 0:
            optimizer.step()
        counts["seen"] += len(indices)
        if asked.poison_from and state.step + 1 >= asked.poison_from:
            model[0].weight.data[0] = float("nan")
        if asked.order:
            with open(asked.order, "a") as file:
                file.write("%d %d %s\n" % (epoch, state.step + 1, " ".join(map(str, indices.tolist()))))
        snapshots.step(state, loss=loss)
        made += 1
        time.sleep(asked.step_s)
        if asked.die_after and made >= asked.die_after and snapshots_there() - before:
            os.kill(os.getpid(), signal.SIGKILL)
    scheduler.step()
digest = hashlib.sha256()
for part in (model.state_dict(), *optimizer.state_dict()["state"].values()):
    for value in part.values():
        digest.update(value.cpu().numpy().tobytes())
print("DIGEST", digest.hexdigest(), state.step, state.epoch, counts["seen"])
