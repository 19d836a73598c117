"""Large weights are filled by repeating a block of random numbers; a network has the spread that it would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Finished

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

FILLED = """
import json, torch
from rocm_agent.memory import quick_fill
def draw(fill):
    torch.manual_seed(3)
    return fill()
ways = {
    "normal": lambda count: torch.empty(count).normal_(2.0, 0.5),
    "uniform": lambda count: torch.empty(count).uniform_(1.0, 3.0),
    "cut off": lambda count: torch.nn.init.trunc_normal_(torch.empty(count), mean=2.0, std=0.5, a=1.0, b=3.0),
}
large, small = 4 * quick_fill.BLOCK + 5, 1000
whole = {name: (draw(lambda: way(large)), draw(lambda: way(small))) for name, way in ways.items()}
quick_fill.begin(torch)
found = {}
for name, way in ways.items():
    (before, few), after, fewer = whole[name], draw(lambda: way(large)), draw(lambda: way(small))
    rows = draw(lambda: way(large - large % 512)).view(-1, 512)
    found[name] = [
        torch.equal(after[quick_fill.BLOCK : 2 * quick_fill.BLOCK], after[: quick_fill.BLOCK]),
        torch.equal(after[4 * quick_fill.BLOCK :], after[:5]),
        abs(float(after.mean() - before.mean())) < 0.01 and abs(float(after.std() - before.std())) < 0.01,
        bool((rows[1:] == rows[:-1]).all(1).any()) or bool((rows[1:, 0] == rows[:1, 0]).any()),
        torch.equal(fewer, few),
    ]
print(json.dumps(found))
"""

AS_EVER = """
import torch
from rocm_agent.memory import quick_fill
count = 2 * quick_fill.BLOCK
ways = {"gaps": lambda: torch.empty(2 * count)[::2], "none": lambda: torch.empty(count)}
def draw_last(way):
    torch.manual_seed(3)
    return float(ways[way]().normal_()[-1])
whole = {way: draw_last(way) for way in ways}
quick_fill.begin(torch)
print(*(draw_last(way) == whole[way] for way in ways))
quick_fill.end()
quick_fill.end()
print(*(draw_last(way) == whole[way] for way in ways))
quick_fill.begin(torch)
weights = torch.nn.Parameter(torch.empty(count))
try:
    weights.normal_()
except RuntimeError as error:
    print("leaf Variable" in str(error))
sums = torch.zeros(count, requires_grad=True) * 2
print(type(sums.uniform_().grad_fn).__name__)
print(torch.nn.Linear(1024, 1024).weight.requires_grad, torch.empty(count, device="meta").normal_().shape[0] == count)
"""


@pytest.fixture
def run(attempt: Attempt, current_python: Path, warm: Warm) -> Callable[[str], Finished]:
    """Run a program under the agent."""
    attempt.warm = warm(current_python)
    return lambda program: attempt.run([current_python, "-c", program])


def test_a_large_tensor_repeats_a_block_with_the_same_spread_and_without_two_rows_alike(
    run: Callable[[str], Finished],
) -> None:
    status, output = run(FILLED)
    assert status == 0
    assert json.loads(output) == {name: [True, True, True, False, True] for name in ("normal", "uniform", "cut off")}


def test_what_has_gaps_or_requires_gradients_is_filled_as_ever(run: Callable[[str], Finished]) -> None:
    status, output = run(AS_EVER)
    assert (status, output.splitlines()) == (0, ["True False", "True True", "True", "UniformBackward0", "True True"])
