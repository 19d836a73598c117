"""A loss that is no number, asked after on the next morning: the batch and its file are named."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from house import House

pytestmark = pytest.mark.train

TESTS = Path(__file__).resolve().parents[1]


def test_triage_names_the_poisoned_image_of_an_incident_and_show_repeats_it(home: House, current_python: Path) -> None:
    data = home.folder / "data"
    subprocess.run([current_python, TESTS / "agent" / "draw_images.py", data, "8", "64"], check=True)
    program = str(TESTS / "runner" / "train_with_nan.py")
    command = [str(current_python), program, str(data / "data.yaml"), str(home.folder / "runs"), "image:3.png"]
    table = 'env = { OMP_NUM_THREADS = "1" }\nbudget = { restarts = 0 }'
    home.write(home.job_of("one", command, table, non_finite_loss="tolerated = 0"))
    home.start()
    home.phase("one", "failed", limit_s=90)
    incident = home.incident("one")
    assert incident["rule"] == "non_finite_loss"
    done = home.ctl("--json", "triage", incident["id"], limit_s=120)
    assert done.returncode == 0, done.stderr
    finding = json.loads(done.stdout)["finding"]
    assert finding["verdict"] == "data", finding
    assert [Path(file).name for file in finding["files"]] == ["3.png"]
    assert "img is not finite" in home.ctl("show", incident["id"]).stdout
