"""The position of a training in its data: which batches of a pass were made, and the order of the rest.

It stands in for a loader's batch sampler. At each pass it notes the random states that the order is drawn from; a
pass that is resumed draws the same order from the same states and passes over the first indices, without loading
anything. What a data set draws while it loads a batch is drawn as it was: the random states of the snapshot come back
at the very batch that had not been asked for when it was taken.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, Iterator, List, Optional

from . import randomness, worker_random

PASSES_NOTED = 3
"""A loader with workers that never stops draws the next pass while the present one is still being trained on."""
BATCHES_NOTED = 64
ORDER = ("epoch", "initial_seed", "seed")
"""By these, samplers with a generator of their own draw a pass."""


class Positioned:
    """A batch sampler that knows how its passes began and can begin one in its middle."""

    def __init__(self, torch: Any, inner: Any, loader: Any, *, ahead: bool = False) -> None:
        """Stand in for `inner`, the batch sampler of `loader`.

        `ahead` says that batches are loaded in this process before the one before them was trained on.
        """
        self._torch = torch
        self.inner = inner
        self._ahead = ahead and loader.num_workers == 0
        batches = getattr(inner, "batch_sampler", inner)  # accelerate's share of a rank stands in for all of it
        samplers = [loader, inner, getattr(batches, "sampler", None), getattr(loader, "sampler", None)]
        generators = [getattr(sampler, "generator", None) for sampler in samplers]
        self._generators: List[Any] = list(
            {id(generator): generator for generator in generators if generator is not None}.values()
        )
        self._sampler = getattr(batches, "sampler", batches)
        self._resume: Optional[Dict[str, Any]] = None
        self._before: Dict[int, Dict[str, Any]] = {}
        self.passes = 0
        """Passes begun."""
        self.asked = 0
        """Batches asked for in the newest pass, with those passed over."""
        self.begun: Dict[Optional[int], Dict[str, Any]] = {}
        """By a pass's number, the states it began with; the newest only."""
        self.workers: Optional[worker_random.Account] = None
        """Those of the newest iterator that has some."""
        worker_random.install(torch, Positioned)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    @property
    def batch_samples(self) -> int:
        """The samples of a batch, also where the program made the batch sampler; 1 where that names no number."""
        size = getattr(self.inner, "batch_size", None)
        return size if type(size) is int and size > 0 else 1

    def random_from(self, made: int, now: Dict[str, Any]) -> Dict[int, Dict[str, Any]]:
        """Return by a batch's number the random states before it was loaded, of a pass of which `made` are trained on.

        `now` are the states as the snapshot finds them.
        """
        if not self._ahead:
            return {made: now}
        ahead = {number: self._before[number] for number in range(made, self.asked) if number in self._before}
        return {**ahead, self.asked: now}

    def workers_at(self, number: int, made: int) -> Optional[Dict[str, Any]]:
        """Return how the workers go on behind `made` batches of a pass; None without any, or where it is not known."""
        return None if self.workers is None else self.workers.at(number, made)

    def workers_resumed(self, count: int, skipped: int) -> Optional[Dict[str, Any]]:
        """Return how so many workers go on in the pass to come; None where they are others or begin elsewhere.

        `skipped` of the batches that are given out reach no worker.
        """
        resume = self._resume or {}
        found = resume.get("workers")
        fits = found and len(found["states"]) == count and found["batch"] == resume["batches"] + skipped
        return found if fits else None

    def resume(
        self, begun: Dict[str, Any], samples: int, batches: int, random: Dict[int, Dict[str, Any]], workers: Any = None
    ) -> None:
        """Begin the next pass as one began with the states `begun`, after its first `samples`.

        They were `batches` of the batches it had then, by which samplers with an idea of their own are followed. With
        `batches` 0 the first ones are given out too, for the caller to skip. `random` is what `random_from`
        returned, `workers` what `workers_at` did.
        """
        self._resume = {"begun": begun, "samples": samples, "batches": batches, "random": random, "workers": workers}

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        if resume is not None:
            self._restore_order(resume["begun"])
        self.begun[self.passes] = {
            "random": randomness.capture(self._torch),
            "generators": [generator.get_state() for generator in self._generators],
            "order": {name: vars(self._sampler)[name] for name in ORDER if name in vars(self._sampler)},
        }
        self.begun.pop(self.passes - PASSES_NOTED, None)
        self.passes += 1
        self.asked = 0 if resume is None else resume["batches"]
        random = {} if resume is None else resume["random"]
        if self.workers is not None:
            self.workers.pass_begins(self.passes - 1, self.asked)
        for batch in self.inner if resume is None else self._rest_of_pass(resume["samples"], resume["batches"]):
            self._at_batch(random)
            yield batch
        if self.asked in random:
            randomness.restore(self._torch, random[self.asked])

    def _at_batch(self, random: Dict[int, Dict[str, Any]]) -> None:
        if self.asked in random:
            randomness.restore(self._torch, random[self.asked])
        if self._ahead:
            self._before[self.asked] = randomness.capture(self._torch)
            self._before.pop(self.asked - BATCHES_NOTED, None)
        self.asked += 1
        if self.workers is not None:
            self.workers.batch_begins()

    def _rest_of_pass(self, samples: int, batches: int) -> Iterator[Any]:
        """Return the batches of a new pass after the first `samples` indices, whatever size batches have now."""
        if type(self.inner) is not self._torch.utils.data.BatchSampler or not batches:
            return islice(iter(self.inner), batches, None)
        indices = islice(iter(self.inner.sampler), samples, None)
        return iter(type(self.inner)(indices, self.inner.batch_size, self.inner.drop_last))

    def _restore_order(self, begun: Dict[str, Any]) -> None:
        randomness.restore(self._torch, begun["random"])
        for generator, state in zip(self._generators, begun["generators"]):
            generator.set_state(state.cpu())
        for name, value in begun["order"].items():
            setattr(self._sampler, name, value)


def positioned(torch: Any, loader: Any, *, ahead: bool = False) -> Optional[Positioned]:
    """Put one into a torch DataLoader over a data set with an index; return None where the loader is another."""
    data = torch.utils.data
    if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
        return None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    found = getattr(loader, name)
    if isinstance(found, Positioned):
        return found
    made = Positioned(torch, found, loader, ahead=ahead)
    object.__setattr__(loader, name, made)  # the loader itself forbids it
    return made
