"""Batches that are put together stand for those that could be drawn, the largest among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Finished

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

PICTURES = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
from rocm_agent.memory.composed_batches import LEAST, PATIENCE_S, Compositions

class Pictures(Dataset):
    drawn, slow_s = 0, PATIENCE_S / LEAST
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        Pictures.drawn += 1
        time.sleep(self.slow_s)
        targets = 30 if index % 50 == 7 else 1 + index % 9
        return {"img": torch.full((3, 200, 200), float(index)), "cls": torch.zeros(targets, 1),
                "at": torch.zeros(targets), "path": "%d.jpg" % index}

def join(pictures):
    for number, picture in enumerate(pictures):
        picture["at"] += number
    found = {name: torch.cat([picture[name] for picture in pictures]) for name in ("cls", "at")}
    return {"img": torch.stack([picture["img"] for picture in pictures]), **found}

compositions = Compositions(torch)
compositions.install()

def load(dataset=None, count=200, collate=join, allowed=True, **words):
    compositions.begin(allowed=allowed)
    return iter(DataLoader(dataset or Pictures(), batch_size=count, collate_fn=collate, **words))

def describe(batch):
    return "%d pictures, %d targets at most" % (len(batch["img"]), torch.bincount(batch["at"].long()).max())
"""
SCENES = {
    "has drawn samples, then many of the largest": (
        """
batches = load()
first, second, third, fourth = (next(batches) for _ in range(4))
print(describe(first), "|", describe(second), "|", Pictures.drawn < 2 * LEAST)
most = torch.bincount(second["at"].long())
print(int((most == 30).sum()) >= 57, len(second["cls"]) > len(first["cls"]) + 4 * 200**0.5 * 14)
print(third["img"] is first["img"], fourth["img"] is second["img"], len(third["cls"]) == len(first["cls"]))
""",
        "200 pictures, 9 targets at most | 200 pictures, 30 targets at most | True\nTrue True\nTrue True True",
    ),
    "is collated again once a step wrote to it": (
        """
batches = load()
first, _ = next(batches), next(batches)
first["at"].zero_()
print(describe(next(batches)))
""",
        "200 pictures, 9 targets at most",
    ),
    "is drawn where it was not asked for, or drawing takes little": (
        """
print(len(next(load(allowed=False, count=80))["img"]), Pictures.drawn)
Pictures.slow_s, Pictures.drawn = 0.0, 0
batches = load()
compositions._patience_s = 3600.0
for _ in range(3):
    next(batches)
print(Pictures.drawn)
""",
        "80 80\n600",
    ),
    "is drawn of samples with anything else in them, or which collating writes to": (
        """
class Named(Pictures):
    def __getitem__(self, index):
        return {**super().__getitem__(index), "of": {1}}
print(describe(next(load(Named(), 90))), Pictures.drawn)

class Fewer(Pictures):
    def __getitems__(self, chosen):
        return [self[index] for index in chosen if index % 2]
print(describe(next(load(Fewer(), 90))))

def scale(pictures):
    for picture in pictures:
        picture["img"].mul_(2)
    return join(pictures)
Pictures.drawn = 0
batches = load(count=60, collate=scale)
next(batches), next(batches)
print(describe(next(batches)), Pictures.drawn >= 180)
""",
        "90 pictures, 30 targets at most 90\n45 pictures, 30 targets at most\n60 pictures, 30 targets at most True",
    ),
    "comes from workers, and from data sets that give several samples together": (
        """
class Together(Pictures):
    def __getitems__(self, chosen):
        return [self[index] for index in chosen]
batches = load(Together(), 300, num_workers=2, multiprocessing_context="fork")
print(sorted(describe(next(batches)) for _ in range(2)))
batches = load(Together(), 300)
print(describe(next(batches)), describe(next(batches)), Pictures.drawn <= LEAST + 16)
""",
        "['300 pictures, 30 targets at most', '300 pictures, 9 targets at most']\n"
        "300 pictures, 9 targets at most 300 pictures, 30 targets at most True",
    ),
}


@pytest.fixture
def run(attempt: Attempt, current_python: Path, warm: Warm) -> Callable[..., Finished]:
    """Run a program under the agent."""
    attempt.warm = warm(current_python)
    return lambda program: attempt.run([current_python, "-c", program])


@pytest.mark.parametrize("scene", SCENES)
def test_a_batch(run: Callable[..., Finished], scene: str) -> None:
    script, printed = SCENES[scene]
    assert run(PICTURES + script) == (0, printed + "\n")
