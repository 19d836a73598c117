"""Loops of people, killed again and again: what was lost is told right, and progress is seen whatever the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import House
from killed_loops import KINDS, differences, job, lives

from tests.conftest import interpreter

pytestmark = pytest.mark.train
KILLS = 2
"""One more than the restarts in a row that these jobs may take without progress."""


def test_a_script_that_knows_its_own_file_finds_the_chosen_generation_there(home: House, quickest_python: Path) -> None:
    """It dies with half a file in place of its checkpoint; the newest proven one is put there before the next start."""
    options = ("--spoils", "--lives", "130", "130", "--every-s", "0.1")
    home.write(job(home, quickest_python, "sgd", 1, *options) + '[jobs.sgd.resume]\nto = "sgd/ckpt.pt"\n')
    text = home.config.read_text().replace("[jobs.sgd]\n", f'[jobs.sgd]\ncwd = "{home.folder}"\n')
    home.config.write_text(text)
    home.start()
    home.phase("sgd", "finished", "failed", limit_s=150)
    first, second = lives(home.folder / "sgd")
    assert second.resumed_at > 0
    assert second.resumed_at % 25 == 0
    assert differences(home, "sgd") == [], home.read_output()
    aside = home.folder / "sgd" / "ckpt.pt.damaged.aside-1"
    assert 0 < aside.stat().st_size < (home.folder / "sgd" / "ckpt.pt").stat().st_size, "it is known to be damaged"
    assert home.incident("sgd")["lost_steps"] == first.last_step - second.resumed_at


def test_a_training_that_resumes_nothing_is_not_reported_to_have_resumed(home: House, quickest_python: Path) -> None:
    home.write(job(home, quickest_python, "adam", 1, "--never-resume", "--lives", "60", "60"))
    home.start()
    home.phase("adam", "finished", "failed", limit_s=100)
    incident = home.incident("adam")
    assert (incident["outcome"], incident["lost_steps"]) == ("checkpoint_ignored", 60)
    assert "but the training started from the beginning" in home.ctl("history", "adam").stdout
    assert "names checkpoints but no way to resume from them" in home.ctl("config", "check").stderr


@pytest.mark.parametrize(
    ("environment", "kinds"),
    [
        pytest.param("current", ("adam", "adafactor"), id="own file"),  # Adafactor is not in torch 1.13
        pytest.param("owner", ("sgd", "lbfgs", "own"), id="resume command"),
    ],
)
def test_each_optimizer_is_killed_and_every_lost_step_is_reported(
    home: House, environment: str, kinds: tuple[str, ...], quickest_python: Path
) -> None:
    python, by_command = interpreter(environment), environment == "owner"
    pythons = {kind: quickest_python if kind == "adam" else python for kind in kinds}
    home.write("\n".join(job(home, pythons[kind], kind, KILLS, by_command=by_command) for kind in kinds))
    home.start()
    for kind in kinds:
        assert kind in KINDS
        home.phase(kind, "finished", "failed", limit_s=200)
    reported = {kind: (home.job(kind)["phase"], differences(home, kind)) for kind in kinds}
    assert reported == {kind: ("finished", []) for kind in kinds}, home.read_output()
