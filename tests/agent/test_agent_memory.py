"""What a probe without a GPU computes as a GPU would, it computes so again where activations are checkpointed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.train

CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
from rocm_agent.memory import as_on_gpu
as_on_gpu.AsOnGpu().install()
block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU())
rows = torch.randn(3, 4, requires_grad=True)
checkpoint(block, rows, use_reentrant=False).sum().backward()
print(rows.grad is not None)
"""


def test_dropout_under_checkpointing_has_the_masks_of_a_gpu_in_both_passes(current_python: Path) -> None:
    """Else torch finds that the tensors computed again are others, and raises CheckpointError."""
    path = Path(__file__).parents[2] / "supervisor" / "agent" / "path"
    words = [str(current_python), "-c", CHECKPOINTED]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
