"""A small training in a plain loop that hurts itself once, at a given step, and notes when; it tells nobody itself.

Twelve of the faults are those of NVRx's injector (`nvidia_resiliency_ext`, `Fault`), done in the same ways.
"""

import argparse
import ctypes
import math
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("fault")
parser.add_argument("--at", type=int, required=True, help="the step before which it strikes")
parser.add_argument("--note", type=Path, required=True, help="where the Unix time of it is written")
parser.add_argument("--every-s", type=float, default=0.01)
parser.add_argument("--device", default="cpu")
asked = parser.parse_args()
torch.set_num_threads(1)
BATCH, VALIDATE_EVERY = 16, 400
LEAK_BYTES = 160 << 10
SLOWER = 4.0
MB = 1 << 20
CARD_BYTES = 4 << 30
"""What the faults of memory take the card to be."""


class InjectedError(Exception):
    """What the faults raise that are exceptions."""


class Rows(torch.utils.data.Dataset):
    """Random rows; one of them may never come."""

    missing = False

    def __len__(self):
        return BATCH * VALIDATE_EVERY

    def __getitem__(self, place):
        if self.missing:
            wait_for_ever()
        return torch.randn(8), torch.randn(1)


def wait_for_ever():
    """Hang."""
    while True:
        time.sleep(3600)


def in_thread(work):
    """Run it beside the training."""
    threading.Thread(target=work, daemon=True).start()


def raise_in_main():
    """Have the main thread raise, whatever it does."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(threading.main_thread().ident), ctypes.py_object(InjectedError)
    )


def raise_on_signal(*_):
    """Raise from a signal's handler."""
    raise InjectedError("signal handler")


def gpu_error():
    """Write beyond a tensor's end on the card, where torch's own check meets it."""
    rows = torch.ones(1, dtype=torch.int64, device="cuda")
    rows[torch.ones(1, dtype=torch.int64, device="cuda")] = 0


class Beyond:
    """More memory than is there, behind one that is."""

    def __init__(self, real):
        self.__cuda_array_interface__ = {
            "shape": (1 << 34,), "typestr": "<f4", "data": (real.data_ptr(), False), "version": 3, "strides": None,
        }  # fmt: skip


def gpu_access():
    """Use memory on the card that nobody has: no check meets that, only the card does."""
    real = torch.ones(1 << 20, device="cuda")
    torch.as_tensor(Beyond(real), device="cuda").mul_(1.0)


def gpu_oom():
    """Take the card's memory until there is none."""
    held = []
    while True:
        held.append(torch.empty(64 * MB, dtype=torch.uint8, device="cuda"))


class Pieces:
    """Tensors of ever new sizes that live for unequal times: blocks are split, and no piece fits the next tensor."""

    def __init__(self):
        self.chance = random.Random(asked.at)
        self.kept = []
        self.made = 0

    def _take(self, low, high):
        size = int(self.chance.uniform(low, high) * MB)
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def batch(self):
        """Take and give back what a batch does whose images grow, and keep some of its results for a while."""
        growth = 1 + self.made / 1200
        self.made += 1
        live = []
        for _ in range(6):
            live.append(self._take(10 * growth, 200 * growth))
            if self.chance.random() < 0.5:
                self.kept.append(self._take(2, 12))
        self.chance.shuffle(live)
        while live:
            live.pop()
        while len(self.kept) > 60:
            self.kept.pop(self.chance.randrange(len(self.kept)))


def raise_here():
    """Raise as a bug of the script would."""
    raise InjectedError("workload")


def signalled():
    """Have another process's signal raise, as a launcher's would."""
    signal.signal(signal.SIGUSR1, raise_on_signal)
    os.kill(os.getpid(), signal.SIGUSR1)


AT_ONCE = {
    "workload_exc": raise_here,
    "async_exc": lambda: in_thread(raise_in_main),
    "signal_exc": signalled,
    "os_abort": lambda: in_thread(os.abort),
    "lock_gil": lambda: in_thread(lambda: re.match(r"(a?){40}a{40}", "a" * 40)),
    "segfault": lambda: in_thread(lambda: ctypes.string_at(1)),
    "sigint": lambda: os.kill(os.getpid(), signal.SIGINT),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "gpu_error": lambda: in_thread(gpu_error),
    "gpu_access": lambda: in_thread(gpu_access),
    "gpu_oom": gpu_oom,
    "gpu_sleep": lambda: torch.cuda._sleep(1 << 62),
}
LASTING = ("data_stall", "validation_stall", "nan", "spike", "leak", "slow", "fragmentation")
assert asked.fault in (*AT_ONCE, *LASTING), asked.fault
if asked.fault in ("gpu_oom", "fragmentation"):
    torch.cuda.set_per_process_memory_fraction(CARD_BYTES / torch.cuda.get_device_properties(0).total_memory)

rows = Rows()
device = torch.device(asked.device)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
validation = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, sampler=range(BATCH * 5))
leaked = []
pieces = Pieces()
step = 0
struck = False


def strikes(fault):
    """Whether this fault lasts from now on."""
    return struck and asked.fault == fault


def validate():
    """Draw some batches with gradients off; the step that comes next ends it."""
    with torch.no_grad():
        for inputs, _ in validation:
            model(inputs.to(device))
            if strikes("validation_stall"):
                wait_for_ever()


def note():
    """Write down when it strikes, whole or not at all."""
    part = asked.note.with_suffix(".part")
    part.write_text(repr(time.time()))  # noqa: TID251 - compared with the record's times
    part.rename(asked.note)


while True:
    for inputs, targets in torch.utils.data.DataLoader(rows, batch_size=BATCH):
        loss = (model(inputs.to(device)) - targets.to(device)).square().mean()
        loss = loss * (math.nan if strikes("nan") else 50.0 if strikes("spike") else 1.0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if strikes("leak"):
            leaked.append(b"x" * LEAK_BYTES)
        if strikes("fragmentation"):
            pieces.batch()
        time.sleep(asked.every_s * (SLOWER if strikes("slow") else 1.0))
        step += 1
        if step == asked.at:
            struck = True
            note()
            AT_ONCE.get(asked.fault, lambda: None)()
            rows.missing = asked.fault == "data_stall"
        if step % VALIDATE_EVERY == 0 or (step == asked.at and asked.fault == "validation_stall"):
            validate()
