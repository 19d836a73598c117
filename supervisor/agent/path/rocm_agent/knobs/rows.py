"""Gradients inside a model with their longest rows cut to a few times the usual length, while calls are replayed.

Of a young decoder a few words in a thousand lie where its layers turn one way or the other: a direction that each layer
amplifies is nearly absent from their hidden states. Their gradients are thousands of times as long as those of other
words, and any rounding, right or wrong, makes others of them. The gradients of the first layers are little else, so
that those of a whole batch could not be compared.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List

LONGEST = 4.0
"""Times the usual length, to which the rows of a gradient are cut: some in a thousand then move its sum little."""
CUTS = 3
"""Of the lengths themselves, after which the longest hardly move what is usual."""
WIDEST = 32_768
"""Numbers in a row: the scores of a vocabulary are wider, have no such rows, and a copy of them may have no room."""


@contextmanager
def cut_rows(torch: Any, modules: List[Any]) -> Iterator[None]:
    """Cut the rows, over their last dimension, of each gradient of a result of some modules meanwhile.

    The sum over rows that a weight's gradient is stays that of the same rows in the same directions. What is wrong in
    many rows is as wrong in their sum; what is no number stays none.
    """

    def cut(gradient: Any) -> Any:
        if gradient.layout is not torch.strided or gradient.shape[-1] > WIDEST:
            return gradient
        lengths = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=torch.float32)
        limit = LONGEST * find_usual(lengths)
        return gradient * torch.where(lengths > limit, limit / lengths, torch.ones_like(lengths)).to(gradient.dtype)

    def follow(_: Any, __: Any, result: Any) -> None:
        for item in list_tensors(result):
            if item.requires_grad and item.dim() > 1 and item.is_floating_point():
                item.register_hook(cut)

    hooks = [module.register_forward_hook(follow) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def find_usual(lengths: Any) -> Any:
    """Return the usual one of some lengths, as a tensor of no dimension.

    The mean, each weighted by one over its root: a layer that selects gives most rows no gradient, and another kernel
    gives them one that is rounding alone. Neither is a measure of the others, as a median's counting would have it.
    """
    for _ in range(CUTS):
        lengths = lengths.clamp(max=LONGEST * _mean_by_roots(lengths))
    return _mean_by_roots(lengths)


def _mean_by_roots(lengths: Any) -> Any:
    return (lengths.sum() / lengths.sqrt().sum()) ** 2


def list_tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors of a result."""
    if hasattr(value, "requires_grad"):
        yield value
    elif hasattr(value, "values"):
        for item in value.values():
            yield from list_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from list_tensors(item)
