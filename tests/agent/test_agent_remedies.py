"""Remedies are really made: in the steps of any PyTorch training, and in a YOLO whose checkpoint says otherwise."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agent_by_hand import AGENT_PATH, Attempt
from test_agent_ultralytics import ARGUMENTS, CLI, HERE, quiet

from supervisor.core import attempt_files as at

Train = Callable[..., str]


def write(attempt: Attempt, **settings: tuple[object, str]) -> None:
    """Leave remedies.json as the daemon does."""
    note = {name: {"value": value, "remedies": [remedy]} for name, (value, remedy) in settings.items()}
    (attempt.folder / at.REMEDIES).write_text(json.dumps({"version": 1, "settings": note}))


def applied(attempt: Attempt) -> dict[str, str]:
    """Return what the agent told that it set, by setting."""
    return {report["setting"]: report["set"] for report in attempt.list_reports("remedy_applied")}


STEP = """
import torch, rocm_agent
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=1.0)
for gradient in ([3.0, 4.0], [float("nan"), 1.0], [0.3, 0.4]):
    weight.grad = torch.tensor(gradient)
    optimizer.step()
    print(*["%.4f" % one for one in weight.tolist()], optimizer.param_groups[0]["lr"])
"""


@pytest.mark.train
def test_a_step_is_clipped_skipped_and_scaled_and_the_owners_rate_stays(attempt: Attempt, train_python: Path) -> None:
    attempt.make_recorder()
    write(
        attempt,
        lr_factor=(0.5, "lower_lr"),
        clip_norm=(1.0, "clip_gradients"),
        skip_non_finite=(True, "skip_step"),
    )
    finished = attempt.run([train_python, "-c", STEP])
    assert finished.code == 0, finished.output
    assert attempt.failures() == []
    made = [line.split() for line in finished.output.splitlines()]
    assert made == [
        ["-0.3000", "-0.4000", "1.0"],
        ["-0.3000", "-0.4000", "1.0"],
        ["-0.4500", "-0.6000", "1.0"],
    ]
    assert [record.lr for record in attempt.records()] == [0.5, 0.5, 0.5], "the record has the rate of the step"
    assert set(applied(attempt)) == {"lr_factor", "clip_norm", "skip_non_finite"}


OTHERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(8.0))
one = DataLoader(data, 4, False, None, None, 2, pin_memory=True, persistent_workers=True, prefetch_factor=2)
print(one.num_workers, one.pin_memory, one.persistent_workers, [batch[0].sum().item() for batch in one])
with torch.autocast("cpu", dtype=torch.bfloat16):
    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype, torch.backends.cudnn.enabled)
"""


@pytest.mark.train
def test_loaders_autocast_and_cudnn_do_as_configured(attempt: Attempt, train_python: Path) -> None:
    write(attempt, workers=(0, "no_workers"), amp=(False, "amp_off"), cudnn=(False, "cudnn_off"))
    finished = attempt.run([train_python, "-c", OTHERS])
    assert finished.output.splitlines() == ["0 False False [6.0, 22.0]", "torch.float32 False"], finished.output
    assert applied(attempt)["workers"] == "loader workers 2 -> 0, nothing pinned"
    assert attempt.failures() == []


LOADERS = """
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
data = TensorDataset(torch.arange(8.0))
loaders = [
    DataLoader(data, 2, True),
    DataLoader(data, sampler=RandomSampler(data)),
    DataLoader(data, 2),
    DataLoader(data, batch_size=None, shuffle=True),
    DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 2, False)),
]
print([len(loader) for loader in loaders])
"""


@pytest.mark.train
def test_loaders_that_draw_in_random_order_have_larger_batches_and_those_of_a_validation_do_not(
    attempt: Attempt, train_python: Path
) -> None:
    write(attempt, loader_batch_factor=(2.0, "a tune"))
    finished = attempt.run([train_python, "-c", LOADERS])
    assert finished.output == "[2, 4, 4, 8, 4]\n", finished.output
    assert "batches of 2 -> 4" in [row["set"] for row in attempt.list_reports("remedy_applied")]
    assert attempt.failures() == []


@pytest.mark.train
def test_a_script_asks_for_what_it_can_do_itself(attempt: Attempt, owner_python: Path) -> None:
    write(attempt, batch_factor=(0.5, "half_batch"))
    program = (
        "import rocm_agent; print(rocm_agent.setting('batch_factor', 1.0), rocm_agent.setting('image_factor', 1.0))"
    )
    assert attempt.run([owner_python, "-c", program]).output == "0.5 1.0\n"
    (message,) = attempt.list_reports("remedy_applied")
    assert (message["remedies"], message["set"]) == (["half_batch"], "batch_factor 0.5, by the script")


def test_a_damaged_file_of_remedies_changes_nothing_and_is_reported(attempt: Attempt, python: Path) -> None:
    (attempt.folder / at.REMEDIES).write_text('{"settings": [')
    assert attempt.run([python, "-c", "print('on')"]).output == "on\n"
    (failed,) = attempt.list_reports("hook_failed")
    assert "remedies" in failed["where"] or "lambda" in failed["where"]


# --- the allocator ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def allocator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("allocator", AGENT_PATH / "rocm_agent" / "allocator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SPLIT = "max_split_size_mb:128"
GARBAGE = "garbage_collection_threshold:0.8"


