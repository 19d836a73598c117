"""A probe without a GPU keeps for the backward pass what torch's own autocast for CUDA keeps of tensors on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.train, pytest.mark.whole_torch(reason="tensors without data on a GPU that is not there")]

KEPT = """
import contextlib, json, warnings
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from rocm_agent.memory.as_on_gpu import AsOnGpu
warnings.simplefilter("ignore")
functional = torch.nn.functional
ROWS, COLUMNS = 64, 32

def list_operations(device):
    labels = torch.zeros(ROWS, dtype=torch.long, device=device)
    weight = torch.ones(COLUMNS, device=device)
    ones = torch.ones(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
    heads = lambda rows: rows.view(1, 4, 16, 32)
    bias = torch.ones(1, 4, 16, 16, device=device, requires_grad=True)
    attend = functional.scaled_dot_product_attention
    return {
        "cross_entropy": lambda rows: functional.cross_entropy(rows, labels),
        "cross_entropy, smooth": lambda rows: functional.cross_entropy(rows, labels, label_smoothing=0.1),
        "cross_entropy of probabilities": lambda rows: functional.cross_entropy(rows, ones.float()),
        "softmax": lambda rows: functional.softmax(rows, dim=-1),
        "log_softmax": lambda rows: torch.log_softmax(rows, -1),
        "nll_loss": lambda rows: functional.nll_loss(rows, labels),
        "layer_norm": lambda rows: functional.layer_norm(rows, (COLUMNS,), weight, weight),
        "group_norm": lambda rows: functional.group_norm(rows.view(2, 32, -1), 32),
        "pow": lambda rows: rows**2, "power of": lambda rows: 2**rows, "reciprocal": lambda rows: 1 / rows,
        "rsqrt": torch.rsqrt, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
        "log1p": torch.log1p, "tan": torch.tan, "acos": torch.acos, "erfinv": torch.erfinv,
        "logsumexp": lambda rows: torch.logsumexp(rows, -1),
        "sum": lambda rows: rows.sum(-1), "norm": lambda rows: rows.norm(dim=-1), "mean": lambda rows: rows.mean(-1),
        "vector_norm": lambda rows: torch.linalg.vector_norm(rows, dim=-1),
        "cumsum": lambda rows: rows.cumsum(-1), "softplus": functional.softplus,
        "cosine_similarity": lambda rows: functional.cosine_similarity(rows, ones),
        "mse_loss": lambda rows: functional.mse_loss(rows, ones),
        "smooth_l1_loss": lambda rows: functional.smooth_l1_loss(rows, ones),
        "interpolate": lambda rows: functional.interpolate(rows.view(2, 4, 16, 16), scale_factor=2.0),
        "dropout": lambda rows: functional.dropout(rows, 0.1), "gelu": functional.gelu,
        "linear": lambda rows: functional.linear(rows, weight.expand(8, -1)),
        "float32 product": lambda rows: rows.float() @ ones.float().t(),
        "attention with a learned mask": lambda rows: attend(heads(rows), heads(rows), heads(rows), bias, 0.1),
    }

def keep(device, name, mode):
    with FakeTensorMode():
        rows = torch.ones(ROWS, COLUMNS, device=device, dtype=torch.bfloat16, requires_grad=True)
        operation, kept, alive = list_operations(device)[name], {}, []
        own = rows.untyped_storage()._cdata
        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata != own and storage.nbytes() > 4 * ROWS:
                kept[storage._cdata] = storage.nbytes(), str(tensor.dtype)
                alive.append(storage)
            return tensor
        with mode, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = operation(rows)
        return [sorted(kept.values()), str(result.dtype)]

found = {}
for device, mode in (("cuda", contextlib.nullcontext()), ("cpu", AsOnGpu())):
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    for name in list_operations("meta"):
        found.setdefault(name, []).append(keep(device, name, mode))
    torch.set_autocast_enabled(device, False)
print(json.dumps(found))
"""

MATRIX = 4 * 16 * 16
"""Numbers in the scores of an attention of four heads over 16 tokens."""


def test_each_operation_keeps_the_same_bytes_of_the_same_type_as_on_a_gpu(current_python: Path) -> None:
    path = Path(__file__).parents[2] / "supervisor" / "agent" / "path"
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [str(current_python), "-c", KEPT], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    kept: dict[str, Any] = json.loads(done.stdout)
    assert len(kept) > 30
    assert {name: both for name, both in kept.items() if both[0] != both[1]} == {}
    logarithms = [[512, "torch.int64"], [4096, "torch.bfloat16"], [8192, "torch.float32"]]
    assert kept["cross_entropy"][1] == [logarithms, "torch.float32"]
    sizes = [size for size, _ in kept["attention with a learned mask"][1][0]]
    assert sizes.count(4 * MATRIX) == 2, "the scores, and what dropout leaves of them"
    assert sizes.count(MATRIX) == 1, "what was dropped, a byte each"
