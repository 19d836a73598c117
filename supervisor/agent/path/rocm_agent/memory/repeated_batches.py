"""Hands a batch out again in place of a further one that would take long to draw, where batches are alike.

What a step takes follows from the shapes of its batch. Where those of two batches of as many samples were the same, a
probe that has waited for its loader for a while makes its other steps with what it has drawn. Anything else than plain
tensors in host memory is drawn: what a batch of a class of its own holds, or the number in it, may decide.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

PATIENCE_S = 1.0
"""A probe draws its batches as long as it has waited for them less than that."""
SCALARS = (str, bytes, float, bool, type(None))
"""Items of a batch that take no memory of a GPU; a whole number may be a length."""


class Repeats:
    """The batches of one process, and the one that a request under way may be given again."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kinds: Dict[Optional[int], Any] = {}
        """How the batches of so many samples look."""
        self.alike: Optional[bool] = None
        """Whether batches of as many samples looked alike; None: there were no two of them."""
        self._is_allowed = False
        self._waited_s = 0.0
        self._newest: Optional[Tuple[Any, Any, Optional[int], List[int]]] = None

    def begin(self, *, allowed: bool) -> None:
        """Begin with a request; `allowed`: whether batches are known to be alike, and a step may have one again."""
        self._is_allowed, self._waited_s, self._newest = allowed, 0.0, None

    def saw(self, iterator: Any, batch: Any, samples: Optional[int], waited_s: float) -> None:
        """A batch was drawn by an iterator of torch.utils.data."""
        kind = self._describe(batch)
        if samples in self._kinds:
            is_same = kind is not None and kind == self._kinds[samples]
            self.alike = is_same and self.alike is not False
        self._kinds[samples] = kind
        if not self._is_allowed or kind is None or self.alike is False:
            self._newest = None
            return
        is_first_of_workers = self._newest is None and getattr(iterator, "_num_workers", 0)
        self._waited_s += 0.0 if is_first_of_workers else waited_s
        versions = [tensor._version for tensor in tensors_in(self._torch, batch)]
        self._newest = (weakref.ref(iterator), copy_lists(batch), samples, versions)

    def take(self, iterator: Any, samples: Optional[int]) -> Any:
        """Return a batch in place of the next one of an iterator, None where that is to be drawn."""
        if self._newest is None or self._waited_s < PATIENCE_S:
            return None
        reference, batch, count, versions = self._newest
        if reference() is not iterator or samples not in (None, count):
            return None
        if versions != [tensor._version for tensor in tensors_in(self._torch, batch)]:  # a step has written to it
            self._newest = None
            return None
        return copy_lists(batch)

    def _describe(self, item: Any) -> Any:
        """Return what the memory of a step follows from, None where that is not known."""
        kind = type(item)
        if kind is self._torch.Tensor:
            is_plain = item.device.type == "cpu" and item.layout == self._torch.strided
            return (tuple(item.shape), item.dtype) if is_plain else None
        if kind in SCALARS:
            return kind
        if kind is int:
            return item
        if kind is dict:
            kinds = [self._describe(value) for value in item.values()]
            return None if None in kinds else (kind, tuple(item), tuple(kinds))
        if kind in (list, tuple):
            kinds = [self._describe(value) for value in item]
            return None if None in kinds else (kind, tuple(kinds))
        return None


def tensors_in(torch: Any, item: Any) -> Iterator[Any]:
    """Yield the plain tensors of a batch or sample."""
    if type(item) is torch.Tensor:
        yield item
    elif type(item) in (list, tuple, dict):
        for value in item.values() if type(item) is dict else item:
            yield from tensors_in(torch, value)


def copy_lists(item: Any) -> Any:
    """Return a batch whose lists and dictionaries are its own: a step may take out of them."""
    if type(item) is dict:
        return {name: copy_lists(value) for name, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(copy_lists(value) for value in item)
    return item
