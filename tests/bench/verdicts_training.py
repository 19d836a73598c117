"""A training that one thing holds back, or two, as `verdicts.py` plants them; it knows of no tuner.

    python tests/bench/verdicts_training.py CASE

CASE is JSON: `model`, `device`, `size`, `ranks`, and what the loader (`data`) and the program between steps (`host`)
take, in times of a step without them, by the last ones that were made: so a busy machine changes no share.
"""

# ruff: noqa: PLC0415 - only trainings of several ranks import torch.distributed

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CALIBRATED_STEPS, FIRST_STEPS = 6, 3
NEWEST = 0.2
"""Of the mean time of a step."""
PIECE_MOVED = 1 << 20


class Pace:
    """The mean time of a step alone, as the loader's workers know it too."""

    def __init__(self, step_s: float) -> None:
        self._step_s = torch.tensor([step_s], dtype=torch.float64).share_memory_()

    @property
    def step_s(self) -> float:
        """The mean of the newest ones."""
        return float(self._step_s)

    def made(self, step_s: float) -> None:
        """A step was made."""
        self._step_s += NEWEST * (step_s - self._step_s)


class Batches(Dataset):  # type: ignore[type-arg, misc, unused-ignore] # torch is not there where types are checked
    """The same small rows, each batch after a wait or as much computing."""

    def __init__(self, pace: Pace, waits: float, batch: int, *, computes: bool) -> None:
        self._pace, self._waits, self._batch, self._computes = pace, waits, batch, computes

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        if self._waits:  # to sleep for no time still hands the processor over
            (compute if self._computes else time.sleep)(self._waits * self._pace.step_s)
        return torch.full((self._batch, 64), (index % 7) / 7)


class Small(nn.Module):  # type: ignore[misc, unused-ignore] # as above
    """A layer after another that take less than their calls."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, rows: Any) -> Any:
        """Return the last layer's result."""
        found = rows[:2, :4]
        for layer in self.layers:
            found = found + layer(found)
        return found.sum()


