"""A torch training that draws from a loader, with snapshots: a step takes as long whatever its batch."""

import sys
import time

import torch
from rocm_agent import snapshots

torch.manual_seed(1)
features = torch.rand(4096, 4)
data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
state = snapshots.restore(model=model, optimizer=optimizer, loader=loader)
sys.stdout.write(f"batches of {loader.batch_size}\n")
sys.stdout.flush()
for _ in range(1_000_000):
    for drawn, wanted in loader:
        loss = (model(drawn) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        snapshots.step(state, loss)
