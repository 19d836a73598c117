"""A small torch training that comes to the same weights however often it is ended; each step goes to `steps.log`.

    night_training.py --folder FOLDER --steps N [--every-s S] [--resume PATH | --two-lines]

With `--two-lines` it asks rocm_agent for its checkpoint and reports its steps and saves; without, it saves in silence.
"""

import argparse
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--every-s", type=float, default=0.0)
parser.add_argument("--resume")
parser.add_argument("--two-lines", action="store_true")
asked = parser.parse_args()

import torch  # noqa: E402 - its import is the start of a training, which the log of steps has to show

SAVE_EVERY = 40
KEPT = 3
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start, resume = 0, asked.resume
if asked.two_lines:
    import rocm_agent

    resume = rocm_agent.resume_from()
if resume:
    state = torch.load(resume, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
asked.folder.mkdir(parents=True, exist_ok=True)


def save(step: int) -> None:
    """Save whole or not at all, and keep the newest few."""
    at = asked.folder / f"state-{step:06d}.pt"
    part = at.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    part.replace(at)
    if asked.two_lines:
        rocm_agent.checkpoint_saved(str(at), epoch=None, step=step)
    for old in sorted(asked.folder.glob("state-*.pt"), key=lambda item: item.stat().st_mtime_ns)[:-KEPT]:
        old.unlink()


with (asked.folder / "steps.log").open("a") as log:
    log.write(f"start {start}\n")
    log.flush()
    for step in range(start + 1, asked.steps + 1):
        draw = torch.Generator().manual_seed(step)
        inputs = torch.randn(32, 16, generator=draw)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        optimizer.step()
        log.write(f"{step} {loss.item():.9g}\n")
        log.flush()
        if asked.two_lines:
            rocm_agent.step(loss=loss.item(), step=step)
        if step % SAVE_EVERY == 0:
            save(step)
        time.sleep(asked.every_s)
