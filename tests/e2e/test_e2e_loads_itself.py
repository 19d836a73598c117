"""A program that saves in a format of its own, and finds its newest file by itself, goes on after a crash."""

from __future__ import annotations

import json
import sys

from house import House

TRAINING = """
import pathlib, sys
import rocm_agent


def train(first, last):
    for step in range(first, last + 1):
        rocm_agent.step(loss=1.0, step=step)


folder = pathlib.Path(sys.argv[1])
saved = folder / "model.own"
with (folder / "starts").open("a") as starts:
    if "--resume" in sys.argv:
        starts.write(f"went on from {saved.read_text()}\\n")
        train(51, 60)
        sys.exit(0)
    starts.write("began\\n")
train(1, 55)
saved.write_text("step 50 of a format that only this program reads")
sys.exit(1)
"""


def test_its_resume_command_without_a_checkpoint_is_what_goes_on(home: House) -> None:
    script = home.folder / "training.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), str(home.folder)]
    table = f'checkpoints.paths = ["{home.folder}/*.own"]\nbudget.backoff_s = [0.0]\n'
    table += f"resume.command = {json.dumps([*command, '--resume'])}\n"
    home.write(home.job_of("one", command, table))
    home.start()
    home.phase("one", "finished")
    starts = (home.folder / "starts").read_text().splitlines()
    assert starts == ["began", "went on from step 50 of a format that only this program reads"]
    assert "restarted; went on from step 50 by itself" in home.ctl("history").stdout
    assert "the program has to load that by itself, and none of it is proven" in home.ctl("show", "one-1").stdout
