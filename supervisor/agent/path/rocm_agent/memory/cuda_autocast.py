"""Has autocast on the CPU compute in float32 what CUDA's autocast does, with the tensors that a GPU keeps for it.

CUDA's list has operations whose arguments are made float32, and others whose result alone is ("Autocast Op Reference"
of torch). A test compares both lists with those that torch itself has for tensors on a GPU.
"""

from __future__ import annotations

import inspect
from typing import Any, FrozenSet

import torch

functional = torch.nn.functional
CROSS_ENTROPY = inspect.signature(functional.cross_entropy)
HALVES = (torch.float16, torch.bfloat16)


def _find(names: str, *homes: Any) -> FrozenSet[Any]:
    """Return the functions of these names, as far as this torch has them."""
    return frozenset(getattr(home, name) for home in homes for name in names.split() if hasattr(home, name))


ARGUMENTS_IN_FLOAT32 = _find(
    "acos asin bilinear binary_cross_entropy_with_logits cosh cosine_similarity dist erfinv exp expm1 group_norm"
    " huber_loss interpolate l1_loss layer_norm log log10 log1p log2 log_softmax logsumexp mse_loss nll_loss pdist pow"
    " reciprocal renorm rsqrt sinh smooth_l1_loss softmax softplus tan __pow__ __rdiv__ __rpow__ __rtruediv__",
    torch,
    torch.Tensor,
    functional,
)
RESULT_IN_FLOAT32 = _find("cumprod cumsum norm prod sum vector_norm", torch, torch.Tensor, torch.linalg)
"""Those that take a `dtype`: a GPU reads the half-precision argument as it is."""


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch under autocast."""
    if func is functional.cross_entropy:
        return _lose_classes(*args, **kwargs)
    if func in ARGUMENTS_IN_FLOAT32:
        args = tuple(widen(item) for item in args)
        kwargs = {name: widen(item) for name, item in kwargs.items()}
    result = func(*args, **kwargs)
    return widen(result) if func in RESULT_IN_FLOAT32 and kwargs.get("dtype") is None else result


def widen(item: Any) -> Any:
    """Return a tensor of half precision in float32, and anything else as it is."""
    return item.float() if isinstance(item, torch.Tensor) and item.dtype in HALVES else item


def _lose_classes(*args: Any, **kwargs: Any) -> Any:
    """Return cross_entropy, whose logarithms a GPU keeps in half precision and in float32, with no float32 input."""
    given = CROSS_ENTROPY.bind(*args, **kwargs).arguments
    if given["input"].dtype not in HALVES:
        return functional.cross_entropy(*args, **kwargs)
    rows, target, smoothing = given.pop("input"), given.pop("target"), given.pop("label_smoothing", 0.0)
    reduction, classes = given.get("reduction", "mean"), min(1, rows.dim() - 1)
    with torch.autocast("cpu", enabled=False):
        logarithms = functional.log_softmax(rows, dim=classes)
        if target.is_floating_point():
            return _reduce(-(logarithms * target).sum(classes).float(), reduction)
        loss = functional.nll_loss(logarithms.float(), target, **given)
        if smoothing:
            smooth = _reduce(-logarithms.sum(classes).float(), reduction)
            loss = (1 - smoothing) * loss + smoothing / rows.shape[classes] * smooth
        return loss


def _reduce(losses: Any, reduction: str) -> Any:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses
