"""More or fewer workers for the loader of a living training, in the middle of an epoch.

The sampler goes on where it is: the batches that the old iterator has begun are delivered first, then those of a new
one over the rest of the same sampler, so no sample is lost, drawn twice or out of order. Random augmentation in the
workers draws other numbers with another number of workers, as it does in torch itself.
"""

from __future__ import annotations

import sys
import weakref
from functools import wraps
from time import monotonic_ns
from typing import Any, Callable, Dict, Iterator, Optional

from rocm_agent.fence import failed
from rocm_agent.loader import MET, SUCCESSOR, draws_at_random, owner_of

from . import Refused, pinning, refuse

PREFETCH = 2
OWN_BATCHES = (
    "composer",
    "fastai",
    "lightning",
    "pytorch_lightning",
    "transformers.trainer",
    "ultralytics.engine.trainer",
)
"""Modules of frameworks that go on by a number of batches, or reckon their steps by it."""
COUNTED = (
    "_data_queue",
    "_worker_result_queue",
    "_task_info",
    "_num_workers",
    "_prefetch_factor",
    "_send_idx",
    "_rcvd_idx",
)
"""Of an iterator with workers, by which its batches are counted."""


class Loader:
    """The loader that the training draws from."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._iterator: Any = lambda: None
        self._loader: Any = None
        self._workers: Optional[int] = None
        self._more: Dict[str, Any] = {}
        """Settings of the loader besides its workers, as the tuner set them."""
        self.batch_bytes: Optional[int] = None
        self.deferred = False
        """Whether changes wait for `settle`: several of them then cost one exchange of workers."""
        self._waiting = False

    def install(self) -> None:
        """Follow every iterator from now on."""
        iterators = self._torch.utils.data.dataloader._BaseDataLoaderIter
        iterators.__next__ = self._following(iterators.__next__)

    def _following(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        training = self._torch.is_grad_enabled

        @wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it takes that method's place
            if not training():
                return original(iterator)
            if MET not in iterator.__dict__:
                iterator.__dict__[MET] = True
                self._begins(iterator)
            successor = iterator.__dict__.get(SUCCESSOR)
            batch = original(iterator) if successor is None else successor.draw(original)
            if self.batch_bytes is None:
                self.batch_bytes = _count_bytes(batch)
            return batch

        return __next__

    def _begins(self, iterator: Any) -> None:
        """A new iteration: what is wanted now holds for it as well."""
        made_for = owner_of(iterator)
        if made_for is None:
            return
        self._iterator, self._loader = weakref.ref(iterator), made_for
        if (self._workers is not None or self._more) and self.why_not() is None:
            try:
                if self._workers is None and set(self._more) == {"pin_memory"}:
                    self._begin_pinning(iterator)
                else:
                    self._exchange()
            except Exception as error:
                failed("knobs.loader", error)

    def why_not(self) -> Optional[str]:
        """Return why the loader cannot be changed."""
        iterator, loader = self._iterator(), self._loader
        if iterator is None or loader is None:
            return "no loader of torch.utils.data is drawn from"
        if getattr(iterator, "_dataset_kind", 1) != 0:
            return "an iterable data set has an order of its own in each worker"
        if not hasattr(iterator, "_sampler_iter") or not hasattr(iterator, "_auto_collation"):
            return "a loader of this kind is not known"
        if not iterator._auto_collation:
            return "the data set makes batches of its own"
        return None

    def why_not_larger(self) -> Optional[str]:
        """Return why a start cannot be made with larger batches."""
        loader = self._loader
        if self.why_not() is not None:
            return self.why_not()
        owned = next((name for name in OWN_BATCHES if name in sys.modules), None)
        if owned is not None:
            return "%s has an account of its own of the batches that were made" % owned
        if type(loader.batch_size) is not int:
            return "its batches are made by a sampler of its own"
        if not draws_at_random(self._torch, loader.sampler):
            return "its loader draws in order, as one for a validation does"
        if len(loader.sampler) < 2 * loader.batch_size:
            return "a pass over its data has less than two batches"
        return None

    @property
    def workers(self) -> Optional[int]:
        """How many processes fetch now, as the owner set it or the tuner."""
        loader = self._loader
        return None if loader is None else self._workers if self._workers is not None else loader.num_workers

    @property
    def owners(self) -> Any:
        """The owner's loader, None where none is known."""
        return self._loader

    def apply(self, value: Any) -> None:
        """Have `value` workers fetch from the next batch on that is not yet begun."""
        self._change(int(value) != self.workers, lambda: setattr(self, "_workers", int(value)))

    def revert(self) -> None:
        """Have the owner's number of workers fetch again."""
        changed = self._workers is not None and self._loader is not None and self._loader.num_workers != self._workers
        self._workers = None
        if changed and self.why_not() is None:
            self._exchange()

    def read(self, name: str) -> Any:
        """Return a setting of the loader besides its workers, as the owner set it or the tuner."""
        return self._more.get(name, getattr(self._loader, name, None))

    def set(self, name: str, value: Any) -> None:
        """Have the loader fetch with another setting from the next batch on that is not yet begun."""
        self._change(value != self.read(name), lambda: self._more.update({name: value}))

    def unset(self, name: str) -> None:
        """Have it fetch with the owner's setting again."""
        changed = name in self._more and self._more[name] != getattr(self._loader, name, None)
        self._more.pop(name, None)
        if changed and self.why_not() is None:
            self._exchange()

    def _change(self, changes: Any, put: Callable[[], Any]) -> None:
        """Put a setting in force; raise Refused with all as it was where that fails."""
        refuse(self.why_not())
        before = (self._workers, dict(self._more))
        put()
        if not changes:
            return
        try:
            self._exchange()
        except (OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            self._workers, self._more = before
            raise Refused("its loader cannot be changed: %s" % error) from None

    def settle(self) -> None:
        """Carry out the changes that wait; raise Refused, with the owner's settings in force, where that fails."""
        self.deferred = False
        if not self._waiting:
            return
        self._waiting = False
        try:
            self._exchange()
        except (OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            self._workers, self._more = None, {}
            raise Refused("its loader cannot be changed: %s" % error) from None

    def _exchange(self) -> None:
        if self.deferred:
            self._waiting = True
            return
        iterator, drawn = self._iterator(), self._find_newest()
        held = iterator.__dict__.get(SUCCESSOR)
        rest = drawn._sampler_iter
        made = self._make_iterator(self.workers or 0, rest)
        # What was begun is still delivered; nothing new is asked of it.
        drawn._sampler_iter = iter(())
        if held is None:
            iterator.__dict__[SUCCESSOR] = Succession(iterator, made)
        else:
            held.add(made)

    def _make_iterator(self, workers: int, rest: Iterator[Any]) -> Any:
        """Return an iterator of the owner's loader over the rest of a sampler, with a number of workers."""
        torch, owner = self._torch, self._loader
        loader = object.__new__(torch.utils.data.DataLoader)
        held = loader.__dict__
        held.update(owner.__dict__)
        held.update(batch_sampler=Rest(rest, owner.batch_sampler), num_workers=workers, persistent_workers=False)
        held.update({name: value for name, value in self._more.items() if name != "pin_memory"})
        held["_iterator"] = None
        if workers == 0:
            held.update(prefetch_factor=None, timeout=0)
        elif not held.get("prefetch_factor"):
            held["prefetch_factor"] = PREFETCH
        # A new iterator draws a seed for its workers from this: the training's own random numbers stay as they are.
        held["generator"] = torch.Generator()
        held["generator"].manual_seed(monotonic_ns())
        kinds = torch.utils.data.dataloader
        kind = kinds._MultiProcessingDataLoaderIter if workers else kinds._SingleProcessDataLoaderIter
        made = kind(loader)
        if self._more.get("pin_memory"):
            self._begin_pinning(made)
        return made

    def pin(self) -> None:
        """Have batches pinned from the next one on that its workers hand over; iterators to come begin with it."""
        refuse(self.why_not())
        self._begin_pinning(self._find_newest())
        self._more["pin_memory"] = True

    def unpin(self) -> None:
        """Have batches handed over as the owner's loader does it."""
        if self._more.pop("pin_memory", None) is None or self.why_not() is not None:
            return
        newest = self._find_newest()
        if not self._loader.pin_memory and pinning.is_on(newest):
            pinning.end(newest)

    def _begin_pinning(self, iterator: Any) -> None:
        if not pinning.is_on(iterator):
            pinning.begin(self._torch, iterator, self._torch.utils.data._utils.pin_memory.pin_memory)

    def count_stock(self) -> Optional[Dict[str, int]]:
        """Return what the workers have made and begun; None where the batches of others come first, or none are known.

        As torch's own iterators count them: a batch out of its turn is kept with its number, the others are in queues.
        """
        iterator = self._iterator()
        if iterator is None:
            return None
        held, newest = iterator.__dict__.get(SUCCESSOR), self._find_newest()
        if (held is not None and held.is_behind) or not all(hasattr(newest, name) for name in COUNTED):
            return None
        if not getattr(newest, "_in_order", True):
            return None
        queues = {id(queue): queue for queue in (newest._data_queue, newest._worker_result_queue)}.values()
        kept = sum(len(row) > 1 for row in list(newest._task_info.values()))
        return {
            "iterator": id(newest),
            "workers": newest._num_workers,
            "ahead": newest._num_workers * newest._prefetch_factor,
            "begun": newest._send_idx,
            "ready": kept + sum(max(0, queue.qsize()) for queue in queues),
            "delivered": newest._rcvd_idx,
        }

    def _find_newest(self) -> Any:
        iterator = self._iterator()
        held = iterator.__dict__.get(SUCCESSOR)
        return iterator if held is None else held.newest


class Pinning:
    """Batches in pinned memory, as a knob."""

    def __init__(self, torch: Any, loader: Loader) -> None:
        self._torch, self._loader = torch, loader

    def why_not(self) -> Optional[str]:
        """Return why batches cannot be pinned."""
        return self._loader.why_not() if self._torch.cuda.is_available() else "no CUDA device is in use"

    def apply(self, value: Any) -> None:
        """Have batches pinned."""
        refuse(self.why_not())
        if value is True:
            self._loader.pin()

    def revert(self) -> None:
        """Have them handed over as the owner's loader does it."""
        self._loader.unpin()


class LoaderSetting:
    """One setting of the loader besides its workers, as a knob."""

    def __init__(self, loader: Loader, name: str) -> None:
        self._loader, self._name = loader, name

    def why_not(self) -> Optional[str]:
        """Return why the loader cannot be changed."""
        return self._loader.why_not()

    def apply(self, value: Any) -> None:
        """Set it."""
        self._loader.set(self._name, value)

    def revert(self) -> None:
        """Put the owner's value back."""
        self._loader.unset(self._name)


def _count_bytes(batch: Any) -> int:
    """Return the bytes of the tensors in a batch."""
    if hasattr(batch, "element_size"):
        return int(batch.element_size() * batch.numel())
    if isinstance(batch, dict):
        return sum(map(_count_bytes, batch.values()))
    return sum(map(_count_bytes, batch)) if isinstance(batch, (list, tuple)) else 0


class Rest:
    """What is left of a batch sampler."""

    def __init__(self, rest: Iterator[Any], sampler: Any) -> None:
        self._rest, self._sampler = rest, sampler
        self.batch_size = getattr(sampler, "batch_size", None)

    def __iter__(self) -> Iterator[Any]:
        """Return the iterator itself: it goes on."""
        return self._rest

    def __len__(self) -> int:
        """Return the length that the whole sampler has."""
        return len(self._sampler)


class Succession:
    """The iterators that follow each other in one iteration of a loader."""

    def __init__(self, first: Any, second: Any) -> None:
        self._first = weakref.ref(first)
        self._waiting = [first, second]
        self.newest = second

    @property
    def is_behind(self) -> bool:
        """Whether batches of an older iterator come first."""
        return self._waiting[0] is not self.newest

    def add(self, iterator: Any) -> None:
        """Have another one follow."""
        self._waiting.append(iterator)
        self.newest = iterator

    def draw(self, original: Callable[[Any], Any]) -> Any:
        """Return the next batch; StopIteration when the last one has none."""
        while True:
            drawn = self._waiting[0]
            try:
                batch = original(drawn)
            except StopIteration:
                if len(self._waiting) == 1:
                    raise
                del self._waiting[0]
                continue
            first = self._first()
            if drawn is not first and first is not None:
                first._num_yielded += 1  # a snapshot reads from it how far the pass has come
            return batch
