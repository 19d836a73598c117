"""Real YOLOv8n trainings on generated images, in every training environment: recorded, saved, ended and resumed."""

from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_by_hand import Attempt, Finished, plain_environment

from supervisor.core import attempt_files as at
from tests.rigs.warm import YOLO as YOLO_MODULES
from tests.rigs.warm import Warm, WarmInterpreter

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent
BATCHES = 3
"""9 images, 3 a batch."""
CLI = ["-c", "import sys; from ultralytics.cfg import entrypoint; sys.argv[0] = 'yolo'; sys.exit(entrypoint())"]
ARGUMENTS = {
    "imgsz": "64",
    "batch": "3",
    "device": "cpu",
    "workers": "0",
    "amp": "False",
    "plots": "False",
    "exist_ok": "True",
    "name": "run",
}

STORY = """
import json, os, struct, sys
from pathlib import Path
from ultralytics import YOLO
recorder = Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "recorder.bin")
said = []
def watch(event):
    def callback(trainer):
        stage = struct.unpack_from("<I", recorder.read_bytes()[:4096], 256)[0]
        if event != "on_val_batch_end":
            said.append([event, getattr(trainer, "epoch", None), stage])
        step = struct.unpack_from("<Q", recorder.read_bytes()[:4096], 64)[0]
        if [event, str(step)] == sys.argv[2:]:  # the daemon's hand
            with recorder.open("r+b") as file:
                file.seek(128)
                file.write(struct.pack("<II", 2, 41))
        if event == "on_train_start":
            weights = {name: value.double().sum().item() for name, value in trainer.model.state_dict().items()}
            average = {name: value.double().sum().item() for name, value in trainer.ema.ema.state_dict().items()}
            print("WEIGHTS", json.dumps([weights, average]))
    return callback
model = YOLO("yolov8n.yaml")
events = ("on_train_start", "on_train_epoch_start", "on_train_batch_end", "on_train_epoch_end", "on_model_save",
          "on_fit_epoch_end", "on_train_end", "on_val_batch_end")
for event in events:
    model.add_callback(event, watch(event))
model.train(**json.loads(sys.argv[1]))
print("SAID", json.dumps(said))
"""

PROFILED = """
import json, sys
sys.path.insert(0, sys.argv[2])
from profiling import library_kernels
from ultralytics import YOLO
print("LIBRARY", json.dumps(sorted(library_kernels(lambda: YOLO("yolov8n.yaml").train(**json.loads(sys.argv[1]))))))
"""

LOAD_ALONE = """
import json, sys
assert not any("rocm" in name for name in sys.modules) and not any(one.endswith("agent/path") for one in sys.path)
from ultralytics import YOLO
import torch
model = YOLO(sys.argv[1])
ckpt = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
assert torch.isfinite(model.model(torch.zeros(1, 3, 64, 64))[0]).all()
exact = ckpt["rocm_supervisor"]
parts = (exact["model"], ckpt["ema"].state_dict())
sums = [{name: value.double().sum().item() for name, value in part.items()} for part in parts]
state = next(iter(ckpt["optimizer"]["state"].values()))
halves = [str(value.dtype) for value in state.values() if hasattr(value, "dtype")]
print("ALONE", json.dumps([ckpt["epoch"], exact["step"], ckpt["train_args"]["save_dir"], sums, halves]))
"""


def quiet(tmp_path: Path) -> dict[str, str]:
    """Nothing of ultralytics looks outside the test's folder."""
    (tmp_path / "home").mkdir(exist_ok=True)
    return {
        "HOME": str(tmp_path / "home"),
        "YOLO_CONFIG_DIR": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "YOLO_OFFLINE": "true",
    }


