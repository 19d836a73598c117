"""A batch is handed out again only where it stands for another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Finished

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

REPEATS = """
import torch
from collections import namedtuple
from rocm_agent.memory.repeated_batches import PATIENCE_S, Repeats

class Iterator:
    _num_workers = 0

loader, Pair = Iterator(), namedtuple("Pair", "image kind")

def draw(count, wide=3):
    return {"image": torch.ones(count, wide), "of": [("a.jpg", 1.0)], "kind": [torch.zeros(count)]}

def follow(*batches, allowed=True, waited_s=PATIENCE_S, iterator=loader):
    repeats = Repeats(torch)
    repeats.saw(iterator, draw(2), 2, 0.0)
    repeats.saw(iterator, draw(2), 2, 0.0)
    repeats.begin(allowed=allowed)
    for batch in batches:
        repeats.saw(iterator, batch, 4, waited_s)
    return repeats
"""
SCENES = {
    "is handed out once it took long, in lists of its own": (
        """
batch = draw(4)
repeats = follow(batch)
batch["kind"].clear()
first = repeats.take(loader, 4)
first["kind"].pop()
second = repeats.take(loader, 4)
print(second["image"] is batch["image"], len(second["kind"]), list(second))
""",
        "True 1 ['image', 'of', 'kind']",
    ),
    "is none where drawing takes little, nothing was asked for, or another size or iterator is": (
        """
brief = follow(draw(4), waited_s=PATIENCE_S / 3)
print(brief.take(loader, 4), follow(draw(4), allowed=False).take(loader, 4))
print(follow(draw(4)).take(loader, 6), follow(draw(4)).take(Iterator(), 4), follow().take(loader, 4))
for _ in range(2):
    brief.saw(loader, draw(4), 4, PATIENCE_S / 3)
print(brief.take(loader, 4) is not None)
""",
        "None None\nNone None None\nTrue",
    ),
    "is none once shapes differ or a step wrote to it": (
        """
written = follow(draw(4))
batch = written.take(loader, 4)
batch["image"].mul_(2)
print(written.take(loader, 4), follow(draw(4), draw(4, 5)).take(loader, 4), follow(draw(4), draw(4, 5)).alike)
later = follow(draw(4), draw(4, 5), draw(4, 5))
print(later.take(loader, 4), later.alike)
""",
        "None None False\nNone False",
    ),
    "is none of a class of its own, of other lengths, or on a GPU": (
        """
lengths = [{"ids": torch.ones(4, 9), "longest": longest} for longest in (7, 8)]
for batch in (Pair(torch.ones(4, 3), 1), {"image": torch.ones(4, 3, device="meta")}, {1, 2}):
    print(follow(batch, batch).take(loader, 4), follow(batch, batch).alike)
print(follow(*lengths).take(loader, 4), follow(lengths[0], lengths[0]).take(loader, 4)["longest"])
""",
        "None False\nNone False\nNone False\nNone 7",
    ),
    "by workers is handed out once another took long after their first": (
        """
class Workers(Iterator):
    _num_workers = 4
workers = Workers()
repeats = follow(draw(4), iterator=workers)
print(repeats.take(workers, 4))
repeats.saw(workers, draw(4), 4, PATIENCE_S)
print(repeats.take(workers, 4) is not None)
""",
        "None\nTrue",
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
    assert run(REPEATS + script) == (0, printed + "\n")
