"""The two rows whose scripts a package brings along, each through its night; `make gallery` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from gallery_night import Play
from gallery_rows import load_rows

from tests.e2e.house import house

pytestmark = [pytest.mark.train, pytest.mark.whole_torch(reason="other people's scripts as they are")]
NIGHTS = {"yolo-classify": ["kill"], "yolo-pose": ["oom", "nan"]}
REST_S = 0.5
"""After each step: a night waits for whole seconds; meanwhile a training leaves the cores to others."""
RULES = {"kill": "crash (killed_by_signal)", "oom": "crash (oom_gpu)", "nan": "non_finite_loss"}


@pytest.mark.parametrize("name", NIGHTS)
def test_a_training_of_somebody_elses_is_reported_and_goes_on_after_each_wound(
    name: str, tmp_path: Path, current_python: Path, code_copies: Path
) -> None:
    with house(tmp_path) as home:
        home.shares_imports, home.code_copies = True, code_copies
        night = Play(load_rows()[name], home, current_python, tmp_path / "sources", REST_S).play(NIGHTS[name])
        assert not night.problem, (night, home.read_output())
        assert night.hooked == "ultralytics: steps"
        assert night.false_alarms == []
        for kind, wound in zip(NIGHTS[name], night.wounds, strict=True):
            assert not wound.problem, (wound, home.read_output())
            assert wound.reported == RULES[kind]
            assert wound.resumed_from is not None, "ultralytics saves, and goes on from it"
            assert wound.lost == "right", wound