class Trainings:
    """Trainings of one environment in one folder."""

    def __init__(self, python: Path, folder: Path, data: Path, warm: WarmInterpreter) -> None:
        self.python, self.folder, self.warm = python, folder, warm
        self.arguments = {**ARGUMENTS, "data": str(data), "project": str(folder)}
        self.environment = quiet(folder)

    def cli(self, **more: str) -> list[str | Path]:
        words = [f"{name}={value}" for name, value in {**self.arguments, **more}.items()]
        return [self.python, *CLI, "detect", "train", "model=yolov8n.yaml", *words]

    def story(self, epochs: int, stop: tuple[str, int] = ("never", 0)) -> list[str | Path]:
        return [self.python, "-c", STORY, self._typed(epochs), stop[0], str(stop[1])]

    def profiled(self) -> list[str | Path]:
        return [self.python, "-c", PROFILED, self._typed(1), HERE / "conv2d"]

    def _typed(self, epochs: int) -> str:
        numbers = {"epochs": epochs, "imgsz": 64, "batch": 3, "workers": 0}
        return json.dumps({**self.arguments, **numbers, "amp": False, "plots": False, "exist_ok": True})

    def supervised(self, name: str, command: Sequence[str | Path], **environment: str) -> tuple[Attempt, Finished]:
        attempt = Attempt(self.folder / name, self.folder, self.warm)
        attempt.make_recorder()
        return attempt, attempt.run(command, **self.environment, **environment)

    def supervised_cold(self, name: str, command: Sequence[str | Path], **more: str) -> tuple[Attempt, Finished]:
        """In an interpreter that imports everything itself."""
        attempt = Attempt(self.folder / name, self.folder)
        attempt.make_recorder()
        return attempt, attempt.run(command, **self.environment, **more)

    def alone(self, command: Sequence[str | Path]) -> str:
        finished = subprocess.run(
            [str(word) for word in command],
            env=plain_environment(**self.environment),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    def weights(self, name: str, run: str = "run") -> Path:
        return self.folder / run / "weights" / name


def _trainings(python: Path, folder: Path, warm: Warm) -> Trainings:
    subprocess.run([str(python), str(HERE / "draw_images.py"), str(folder / "data"), "9", "64"], check=True)
    return Trainings(python, folder, folder / "data" / "data.yaml", warm(python, *YOLO_MODULES))


@pytest.fixture
def trainings(train_python: Path, tmp_path: Path, warm: Warm) -> Trainings:
    """In each environment: for what depends on the versions."""
    return _trainings(train_python, tmp_path, warm)


@pytest.fixture
def trainings_once(owner_python: Path, tmp_path: Path, warm: Warm) -> Trainings:
    """In one environment: for what is the agent's alone."""
    return _trainings(owner_python, tmp_path, warm)


def results(run: Path) -> list[dict[str, str]]:
    with (run / "results.csv").open() as file:
        rows = [{name.strip(): value.strip() for name, value in row.items()} for row in csv.DictReader(file)]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def list_reports(word: str, finished: Finished) -> list[Any]:
    line = next(line for line in finished.output.splitlines() if line.startswith(word))
    found = json.loads(line[len(word) :])
    assert isinstance(found, list)
    return found


def test_a_yolo_training_is_recorded_completely_and_its_numbers_are_unchanged(trainings: Trainings) -> None:
    attempt, finished = trainings.supervised_cold("attempt", trainings.cli(epochs="2"))
    assert finished.code == 0, finished.output
    assert attempt.failures() == []
    trainings.alone(trainings.cli(epochs="2", name="alone"))
    assert results(trainings.folder / "run") == results(trainings.folder / "alone")

    records = attempt.records()
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record.epoch for record in records] == [0, 0, 0, 1, 1, 1]
    rows = results(trainings.folder / "run")
    for epoch, row in enumerate(rows):
        mean = sum(float(value) for name, value in row.items() if name.startswith("train/"))
        mine = [record.loss for record in records if record.epoch == epoch]
        assert math.isclose(sum(mine) / BATCHES, mean, rel_tol=1e-4)
    needed = at.KNOWN_EPOCH | at.KNOWN_LOSS | at.KNOWN_LR | at.KNOWN_DATA_WAIT
    assert {record.known & needed for record in records} == {needed}
    assert any(record.known & at.KNOWN_GRAD_NORM and record.grad_norm > 0 for record in records)
    assert not any(record.known & at.KNOWN_GPU_MEMORY for record in records)
    assert not any(record.known & at.KNOWN_SKIPPED for record in records), "its optimizer is made after it reports"

    (plan,) = attempt.list_reports("plan")
    assert plan["framework"] == "ultralytics"
    assert (plan["epochs"], plan["start_epoch"], plan["batches_per_epoch"]) == (2, 0, BATCHES)
    assert (plan["save_dir"], plan["device"]) == (str(trainings.folder / "run"), "cpu")
    assert (plan["model"], plan["image_size"]) == ("yolov8n.yaml", 64)
    assert plan["batch"] > 0
    aside, whole, _ = attempt.header(at.ASIDE_OFFSET, at.ASIDE)
    assert (at.ASIDES[aside], whole) == ("", 1)
    first, second = attempt.list_reports("checkpoint_saved")
    last, best = str(trainings.weights("last.pt")), str(trainings.weights("best.pt"))
    assert first["paths"] == [last, best]
    assert (first["epoch"], first["step"], first["requested"]) == (0, BATCHES, False)
    assert second["paths"] in ([last], [last, best])
    assert (second["epoch"], second["step"]) == (1, 2 * BATCHES)
    epochs = attempt.list_reports("epoch_end")
    assert [item["epoch"] for item in epochs] == [0, 1]
    for reported_epoch, row in zip(epochs, rows, strict=True):
        mean = sum(float(value) for name, value in row.items() if name.startswith("train/"))
        assert math.isclose(reported_epoch["train_loss"], mean, rel_tol=1e-3)
        validation = sum(float(value) for name, value in row.items() if name.startswith("val/"))
        assert math.isclose(reported_epoch["val_loss"], validation, rel_tol=1e-3)
        assert math.isclose(
            reported_epoch["metrics"]["metrics/mAP50-95(B)"], float(row["metrics/mAP50-95(B)"]), abs_tol=1e-4
        )
        assert "fitness" in reported_epoch
    (precision,) = attempt.list_reports("precision")
    assert (precision["asked"], precision["used"], precision["device"]) == ("single", "single", "cpu")
    assert attempt.list_reports("workers")[0]["pids"] == []
    (end,) = attempt.list_reports("train_end")
    assert (end["epoch"], end["step"]) == (1, 6)
    assert attempt.stage() == "ended"


