"""A plain PyTorch loop whose sixth step overflows in half precision, has bad gradients, or fails on a card alone."""

from __future__ import annotations

import sys

import torch

BAD_STEP = 6
STEPS = 8

torch.manual_seed(3)
kind = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(1, STEPS + 1):
    scale = 1e6 if kind == "half" and step == BAD_STEP else 1.0
    batch = (torch.rand(4, 4) * scale).to(device)
    with torch.autocast(device, dtype=torch.float16, enabled=kind == "half"):
        made = model(batch).float()
    if kind == "card" and step == BAD_STEP and made.is_cuda:
        made = made * float("nan")
    loss = (made.mean() / scale - 1.0) ** 2
    if kind == "gradients" and step == BAD_STEP:
        loss = loss + torch.sqrt(made.sum() * 0.0)  # zero, and infinitely steep
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