class Products(nn.Module):  # type: ignore[misc, unused-ignore] # as above
    """Matrix products, of a perceptron, convolutions, recurrence or attention."""

    def __init__(self, kind: str, width: int, channels: int) -> None:
        super().__init__()
        self.kind, self.width, self.channels = kind, width, channels
        self.first = nn.Linear(64, width)
        if kind == "perceptron":
            self.body: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
        elif kind == "convolution":
            self.body = nn.Sequential(*(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4)))
        elif kind == "recurrence":
            self.body = nn.LSTM(width, width, batch_first=True)
        else:
            self.body = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)

    def forward(self, rows: Any) -> Any:
        """Return the sum of the results."""
        found = self.first(rows)
        if self.kind == "convolution":
            side = int((self.width // self.channels) ** 0.5)
            rows = found[:, : self.channels * side * side].reshape(-1, self.channels, side, side)
            return self.body(rows).square().mean()
        if self.kind == "perceptron":
            return self.body(found).square().mean()
        found = self.body(found.unsqueeze(0).expand(2, -1, -1) if len(rows) > 1 else found)
        return (found[0] if self.kind == "recurrence" else found).square().mean()


class Copies(nn.Module):  # type: ignore[misc, unused-ignore] # as above
    """What each step copies to a GPU, of which next to nothing is computed."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        held = torch.ones(size * PIECE_MOVED)
        self._held = held.pin_memory() if pinned else held

    def forward(self, rows: Any) -> Any:
        """Return the sum of a part."""
        return (self._held.to(self.weight.device, non_blocking=True)[:64] * self.weight).mean() * rows.mean()


class Moves(nn.Module):  # type: ignore[misc, unused-ignore] # as above
    """Element by element over tensors that no cache holds."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(size * PIECE_MOVED))
        self.norm = nn.BatchNorm1d(64)

    def forward(self, rows: Any) -> Any:
        """Return the sum of the results."""
        scaled = self.weight * rows.mean()
        if self.kind == "activations":
            return torch.tanh(torch.relu(scaled) + 1).mean()
        if self.kind == "norms":
            return self.norm(scaled.view(-1, 64)).square().mean()
        return scaled.mean()  # what is left is the optimizer's


def build(case: dict[str, Any]) -> tuple[nn.Module, Any]:
    """Return the model and its optimizer."""
    kind, size = case["model"], int(case["size"])
    if kind == "small":
        model: nn.Module = Small(size)
    elif kind in {"activations", "norms", "optimizer"}:
        model = Moves(kind, size)
    elif kind == "copies":
        model = Copies(size, pinned=bool(case.get("pinned")))
    elif kind == "wide":
        model = nn.Sequential(nn.Linear(64, size), nn.Linear(size, 64))
    else:
        model = Products(kind, size, int(case.get("channels", 16)))
    model = model.to(case["device"])
    if kind == "optimizer":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)
    if kind == "wide":  # an update in place of gradients, so that little more than their reduction is done
        return model, torch.optim.SGD([list(model.parameters())[-1]], lr=1e-4)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def compute(span_s: float) -> None:
    """Use the interpreter for a time."""
    until_s = time.perf_counter() + span_s
    while time.perf_counter() < until_s:
        sum(range(200))


class Training:
    """One training of a case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.model, self.optimizer = build(case)
        self.reduces = False
        if case["ranks"] > 1:
            self._join_ranks()

    def _join_ranks(self) -> None:
        import torch.distributed as dist

        on_gpu = self.case["device"] != "cpu"
        dist.init_process_group(self.case.get("backend", "nccl" if on_gpu else "gloo"))
        self.reduces = bool(self.case.get("by_hand"))
        if not self.reduces:
            self.model = nn.parallel.DistributedDataParallel(self.model)

    def step(self, rows: Any) -> None:
        """Make one step."""
        found = self.model(rows.to(self.case["device"]))
        loss = found if found.ndim == 0 else found.square().mean()
        loss.backward()
        if self.reduces:
            import torch.distributed as dist

            for weight in self.model.parameters():
                dist.all_reduce(weight.grad)
        self.optimizer.step()
        self.model.zero_grad()
        if self.case["device"] != "cpu" and self.case.get("waits", True):
            loss.item()

    def measure_step_s(self, rows: Any) -> float:
        """Return what a step takes without a loader, the longest of all ranks."""
        for _ in range(FIRST_STEPS):
            self.step(rows)
        began_s = time.perf_counter()
        for _ in range(CALIBRATED_STEPS):
            self.step(rows)
        if self.case["device"] != "cpu":
            torch.cuda.synchronize()
        step_s = (time.perf_counter() - began_s) / CALIBRATED_STEPS
        if self.case["ranks"] > 1:
            import torch.distributed as dist

            longest = torch.tensor([step_s], device=self.case["device"])
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            step_s = float(longest)
        return step_s

    def run(self) -> None:
        """Train until ended."""
        case, batch = self.case, int(self.case["batch"])
        pace = Pace(self.measure_step_s(torch.ones(batch, 64)))
        data = Batches(pace, case["data"], batch, computes=bool(case.get("computes")))
        workers = int(case.get("workers", 0))
        passes: Callable[[float], None] = time.sleep if case.get("sleeps") else compute
        for rows in _draw(data, workers):
            if case["host"]:
                passes(case["host"] * pace.step_s)
            began_s = time.perf_counter()
            self.step(rows)
            pace.made(time.perf_counter() - began_s)


def _draw(data: Any, workers: int) -> Iterator[Any]:
    yield from DataLoader(data, batch_size=None, num_workers=workers)


def main() -> None:
    """Train as the case says."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = json.loads(sys.argv[1])
    if case["device"] != "cpu":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        torch.backends.cuda.matmul.allow_tf32 = True
    Training(case).run()


if __name__ == "__main__":
    main()
