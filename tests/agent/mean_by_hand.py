"""A rank that asks for NCCL and trains two copies of a network with DDP, one of them with a hook of its own."""

from __future__ import annotations

import copy
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
layers = [kind(300) for _ in range(8) for kind in (lambda side: torch.nn.Linear(side, side), torch.nn.BatchNorm1d)]
ours = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
theirs = DistributedDataParallel(copy.deepcopy(ours.module), bucket_cap_mb=1)
called = []


def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Do what DDP does without a hook."""
    called.append(state)
    work = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


theirs.register_comm_hook("its own", average)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (ours, theirs)]
torch.manual_seed(10 + rank)
for step in range(6):
    batch = torch.randn(4, 300)
    for model, optimizer in zip((ours, theirs), optimizers):
        optimizer.zero_grad()
        with model.no_sync() if step == 3 else torch.enable_grad():
            model(batch).pow(2).mean().backward()
        if step != 3:
            optimizer.step()
    dist.barrier(device_ids=[0])


def digest(model: torch.nn.Module) -> str:
    """Return a hash of weights and buffers, which DDP makes those of rank 0 before a forward pass."""
    model.eval()(torch.zeros(1, 300))
    model.train()
    return hashlib.sha256(
        b"".join(weights.detach().numpy().tobytes() for weights in model.state_dict().values())
    ).hexdigest()


print("rank", rank, dist.get_backend(), digest(ours), digest(theirs), len(called) > 0, flush=True)
if "--end" in sys.argv:
    sys.exit()
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    ours(torch.randn(4, 300)).pow(2).mean().backward()
except RuntimeError as error:
    print("raised", str(error).splitlines()[0], flush=True)
    os._exit(1)
