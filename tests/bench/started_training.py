"""A training of matrix products with its own snapshots, for starts that differ in nothing but their environment.

    python tests/bench/started_training.py cuda|cpu

On a GPU it is in single precision: `NVIDIA_TF32_OVERRIDE=1` makes it quicker, `CUDA_LAUNCH_BLOCKING=1` slower, and
without a GPU it ends at once. On a CPU it pauses for `PAUSE_MS` in each step. Nothing here knows of a tuner.
"""

import os
import sys
import time

import torch
from rocm_agent import snapshots

SMALL_OPERATIONS = 50
"""Each waits for the one before where launches block."""

device = torch.device(sys.argv[1])
if device.type == "cuda" and not torch.cuda.is_available():
    sys.exit("no GPU is visible")
pause_s = float(os.environ.get("PAUSE_MS", "0")) / 1e3
width, rows = (2048, 8192) if device.type == "cuda" else (32, 8)
torch.manual_seed(1)
layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=device.type == "cuda")
counts = {"made": 0}
small = torch.zeros(64, device=device)
state = snapshots.restore(model=model, optimizer=optimizer, counts=counts)
sys.stdout.write(f"from step {counts['made']}\n")
sys.stdout.flush()
while counts["made"] < 1_000_000_000:
    torch.manual_seed(counts["made"])
    inputs = torch.rand(rows, width, device=device)
    for _ in range(SMALL_OPERATIONS if device.type == "cuda" else 0):
        small = small * 0.5
    targets = torch.randn(rows, 1, device=device)  # a loss near 0 would differ by more than rounding explains
    loss = (model(inputs) - targets + small[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(pause_s)
    counts["made"] += 1
    snapshots.step(state, loss)
