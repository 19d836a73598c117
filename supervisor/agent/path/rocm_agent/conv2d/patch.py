"""Puts an algorithm in place of PyTorch's convolutions: nn.Conv2d's alone on its class, or all in the dispatcher.

Either way no module holds a reference to this package, so that a patched model pickles, copies and loads where it does
not exist. The scope "modules" replaces the class's `_conv_forward`, which modules made before and after, subclasses,
and lazy modules once they have become Conv2d all use; F.conv2d called directly, other convolutions and BatchNorm keep
native. The scope "all" replaces them too, see dispatcher.py.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any, Optional

import torch
import torch.nn.functional as F  # noqa: N812 - the name that native's source uses
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from . import dispatcher, fallback
from .algorithms import algorithm_named
from .fast_path import fast_path
from .operator import conv2d
from .planned import is_compiling, is_exporting

SCOPES = ("modules", "all")

_native = nn.Conv2d._conv_forward
_algorithm: Optional[str] = None
_scope: Optional[str] = None
_installed = False


def patch(algorithm: str = "planned", scope: str = "modules") -> None:
    """Make every nn.Conv2d of this process, or with the scope "all" every convolution, use `algorithm`.

    With "all" BatchNorm is computed by PyTorch's own kernels. A second call switches to another algorithm or scope.
    Raises ValueError for an unknown algorithm or scope, and then changes nothing.
    """
    global _algorithm, _scope
    algorithm_named(algorithm)
    if scope not in SCOPES:
        raise ValueError(f"conv2d scope {scope!r} does not exist; choose one of {', '.join(SCOPES)}")
    if scope == "all":
        _leave_modules()
        dispatcher.install(algorithm)
    else:
        dispatcher.remove()
        _enter_modules()
    _algorithm, _scope = algorithm, scope


def unpatch() -> None:
    """Give back what `patch` replaced; where another patch lies on top of this one, step aside inside it."""
    global _algorithm, _scope
    _algorithm = _scope = None
    dispatcher.remove()
    _leave_modules()


def is_patched() -> bool:
    """Whether nn.Conv2d uses an algorithm of this package."""
    return _algorithm is not None


def _enter_modules() -> None:
    global _native, _installed
    if not _installed:
        _native = nn.Conv2d._conv_forward
        # torch.jit.script compiles the source behind __wrapped__, with the names below: it gets native's.
        functools.update_wrapper(_conv_forward, _native)
        nn.Conv2d._conv_forward = _conv_forward
        _installed = True


def _leave_modules() -> None:
    global _installed
    if _installed and nn.Conv2d._conv_forward is _conv_forward:
        nn.Conv2d._conv_forward = _native
        _installed = False


def _conv_forward(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002 - native's
    if _scope != "modules":
        return _native(self, input, weight, bias)
    if is_compiling():
        return _compute_conv(self, input, weight, bias)
    if fallback.native_layers and fallback.is_native(_layer_key(self, weight)):
        return _without_library(self, input, weight, bias)
    try:
        return _compute_conv(self, input, weight, bias)
    except fallback.FAILURES as error:
        native = functools.partial(_without_library, self, input, weight, bias)
        return fallback.natively(error, _layer_key(self, weight), native, str(list(getattr(input, "shape", ()))))


def _compute_conv(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002 - native's
    if _algorithm == "planned" and self.padding_mode == "zeros":
        y = fast_path(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        if y is not None:
            return y
    if _is_exported():
        return _run_native_recorded(self, input, weight, bias)
    padding = self.padding
    if self.padding_mode != "zeros":
        input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)  # noqa: A001 - native's
        padding = _pair(0)
    return conv2d(input, weight, bias, self.stride, padding, self.dilation, self.groups, _algorithm)


def _is_exported() -> bool:
    """Whether the call is being recorded for use elsewhere (ONNX, TorchScript, torch.export)."""
    return torch.jit.is_tracing() or is_exporting() or torch.onnx.is_in_onnx_export()


def _layer_key(self: nn.Conv2d, weight: Tensor) -> Any:
    """Return what a layer is remembered by."""
    return weight.dtype, tuple(weight.shape), self.stride, self.padding, self.dilation, self.groups, self.padding_mode


def _without_library(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002
    """Run native, on a GPU by ATen's own kernels."""
    with torch.backends.cudnn.flags(enabled=False) if input.is_cuda else nullcontext():
        return _native(self, input, weight, bias)


def _run_native_recorded(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: A002 - native's
    """Run native, so that a Conv is recorded; on a GPU by ATen's own kernels, since tracing runs what it records."""
    if torch.jit.is_tracing():
        return _without_library(self, input, weight, bias)
    return _native(self, input, weight, bias)
