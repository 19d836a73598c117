"""Installs the kernels in PyTorch's dispatcher, which every caller goes through, and removes them.

Whoever convolves ends at the operators of which kernels.py has others: modules, torch.nn.functional under any name and
however early imported, scripted models, C++. Only the kernels of CPUs and GPUs are replaced ("cuda" is ROCm too).
SyncBatchNorm never asks the library. Recurrent layers and CTC loss do: those only `torch.backends.cudnn.enabled` stops.
"""

from __future__ import annotations

import warnings
from typing import Optional

import torch

from . import depthwise_aten, normalization, planner
from .kernels import Kernels

DEVICES = ("CPU", "CUDA")

_library: Optional[torch.library.Library] = None


def install(algorithm: str) -> None:
    """Have every convolution and BatchNorm of this process computed by `algorithm`, in place of an earlier one."""
    global _library
    remove()
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel")
        for name, kernel in {**Kernels(algorithm).by_name(), **normalization.KERNELS}.items():
            for device in DEVICES:
                _library.impl(name, kernel, device)
    _note_backward(replaced=True)


def remove() -> None:
    """Give the operators their own kernels back; graphs of autograd made before are then differentiated by those."""
    global _library
    library, _library = _library, None
    if hasattr(library, "_destroy"):
        library._destroy()
    if library is not None:
        _note_backward(replaced=False)


def _note_backward(*, replaced: bool) -> None:
    """Rebuild plans: those made with PyTorch's own backward operator would ask for themselves."""
    depthwise_aten.replace_backward(replaced)
    planner.forget_plans()
