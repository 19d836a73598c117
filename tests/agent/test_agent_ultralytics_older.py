"""The resume of a training by an older release of ultralytics, whose trainer has fewer methods."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agent_by_hand import AGENT_PATH, Attempt, plain_environment

from supervisor.core import attempt_files as at

pytestmark = pytest.mark.slow

TRAINER = """
import sys
from types import SimpleNamespace
from rocm_agent import ultralytics_resume

class BaseTrainer:
    "As that of ultralytics 8.2: the epochs are a loop of one method."
    def __init__(self, overrides):
        self.args = SimpleNamespace(plots=False, patience=0, close_mosaic=10, data="warm", model="yolov8n.yaml")
        self.model, self.epochs, self.start_epoch = None, 3, 0
        self.train_loader, self.test_loader = [0], [0]
        self.done = ["resume " + str(overrides.get("resume"))]
    def setup_model(self):
        "As that of ultralytics 8.0: what it builds is described by the model in the checkpoint."
        self.model, ckpt = module.attempt_load_one_weight(self.args.model)
        assert ckpt["model"].yaml == {"nc": 1}
        return ckpt
    def resume_training(self, ckpt):
        start_epoch = ckpt["epoch"] + 1
        assert start_epoch < self.epochs, "nothing to resume"
        self.start_epoch = start_epoch
    def run_callbacks(self, event):
        self.done.append(event)
    def final_eval(self):
        self.done.append("final_eval")
    def _do_train(self):
        self.resume_training(self.setup_model())
        self.run_callbacks("on_train_start")
        epoch = self.start_epoch
        while True:
            self.epoch = epoch
            self.run_callbacks("on_train_epoch_start")
            epoch += 1
            if epoch >= self.epochs:
                break
        self.final_eval()
        self.run_callbacks("on_train_end")

def attempt_load_one_weight(weight):
    "As that of ultralytics 8.0, for a snapshot."
    ema = SimpleNamespace(yaml={"nc": 1})
    return ema, {"epoch": int(sys.argv[1]), "model": None, "ema": ema, "optimizer": {}, "rocm_supervisor": {}}

module = SimpleNamespace(BaseTrainer=BaseTrainer, attempt_load_one_weight=attempt_load_one_weight)
ultralytics_resume.install(module)
trainer = BaseTrainer(overrides={})
trainer._do_train()
print(*trainer.done, sep="|")
"""


def train(epoch: int, resume_from: Path) -> list[str]:
    """Return what a training of three epochs did that was resumed from the end of an epoch."""
    environment = plain_environment(PYTHONPATH=str(AGENT_PATH), **{at.ENV_RESUME_FROM: str(resume_from)})
    command = [sys.executable, "-c", TRAINER, str(epoch)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip().split("|")


def test_a_trainer_without_a_method_for_an_epoch_s_begin_is_resumed(tmp_path: Path) -> None:
    began = ["on_train_start", "on_train_epoch_start", "final_eval", "on_train_end"]
    assert train(1, tmp_path / "last.pt") == [f"resume {tmp_path / 'last.pt'}", *began]


def test_a_snapshot_has_the_model_that_a_trainer_builds_from(tmp_path: Path) -> None:
    assert "on_train_start" in train(0, tmp_path / "last.pt"), "the trainer found the description of its model"


def test_where_all_epochs_are_made_it_does_what_comes_after_them(tmp_path: Path) -> None:
    assert train(2, tmp_path / "last.pt")[1:] == ["on_train_start", "final_eval", "on_train_end"]


NAMES_NO_DATA = """
import json, sys
from types import SimpleNamespace
sys.modules["ultralytics.cfg"] = SimpleNamespace(TASK2DATA={"detect": "coco8.yaml"})
from rocm_agent import ultralytics_resume

class BaseTrainer:
    def __init__(self, overrides):
        print(json.dumps(overrides))
    def setup_model(self): ...
    def resume_training(self, ckpt): ...
    def run_callbacks(self, event): ...
    def _do_train(self): ...

ultralytics_resume.install(SimpleNamespace(BaseTrainer=BaseTrainer))
BaseTrainer(overrides=json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("named", "used"), [({"data": "coco8.yaml"}, None), ({"data": "warm.yaml"}, "warm.yaml"), ({"data": None}, None)]
)
def test_a_program_whose_last_model_is_finished_already_goes_on_with_its_own_data(
    tmp_path: Path, named: dict[str, str | None], used: str | None
) -> None:
    """As `YOLO("last.pt").train(resume=True)` after a kill in the final evaluation."""
    overrides = {"task": "detect", "resume": False, **named}
    path = str(tmp_path / "last.pt")
    environment = plain_environment(PYTHONPATH=str(AGENT_PATH), **{at.ENV_RESUME_FROM: path})
    command = [sys.executable, "-c", NAMES_NO_DATA, json.dumps(overrides)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout) == {"task": "detect", "resume": path, "data": used}


OLDEST = """
from pathlib import Path
from types import SimpleNamespace

class BaseTrainer:
    "As that of ultralytics 8.0.40, which lies in ultralytics.yolo."
    def __init__(self, cfg=None, overrides=None):
        self.args = SimpleNamespace(plots=False, patience=0, data="warm", model=(overrides or {}).get("resume"))
        self.epochs, self.start_epoch, self.metrics, self.model = 3, 0, {}, "yolov8n.yaml"
        self.device = SimpleNamespace(type="cpu")
        self.save_dir = self.wdir = Path("out")
        self.last, self.best = self.wdir / "last.pt", self.wdir / "best.pt"
        self.csv, self.train_loader = self.save_dir / "results.csv", [0, 0]
    def setup_model(self):
        return {"epoch": 0, "optimizer": {}}
    def resume_training(self, ckpt):
        self.start_epoch = ckpt["epoch"] + 1
    def preprocess_batch(self, batch):
        return batch
    def save_model(self):
        pass
    def final_eval(self):
        pass
    def run_callbacks(self, event):
        pass
    def _do_train(self):
        self.run_callbacks("on_pretrain_routine_start")
        self.resume_training(self.setup_model())
        self.run_callbacks("on_train_start")
        print(self.args.model, self.start_epoch)
"""


def test_a_trainer_of_before_8_0_136_is_resumed_by_its_own_checkpoint(tmp_path: Path) -> None:
    """It began at the first epoch after each restart: nothing of it was known but the steps of its optimizer."""
    folder = tmp_path / "ultralytics" / "yolo" / "engine"
    folder.mkdir(parents=True)
    (tmp_path / "ultralytics" / "__init__.py").touch()
    (folder / "trainer.py").write_text(OLDEST)
    attempt = Attempt(tmp_path / "attempt", cwd=tmp_path)
    attempt.make_recorder()
    program = "from ultralytics.yolo.engine.trainer import BaseTrainer; BaseTrainer(overrides={})._do_train()"
    path = str(tmp_path / "last.pt")
    finished = attempt.run([sys.executable, "-c", program], PYTHONPATH=str(tmp_path), **{at.ENV_RESUME_FROM: path})
    assert finished.output.split() == [path, "1"], finished.output
    (resumed,) = attempt.list_reports("resumed")
    assert (resumed["epoch"], resumed["step"]) == (0, 2)
    assert "start of an epoch only" in attempt.list_reports("hook_failed")[0]["error"], "no snapshot of it is promised"
