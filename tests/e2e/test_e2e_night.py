"""A real YOLO training's night, in both environments: three wounds, each found, resumed, and finished."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.demo.night import Night, daemon_command

pytestmark = [pytest.mark.train, pytest.mark.whole_torch(reason="the product from end to end")]

LOADS = """
import sys, torch
saved = torch.load(sys.argv[1], map_location="cpu", **({"weights_only": False} if torch.__version__[0] > "1" else {}))
model = (saved.get("ema") or saved["model"]).float()
kinds = {type(one).__module__ for one in model.modules() if "conv" in type(one).__name__.lower()}
assert model(torch.zeros(1, 3, 64, 64)) is not None
assert not [name for name in sys.modules if name.startswith("rocm")], "the agent is needed to load it"
print("forwards of", sorted(kinds))
"""


def test_a_night_with_three_wounds_ends_with_a_finished_training(train_python: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    night = Night(
        folder=tmp_path,
        train_python=train_python,
        daemon=daemon_command(),
        say=reported.append,
        epochs=4,
        wounds=(("hang", 1, 3), ("nan", 2, 4), ("kill", 3, 7)),
        stall_limit_s=15,
        imgsz=32,
    )
    incidents = night.run()
    assert [incident["rule"] for incident in incidents] == ["stall", "non_finite_loss", "crash"], reported
    assert all(incident["outcome"] == "resumed" and incident["lost_steps"] is not None for incident in incidents)
    assert all(incident["evidence"] for incident in incidents)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROCM_SUPERVISOR_"))}
    last = next(tmp_path.glob("runs/**/last.pt"))
    done = subprocess.run(
        [str(train_python), "-c", LOADS, str(last)], capture_output=True, text=True, timeout=600, check=False, env=bare
    )
    assert done.returncode == 0, done.stderr
    assert sys.executable != str(train_python)
