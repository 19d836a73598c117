"""A plain loop under one optimizer that kills itself time and again; it keeps its own account of what it made.

The checkpoint holds no `step`: only `iter_num`, as many scripts name it. Each line of the log is `made N` or
`resumed N`, by the script's own count, which is the truth that a test holds the supervisor against.
"""

import argparse
import os
import random
import signal
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--resume", type=Path, help="the checkpoint to go on from; without it, its own file where one lies")
parser.add_argument("--kills", type=int, default=3)
parser.add_argument("--lives", type=int, nargs=2, default=(60, 160), help="steps that an attempt makes, at least, most")
parser.add_argument("--save-every", type=int, default=25)
parser.add_argument("--every-s", type=float, default=0.004)
parser.add_argument("--never-resume", action="store_true")
parser.add_argument("--spoils", action="store_true", help="leave half a file in place of its checkpoint when it dies")
asked = parser.parse_args()
asked.folder.mkdir(exist_ok=True)
log = (asked.folder / "made.log").open("a", buffering=1)
own = asked.folder / "ckpt.pt"
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
weights = list(model.parameters())


class PlainDescent:
    """No optimizer of torch: the loop changes the weights itself and reports each step."""

    def step(self):
        with torch.no_grad():
            for weight in weights:
                weight.sub_(0.01 * weight.grad)

    def zero_grad(self):
        model.zero_grad()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


KINDS = {
    "sgd": lambda: torch.optim.SGD(weights, lr=0.01),
    "momentum": lambda: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "adam": lambda: torch.optim.Adam(weights, lr=0.01),
    "adafactor": lambda: torch.optim.Adafactor(weights, lr=0.01),
    "lbfgs": lambda: torch.optim.LBFGS(weights, lr=0.1, max_iter=2),
    "own": PlainDescent,
}
optimizer = KINDS[asked.kind]()
made = 0
source = asked.resume or own
if not asked.never_resume and source.exists():
    found = torch.load(source, weights_only=torch.__version__[0] != "1")  # 1.13 refuses plain numbers there
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    made = found["iter_num"]
log.write(f"resumed {made}\n")
attempts = (asked.folder / "made.log").read_text().count("resumed")
life = random.Random(os.urandom(8)).randint(*asked.lives)
target = torch.arange(8.0).reshape(8, 1)


def loss_of():
    batch = torch.randn(16, 8)
    return torch.nn.functional.mse_loss(model(batch), batch @ target)


def closure():
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss


for here in range(1, life + 1):
    if asked.kind == "lbfgs":
        optimizer.step(closure)
    else:
        loss = closure()
        optimizer.step()
    if asked.kind == "own":
        import rocm_agent

        rocm_agent.step(loss=loss.item())
    made += 1
    log.write(f"made {made}\n")
    time.sleep(asked.every_s)
    if made % asked.save_every == 0:
        part = own.with_suffix(".part")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": made}, part)
        part.replace(own)
    if here == life and attempts <= asked.kills and asked.spoils:
        own.write_bytes(own.read_bytes()[: own.stat().st_size // 2])
    if here == life and attempts <= asked.kills:
        os.kill(os.getpid(), signal.SIGKILL)
