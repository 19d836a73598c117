"""FSDP2 on gloo that saves folders of torch.distributed.checkpoint by itself, and goes on from the one it is given.

It knows nothing of a supervisor but the variable that names what to resume from.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OWN = Path("own")
EVERY = 20
"""Steps between two saves."""
KEPT = 3


def digest(model: torch.nn.Module) -> str:
    """Return the whole model's weights as a hash; every rank takes part."""
    found = hashlib.sha256()
    for weights in model.parameters():
        found.update(weights.full_tensor().detach().numpy().tobytes())
    return found.hexdigest()


def note_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor | None, step: int) -> None:
    """Append what this rank has after a step, or has loaded: a hash of its weights and moments, and one of its data."""
    held = hashlib.sha256()
    for weights in model.parameters():
        state = optimizer.state.get(weights, {})
        for tensor in (weights, *(state[name] for name in sorted(state))):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            held.update(local.detach().numpy().tobytes())
    drawn = "-" if data is None else hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]
    line = f"{os.environ.get('ROCM_SUPERVISOR_EPOCH', '-')} {dist.get_rank()} {step} {held.hexdigest()[:16]} {drawn}\n"
    with Path(f"states-{dist.get_rank()}").open("a") as file:
        file.write(line)


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Save a folder that has its name once all of it is there, and keep the newest ones."""
    weights, moments = get_state_dict(model, optimizer)
    part, place = OWN / "part", OWN / f"step-{step:012d}"
    dcp.save({"model": weights, "optimizer": moments, "step": torch.tensor(step)}, checkpoint_id=part)
    if dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)  # saved before by a launch that this one did not go on from
        part.rename(place)
        for path in sorted(OWN.iterdir())[:-KEPT]:
            shutil.rmtree(path)
    dist.barrier()


def resume(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what there is to resume from; return its step."""
    path = os.environ.get("ROCM_SUPERVISOR_RESUME_FROM")
    if dist.get_rank() == 0:
        shutil.rmtree(OWN / "part", ignore_errors=True)
    dist.barrier()
    if not path:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    first = resume(model, optimizer)
    note_state(model, optimizer, None, first)
    for step in range(first + 1, asked.steps + 1):
        torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
        data = torch.randn(16, 64)
        loss = model(data).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note_state(model, optimizer, data, step)
        if step % EVERY == 0:
            save(model, optimizer, step)
        time.sleep(asked.step_s)
    print(f"DIGEST {dist.get_rank()} {digest(model)}", flush=True)  # noqa: T201 - read by who started it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