def test_a_save_in_the_first_epoch_ends_the_training_and_the_command_line_resumes_it(trainings: Trainings) -> None:
    first = Attempt(trainings.folder / "first", cwd=trainings.folder)
    first.make_recorder()
    first.command(at.COMMAND_SAVE_AND_STOP, 3)
    # No algorithm is timed: that takes longer than the epochs, and happens in the next test under the owner's torch.
    settings = {at.ENV_CONV2D: "planned", at.ENV_CONV2D_SCOPE: "all", at.ENV_CONV2D_TUNE: "0"}
    finished = first.run(trainings.cli(epochs="2"), **trainings.environment, **settings)
    assert finished.code == -signal.SIGTERM, finished.output
    assert first.failures() == []
    assert first.answer() == (at.ANSWER_SAVED, 3)
    (saved,) = first.list_reports("checkpoint_saved")
    checkpoint = trainings.weights("rocm_supervisor.pt")
    assert saved["paths"] == [str(checkpoint)]
    assert (saved["epoch"], saved["step"], saved["requested"]) == (-1, 1, True)
    assert saved["kind"] == "snapshot", "exact, so that it comes before an older snapshot"
    assert [entry.name for entry in checkpoint.parent.iterdir()] == [checkpoint.name], "last.pt and best.pt untouched"

    assert b"rocm_agent" not in checkpoint.read_bytes()
    line = trainings.alone([trainings.python, "-c", LOAD_ALONE, checkpoint])
    epoch, step, save_dir, _, halves = list_reports("ALONE", Finished(0, line))
    assert (epoch, step, save_dir) == (-1, 1, str(trainings.folder / "run"))
    assert "torch.float16" not in str(halves)

    second, finished = trainings.supervised_cold(
        "second", trainings.cli(epochs="2", batch="9"), **{at.ENV_RESUME_FROM: str(checkpoint)}, **settings
    )
    assert finished.code == 0, finished.output
    assert second.failures() == []
    (resumed,) = second.list_reports("resumed")
    assert (resumed["path"], resumed["epoch"], resumed["step"]) == (str(checkpoint), -1, 1)
    (plan,) = second.list_reports("plan")
    assert (plan["start_epoch"], plan["epochs"], plan["batches_per_epoch"]) == (0, 2, 1), "batch may change on resume"
    assert plan["save_dir"] == str(trainings.folder / "run")
    assert [record.step for record in second.records()] == [1, 2], "the six images left of the epoch are one batch now"
    assert len(results(trainings.folder / "run")) == 2
    assert not (trainings.folder / "run2").exists()


