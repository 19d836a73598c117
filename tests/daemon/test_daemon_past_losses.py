"""The old curve is read from what the flight recorders of earlier attempts still hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.core import attempt_files as fo
from supervisor.core.checkpoints.loss_curve import Curve
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.past_losses import past_curve
from tests.sources.recorder_by_hand import Writer

NOW = Moment(10_000.0, 1_700_000_000.0)


def attempt(folder: Path, steps: range, loss: float) -> Path:
    (folder / fo.RUN).mkdir(parents=True)
    writer = Writer(folder / fo.RECORDER, capacity=4096)
    for step in steps:
        writer.write(step, loss=loss)
    return folder


def test_the_newest_attempt_that_made_the_steps_reports(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1", range(1, 600), 2.0)
    second = attempt(tmp_path / "2", range(501, 505), 9.0)
    curve = past_curve([second, first], 500, None, NOW)
    newest = Curve(losses=30, low=2.0, median=2.0, high=2.0, median_least=2.0, median_most=2.0)
    assert curve == replace(newest, losses=199, latest=newest)


def test_what_came_with_the_trouble_does_not_count(tmp_path: Path) -> None:
    first = attempt(tmp_path / "1", range(1, 600), 2.0)
    curve = past_curve([first], 500, 501, NOW)
    assert curve is not None
    assert curve.losses == 100


def test_without_recorders_or_steps_there_is_no_curve(tmp_path: Path) -> None:
    empty = tmp_path / "3"
    empty.mkdir()
    far = attempt(tmp_path / "1", range(1, 300), 2.0)
    (tmp_path / "2" / fo.RUN).mkdir(parents=True)
    (tmp_path / "2" / fo.RECORDER).write_bytes(b"rubbish")
    assert past_curve([empty, tmp_path / "2", far], 500, None, NOW) is None
