"""Puts an algorithm in place of nn.Conv2d's own, on the class; it leaves nothing in any module.

The class's `_conv_forward` is replaced, so modules made before and after, subclasses, and lazy modules once they have
become Conv2d all use it, and since no module holds a reference to it, a patched model pickles, copies and loads where
this package does not exist. F.conv2d called directly, Conv1d, ConvTranspose2d and BatchNorm are not touched.
"""

from __future__ import annotations

import functools
from typing import Optional

import torch
import torch.nn.functional as F  # noqa: N812 - the name that native's source uses
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from .algorithms import algorithm_named
from .operator import conv2d

_native = nn.Conv2d._conv_forward
_algorithm: Optional[str] = None
_installed = False


def patch(algorithm: str = "planned") -> None:
    """Make every nn.Conv2d of this process use `algorithm`; a second call switches to another.

    Raises ValueError for an unknown algorithm, and then changes nothing.
    """
    global _native, _algorithm, _installed
    algorithm_named(algorithm)
    if not _installed:
        _native = nn.Conv2d._conv_forward
        # torch.jit.script compiles the source behind __wrapped__, with the names below: it gets native's.
        functools.update_wrapper(_conv_forward, _native)
        nn.Conv2d._conv_forward = _conv_forward
        _installed = True
    _algorithm = algorithm


def unpatch() -> None:
    """Give nn.Conv2d its own function back; where another patch lies on top of this one, step aside inside it."""
    global _algorithm, _installed
    _algorithm = None
    if _installed and nn.Conv2d._conv_forward is _conv_forward:
        nn.Conv2d._conv_forward = _native
        _installed = False


def is_patched() -> bool:
    """Whether nn.Conv2d uses an algorithm of this package."""
    return _algorithm is not None


def _conv_forward(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002 - native's
    if _algorithm is None:
        return _native(self, input, weight, bias)
    if _exporting():
        return _recorded(self, input, weight, bias)
    padding = self.padding
    if self.padding_mode != "zeros":
        input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)  # noqa: A001 - native's
        padding = _pair(0)
    return conv2d(input, weight, bias, self.stride, padding, self.dilation, self.groups, _algorithm)


def _exporting() -> bool:
    """Whether the call is being recorded for use elsewhere (ONNX, TorchScript, torch.export)."""
    if torch.jit.is_tracing() or torch.onnx.is_in_onnx_export():
        return True
    compiler = getattr(torch, "compiler", None)
    return hasattr(compiler, "is_exporting") and compiler.is_exporting()


def _recorded(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002 - native's
    """Run native, so that a Conv is recorded; on a card by ATen's own kernels, since tracing runs what it records."""
    if input.is_cuda and torch.jit.is_tracing():
        with torch.backends.cudnn.flags(enabled=False):
            return _native(self, input, weight, bias)
    return _native(self, input, weight, bias)
