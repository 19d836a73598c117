"""A training whose weights FSDP2 spreads, which times its own snapshots and torch's checkpoints in turns."""

import argparse
import json
import os
import shutil
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rocm_agent import snapshots
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=12, help="steps between two checkpoints of torch's")
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: NCCL, if each rank has a GPU")
asked = parser.parse_args()
torch.set_num_threads(1)
local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
backend = "nccl" if asked.device == "cuda" and gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) else "gloo"
if asked.device == "cuda":
    torch.cuda.set_device(local_rank % gpus)
dist.init_process_group(f"cpu:gloo,cuda:{backend}", timeout=timedelta(seconds=300))
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = torch.nn.Sequential(*(torch.nn.Linear(asked.width, asked.width) for _ in range(asked.layers))).to(asked.device)
mesh = init_device_mesh(asked.device, (ranks,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
state = snapshots.restore(model=model, optimizer=optimizer)
place = os.path.join(os.environ["ROCM_SUPERVISOR_SNAPSHOTS"], "..", "torch")
boundaries, saves, waits, futures = [], [], [], []


def settle():
    """Wait for the GPU: what is enqueued there is a part of what a step costs."""
    if asked.device == "cuda":
        torch.cuda.synchronize()


def save(name, how):
    """Save as torchtitan does; return the seconds for the state and for the save."""
    began, used = time.perf_counter(), time.process_time()
    weights, moments = get_state_dict(model, optimizer)
    middle = time.perf_counter()
    found = how({"model": weights, "optimizer": moments}, checkpoint_id=os.path.join(place, name))
    return middle - began, time.perf_counter() - middle, time.process_time() - used, found


for step in range(1, asked.steps + 1):
    optimizer.zero_grad()
    model(torch.randn(2, asked.width, device=asked.device)).pow(2).mean().backward()
    optimizer.step()
    settle()
    dist.barrier()  # whoever is late is no part of what a boundary takes
    began, used = time.perf_counter(), time.thread_time()
    snapshots.step(state)
    settle()
    boundaries.append((step, time.perf_counter() - began, time.thread_time() - used))
    if step % asked.every == 0:
        dist.barrier()
        saves.append(save("full", dcp.save)[:3])
        *took, future = save("later", dcp.async_save)
        waits.append(took)
        future.result()
        if rank == 0:
            shutil.rmtree(place)
        dist.barrier()
size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters()) * 3
found = {"boundaries": boundaries, "saves": saves, "waits": waits, "bytes": size, "torch": torch.__version__}
name = f"{gpus} x {torch.cuda.get_device_name()}" if asked.device == "cuda" else "CPU"
found["runs_on"] = f"{name}, {backend}"
every = [None] * ranks
dist.all_gather_object(every, found)
if rank == 0:
    print("FOUND" + json.dumps(every))
    sys.stdout.flush()
dist.destroy_process_group()
