"""A torch training, with snapshots, whose variables decide how long a step takes and whether it starts at all."""

import os
import sys
import time

import torch
from rocm_agent import snapshots

if os.environ.get("BREAKS"):
    sys.exit("no library of that name")
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
counts = {"made": 0}
state = snapshots.restore(model=model, optimizer=optimizer, counts=counts)
sys.stdout.write(f"from step {counts['made']}, {os.environ.get('STEP_S')} s a step\n")
sys.stdout.flush()
while counts["made"] < 1_000_000:
    torch.manual_seed(counts["made"])
    loss = (model(torch.rand(8, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(float(os.environ["STEP_S"]))
    counts["made"] += 1
    snapshots.step(state, loss)
