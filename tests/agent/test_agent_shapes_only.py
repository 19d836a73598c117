"""Where tensors are counted nothing large is computed: bytes are the same, and who decides by a value is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Finished

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

BEGUN = """
import torch
from rocm_agent.memory import account, as_on_gpu, shapes_only
def count(computes, train):
    needed = []
    shapes = None if computes else shapes_only.ShapesOnly(needed.append)
    found = account.Account(shapes)
    with found, as_on_gpu.AsOnGpu(shapes):
        result = train()
    return found, needed, result
"""

SAME = """
def train():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(inplace=True)
    network = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1), torch.nn.Flatten(2), torch.nn.Linear(4096, 8))
    optimizer = torch.optim.AdamW(network.parameters())
    peaks = []
    for _ in range(2):
        rows = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
        mixed = network(rows).transpose(1, 2).reshape(-1, 16)
        loss = torch.nn.functional.cross_entropy(mixed, torch.randint(0, 16, (len(mixed),)))
        assert not torch.isnan(loss) and torch.isfinite(rows).all() and loss.item() >= 0
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0).item() > 0
        optimizer.step()
    return network[-1].weight.grad.abs().sum().item()
(real, _, changed), (left, needed, gradient) = count(True, train), count(False, train)
names = "peak_bytes", "forward_peak_bytes", "backward_peak_bytes"
assert left.peak_bytes > 2 << 20
print([getattr(real, name) == getattr(left, name) for name in names], needed)
"""

DECIDES = """
rows = torch.randn(256, 256)
kinds = torch.arange(256) % 3
def by_value():
    scores = rows.relu()
    (scores > 0.5).nonzero()
    scores[scores > 0.5]
    bool((scores > 0.5).any())
    int((scores > 0.5).sum())
def by_data():
    scores = rows.relu()
    best = scores.sum() < 1e9
    return scores[kinds == 1].shape[0], (kinds == 1).nonzero().shape[0], bool(best), scores[kinds].shape
for train in (by_value, by_data):
    _, needed, result = count(False, train)
    print([name.split(".")[1] for name in needed], result)
"""


@pytest.fixture
def run(attempt: Attempt, current_python: Path, warm: Warm) -> Callable[..., Finished]:
    """Run a program under the agent, with all of torch."""
    attempt.warm = warm(current_python)
    return lambda program, *words: attempt.run([current_python, "-c", program, *words])


def test_a_training_without_arithmetic_takes_the_same_bytes_and_looks_healthy_to_itself(
    run: Callable[..., Finished],
) -> None:
    assert run(BEGUN + SAME) == (0, "[True, True, True] []\n")


def test_a_training_that_decides_by_what_was_not_computed_is_known_and_by_its_data_it_may(
    run: Callable[..., Finished],
) -> None:
    """Masks and indices that come from the data have their values; a loss that is compared is a number like another."""
    by_value = "['nonzero', 'index', '_local_scalar_dense', '_local_scalar_dense'] None\n"
    by_data = "[] (85, 85, True, torch.Size([256, 256]))\n"
    assert run(BEGUN + DECIDES) == (0, by_value + by_data)
