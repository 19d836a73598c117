"""Measures what one recorded step costs a training; run it with the interpreter of a training environment.

    PYTHON tests/bench/step_cost.py

Medians over batches of calls on the CPU. A hook's cost is the difference to the same calls without the agent: in one
process, in blocks of 200 steps with its hooks on torch and without them in turn, over several processes.
"""

# ruff: noqa: PLC0415, T201 - PLC0415: the agent is imported once its path is set; T201: a benchmark prints

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns, thread_time_ns
from types import FrameType, FunctionType, SimpleNamespace
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


class Switch:
    """Puts the agent's hooks on torch in place and takes them away, within one process."""

    def __init__(self, more: list[type]) -> None:
        self._before = {place: dict(vars(place)) for place in (*_list_places(), *more)}
        self._hooks: list[tuple[Any, str, Any]] = []

    def find_hooks(self) -> None:
        """Find what the agent has put in place since this was made."""
        for place, before in self._before.items():
            for name, value in list(vars(place).items()):
                if type(value) is not FunctionType or before.get(name) is value:
                    continue
                if value.__code__.co_filename.startswith(str(AGENT_PATH)):
                    self._hooks.append((place, name, value))

    def set(self, *, on: bool) -> None:
        """Have the agent's functions called, or torch's own alone."""
        for place, name, hook in self._hooks:
            original = self._before[place].get(name)
            if on or original is not None:
                setattr(place, name, hook if on else original)
            else:
                delattr(place, name)  # a method that was inherited


def _list_places() -> set[Any]:
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
    classes = {value for module in modules for value in list(vars(module).values()) if issubclass(type(value), type)}
    return {*modules, *(kind for kind in classes if kind.__module__.partition(".")[0] == "torch")}


BLOCK_PASSES, PASS_STEPS = 4, 50
PAIRS = 100
PROCESSES = 5


def loop() -> None:
    """Print what the hooks add to a step that does next to nothing: each pair of blocks in turn, in one process.

    Of a block are compared the time that its quickest quarter of steps takes at most, its median, and the mean of the
    processor time: on an idle machine they are alike; on a busy one other programs' turns are least in the first.
    """
    torch = import_module("torch")
    torch.set_num_threads(1)
    weight = torch.zeros(4, requires_grad=True)

    class Nothing(torch.optim.Optimizer):  # type: ignore[misc, name-defined] # torch is loaded by its name
        def step(self, closure: object = None) -> None:
            """Change nothing."""

    Nothing([weight], {"lr": 0.1})  # torch itself wraps the step of a kind when it makes the first
    switch = Switch([Nothing])
    begin_agent()
    optimizer = Nothing([weight], {"lr": 0.1})
    switch.find_hooks()
    data = [(torch.zeros(8, 3), torch.zeros(8))] * PASS_STEPS

    def block(*, on: bool) -> tuple[float, float, float]:
        switch.set(on=on)
        steps, used = [], 0
        for _ in range(BLOCK_PASSES):
            batches = iter(torch.utils.data.DataLoader(data, batch_size=None))
            used -= thread_time_ns()
            last = perf_counter_ns()
            for _ in range(PASS_STEPS):
                next(batches)
                weight.sum().backward()
                torch.nn.utils.clip_grad_norm_([weight], 1.0)
                optimizer.step()
                now = perf_counter_ns()
                steps.append(now - last)
                last = now
            used += thread_time_ns()
        quarter, middle, _ = quantiles(steps, n=4)
        return quarter, middle, used / len(steps)

    calls = [count_agent_calls(partial(block, on=on)) for on in (True, False)]
    assert calls[0] > 0 == calls[1], f"the agent was called {calls[0]} times, and {calls[1]} times without its hooks"
    rows = []
    for _ in range(PAIRS // 2):  # in the order off, on, on, off: a drift of the pace cancels
        blocks = [block(on=on) for on in (False, True, True, False)]
        rows += [(blocks[1], blocks[0]), (blocks[2], blocks[3])]
    costs = [median(ours[kind] - alone[kind] for ours, alone in rows) / 1000 for kind in range(3)]
    print(json.dumps([costs, median(alone[1] for _, alone in rows) / 1000]))


def count_agent_calls(call: Callable[[], object]) -> int:
    """Return how many calls of the agent's functions a call makes."""
    found: Counter[bool] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        found[event == "call" and frame.f_code.co_filename.startswith(str(AGENT_PATH))] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[True]


def generic() -> None:
    """Print what the hooks of a step cost, as several processes find it."""
    found = [json.loads(_python(str(Path(__file__)), "loop")) for _ in range(PROCESSES)]
    for kind, what in enumerate(("quick steps", "median", "processor time")):
        costs = sorted(row[0][kind] for row in found)
        spread = f"{median(costs):8.2f} us ({costs[0]:.2f} to {costs[-1]:.2f} in {len(costs)} processes)"
        print(f"generic: all hooks of one step, {what:14} {spread}")
    print(f"generic: the step without them           {median(row[1] for row in found):8.2f} us")


def start() -> None:
    """Time the start and end of an interpreter."""
    times = []
    for supervised in (True, False):
        began = [
            (perf_counter_ns(), _python("-c", "pass", supervised=supervised), perf_counter_ns()) for _ in range(30)
        ]
        times.append(median(end - begin for begin, _, end in began))
    print(f"start of one interpreter                 {(times[0] - times[1]) / 1e6:8.2f} ms")


def _python(*words: str, supervised: bool = False) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(AGENT_PATH), FOLDER: folder if supervised else ""}
        command = [sys.executable, *words]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def begin_agent() -> None:
    """Begin the agent in this process, for an attempt in a new folder."""
    folder = tempfile.mkdtemp(prefix="step-cost-")
    atexit.register(shutil.rmtree, folder)
    os.environ[FOLDER] = folder
    sys.path.insert(0, str(AGENT_PATH))
    from rocm_agent import process

    process.start(folder)


def main() -> None:
    """Print the table."""
    if sys.argv[1:] == ["loop"]:
        loop()
        return
    generic()
    begin_agent()
    from rocm_agent import process

    recorder()
    start()
    process.claim._source = 0
    if find_spec("ultralytics") is None:
        print("ultralytics: all hooks of one batch      not measured: ultralytics is not installed here")
    else:
        ultralytics()


if __name__ == "__main__":
    main()
