"""A DDP training on gloo that harms itself where a file asks for it: what `fleet_faults.py` launches on every node."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FOLDER = sys.argv[1]
SECONDS = float(os.environ.get("STEP_S", "0.02"))


def asked_for(what: str) -> bool:
    """Whether this rank is to do something from now on."""
    return os.path.exists(os.path.join(FOLDER, "%s-%d" % (what, dist.get_rank())))


class Items(Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Random samples, of which one may never come."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        while asked_for("loader"):
            time.sleep(0.05)
        return torch.full((8,), float(index % 7))


def spin() -> None:
    """Compute, and never return."""
    while True:
        sum(range(1000))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    saved = os.path.join(FOLDER, "saved.pt")
    start = 0
    if os.path.exists(saved):
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        start = state["step"]
    if rank == 0:
        with open(os.path.join(FOLDER, "begins"), "a") as file:
            file.write("%s %d\n" % (os.environ.get("ROCM_SUPERVISOR_EPOCH", "-"), start))
    loader = iter(DataLoader(Items(), batch_size=8))
    for step in range(start, 1 << 30):
        batch = next(loader)
        if asked_for("spinning"):
            spin()
        loss = model(batch).pow(2).mean()
        if asked_for("missing"):
            dist.recv(torch.zeros(1), src=(rank + 1) % dist.get_world_size())  # waits for what no rank sends
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(os.path.join(FOLDER, "steps"), "w") as file:
                file.write("%s %d" % (os.environ.get("ROCM_SUPERVISOR_EPOCH", "-"), step))
            if step % 10 == 0:
                torch.save({"model": model.state_dict(), "step": step + 1}, saved + ".new")
                os.replace(saved + ".new", saved)
        time.sleep(SECONDS)


if __name__ == "__main__":
    main()