def test_a_training_patched_everywhere_runs_no_library_kernel_from_its_first_batch_to_its_last_validation(
    trainings: Trainings, request: pytest.FixtureRequest
) -> None:
    """Under the owner's torch every algorithm is timed at its first call, under the current one none is."""
    settings = {at.ENV_CONV2D: "planned", at.ENV_CONV2D_SCOPE: "all"}
    if "current" in request.node.name:
        settings[at.ENV_CONV2D_TUNE] = "0"
    attempt, finished = trainings.supervised_cold("attempt", trainings.profiled(), **settings)
    assert finished.code == 0, finished.output
    assert list_reports("LIBRARY", finished) == []
    assert attempt.failures() == []
    assert attempt.list_reports("patched")[0]["scope"] == "all"
    assert len(results(trainings.folder / "run")) == 1


def test_a_save_in_a_later_epoch_is_resumed_by_a_script_with_the_same_weights(trainings: Trainings) -> None:
    first, finished = trainings.supervised("first", trainings.story(3, stop=("on_train_batch_end", 5)))
    assert finished.code == -signal.SIGTERM, finished.output
    assert first.failures() == []
    saved = first.list_reports("checkpoint_saved")[-1]
    assert (saved["epoch"], saved["step"], saved["requested"]) == (0, 5, True)
    checkpoint = trainings.weights("rocm_supervisor.pt")
    alone = Finished(0, trainings.alone([trainings.python, "-c", LOAD_ALONE, checkpoint]))
    assert list_reports("ALONE", alone)[:2] == [0, 5]

    second, finished = trainings.supervised("second", trainings.story(3), **{at.ENV_RESUME_FROM: str(checkpoint)})
    assert finished.code == 0, finished.output
    assert second.failures() == []
    assert list_reports("WEIGHTS", finished) == list_reports("ALONE", alone)[3], (
        "model and average as they were, not rounded to half"
    )
    (resumed,) = second.list_reports("resumed")
    assert (resumed["epoch"], resumed["step"]) == (0, 5)
    assert [record.step for record in second.records()] == [6, 7, 8, 9], "in mid-epoch, no batch twice"
    assert len(results(trainings.folder / "run")) == 3

    stages = [(event, epoch, at.STAGES[stage]) for event, epoch, stage in list_reports("SAID", finished)]
    assert stages[:3] == [
        ("on_train_start", None, "warmup"),
        ("on_train_epoch_start", 1, "warmup"),
        ("on_train_batch_end", 1, "step"),
    ]
    assert ("on_train_epoch_end", 1, "validate") in stages
    assert ("on_train_epoch_start", 2, "step") in stages
    assert stages[-1] == ("on_train_end", 2, "step")
    assert second.stage() == "ended"


