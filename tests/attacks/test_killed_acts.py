"""A daemon is killed in the midst of an act: nothing is lost or doubled. `killed_acts.py` kills it at each change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from killed_acts import SCENES, play

from supervisor.runner.code_copy import FOLDER, CodeCopies

POINTS = {"reload": 1, "upgrade": 50}
"""A change of an act that lies between others of it; the other acts take too long for each run of the suite."""


@pytest.fixture(scope="module")
def code(make_folder_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """What the first launch of an installation copies and compiles for trainings."""
    return make_folder_once("code", lambda state: CodeCopies(state, same_user=True).current()) / FOLDER


@pytest.mark.mounts
@pytest.mark.waits
@pytest.mark.parametrize(("scene", "number"), POINTS.items())
def test_an_act_over_which_the_daemon_is_killed_is_whole_after_a_restart(scene: str, number: int, code: Path) -> None:
    outcome = play(SCENES[scene], number, code)
    assert outcome.killed_at is not None, "not reached"
    assert outcome.broken is None, outcome.broken
