"""A training loop of somebody's own whose weights FSDP2 spreads over its ranks, each with its share of the data."""

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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--epochs-in", type=Path, help="a file with their number, for a launch, in its place")
parser.add_argument("--die-after", type=int, default=0, help="batches and a snapshot of this process; 0: not at all")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--data", type=int, default=62)
parser.add_argument("--ddp", action="store_true", help="replicas in place of parts")
asked = parser.parse_args()
if asked.epochs_in and asked.epochs_in.exists():
    asked.epochs = int(asked.epochs_in.read_text())
torch.set_num_threads(1)
meeting = os.environ.get("MEETING")
torch.distributed.init_process_group(
    "gloo", timeout=timedelta(seconds=60), init_method="file://" + meeting if meeting else None,
    rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
)  # fmt: skip
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()


class Rows(torch.utils.data.Dataset):
    """Augmented by Python's generator and by NumPy's, as data sets are."""

    def __len__(self):
        return asked.data

    def __getitem__(self, index):
        noise = numpy.random.rand(12).astype("float32") * random.random()
        return index, torch.full((12,), index / 62.0) + torch.from_numpy(noise)


torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(12, 37), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(37, 5), torch.nn.Linear(5, 1)
)
if asked.ddp:
    # After its first step DDP sums gradients in another order, unless it looks for unused parameters: of three addends
    # that is another sum, so that the first step of a launch differs from the same step in the middle of one.
    model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=ranks > 2)
else:
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
torch.manual_seed(3 + rank)
random.seed(3 + rank)
numpy.random.seed(3 + rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
data = Rows()
sampler = torch.utils.data.DistributedSampler(data, ranks, rank, seed=5)
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
counts = {"seen": 0, "rank": rank}
state = snapshots.restore(model=model, optimizer=optimizer, scheduler=scheduler, counts=counts, loader=loader)


def snapshots_there():
    """Return the names of the generations."""
    folder = os.environ["ROCM_SUPERVISOR_SNAPSHOT_REPLICAS" if meeting else "ROCM_SUPERVISOR_SNAPSHOTS"]
    return {path.name for path in Path(folder).glob("step-????????????")}


made = 0
before = snapshots_there() if asked.die_after else set()
for epoch in range(state.epoch, asked.epochs):
    sampler.set_epoch(epoch)
    for indices, rows in loader:
        optimizer.zero_grad()
        loss = ((model(rows) - indices[:, None] / 62.0) ** 2).mean()
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
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(full.cpu().numpy().tobytes())
line = "DIGEST %s %d %d %d %d\n" % (digest.hexdigest(), state.step, state.epoch, counts["seen"], counts["rank"])
every = [None] * ranks
torch.distributed.all_gather_object(every, line)
if rank == 0:
    print("".join(every), end="")
torch.distributed.destroy_process_group()
