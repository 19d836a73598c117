"""A training loop of somebody's own, with snapshots, that wounds itself; its batch and accumulation can be changed."""

import argparse
import os
import time
from pathlib import Path

import rocm_agent
import torch
from rocm_agent import snapshots
from wounds import KINDS, OOM, Wound

parser = argparse.ArgumentParser()
parser.add_argument("wound", choices=KINDS)
parser.add_argument("--at", type=int, required=True, help="the step before which it strikes")
parser.add_argument("--steps", type=int, required=True, help="of the whole training")
parser.add_argument("--folder", required=True)
parser.add_argument("--device", default="cpu")
parser.add_argument("--step-s", type=float, default=0.03)
asked = parser.parse_args()
BATCH = 16
batch = max(1, int(BATCH * rocm_agent.setting("batch_factor", 1.0)))
accumulated = BATCH // batch
wound = Wound(asked.wound, asked.at, asked.device, asked.folder)
first_bad_row = (asked.at - 1) * BATCH


class Rows(torch.utils.data.Dataset):
    """Rows that are the same at each start; those of the five batches that are to be poisoned are no numbers."""

    def __len__(self):
        return asked.steps * BATCH

    def __getitem__(self, row):
        values = torch.sin(torch.arange(64.0) * (row + 1))
        if wound.kind == "nan" and wound.first and 0 <= row - first_bad_row < 5 * BATCH:
            values = values * float("nan")
            wound.note() if row == first_bad_row else None
        return values, values.sum().reshape(1)


def needed():
    """Take what a batch needs on the card: the whole one more than it has, half of it not."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    return [torch.empty(total_bytes * 5 // 4 // BATCH, dtype=torch.uint8, device=asked.device) for _ in range(batch)]


def strain(step):
    """Be too large for the card from the step on at which it strikes."""
    if wound.kind != "oom" or step < asked.at:
        return None
    if wound.first and step == asked.at:
        wound.note()
    if wound.card:
        return needed()
    if batch == BATCH:
        raise OOM("HIP out of memory. Tried to allocate 3200.00 MiB. GPU 0 has 6 GiB")
    return None


torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(asked.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Rows(), batch)
state = snapshots.restore(model=model, optimizer=optimizer, loader=loader)
print("batch", batch, "accumulated", accumulated, "attempt", os.environ.get("ROCM_SUPERVISOR_ATTEMPT"), flush=True)
seen, loss = 0, torch.zeros((), device=asked.device)
for values, sums in loader:
    step = state.step + 1
    if seen == 0:
        optimizer.zero_grad()
        if wound.kind not in ("oom", "nan") and wound.strikes(step):
            wound.strike()
        held = strain(step)
    loss = (model(values.to(asked.device)) - sums.to(asked.device)).square().mean()
    (loss / accumulated).backward()
    seen += 1
    if seen < accumulated:
        continue
    seen, held = 0, None
    optimizer.step()
    snapshots.step(state, loss=loss)
    time.sleep(asked.step_s)
Path(asked.folder, "done").write_text(str(state.step))
