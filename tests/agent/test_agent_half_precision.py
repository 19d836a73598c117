"""A trainer in half precision is probed without a GPU, though transformers and accelerate want one for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_by_hand import Attempt

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

ARGUMENTS = """
def is_torch_bf16_gpu_available():
    return False
class TrainingArguments:
    def __init__(self):
        if not is_torch_bf16_gpu_available():
            raise ValueError("Your setup doesn't support bf16/gpu.")
"""
ACCELERATOR = """
import os
class Accelerator:
    def __init__(self, device_placement=True, mixed_precision=None):
        self.mixed_precision = mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION")
"""
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
from accelerate.accelerator import Accelerator
from transformers.training_args import TrainingArguments
made = [Accelerator(mixed_precision=name).mixed_precision for name in ("fp16", "bf16", "no", None)]
os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
print(*made, Accelerator(False).mixed_precision, Accelerator(mixed_precision="no").mixed_precision)
try:
    print(type(TrainingArguments()).__name__)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("is_probed", [True, False])
def test_half_precision_is_refused_without_a_gpu_but_where_tensors_are_counted(
    attempt: Attempt, current_python: Path, warm: Warm, tmp_path: Path, is_probed: bool
) -> None:
    for name, module, text in (
        ("transformers", "training_args", ARGUMENTS),
        ("accelerate", "accelerator", ACCELERATOR),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / f"{module}.py").write_text(text)
    attempt.warm = None if is_probed else warm(current_python)
    asked = {"ROCM_SUPERVISOR_MEMORY_PROBE": json.dumps({"report": str(tmp_path / "report.json")})}
    done = attempt.run([current_python, "-c", PROGRAM, str(tmp_path)], **(asked if is_probed else {}))
    expected = (
        ["bf16 bf16 no None bf16 no", "TrainingArguments"]
        if is_probed
        else ["fp16 bf16 no None fp16 no", "Your setup doesn't support bf16/gpu."]
    )
    assert done.output.splitlines() == expected
