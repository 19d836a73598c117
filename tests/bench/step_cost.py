"""Measures what one recorded step costs a training; run it with the interpreter of a training environment.

    PYTHON tests/bench/step_cost.py

Medians over batches of calls on the CPU. A hook's cost is the difference to the same calls without the agent.
"""

# ruff: noqa: PLC0415, T201 - PLC0415: the agent is imported once its path is set; T201: a benchmark prints

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

AGENT_PATH = Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"
FOLDER = "ROCM_SUPERVISOR_ATTEMPT_DIR"


def ns_a_call(call: Callable[[], object], calls: int = 200, rounds: int = 200) -> float:
    """Return the median, over `rounds`, of the mean time of `calls` calls, in nanoseconds."""
    times = []
    for _ in range(rounds):
        began = perf_counter_ns()
        for _ in range(calls):
            call()
        times.append((perf_counter_ns() - began) / calls)
    return median(times)


def recorder() -> None:
    """Time one record and the look at the command word, in this process."""
    from rocm_agent import claim

    claimed = claim.take(claim.EXPLICIT)
    nothing = ns_a_call(lambda: None)
    full = ns_a_call(lambda: claimed.record(7, 1, 0.5, 0.01, 2.0, 0.001, 1 << 30))
    print(f"recorder: one whole record               {full - nothing:8.0f} ns")
    print(
        f"recorder: one record of a loss alone     {ns_a_call(lambda: claimed.record(7, None, 0.5)) - nothing:8.0f} ns"
    )
    print(f"recorder: reading the command word       {ns_a_call(claimed.command) - nothing:8.0f} ns")


def ultralytics() -> None:
    """Time the callbacks of one batch on a trainer whose losses and gradient norm are tensors, with and without us."""
    from rocm_agent import claim, ultralytics_hook

    torch, base = import_module("torch"), import_module("ultralytics.engine.trainer").BaseTrainer

    class Trainer(base):  # type: ignore[misc, valid-type] # an environment that is checked has no ultralytics
        def __init__(self) -> None:
            """Hold what a batch's end looks at, and nothing else."""
            self.callbacks: dict[str, Any] = {"on_train_batch_start": [], "on_train_batch_end": []}
            self.device, self.epoch = torch.device("cpu"), 3
            self.loss_items = dict(zip(("box", "cls", "dfl"), torch.rand(3), strict=True))
            self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.01}])

    trainer = Trainer()
    weights = [torch.zeros(1, requires_grad=True)]
    weights[0].grad = torch.ones(1)
    clip = torch.nn.utils.clip_grad_norm_
    ultralytics_hook._begin_run(trainer)
    assert claim.holding() is not None

    def batch(run: Callable[..., object], clip: Callable[..., object]) -> Callable[[], None]:
        def batch() -> None:
            run(trainer, "on_train_batch_start")
            clip(weights, 10.0)
            run(trainer, "on_train_batch_end")

        return batch

    ours = ns_a_call(batch(base.run_callbacks, clip))
    without = ns_a_call(batch(base.run_callbacks.__wrapped__, clip.__wrapped__))
    print(f"ultralytics: all hooks of one batch      {(ours - without) / 1000:8.2f} us")


LOOP = """
import torch
from statistics import median
from time import perf_counter_ns, thread_time_ns
torch.set_num_threads(1)
weight = torch.zeros(4, requires_grad=True)
class Nothing(torch.optim.Optimizer):
    def step(self, closure=None): pass
optimizer = Nothing([weight], dict(lr=0.1))
times, used = [], []
data = [(torch.zeros(8, 3), torch.zeros(8))] * 50
for _ in range(300):
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None))
    began, used_before = perf_counter_ns(), thread_time_ns()
    for _ in range(50):
        next(batches)
        weight.sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
    used.append((thread_time_ns() - used_before) / 50)
    times.append((perf_counter_ns() - began) / 50)
print(median(times), median(used))
"""


def generic() -> None:
    """Time a training step that does next to nothing, with and without us.

    Its processor time is in it of a busy machine: there the clock counts the other programs' turns as well.
    """
    ours, alone = [[float(word) for word in _python(LOOP, supervised=kind).split()] for kind in (True, False)]
    print(f"generic: all hooks of one step           {(ours[0] - alone[0]) / 1000:8.2f} us")
    print(f"generic: of that, processor time         {(ours[1] - alone[1]) / 1000:8.2f} us")


def start() -> None:
    """Time the start and end of an interpreter."""
    times = []
    for supervised in (True, False):
        began = [(perf_counter_ns(), _python("pass", supervised=supervised), perf_counter_ns()) for _ in range(30)]
        times.append(median(end - begin for begin, _, end in began))
    print(f"start of one interpreter                 {(times[0] - times[1]) / 1e6:8.2f} ms")


def _python(program: str, *, supervised: bool) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(AGENT_PATH), FOLDER: folder if supervised else ""}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        sys.path.insert(0, str(AGENT_PATH))
        from rocm_agent import process

        process.start(folder)
        recorder()
        start()
        generic()
        process.claim._source = 0
        if find_spec("ultralytics") is None:
            print("ultralytics: all hooks of one batch      not measured: ultralytics is not installed here")
        else:
            ultralytics()


if __name__ == "__main__":
    main()
