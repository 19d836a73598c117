"""A patched model saved, copied and loaded: it is an ordinary model, wherever it comes to."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from patching import patched, small
from rocm_agent.memory import lean_torch

LOADER = """
import importlib.util, sys, torch
assert importlib.util.find_spec("rocm_agent") is None
model, x, y = torch.load(sys.argv[1], **({} if torch.__version__.startswith("1.") else {"weights_only": False}))
got = model(x)
gap = ((got[0] if isinstance(got, tuple) else got) - y).abs().max() / y.abs().max()
assert gap < 1e-5, gap
assert torch.nn.Conv2d._conv_forward.__module__ == "torch.nn.modules.conv"
"""


def load_elsewhere(file: Path) -> None:
    """Load (model, x, y) in a process that cannot import this package, and assert there that model(x) is y."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["TESTS_LEAN_TORCH"] = lean_torch.__file__  # it compiles nothing
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(file)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_a_patched_model_saved_completely_loads_where_the_package_is_not() -> None:
    x = torch.randn(2, 3, 8, 8)
    with tempfile.TemporaryDirectory() as folder, patched():
        model = small()
        y = model(x).detach()
        torch.save((model, x, y), Path(folder) / "model.pt")
        load_elsewhere(Path(folder) / "model.pt")


def check_pickle_and_deepcopy_of_a_patched_model_give_equal_models() -> None:
    x = torch.randn(2, 3, 8, 8)
    with patched():
        model = small()
        y = model(x)
        dumped = pickle.dumps(model)
        assert b"rocm_agent" not in dumped
        for again in (pickle.loads(dumped), copy.deepcopy(model)):
            assert torch.equal(again(x), y)
