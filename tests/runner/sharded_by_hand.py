"""Saves checkpoints of two ranks with torch.distributed.checkpoint: sound ones of two steps, and one with a NaN.

python sharded_by_hand.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(rank: int, folder: str) -> None:
    """One rank of a training of two steps, its weights sharded."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 7), torch.nn.Linear(7, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in (40, 41):
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
        save(model, optimizer, step, f"{folder}/step-{step}")
    with torch.no_grad():
        model[1].weight.to_local().fill_(float("nan"))
    save(model, optimizer, 42, f"{folder}/poisoned")
    dist.destroy_process_group()


def save(model: Any, optimizer: Any, step: int, folder: str) -> None:
    """Save as torchtitan does: the step as a tensor beside the weights."""
    weights, moments = get_state_dict(model, optimizer)
    counters = {"step": torch.tensor(step)}
    dcp.save({"model": weights, "optimizer": moments, "train_state": counters, "epoch": 3}, checkpoint_id=folder)


if __name__ == "__main__":
    # Forks: neither rank imports once more what this process has imported and not used.
    words = (str(Path(sys.argv[1]).resolve()),)
    torch.multiprocessing.start_processes(train, words, 2, start_method="fork")
