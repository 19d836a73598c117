"""Where a training stands in its data: which batches of a pass were made, and the order in which the rest will come.

It stands in for a loader's batch sampler. At each pass it notes the random states that the order is drawn from; a
pass that is resumed draws the same order from the same states and passes over the first indices, without loading
anything, and then puts every generator where it was when the snapshot was taken.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, Iterator, List, Optional

from . import randomness

PASSES_NOTED = 3
"""A loader with workers that never stops draws the next pass while the present one is still being trained on."""


class Positioned:
    """A batch sampler that knows how its passes began and can begin one in its middle."""

    def __init__(self, torch: Any, inner: Any, loader: Any) -> None:
        """Stand in for `inner`, the batch sampler of `loader`."""
        self._torch = torch
        self.inner = inner
        samplers = [loader, inner, getattr(inner, "sampler", None), getattr(loader, "sampler", None)]
        generators = [getattr(one, "generator", None) for one in samplers]
        self._generators: List[Any] = list({id(one): one for one in generators if one is not None}.values())
        self._resume: Optional[Dict[str, Any]] = None
        self.passes = 0
        """Passes begun."""
        self.begun: Dict[Optional[int], Dict[str, Any]] = {}
        """By a pass's number, the states it began with; the newest only."""

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def resume(self, begun: Dict[str, Any], samples: int, batches: int, now: Optional[Dict[str, Any]]) -> None:
        """Begin the next pass as one began with the states `begun`, after its first `samples`.

        They were `batches` of the batches it had then, by which samplers with an idea of their own are followed. `now`
        is the random state to go on with.
        """
        self._resume = {"begun": begun, "samples": samples, "batches": batches, "now": now}

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        if resume is not None:
            self._restore(resume["begun"])
        self.begun[self.passes] = {
            "random": randomness.capture(self._torch),
            "generators": [one.get_state() for one in self._generators],
        }
        self.begun.pop(self.passes - PASSES_NOTED, None)
        self.passes += 1
        if resume is None:
            yield from self.inner
            return
        rest = self._rest(resume["samples"], resume["batches"])
        first = next(rest, None)  # now the order is drawn, and what is drawn next belongs to the training
        if resume["now"] is not None:
            randomness.restore(self._torch, resume["now"])
        if first is not None:
            yield first
            yield from rest

    def _rest(self, samples: int, batches: int) -> Iterator[Any]:
        """Return the batches of a new pass after the first `samples` indices, whatever size batches have now."""
        if type(self.inner) is not self._torch.utils.data.BatchSampler:
            return islice(iter(self.inner), batches, None)
        indices = islice(iter(self.inner.sampler), samples, None)
        return iter(type(self.inner)(indices, self.inner.batch_size, self.inner.drop_last))

    def _restore(self, begun: Dict[str, Any]) -> None:
        randomness.restore(self._torch, begun["random"])
        for generator, state in zip(self._generators, begun["generators"]):
            generator.set_state(state.cpu())
