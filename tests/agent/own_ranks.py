"""A training loop of somebody's own over several ranks, each with its share of the data, its noise and statistics."""

import argparse
import hashlib
import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path

import numpy
import torch
import torch.distributed
from rocm_agent import snapshots

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--die-after", type=int, default=0, help="batches and a snapshot of this process; 0: not at all")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--gpus", action="store_true")
asked = parser.parse_args()
torch.distributed.init_process_group("nccl" if asked.gpus else "gloo", timeout=timedelta(seconds=60))
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
device = torch.device("cuda", rank) if asked.gpus else torch.device("cpu")
if asked.gpus:
    torch.cuda.set_device(device)
    torch.backends.cudnn.deterministic = True


class Images(torch.utils.data.Dataset):
    """Augmented by Python's generator and by NumPy's, as data sets are."""

    def __len__(self):
        return 62

    def __getitem__(self, index):
        noise = numpy.random.rand(3, 8, 8).astype("float32") * random.random()
        return index, torch.full((3, 8, 8), index / 62.0) + torch.from_numpy(noise)


torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Flatten(),
    torch.nn.Linear(288, 1),
).to(device)  # fmt: skip
torch.manual_seed(3 + rank)
random.seed(3 + rank)
numpy.random.seed(3 + rank)
# Statistics that no rank gets from another: what is not its own would show.
model = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
data = Images()
sampler = torch.utils.data.DistributedSampler(data, ranks, rank, seed=5)
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
counts = {"seen": 0, "rank": rank}
state = snapshots.restore(model=model, optimizer=optimizer, scheduler=scheduler, counts=counts, loader=loader)


def snapshots_there():
    """Return the names of the snapshots."""
    return {path.name for path in Path(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"]).glob("step-*.pt")}


made = 0
before = snapshots_there() if asked.die_after else set()
for epoch in range(state.epoch, asked.epochs):
    sampler.set_epoch(epoch)
    for indices, images in loader:
        optimizer.zero_grad()
        loss = ((model(images.to(device)) - indices[:, None].to(device) / 62.0) ** 2).mean()
        loss.backward()
        optimizer.step()
        counts["seen"] += len(indices)
        snapshots.step(state, loss=loss)
        made += 1
        time.sleep(asked.step_s)
        dying = rank == int(os.environ.get("DYING_RANK", "0")) and asked.die_after and made >= asked.die_after
        if dying and snapshots_there() - before:
            Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    scheduler.step()
digest = hashlib.sha256()
for part in (model.state_dict(), *optimizer.state_dict()["state"].values()):
    for value in part.values():
        digest.update(value.cpu().numpy().tobytes())
line = "DIGEST %s %d %d %d %d\n" % (digest.hexdigest(), state.step, state.epoch, counts["seen"], counts["rank"])
every = [None] * ranks
torch.distributed.all_gather_object(every, line)
if rank == 0:
    print("".join(every), end="")
torch.distributed.destroy_process_group()
