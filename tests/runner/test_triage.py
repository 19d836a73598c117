"""A step that went wrong, replayed by real trainings: the batch, the layer, or nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.core import attempt_files as names
from supervisor.core.triage.finding import Finding, LookedFor, Replay
from supervisor.daemon.checkpoints.past_losses import past_losses
from supervisor.daemon.clock import SystemClock
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.shim_files import Recorder
from supervisor.runner.triage import Case, triage

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent
DRAW = HERE.parent / "agent" / "draw_images.py"
PLAIN = HERE / "train_plain_with_nan.py"
PER_EPOCH = 4


class Night:
    """One attempt's folder, as a daemon leaves it, and its triage."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.data = folder / "data" / "data.yaml"
        subprocess.run([python, DRAW, self.data.parent, "8", "64"], check=True)
        self.attempt = folder / "1"
        (self.attempt / names.RUN).mkdir(parents=True)

    def command(self, wound: str) -> list[str]:
        return [str(self.python), str(HERE / "train_with_nan.py"), str(self.data), str(self.folder / "runs"), wound]

    def trained(self, command: list[str], **more: str) -> None:
        """Train to the end under the agent, which records it."""
        assert Recorder(str(self.attempt)).make() is None
        agent = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(INSTALLED.agent),
            names.ENV_FOLDER: str(self.attempt / names.RUN),
        }
        env = {**os.environ, **agent, **more}
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=env, timeout=600, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def with_snapshots(self) -> Path:
        """Train soundly, and return a snapshot of the first two epochs, laid aside."""
        snapshots = self.folder / "snapshots"
        snapshots.mkdir()
        more = {names.ENV_SNAPSHOTS: str(snapshots), names.ENV_SNAPSHOT_EVERY: "0.01"}
        self.trained(self.command("once"), **more)
        return self.folder / "kept.pt"

    def triage(
        self, command: list[str], step: int, checkpoint: Path | None = None, looked_for: LookedFor = "loss"
    ) -> tuple[Finding, tuple[Replay, ...]]:
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(INSTALLED.agent)}
        launch = {"argv": command, "cwd": str(self.folder), "env": env}
        (self.attempt / names.LAUNCH).write_text(json.dumps(launch))
        case = Case(
            attempt=self.attempt,
            step=step,
            looked_for=looked_for,
            checkpoint=checkpoint,
            target=EvidenceFolder(self.folder, "triage"),
            losses=past_losses([self.attempt], step, SystemClock().now()),
            limit_s=120.0,
        )
        return triage(case, lambda _: None)


@pytest.fixture
def owners_night(owner_python: Path, tmp_path: Path) -> Night:
    """With torch 1.13; the end-to-end test has the current one."""
    return Night(owner_python, tmp_path)


@pytest.fixture
def current_night(current_python: Path, tmp_path: Path) -> Night:
    """With the current torch: what each verdict on numerics takes of it."""
    return Night(current_python, tmp_path)


@pytest.fixture
def one_night(quickest_python: Path, tmp_path: Path) -> Night:
    """In one environment alone: what is tested does not depend on it."""
    return Night(quickest_python, tmp_path)


def test_one_poisoned_image_is_named(owners_night: Night) -> None:
    finding, replays = owners_night.triage(owners_night.command("image:3.png"), PER_EPOCH)
    assert finding.verdict == "data", finding.words
    assert [Path(file).name for file in finding.files] == ["3.png"]
    assert "img is not finite" in finding.words
    assert [replay.name for replay in replays] == ["device"], "a batch that is wrong by itself needs no other replay"
    assert not (owners_night.folder / "runs").exists(), "nothing is written where the training writes"
    report = json.loads((owners_night.folder / "triage" / "report.json").read_text())
    assert report["finding"]["verdict"] == "data"


def test_a_layer_that_overflows_is_numerics_whatever_the_batch(current_night: Night) -> None:
    finding, replays = current_night.triage(current_night.command("layer:1"), PER_EPOCH + 1)
    assert finding.verdict == "numerics", (finding.words, replays)
    assert "model.1.conv (Conv2d" in finding.words
    assert [(replay.name, replay.seen, replay.step) for replay in replays] == [
        ("device", True, PER_EPOCH + 1),
        ("other_batch", True, PER_EPOCH + 1),
    ]


def test_what_does_not_come_back_blames_the_hardware_only_where_the_replay_was_the_same_training(
    one_night: Night,
) -> None:
    kept = one_night.with_snapshots()
    before = [(path.stat().st_mtime_ns, path.name) for path in (one_night.folder / "runs").rglob("*")]
    finding, (replay,) = one_night.triage(one_night.command("once"), 3 * PER_EPOCH, kept)
    assert (finding.verdict, replay.same_course) == ("hardware", True), (finding, replay)
    output = json.loads((one_night.folder / "triage" / "device" / names.RUN / "triage.json").read_text())
    assert 1 < output["first_step"] <= 2 * PER_EPOCH + 1, "it began where the state was saved"
    saved = one_night.folder / "runs" / "run" / "weights" / "epoch0.pt"
    finding, (replay,) = one_night.triage(one_night.command("once"), 3 * PER_EPOCH, saved)
    assert (finding.verdict, replay.same_course) == ("unknown", False), "its own checkpoint draws other batches"
    assert before == [(path.stat().st_mtime_ns, path.name) for path in (one_night.folder / "runs").rglob("*")]


def test_what_overflows_in_half_precision_alone_is_numerics_and_speaks_for_float32(current_night: Night) -> None:
    command = [str(current_night.python), str(PLAIN), "half"]
    current_night.trained(command)
    finding, replays = current_night.triage(command, 6)
    assert (finding.verdict, finding.speaks_for[0]) == ("numerics", "amp_off"), (finding, replays)
    assert "Linear, torch.float16" in finding.words
    assert [(replay.name, replay.seen) for replay in replays] == [("device", True), ("float32", False)]


def test_gradients_that_are_no_numbers_are_found_behind_a_loss_that_is_one(current_night: Night) -> None:
    command = [str(current_night.python), str(PLAIN), "gradients"]
    finding, replays = current_night.triage(command, 6, looked_for="gradients")
    assert finding.verdict == "numerics", (finding, replays)
    assert "the gradient of 0.weight" in finding.words
    assert [(replay.name, replay.seen) for replay in replays] == [("device", True), ("other_batch", True)]
    assert [replay.step for replay in replays] == [6 if replay.on_cpu else 7 for replay in replays], (
        "a card's norm is read a step late"
    )


def test_what_comes_back_on_the_gpu_and_not_on_the_cpu_is_the_hardware(current_night: Night) -> None:
    asked = [str(current_night.python), "-c", "import torch; print(torch.cuda.is_available())"]
    driver = any(Path(item).exists() for item in ("/dev/kfd", "/dev/nvidiactl"))
    if not driver or subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() != "True":
        pytest.skip("torch sees no GPU here")
    command = [str(current_night.python), str(PLAIN), "card"]
    current_night.trained(command)
    finding, replays = current_night.triage(command, 6)
    assert finding.verdict == "hardware", (finding, replays)
    assert [(replay.name, replay.seen) for replay in replays] == [
        ("device", True),
        ("other_batch", True),
        ("cpu", False),
    ]
    assert replays[-1].on_cpu


def test_a_command_that_never_gets_to_the_step_says_so(one_night: Night) -> None:
    finding, _ = one_night.triage(one_night.command("image:3.png"), 10_000, one_night.folder / "gone.pt")
    assert finding.verdict == "unknown"
