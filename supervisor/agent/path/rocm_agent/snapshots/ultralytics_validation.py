"""The order of an ultralytics validation: that of a classification is drawn by chance, another for each.

The mean of the losses of its batches, of which the last is smaller, differs in its last digits by that.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Iterator

from rocm_agent.fence import fenced


class Validations:
    """Counts those that a training has made, and has a resumed one begin with the order of the next."""

    def __init__(self, trainer: Any) -> None:
        self.made = 0
        """With the present loader: another, as with smaller batches, draws from the beginning."""
        self._loader = getattr(trainer, "test_loader", None)
        original = trainer.validate

        def validate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._count(trainer)
            return result

        trainer.validate = validate

    @fenced
    def _count(self, trainer: Any) -> None:
        if trainer.test_loader is not self._loader:
            self._loader, self.made = trainer.test_loader, 0
        self.made += 1

    @fenced
    def resume(self, torch: Any, made: int) -> None:
        """Have the loader go on behind so many."""
        self.made = made
        repeating = self._loader.batch_sampler
        is_drawn = getattr(self._loader, "iterator", None) is not None and self._loader.num_workers
        drawing = getattr(getattr(repeating, "sampler", None), "sampler", None)
        if isinstance(drawing, torch.utils.data.RandomSampler) and not is_drawn:
            repeating.sampler = _Later(repeating.sampler, made)


class _Later:
    """A batch sampler whose first pass is not the first: its sampler draws those before it."""

    def __init__(self, inner: Any, passes: int) -> None:
        self._inner, self._passes = inner, passes

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __iter__(self) -> Iterator[Any]:
        passes, self._passes = self._passes, 0
        for _ in range(passes):
            deque(self._inner.sampler, maxlen=0)
        return iter(self._inner)
