"""A classification validates in the orders that it would have drawn had it never been killed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace

from agent_by_hand import AGENT_PATH

sys.path.append(str(AGENT_PATH))

from rocm_agent.snapshots.ultralytics_validation import Validations

IMAGES, BATCH = 7, 3


class RandomSampler:
    """Draws each pass from one generator, as torch's does."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def __iter__(self) -> Iterator[int]:
        yield from self._random.sample(range(IMAGES), IMAGES)


TORCH = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(RandomSampler=RandomSampler)))


class Batches:
    """The batches of a sampler, the last one smaller."""

    def __init__(self, sampler: object) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)  # type: ignore[call-overload]
        while batch := list(islice(indices, BATCH)):
            yield batch


def begin(sampler: object | None = None) -> SimpleNamespace:
    """Return a trainer that validates with a loader like that of ultralytics, and notes the orders."""
    repeating = SimpleNamespace(sampler=Batches(sampler or RandomSampler()))
    loader = SimpleNamespace(batch_sampler=repeating, num_workers=0, iterator=None)
    trainer = SimpleNamespace(test_loader=loader, orders=[])
    trainer.validate = lambda: trainer.orders.append(list(loader.batch_sampler.sampler))
    return trainer


def test_a_resumed_training_goes_on_with_the_order_of_its_next_validation() -> None:
    whole = begin()
    counted = Validations(whole)
    for _ in range(5):
        whole.validate()
    assert counted.made == 5
    resumed = begin()
    validations = Validations(resumed)
    validations.resume(TORCH, 3)
    resumed.validate()
    resumed.validate()
    assert resumed.orders == whole.orders[3:]
    assert validations.made == 5


def test_the_order_of_a_detection_is_always_the_same() -> None:
    trainer = begin(range(IMAGES))
    Validations(trainer).resume(TORCH, 3)
    assert isinstance(trainer.test_loader.batch_sampler.sampler, Batches)


def test_a_loader_whose_workers_have_drawn_already_is_left_alone() -> None:
    """As in older releases, which begin to load as the loader is made."""
    trainer = begin()
    trainer.test_loader.num_workers, trainer.test_loader.iterator = 2, object()
    Validations(trainer).resume(TORCH, 3)
    assert isinstance(trainer.test_loader.batch_sampler.sampler, Batches)


def test_with_another_loader_the_count_begins_again() -> None:
    trainer = begin()
    validations = Validations(trainer)
    trainer.validate()
    trainer.test_loader = begin().test_loader
    trainer.validate()
    assert validations.made == 1