@pytest.mark.parametrize(
    ("torch", "theirs", "options"),
    [
        ("1.11.0", "", SPLIT),
        ("1.13.1+rocm5.2", "", f"{GARBAGE},{SPLIT}"),
        ("2.12.0", "", f"{GARBAGE},{SPLIT},expandable_segments:True"),
        ("2.12.0+rocm7.2", "", f"{GARBAGE},{SPLIT}"),
        ("2.0.1", "max_split_size_mb:64", f"max_split_size_mb:64,{GARBAGE}"),
    ],
)
def test_the_allocator_hears_only_words_that_its_version_knows(
    allocator: ModuleType, torch: str, theirs: str, options: str
) -> None:
    assert allocator.options(torch, theirs) == options


# --- ultralytics --------------------------------------------------------------------------------------------------

SAVED = "import sys, torch; a = torch.load(sys.argv[1], map_location='cpu', **({} if torch.__version__ < '2.6' else "
SAVED += "{'weights_only': False}))['train_args']; print(a['batch'], a['imgsz'], a['epochs'])"


class Yolo:
    """Tiny trainings of one environment."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder, self.environment = python, folder, quiet(folder)

    def train(self, name: str, resume: Path | None, settings: Mapping[str, tuple[object, str]], **more: str) -> Attempt:
        attempt = Attempt(self.folder / name, cwd=self.folder)
        attempt.make_recorder()
        write(attempt, **settings)
        given = {**ARGUMENTS, "data": str(self.folder / "data" / "data.yaml"), "project": str(self.folder), **more}
        words = [f"{key}={value}" for key, value in given.items()]
        environment = {**self.environment, at.ENV_RESUME_FROM: str(resume or "")}
        finished = attempt.run([self.python, *CLI, "detect", "train", "model=yolov8n.yaml", *words], **environment)
        assert finished.code == 0, finished.output
        assert attempt.failures() == []
        return attempt

    def saved(self, name: str = "epoch0.pt") -> Path:
        return self.folder / "run" / "weights" / name


def drawn(python: Path, folder: Path) -> Yolo:
    draw = Attempt(folder / "drawing", cwd=folder)
    finished = draw.run([python, HERE / "draw_images.py", folder / "data", "8", "64"])
    assert finished.code == 0, finished.output
    return Yolo(python, folder)


FIRST = {
    "epochs": "2",
    "batch": "4",
    "save_period": "1",
    "val": "False",
    "lr0": "0.01",
    "warmup_epochs": "0",
    "nbs": "4",
}


def rates(attempt: Attempt) -> list[float]:
    return [record.lr for record in attempt.records()]


@pytest.mark.train
def test_a_resumed_yolo_has_the_remedies_that_its_checkpoint_knows_nothing_of(
    owner_python: Path, tmp_path: Path
) -> None:
    """The owner's 18 November: a new learning rate and clipping were lost on resume."""
    yolo = drawn(owner_python, tmp_path)
    plain = rates(yolo.train("plain", None, {}, **FIRST))
    wanted: dict[str, tuple[Any, str]] = {
        "lr_factor": (0.25, "lower_lr"),
        "clip_norm": (0.001, "clip_gradients"),
        "batch_factor": (0.5, "half_batch"),
        "image_factor": (0.5, "smaller_images"),
        "amp": (False, "amp_off"),
        "workers": (0, "no_workers"),
    }
    second = yolo.train("second", yolo.saved(), wanted, **FIRST, amp="True")
    (plan,) = second.list_reports("plan")
    assert (plan["start_epoch"], plan["batches_per_epoch"]) == (1, 4), "8 images, 2 a batch"
    assert all(math.isclose(rate, 0.25 * plain[-1], rel_tol=1e-5) for rate in rates(second)), (rates(second), plain)
    reported = applied(second)
    assert reported["batch_factor"] == "batch 4 -> 2"
    assert reported["image_factor"] == "imgsz 64 -> 32"
    assert reported["clip_norm"] == "gradients clipped to norm 0.001"
    assert reported["lr_factor"] == "learning rate x 0.25"
    finished = second.run([yolo.python, "-c", SAVED, yolo.saved("last.pt")], **yolo.environment)
    assert finished.output.split() == ["4", "64", "2"], "what is saved is the owner's: a factor is not applied twice"


@pytest.mark.train
def test_a_yolo_goes_on_on_the_cpu_and_leaves_batches_out(current_python: Path, tmp_path: Path) -> None:
    """What the owner's command says of a card that is gone does not matter."""
    yolo = drawn(current_python, tmp_path)
    wanted: dict[str, tuple[Any, str]] = {
        "device": ("cpu", "cpu_profile"),
        "batch": (2, "cpu_profile"),
        "imgsz": (32, "cpu_profile"),
        "skip_batches": ([2, 3], "skip_data"),
    }
    attempt = yolo.train("cpu", None, wanted, **{**FIRST, "device": "0"})
    (plan,) = attempt.list_reports("plan")
    assert (plan["device"], plan["batches_per_epoch"]) == ("cpu", 4)
    assert [record.step for record in attempt.records()] == [1, 4, 5, 6, 7, 8]
    reported = applied(attempt)
    assert (reported["device"], reported["batch"], reported["imgsz"]) == (
        "device cpu",
        "batch 4 -> 2",
        "imgsz 64 -> 32",
    )
    assert reported["skip_batches"] == "batches 2 to 3 left out"
