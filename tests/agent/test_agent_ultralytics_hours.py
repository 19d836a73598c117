"""A YOLO that ends after so many hours counts those of the processes before it, and the epochs made in them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_by_hand import AGENT_PATH

sys.path.append(str(AGENT_PATH))

from rocm_agent import ultralytics_hours

ROWS = "epoch,time,train/box_loss\n1,300.5,0.2\n2,600.25,0.1\n"


def begin(folder: Path, *, hours: float | None = 1.0, start_epoch: int = 2) -> SimpleNamespace:
    """Return a trainer as it is when it begins with its first epoch."""
    began = time.time()  # noqa: TID251 - the clock that ultralytics counts by
    args = SimpleNamespace(time=hours)
    return SimpleNamespace(args=args, train_time_start=began, start_epoch=start_epoch, csv=folder / "results.csv")


def test_from_a_snapshot_it_counts_on_from_the_time_that_was_spent_then(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(ROWS)
    trainer = begin(tmp_path)
    assert ultralytics_hours.count_on(trainer, {"spent_s": 700.0})
    assert ultralytics_hours.read_spent_s(trainer) == pytest.approx(700, abs=60)


@pytest.mark.parametrize("rows", [ROWS, ROWS.replace(",", ",  ")])
def test_from_its_own_checkpoint_it_counts_on_from_the_row_of_that_epoch(tmp_path: Path, rows: str) -> None:
    (tmp_path / "results.csv").write_text(rows)
    trainer = begin(tmp_path)
    assert ultralytics_hours.count_on(trainer, None)
    assert ultralytics_hours.read_spent_s(trainer) == pytest.approx(600.25, abs=60)
    ultralytics_hours.count_epochs(trainer)
    assert trainer.start_epoch == 0, "the mean of an epoch is that of all epochs"


@pytest.mark.parametrize(
    ("rows", "hours", "start_epoch"),
    [
        pytest.param(ROWS, None, 2, id="no time limits it"),
        pytest.param(ROWS, 1.0, 0, id="it begins: the rows are those of another training"),
        pytest.param("epoch,train/box_loss\n1,0.2\n", 1.0, 1, id="an older release has no times"),
        pytest.param("", 1.0, 1, id="no rows"),
        pytest.param("epoch,time\n1,x\n", 1.0, 1, id="no number"),
    ],
)
def test_what_is_not_known_is_not_counted(tmp_path: Path, rows: str, hours: float | None, start_epoch: int) -> None:
    (tmp_path / "results.csv").write_text(rows)
    trainer = begin(tmp_path, hours=hours, start_epoch=start_epoch)
    before = trainer.train_time_start
    assert not ultralytics_hours.count_on(trainer, None)
    assert trainer.train_time_start == before
