"""A step that went wrong, replayed by real trainings: the batch, the layer, or nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.core import folder as names
from supervisor.core.triage import Finding, Replay
from supervisor.runner.attempt import agent_path
from supervisor.runner.triage import Case, triage

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent
DRAW = HERE.parent / "agent" / "draw_images.py"
PER_EPOCH = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, train_python: Path) -> Path:
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([train_python, DRAW, folder, "8", "64"], check=True)
    return folder / "data.yaml"


class Night:
    """One attempt's folder, as a daemon leaves it, and its triage."""

    def __init__(self, python: Path, data: Path, folder: Path) -> None:
        self.python, self.data, self.folder = python, data, folder
        self.attempt = folder / "1"
        self.attempt.mkdir()

    def command(self, wound: str) -> list[str]:
        return [str(self.python), str(HERE / "train_with_nan.py"), str(self.data), str(self.folder / "runs"), wound]

    def train(self) -> Path:
        """Train soundly to the end, and return what was saved."""
        subprocess.run(self.command("once"), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=self.folder)
        return self.folder / "runs" / "run" / "weights" / "last.pt"

    def triage(self, wound: str, step: int, checkpoint: Path | None = None) -> tuple[Finding, tuple[Replay, ...]]:
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(agent_path())}
        launch = {"argv": self.command(wound), "cwd": str(self.folder), "env": env}
        (self.attempt / names.LAUNCH).write_text(json.dumps(launch))
        case = Case(
            attempt=self.attempt, step=step, checkpoint=checkpoint, target=self.folder / "triage", limit_s=120.0
        )
        return triage(case, lambda _: None)


@pytest.fixture
def night(train_python: Path, data: Path, tmp_path: Path) -> Night:
    return Night(train_python, data, tmp_path)


def test_one_poisoned_image_is_named(night: Night) -> None:
    finding, replays = night.triage("image:3.png", PER_EPOCH)
    assert finding.verdict == "data", finding.words
    assert [Path(one).name for one in finding.files] == ["3.png"]
    assert "img is not finite" in finding.words
    assert [one.name for one in replays] == ["device"], "a batch that is wrong by itself needs no other replay"
    assert not (night.folder / "runs").exists(), "nothing is written where the training writes"
    report = json.loads((night.folder / "triage" / "report.json").read_text())
    assert report["finding"]["verdict"] == "data"


def test_a_layer_that_overflows_is_numerics_whatever_the_batch(night: Night) -> None:
    finding, replays = night.triage("layer:1", PER_EPOCH + 1)
    assert finding.verdict == "numerics", (finding.words, replays)
    assert "model.1.conv (Conv2d" in finding.words
    assert [(one.name, one.seen, one.step) for one in replays] == [
        ("device", True, PER_EPOCH + 1),
        ("other_batch", True, PER_EPOCH + 1),
    ]


def test_what_does_not_come_back_was_the_hardware(night: Night) -> None:
    finding, _ = night.triage("once", 2)
    assert finding.verdict == "hardware", finding.words


def test_a_command_that_never_gets_to_the_step_says_so(night: Night) -> None:
    finding, _ = night.triage("image:3.png", 10_000, night.folder / "gone.pt")
    assert finding.verdict == "unknown"