def test_a_save_during_validation_keeps_what_was_trained_and_validates_again(
    trainings_once: Trainings,
) -> None:
    trainings = trainings_once
    first, finished = trainings.supervised("first", trainings.story(2, stop=("on_val_batch_end", 3)))
    assert finished.code == -signal.SIGTERM, finished.output
    assert first.failures() == []
    (saved,) = first.list_reports("checkpoint_saved")
    assert (saved["epoch"], saved["step"], saved["requested"]) == (-1, 3, True)
    second, finished = trainings.supervised(
        "second", trainings.cli(epochs="2"), **{at.ENV_RESUME_FROM: str(trainings.weights("rocm_supervisor.pt"))}
    )
    assert finished.code == 0, finished.output
    assert second.failures() == []
    assert [record.step for record in second.records()] == [4, 5, 6]
    assert [row["epoch"] for row in results(trainings.folder / "run")] == ["1", "2"]


FOLDS = """
import json, sys
from ultralytics import YOLO
for data, name in json.loads(sys.argv[2]):
    model = YOLO("yolov8n.yaml")
    model.train(**{**json.loads(sys.argv[1]), "data": data, "name": name})
    print("TRAINED", json.dumps([model.trainer.args.data, str(model.trainer.save_dir)]), flush=True)
"""


