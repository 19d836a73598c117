"""One of several ranks that train alike and wait for nobody: each line that it reads is a step to be made."""

import sys

import torch
from rocm_agent import snapshots

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(
    model.parameters(), lr=1e-4, momentum=0.9
)  # finite however many steps a busy machine makes of it
counts = {"seen": 0}
loader = torch.utils.data.DataLoader(range(100), 2, shuffle=True)
state = snapshots.restore(model=model, optimizer=optimizer, counts=counts, loader=loader)
print("from", state.step, state.epoch, counts["seen"], flush=True)
batches = iter(loader)
for line in sys.stdin:
    batch = next(batches)
    if line == "otherwise\n":
        torch.nn.init.ones_(model[0].weight)
    optimizer.zero_grad()
    model(torch.arange(8.0).reshape(2, 4)).pow(3).sum().backward()
    optimizer.step()
    counts["seen"] += len(batch)
    snapshots.step(state)
    print("at", state.step, flush=True)
