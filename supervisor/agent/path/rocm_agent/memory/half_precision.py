"""Has trainers in half precision begin without a GPU, where a probe counts their tensors on the CPU.

transformers refuses bfloat16 without a GPU, and accelerate float16, whose tensors are as large: it is given bfloat16.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any, Dict

ENV_PRECISION = "ACCELERATE_MIXED_PRECISION"
"""Where accelerate reads what its caller does not give."""


def allow(module: Any) -> None:
    """Begin with a module of theirs once it is imported, where there is no GPU."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_available():
        return
    if hasattr(module, "is_torch_bf16_gpu_available"):
        module.is_torch_bf16_gpu_available = lambda: True
    if hasattr(module, "Accelerator"):
        _give_bfloat16(module.Accelerator)


def _give_bfloat16(kind: Any) -> None:
    original = kind.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **_replace_float16(kwargs))

    kind.__init__ = __init__


def _replace_float16(given: Dict[str, Any]) -> Dict[str, Any]:
    asked = given.get("mixed_precision") or os.environ.get(ENV_PRECISION)
    return {**given, "mixed_precision": "bf16"} if str(asked) == "fp16" else given
