"""Steps of an engine with the shape of DeepSpeed's, as of 0.19.8; DeepSpeed itself is in the gallery."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from agent_by_hand import Attempt

from supervisor.core import attempt_files as at

pytestmark = pytest.mark.train

ENGINE = """
import torch

class DeepSpeedEngine:
    GROUPS = 3
    torch_autocast_z0_gradscaler = None

    def __init__(self, model, optimizer):
        self.model, self.basic_optimizer, self.optimizer = model, optimizer, optimizer
        self.skipped_steps, self.loss_scale = 0, 1024.0
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # makes its state

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        (loss * self.loss_scale).backward()
        return loss

    def scale(self, loss):
        return loss * self.loss_scale

    def step(self, lr_kwargs=None):
        self._take_model_step(lr_kwargs)

    def _take_model_step(self, lr_kwargs):
        if self.torch_autocast_z0_gradscaler is not None:
            self.torch_autocast_z0_gradscaler.step(self.optimizer)
            self.torch_autocast_z0_gradscaler.update()
            return
        if not all(torch.isfinite(p.grad).all() for p in self.model.parameters()):
            self.skipped_steps += 1
            return
        for _ in range(self.GROUPS):
            self.optimizer.step()
"""
TRAINING = """
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
engine = DeepSpeedEngine(model, torch.optim.SGD(model.parameters(), lr=0.001))
for value in (2.0, 3.0, float("nan"), float("nan")):
    loss = model(torch.ones(2, 4)).sum() * value
    print(repr(loss.item()))
    model.zero_grad()
    {backward}
    engine.step()
"""


SCALED = """
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
engine = DeepSpeedEngine(model, torch.optim.SGD(model.parameters(), lr=0.001))
engine.torch_autocast_z0_gradscaler = scaler = torch.amp.GradScaler("cpu")
for value in (2.0, float("nan"), 3.0):
    model.zero_grad()
    scaler.scale(model(torch.ones(2, 4)).sum() * value).backward()
    engine.step()
"""


COUNTED = """
import torch
from deepspeed.runtime.engine import DeepSpeedEngine
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
engine = DeepSpeedEngine(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.001))
engine.GROUPS = 1
saved = {saved!r}
if saved:
    for state in engine.optimizer.state.values():
        state["step"].fill_(saved)
for _ in range(2):
    model.zero_grad()
    engine.backward(model(torch.ones(2, 4)).sum())
    engine.step()
"""


def with_engine(tmp_path: Path, program: str) -> str:
    """Return a program that finds the engine where DeepSpeed has it."""
    folder = tmp_path / "packages" / "deepspeed" / "runtime"
    folder.mkdir(parents=True)
    (folder / "engine.py").write_text(ENGINE)
    return f"import sys; sys.path.insert(0, {str(folder.parents[1])!r})\n{program}"


@pytest.mark.parametrize("backward", ["engine.backward(loss)", "engine.scale(loss).backward()"])
def test_a_step_is_counted_once_with_its_loss_and_also_where_the_engine_skips_it(
    attempt: Attempt, train_python: Path, tmp_path: Path, backward: str
) -> None:
    attempt.make_recorder()
    program = with_engine(tmp_path, TRAINING.format(backward=backward))
    finished = attempt.run([train_python, "-c", program])
    assert finished.code == 0, finished.output
    records = attempt.records()
    assert [record.step for record in records] == [1, 2, 3, 4]
    assert [record.loss for record in records[:2]] == pytest.approx(
        [float(word) for word in finished.output.split()[:2]]
    )
    assert all(math.isnan(record.loss) for record in records[2:]), "the engine skipped both steps"
    assert not attempt.failures()


def test_a_step_that_a_scaler_within_the_engine_skips_is_counted_once(
    attempt: Attempt, current_python: Path, tmp_path: Path
) -> None:
    attempt.make_recorder()
    finished = attempt.run([current_python, "-c", with_engine(tmp_path, SCALED)])
    assert finished.code == 0, finished.output
    skipped = [(record.step, bool(record.known & at.KNOWN_SKIPPED)) for record in attempt.records()]
    assert skipped == [(1, False), (2, True), (3, False)]


@pytest.mark.parametrize(("saved", "steps"), [(0, [1, 2]), (11, [11, 12])])
def test_the_call_by_which_an_engine_makes_the_optimizers_state_is_no_step(
    attempt: Attempt, train_python: Path, tmp_path: Path, saved: int, steps: list[int]
) -> None:
    """Adam counts that call for ever: what was saved after ten steps says eleven."""
    attempt.make_recorder()
    finished = attempt.run([train_python, "-c", with_engine(tmp_path, COUNTED.format(saved=saved))])
    assert finished.code == 0, finished.output
    assert [record.step for record in attempt.records()] == steps
    assert not attempt.failures()
