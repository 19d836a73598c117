"""How many samples and tokens a batch holds, by its shapes alone."""

from __future__ import annotations

import sys
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"))

from rocm_agent.batch_count import BatchCount, count_samples, count_tokens


def table(*shape: int, dtype: str = "torch.float32") -> SimpleNamespace:
    """A tensor, as far as its shape is looked at."""
    return SimpleNamespace(shape=shape, dtype=dtype)


IDS = table(4, 512, dtype="torch.int64")
IMAGE, BOXES = table(3, 480, 640), {"boxes": table(5, 4)}
GRAPHS = SimpleNamespace(x=table(913, 16))


class Joined(UserDict[str, SimpleNamespace]):
    """Graphs joined to one, as torch_geometric has them: its first tensor is the edges' two rows of nodes."""

    def __init__(self, **known: int) -> None:
        super().__init__(edge_index=table(2, 3766, dtype="torch.int64"), x=table(1789, 7), y=table(128))
        vars(self).update(known)


@pytest.mark.parametrize(
    ("batch", "expected", "samples", "tokens"),
    [
        pytest.param([table(32, 3, 224, 224), table(32, dtype="torch.int64")], 32, 32, None, id="images"),
        pytest.param([table(9, 3, 224, 224), table(9, dtype="torch.int64")], 32, 9, None, id="the last images"),
        pytest.param({"attention_mask": IDS, "input_ids": IDS, "labels": IDS}, 4, 4, 2048, id="Hugging Face text"),
        pytest.param([IDS, IDS], None, 4, 2048, id="text and what follows it, in batches of its own"),
        pytest.param([table(64, 26, dtype="torch.int64"), table(64)], 64, 64, None, id="categories, no text"),
        pytest.param({"im_file": ["a", "b"], "img": table(2, 3, 640, 640)}, 2, 2, None, id="ultralytics"),
        pytest.param(((IMAGE,) * 8, (BOXES,) * 8), 8, 8, None, id="detections in lists"),
        pytest.param([table(120, 16, 80), table(16)], 16, 16, None, id="time first"),
        pytest.param([[table(16, 10), table(16, 4)], table(16)], 16, 16, None, id="two inputs"),
        pytest.param(GRAPHS, 24, 24, None, id="graphs, without a shape of their own"),
        pytest.param(Joined(num_graphs=128), 128, 128, None, id="joined graphs"),
        pytest.param(Joined(num_graphs=41), 128, 41, None, id="the last joined graphs"),
        pytest.param(Joined(batch_size=64), 64, 64, None, id="a graph sampled around nodes"),
        pytest.param((SimpleNamespace(batch_size=20), table(20)), 32, 20, None, id="joined graphs and labels"),
        pytest.param(table(), None, None, None, id="a number"),
        pytest.param(["a", "b"], None, None, None, id="words"),
        pytest.param([], None, None, None, id="nothing"),
    ],
)
def test_a_batch_is_counted_by_its_shapes(
    batch: object, expected: int | None, samples: int | None, tokens: int | None
) -> None:
    assert (count_samples(batch, expected), count_tokens(batch)) == (samples, tokens)


@pytest.mark.parametrize(
    "batches",
    [
        ([IDS, IDS], [IDS, table(4, 511, dtype="torch.int64")], [table(4, 512), IDS], [IDS, IDS, IDS], [IDS, IDS]),
        (IDS_BY_NAME := {"input_ids": IDS, "labels": IDS}, {"input_ids": table(2, 512), "labels": IDS}, IDS_BY_NAME),
        ([table(8, 3), table(8)], [table(7, 3), table(7)], (table(8, 3), table(8)), [table(8, 3), "names"]),
    ],
)
def test_batches_that_look_alike_are_counted_as_each_for_itself(batches: tuple[object, ...]) -> None:
    """What is remembered of the last batch is not taken for that of another."""
    drawn = BatchCount()
    drawn.take()
    for batch in batches:
        for alike in (False, True):
            assert drawn.saw(batch) is alike
            assert drawn.take() == (count_samples(batch, None) or 0, count_tokens(batch) or 0)


def test_what_was_drawn_before_the_first_step_is_unknown() -> None:
    drawn = BatchCount()
    for _ in range(1000):
        drawn.saw([IDS, IDS])
    assert drawn.take() == (0, 0), "a resumed training skips to its place"
    drawn.saw([IDS, IDS])
    drawn.saw([IDS, IDS])
    assert drawn.take() == (8, 4096)
    assert drawn.take() == (0, 0)


def test_what_was_drawn_between_two_passes_counts_for_a_step_of_the_same_data() -> None:
    drawn, validation, training = BatchCount(), 1, 2
    drawn.take()
    assert drawn.saw_aside([IDS, IDS], None, validation) is False
    assert drawn.saw_aside([IDS, IDS], None, training) is True
    assert drawn.saw([IDS, IDS])
    assert drawn.take(training) == (8, 4096)
    assert drawn.take(validation) == (0, 0), "it was none of that step, and is none of a later one"
