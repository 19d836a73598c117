"""What trainings of most tests leave away of torch changes none of their numbers, and is there once it is used."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LEAN_TORCH

pytestmark = pytest.mark.train

TRAINING = """
import json, sys, torch
torch.manual_seed(3)
nn = torch.nn
model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step(forward):
    optimizer.zero_grad()
    loss = forward(torch.ones(2, 1, 6, 6)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()
torch.use_deterministic_algorithms(True, warn_only=True)
losses = [step(model) for _ in range(4)]
before = "torch._dynamo.eval_frame" in sys.modules, "torch._refs.fft" in sys.modules
graphs, compiler, deterministic = [], None, None
def backend(graph, inputs):
    graphs.append(len(inputs))
    return graph.forward
if hasattr(torch, "compile"):
    import torch._inductor.config as settings
    deterministic = [settings.deterministic]
    torch.use_deterministic_algorithms(False)
    deterministic.append(settings.deterministic)
    torch.use_deterministic_algorithms(True, warn_only=True)
    losses += [step(torch.compile(model, backend=backend)) for _ in range(2)]
    compiler = type(sys.modules["torch._dynamo"]).__name__, torch._dynamo is sys.modules["torch._dynamo"]
    deterministic += [torch._inductor.config.deterministic, settings.deterministic]
    settings.deterministic = False
    deterministic += [torch._inductor.config.deterministic, torch._inductor is sys.modules["torch._inductor"]]
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    shape = list(torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)).shape)
without_data = list(torch.ones(2, 3, 8, 8, device="meta").unfold(2, 3, 1).cumsum(0).shape)
weights = [parameter.tolist() for parameter in model.parameters()]
answer = {"imported": before, "graphs": graphs, "compiler": compiler, "deterministic": deterministic}
answer["numbers"] = losses, weights, shape, without_data
print(json.dumps(answer))
"""


def run(python: Path, program: str, *words: str) -> object:
    """Run it after a file, if one is named, has been run as the interpreters of make test run it when they start."""
    begin = "import sys\nfor path in sys.argv[1:]: exec(open(path).read(), {'__name__': 'lean_torch'})\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TESTS_LEAN", "ROCM_", "PYTHON"))}
    command = [str(python), "-c", begin + program, *words]
    return json.loads(subprocess.run(command, env=kept, stdout=subprocess.PIPE, text=True, check=True).stdout)


def train(python: Path, *words: str) -> dict[str, object]:
    """Return what a training has to answer."""
    answer = run(python, TRAINING, *words)
    assert isinstance(answer, dict)
    return answer


def test_a_lean_torch_has_the_same_numbers_and_compiles_once_it_is_asked_to(train_python: Path) -> None:
    lean, whole = train(train_python, str(LEAN_TORCH)), train(train_python)
    compiles = whole["compiler"] is not None
    assert lean["imported"] == [False, False]
    assert whole["imported"] == [compiles, True]
    assert lean["numbers"] == whole["numbers"]
    assert lean["graphs"] == whole["graphs"]
    assert bool(whole["graphs"]) == compiles
    assert lean["compiler"] == whole["compiler"]
    assert whole["compiler"] in (None, ["module", True])
    assert lean["deterministic"] == whole["deterministic"]
    assert whole["deterministic"] in (None, [True, False, True, True, False, True])


SETS = """
import json, torch
torch.use_deterministic_algorithms(True)
import torch._inductor.config as settings
settings.max_autotune = True
from torch._inductor import config
print(json.dumps([config.max_autotune, config.deterministic, config is sys.modules["torch._inductor.config"]]))
"""


def test_any_other_setting_of_the_compiler_is_set_in_its_own_module(current_python: Path) -> None:
    assert run(current_python, SETS, str(LEAN_TORCH)) == [True, True, True]
