"""Gradients inside a model with their longest rows cut to a few times the usual length, while calls are replayed.

Of a young decoder a few words in a thousand lie where its layers turn one way or the other: a direction that each layer
amplifies is nearly absent from their hidden states. Their gradients are thousands of times as long as those of other
words, and any rounding, right or wrong, makes others of them. The gradients of the first layers are little else, so
that those of a whole batch could not be compared.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

LONGEST = 4.0
"""Times the usual length, to which the rows of a gradient are cut: some in a thousand then move its sum little."""
CUTS, FIRST_CUT = 3, 100.0
"""Of the lengths themselves, after which the longest hardly move what is usual; the first one at so many times it."""
WIDEST = 32_768
"""Numbers in a row: the scores of a vocabulary are wider, have no such rows, and a copy of them may have no room."""


@contextmanager
def cut_rows(torch: Any, modules: List[Any], parts: int = 1) -> Iterator[None]:
    """Cut the rows, over their last dimension, of each gradient of a result of some modules meanwhile.

    `parts`: of how many batches results are joined; the rows of each are cut as they would be alone.

    The sum over rows that a weight's gradient is stays that of the same rows in the same directions. What is wrong in
    many rows is as wrong in their sum; what is no number stays none.
    """

    def cut(gradient: Any) -> Any:
        if gradient.layout is not torch.strided or gradient.shape[-1] > WIDEST:
            return gradient
        return torch.cat([cut_batch(part) for part in gradient.chunk(parts)]) if parts > 1 else cut_batch(gradient)

    def cut_batch(gradient: Any) -> Any:
        lengths = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True, dtype=torch.float32)
        limit = LONGEST * find_usual(lengths)
        return gradient * torch.where(lengths > limit, limit / lengths, torch.ones_like(lengths)).to(gradient.dtype)

    def follow(_: Any, __: Any, result: Any) -> None:
        for item in _list_results(result):
            if item.requires_grad and item.dim() > 1 and item.is_floating_point():
                item.register_hook(cut)

    hooks = [module.register_forward_hook(follow) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def count_rows(modules: List[Any]) -> Iterator[Dict[int, List[int]]]:
    """Give the first dimensions of the results that each of some modules has meanwhile, by the id of the module."""
    found: Dict[int, List[int]] = {}

    def follow(module: Any, _: Any, result: Any) -> None:
        found.setdefault(id(module), []).extend(item.shape[0] for item in _list_results(result) if item.dim() > 0)

    hooks = [module.register_forward_hook(follow) for module in modules]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _list_results(result: Any) -> Iterator[Any]:
    """Yield the tensors that a module computes.

    What comes with them is often a step on the way to them, which another kernel has not: weights of an attention.
    """
    return list_tensors(result[:1] if isinstance(result, tuple) else result)


def find_usual(lengths: Any) -> Any:
    """Return the usual one of some lengths, as a tensor of no dimension; no number where all are nothing.

    A layer that selects gives most rows no gradient, and another kernel gives them one that is rounding alone: neither
    is a measure of the others, as a median's counting would have it. A mean of powers leaves them out by itself.
    """
    lengths = lengths.clamp(max=FIRST_CUT * _mean(lengths, 0.125))
    for _ in range(CUTS):
        lengths = lengths.clamp(max=LONGEST * _mean(lengths, 0.5))
    return _mean(lengths, 0.5)


def _mean(lengths: Any, power: float) -> Any:
    """Return a mean to which the shortest add least; the lower the power, the less do the longest."""
    return ((lengths ** (2 * power)).sum() / (lengths**power).sum()) ** (1 / power)


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
