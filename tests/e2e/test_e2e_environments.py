"""A training that its own environment cannot run goes on in another one, where its checkpoint was proven to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from house import House

SCRIPT = Path(__file__).with_name("environments_by_hand.py")
REMEDIES = '[jobs.one.remedies]\ncrash = ["other_environment"]\nhelped_after_steps = 20\n'
BUDGET = "[jobs.one.budget]\nbackoff_s = [0.0]\n"


def configure(home: House, python: Path, environments: str) -> None:
    command = [str(python), str(SCRIPT), str(home.folder)]
    resume = f"[jobs.one.resume]\ncommand = {json.dumps([*command, '{checkpoint}'])}\n"
    saved = f'[jobs.one.checkpoints]\npaths = ["{home.folder}/last.pt"]\n'
    env = 'snapshot_every_s = 0\nenv = { BREAKS = "2.", OMP_NUM_THREADS = "1" }'
    home.write(home.job_of("one", command, env) + resume + saved + REMEDIES + BUDGET + environments)


def place(name: str, python: Path | str) -> str:
    return f'[jobs.one.environments.{name}]\npython = "{python}"\nenv = {{ PLACE = "{name}" }}\n'


@pytest.mark.train
def test_the_next_environment_goes_on_from_the_checkpoint_and_one_that_cannot_load_it_is_skipped(
    home: House, current_python: Path, owner_python: Path
) -> None:
    absent, without_torch = home.folder / "absent/bin/python", home.folder / "bare"
    without_torch.write_text('#!/bin/sh\nexec /usr/bin/env python3 -S -I "$@"\n')
    without_torch.chmod(0o755)
    others = place("gone", absent) + place("bare", without_torch) + place("older", owner_python)
    configure(home, current_python, others)
    home.start()
    job = home.phase("one", "finished", limit_s=60)
    assert job["attempt"] == 2, "an environment that fails its proof is no attempt"
    logged = home.ctl("logs", "one").stdout
    assert "from step 10, in older" in logged, logged
    history = home.ctl("history", "one").stdout
    assert "another environment: gone; skipped: it could not be started there" in history, history
    assert "another environment: bare; skipped: last.pt does not load there: torch not imported" in history, history
    assert "other_environment" in home.ctl("show", "one").stdout + home.ctl("remedies", "one").stdout
    report = json.loads(home.ctl("remedies", "one", "--json").stdout)
    assert [(item["remedy"], item["outcome"]) for item in report["tried"]] == [("other_environment", "helped")]
    (incident,) = home.incidents("one")
    assert incident["outcome"] == "resumed"
