"""What trainings of most tests leave away of torch changes none of their numbers, and is there once it is used."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

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
def kept_whole(rows):
    return rows.sin() + 1
@getattr(getattr(torch, "_dynamo", None), "assume_constant_result", lambda function: function)
def scale():
    return 2.0
if hasattr(torch, "compile"):
    torch.compiler.allow_in_graph(kept_whole)
torch.use_deterministic_algorithms(True, warn_only=True)
losses = [step(model) for _ in range(4)]
before = "torch._dynamo.eval_frame" in sys.modules, "torch._refs.fft" in sys.modules
apart = ["torch.distributions.normal" in sys.modules, "torch.ao.quantization.stubs" in sys.modules]
parts = torch.distributions.Normal(1.0, 2.0).log_prob(torch.zeros(1)).item(), torch.hub.get_dir()
from torch.distributions.kl import kl_divergence
parts += torch.quantization.QuantStub.__name__, kl_divergence(*[torch.distributions.Normal(1.0, 2.0)] * 2).item()
linear = torch.nn.quantized.dynamic.Linear(2, 3)
parts += type(linear).__module__, list(linear.weight().shape), torch.nn.intrinsic.LinearReLU.__name__
names = "torch.nn.quantized", "torch.distributions", "torch.hub"
same = [part is sys.modules[name] for part, name in zip((torch.nn.quantized, torch.distributions, torch.hub), names)]
graphs, compiler, found, ddp = [], None, None, None
def backend(graph, inputs):
    graphs.append(len(inputs))
    return graph.forward
if hasattr(torch, "compile"):
    ask = torch._dynamo.utils.get_optimize_ddp_mode  # as DistributedDataParallel does when it is made
    ddp = [ask()]
    import torch._inductor.config as settings
    found = [settings.deterministic]
    torch.use_deterministic_algorithms(False)
    found.append(settings.deterministic)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found.append("torch._dynamo.eval_frame" in sys.modules)
    settings.max_autotune = True
    found += [torch._inductor.config.deterministic, torch._inductor.config.max_autotune]
    losses += [step(torch.compile(model, backend=backend)) for _ in range(2)]
    nodes = []
    def keep_nodes(graph, inputs):
        nodes.extend(node.name for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward
    graphs.append(torch.compile(lambda rows: kept_whole(rows) * scale(), backend=keep_nodes)(torch.ones(2)).tolist())
    graphs.append(nodes)
    compiler = type(sys.modules["torch._dynamo"]).__name__, torch._dynamo is sys.modules["torch._dynamo"]
    torch._dynamo.config.optimize_ddp = "python_reducer"
    ddp += [ask(), torch._dynamo.utils.get_optimize_ddp_mode()]
    settings.deterministic = False
    found += [torch._inductor.config.deterministic, torch._inductor is sys.modules["torch._inductor"]]
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    shape = list(torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)).shape)
without_data = list(torch.ones(2, 3, 8, 8, device="meta").unfold(2, 3, 1).cumsum(0).shape)
weights = [parameter.tolist() for parameter in model.parameters()]
answer = {"imported": before, "graphs": graphs, "compiler": compiler, "settings": found, "ddp": ddp}
answer["numbers"] = losses, weights, shape, without_data, parts, same
answer["apart"] = apart
print(json.dumps(answer))
"""


def train(python: Path, *words: str) -> dict[str, Any]:
    """Train after a file, if one is named, has been run as the interpreters of make test run it when they start."""
    begin = "import sys\nfor path in sys.argv[1:]: exec(open(path).read(), {'__name__': 'lean_torch'})\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TESTS_LEAN", "ROCM_", "PYTHON"))}
    command = [str(python), "-c", begin + TRAINING, *words]
    done = subprocess.run(command, env=kept, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_lean_torch_has_the_same_numbers_and_compiles_once_it_is_asked_to(train_python: Path) -> None:
    lean, whole = train(train_python, str(LEAN_TORCH)), train(train_python)
    compiles = whole["compiler"] is not None
    assert lean["imported"] == [False, False]
    assert (lean["apart"], whole["apart"]) == ([False, False], [True, True])
    assert whole["imported"] == [compiles, True]
    assert lean["numbers"] == whole["numbers"]
    assert lean["graphs"] == whole["graphs"]
    assert bool(whole["graphs"]) == compiles
    assert lean["compiler"] == whole["compiler"]
    assert whole["compiler"] in (None, ["module", True])
    if compiles:
        assert lean["ddp"] == whole["ddp"] == ["ddp_optimizer", "python_reducer", "python_reducer"]
        # It is kept until any other setting, or a use, has the compiler imported.
        assert lean["settings"] == [True, False, False, True, True, False, True]
        assert whole["settings"] == [True, False, True, True, True, False, True]