def test_of_several_folds_the_one_that_a_checkpoint_is_of_goes_on_from_it(trainings_once: Trainings) -> None:
    trainings = trainings_once
    folds = [trainings.folder / "data" / f"fold{number}.yaml" for number in (1, 2)]
    for path in folds:
        path.write_text((trainings.folder / "data" / "data.yaml").read_text())
    trainings.arguments["data"] = str(folds[1])
    _, finished = trainings.supervised("first", trainings.story(2, stop=("on_val_batch_end", 3)))
    assert finished.code == -signal.SIGTERM, finished.output
    resume = {at.ENV_RESUME_FROM: str(trainings.weights("rocm_supervisor.pt"))}
    runs = json.dumps([[str(folds[0]), "other"], [str(folds[1]), "run"]])
    second, finished = trainings.supervised(
        "second", [trainings.python, "-c", FOLDS, trainings.story(2)[3], runs], **resume
    )
    assert finished.code == 0, finished.output
    assert second.failures() == []
    trained = [json.loads(line[8:]) for line in finished.output.splitlines() if line.startswith("TRAINED ")]
    assert [Path(data).name for data, _ in trained] == ["fold1.yaml", "fold2.yaml"]
    assert [row["epoch"] for row in results(trainings.folder / "other")] == ["1", "2"]
    assert [row["epoch"] for row in results(trainings.folder / "run")] == ["1", "2"]
    assert [record.step for record in second.records()] == [1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert len(second.list_reports("resumed")) == 1


def test_a_second_training_of_the_same_attempt_does_not_resume_again(trainings_once: Trainings) -> None:
    trainings = trainings_once
    attempt = Attempt(trainings.folder / "attempt", trainings.folder, trainings.warm)
    attempt.make_recorder()
    with attempt.recorder().open("r+b") as file:
        file.seek(at.STAGE_OFFSET)
        file.write(at.STAGE.pack(at.STAGES.index("ended"), 0, 1))
    checkpoint = trainings.folder / "no-such.pt"
    finished = attempt.run(
        trainings.cli(epochs="1"),
        **trainings.environment,
        **{at.ENV_RESUME_FROM: str(checkpoint)},
    )
    assert finished.code == 0, finished.output
    assert attempt.list_reports("resumed") == []


def test_a_checkpoint_that_is_not_there_is_an_error_and_no_new_beginning(trainings_once: Trainings) -> None:
    trainings = trainings_once
    checkpoint = trainings.folder / "no-such.pt"
    attempt, finished = trainings.supervised(
        "attempt", trainings.cli(epochs="1"), **{at.ENV_RESUME_FROM: str(checkpoint)}
    )
    assert finished.code != 0
    assert attempt.records() == []
    assert not (trainings.folder / "run").exists()
    (reported_error,) = attempt.list_reports("exception")
    assert reported_error["type"] == "FileNotFoundError"


DYING_AT_THE_END = """
import json, os, signal, sys
from ultralytics import YOLO
from ultralytics.engine.trainer import BaseTrainer
def dies(trainer):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "dies":
    BaseTrainer.final_eval = dies
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", lambda trainer: print("BATCH", trainer.epoch, flush=True))
model.add_callback("on_train_end", lambda trainer: print("FINAL", sorted(trainer.metrics), flush=True))
model.train(**json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize("patience", [100, 1])
def test_a_training_killed_in_its_final_validation_is_completed_and_trains_no_more(
    trainings_once: Trainings, patience: int
) -> None:
    """With one epoch of patience it stops early, for validations of nothing learned are no better than the first."""
    trainings = trainings_once
    asked = json.dumps({**json.loads(str(trainings.story(4 if patience == 1 else 2)[3])), "patience": patience})
    attempt, finished = trainings.supervised("killed", [trainings.python, "-c", DYING_AT_THE_END, asked, "dies"])
    assert finished.code == -signal.SIGKILL
    last = trainings.weights("last.pt")
    size_bytes = last.stat().st_size
    attempt, finished = trainings.supervised(
        "completed", [trainings.python, "-c", DYING_AT_THE_END, asked, "lives"], **{at.ENV_RESUME_FROM: str(last)}
    )
    assert finished.code == 0, finished.output
    assert "FINAL ['metrics/" in finished.output
    assert "BATCH" not in finished.output
    assert last.stat().st_size < size_bytes / 2, "it is stripped"
    assert len(attempt.list_reports("train_end")) == 1
    assert attempt.stage() == "ended"


def test_the_interval_of_snapshots_goes_by_the_clock_where_the_optimizer_steps_rarely(
    trainings_once: Trainings,
) -> None:
    """Gradients are summed over more batches than an epoch has: each snapshot holds some."""
    trainings = trainings_once
    snapshots = trainings.folder / "snapshots"
    snapshots.mkdir()
    asked = json.dumps({**json.loads(str(trainings.story(4)[3])), "nbs": 64, "warmup_epochs": 0})
    attempt, finished = trainings.supervised(
        "attempt", [trainings.python, "-c", DYING_AT_THE_END, asked, "lives"],
        **{at.ENV_SNAPSHOTS: str(snapshots), at.ENV_SNAPSHOT_EVERY: "0.05"},
    )  # fmt: skip
    assert finished.code == 0, finished.output
    assert attempt.failures() == []
    steps = [report["step"] for report in attempt.list_reports("checkpoint_saved") if report.get("kind") == "snapshot"]
    assert {BATCHES * epoch for epoch in range(2, 5)} <= set(steps), "the end of each epoch is held exactly"


NAN = """
import json, os, struct, sys, torch
from ultralytics import YOLO
def poison(trainer):
    next(iter(trainer.model.parameters())).data[0] = float("nan")
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", poison)
model.train(**json.loads(sys.argv[1]))
"""


def test_a_state_that_is_not_finite_is_not_saved(trainings_once: Trainings) -> None:
    trainings = trainings_once
    attempt = Attempt(trainings.folder / "attempt", trainings.folder, trainings.warm)
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE_AND_STOP, 4)
    command: list[str | Path] = [trainings.python, "-c", NAN, trainings.story(1)[3]]
    finished = attempt.run(command, **trainings.environment)
    assert finished.code != -signal.SIGTERM
    assert attempt.answer() == (at.ANSWER_CANNOT, 4)
    (failed,) = attempt.list_reports("save_failed")
    assert "not finite" in failed["error"]
    assert not trainings.weights("rocm_supervisor.pt").exists()
    assert math.isnan(attempt.records()[1].loss)
