"""Puts further batches together from samples that were drawn, where batches differ in shape and drawing takes long.

Every such batch is one that the training could have drawn, with repetition. Steps have two of them in turn: one without
the largest samples, and one with as many of those as its sum exceeds that of a batch at random by four standard
deviations. Samples that hold anything else than plain tensors, arrays, numbers and texts are drawn.
"""

from __future__ import annotations

import time
from functools import wraps
from itertools import chain, cycle, islice
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from .repeated_batches import SCALARS, copy_lists, tensors_in

PATIENCE_S, PROOF_PATIENCE_S = 0.4, 0.75
"""Samples are drawn as long as a probe, or a proof, has waited for them less than that; the more there are, the larger
is the largest of them."""
LEAST = 64
"""Samples that are drawn before any is used again."""
MOST = 512
CHUNK = 16
"""Samples that a data set gives together where it can."""
SMALL_BYTES = 1 << 16
"""A tensor of so many bytes is copied for each use: collating functions write to small ones, as to a picture's number
in its batch."""
DEVIATIONS = 4

Path = Tuple[Any, ...]


class Compositions:
    """The batches of one process that are put together from samples."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_allowed = False
        self._patience_s = PATIENCE_S

    def begin(self, *, allowed: bool, proves: bool = False) -> None:
        """Begin with a request; `allowed`: whether a step may have a batch that was put together."""
        self._is_allowed = allowed
        self._patience_s = PROOF_PATIENCE_S if proves else PATIENCE_S

    def install(self) -> None:
        """Follow what draws the samples of a batch, in this process and in the workers of its loaders."""
        kind = self._torch.utils.data._utils.fetch._MapDatasetFetcher
        original = kind.fetch

        @wraps(original)
        def fetch(fetcher: Any, chosen: Any) -> Any:
            if not self._is_allowed or not fetcher.auto_collation:
                return original(fetcher, chosen)
            pool = getattr(fetcher, "_pool", None)
            if pool is None:
                pool = fetcher._pool = Pool(self._torch, self._patience_s)
            batch = None if pool.is_given_up else pool.fetch(fetcher, list(chosen))
            return original(fetcher, chosen) if batch is None else batch

        kind.fetch = fetch


class Pool:
    """Samples that a loader has drawn, and the batches that were put together from them."""

    def __init__(self, torch: Any, patience_s: float) -> None:
        self._torch = torch
        self._patience_s = patience_s
        self._waited_s = 0.0
        self._samples: List[Any] = []
        self._sizes: List[Dict[Path, int]] = []
        """Of each of them the elements by their place in it."""
        self._largest: Dict[Path, Tuple[int, Any]] = {}
        """By the place in a sample: the most elements that there were, and the sample which had them."""
        self._least: Dict[Path, int] = {}
        self._versions: List[Tuple[Any, int]] = []
        self._collated: Dict[Tuple[int, bool], Any] = {}
        worker = torch.utils.data.get_worker_info()
        self._is_in_worker = worker is not None
        self._number = 0 if worker is None else int(worker.id)
        """How many batches were put together; each worker makes few, and they are to differ."""
        self.is_given_up = False
        """Whether all are drawn, since these samples cannot be used again."""

    def fetch(self, fetcher: Any, chosen: Sequence[Any]) -> Any:
        """Return a batch of as many samples as were chosen; None where it cannot be put together."""
        drawn: List[Any] = []
        while len(drawn) < len(chosen) and not self._is_filled():
            asked, began_s = chosen[len(drawn) : len(drawn) + CHUNK], time.perf_counter()
            found = _draw(fetcher.dataset, asked)
            self._waited_s += time.perf_counter() - began_s
            if len(found) != len(asked):  # it gives several for some, or none
                self.is_given_up = True
                return None
            for sample in found:
                self._keep(sample)
            drawn += found
        if len(drawn) >= len(chosen):
            return fetcher.collate_fn(drawn)
        try:
            return self._compose(fetcher.collate_fn, len(chosen))
        except Exception:  # drawn samples are collated in any case, and raise what these would raise
            self.is_given_up = True
            return None

    def _is_filled(self) -> bool:
        return not self.is_given_up and self._waited_s >= self._patience_s and len(self._samples) >= LEAST

    def _keep(self, sample: Any) -> None:
        sizes = None if self.is_given_up else self._measure(sample)
        if sizes is None:
            self.is_given_up = True
            self._samples.clear()
            return
        kept = self._copy(sample)
        for place in {**sizes, **self._least}:
            size = sizes.get(place, 0)
            self._least[place] = min(size, self._least.get(place, size))
            if size > self._largest.get(place, (-1, None))[0]:
                self._largest[place] = (size, kept)
        if len(self._samples) < MOST:
            self._samples.append(kept)
            self._sizes.append(sizes)
            self._versions += [(tensor, tensor._version) for tensor in tensors_in(self._torch, kept)]

    def _compose(self, collate: Any, count: int) -> Any:
        """Return a batch, which is collated once and handed out again where nothing has written to it."""
        if any(tensor._version != version for tensor, version in self._versions):
            raise RuntimeError("a collating function writes to samples")
        is_large = self._number % 2 == 1
        self._number += 1
        batch, versions = self._collated.get((count, is_large), (None, []))
        if batch is not None and versions == [tensor._version for tensor in tensors_in(self._torch, batch)]:
            return copy_lists(batch)
        batch = collate([self._copy(sample) for sample in self.choose(count, is_large=is_large)])
        if not self._is_in_worker and type(batch) in (dict, list, tuple):  # what a worker sends the training may change
            versions = [tensor._version for tensor in tensors_in(self._torch, batch)]
            self._collated[count, is_large] = (copy_lists(batch), versions)
        return batch

    def choose(self, count: int, *, is_large: bool) -> List[Any]:
        """Return the samples of a batch: with many of the largest ones first, or without them where there are others.

        The sum over `count` samples has a standard deviation of at most half of their range times the root of `count`,
        and one of the largest in place of one at random adds half of that range.
        """
        varied = {place: found for place, found in self._largest.items() if found[0] > self._least[place]}
        if not is_large:
            known = zip(self._samples, self._sizes)
            others = [kept for kept, sizes in known if all(sizes.get(at) != varied[at][0] for at in varied)]
            return list(islice(cycle(others or self._samples), count))
        largest = list({id(sample): sample for _, sample in varied.values()}.values())
        most = max(len(largest), round(DEVIATIONS * count**0.5)) if largest else 0
        return list(islice(chain(islice(cycle(largest), most), cycle(self._samples)), count))

    def _measure(self, item: Any, place: Path = ()) -> Optional[Dict[Path, int]]:
        """Return how many elements there are at each place in a sample, None where something else is in it.

        Items of a list share a place: there may be a different number of them in each sample.
        """
        kind = type(item)
        if kind in SCALARS or kind is int:
            return {place: 1}
        if kind is self._torch.Tensor:
            is_plain = item.device.type == "cpu" and item.layout == self._torch.strided
            return {place: int(item.numel())} if is_plain else None
        if _is_array(item):
            return {place: int(item.size)}
        if kind not in (dict, list, tuple):
            return None
        found: Dict[Path, int] = {}
        for key, value in _list_items(item):
            sizes = self._measure(value, (*place, key))
            if sizes is None:
                return None
            for inner, size in sizes.items():
                found[inner] = found.get(inner, 0) + size
        return found

    def _copy(self, item: Any) -> Any:
        """Return a sample whose lists, arrays and small tensors are its own."""
        if type(item) is dict:
            return {name: self._copy(value) for name, value in item.items()}
        if type(item) in (list, tuple):
            return type(item)(self._copy(value) for value in item)
        if type(item) is self._torch.Tensor and item.numel() * item.element_size() <= SMALL_BYTES:
            return item.clone()
        return item.copy() if _is_array(item) else item


def _is_array(item: Any) -> bool:
    return type(item).__module__ == "numpy" and type(item).__name__ == "ndarray" and item.dtype != object


def _list_items(item: Any) -> Iterator[Tuple[Any, Any]]:
    if type(item) is dict:
        return iter(item.items())
    return iter(enumerate(item)) if type(item) is tuple else iter((None, value) for value in item)


def _draw(dataset: Any, chosen: Sequence[Any]) -> List[Any]:
    """Return some samples as torch's own loader draws them."""
    together = getattr(dataset, "__getitems__", None)
    return list(together(list(chosen))) if together else [dataset[index] for index in chosen]
