"""What a killed YOLO left half done in its folder is completed when it goes on, by a torch that reads lines of JSON."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_by_hand import AGENT_PATH

sys.path.append(str(AGENT_PATH))

from rocm_agent import ultralytics_results
from rocm_agent.snapshots.files import OURS

HEADER = "epoch,time,train/box_loss\n"
TWO = HEADER + "1,0.5,0.2\n2,1.1,0.1\n"


def load(path: str, **_: Any) -> dict[str, Any]:
    """Load as torch does."""
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("archive/data.pkl"))
    return found


TORCH = SimpleNamespace(load=load)


def ckpt(epoch: int, fitness: float | None, best: float | None, **more: Any) -> dict[str, Any]:
    """Return what ultralytics saves after an epoch."""
    return {"epoch": epoch, "best_fitness": best, "optimizer": {}, "train_metrics": {"fitness": fitness}, **more}


def save(path: Path, saved: dict[str, Any]) -> None:
    """Save as torch does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", json.dumps(saved))


def halve(path: Path) -> None:
    """Leave what a process has written that was killed while it wrote."""
    path.write_bytes(path.read_bytes()[:40])


class Scene:
    """The folder of a training, as a resume finds it."""

    def __init__(self, folder: Path) -> None:
        self.last, self.best = folder / "last.pt", folder / "best.pt"
        self.trainer = SimpleNamespace(
            csv=folder / "results.csv", last=self.last, best=self.best, start_epoch=0, best_fitness=None
        )
        self.folder = folder

    def resume(self, saved: dict[str, Any], source: Path | None = None) -> None:
        """Go on from a checkpoint."""
        self.trainer.start_epoch, self.trainer.best_fitness = saved["epoch"] + 1, saved["best_fitness"]
        ultralytics_results.complete(TORCH, self.trainer, saved, str(source or self.last))

    def names(self) -> list[str]:
        """Return the files of its folder."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_file())


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return a folder, next to one for snapshots."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("ROCM_SUPERVISOR_SNAPSHOTS", str(tmp_path / "snapshots"))
    return Scene(tmp_path / "weights")


@pytest.mark.parametrize(
    ("found", "made", "left"),
    [
        pytest.param(TWO + "3,1.7,0.1\n", 2, TWO, id="the epoch whose model was not saved is redone"),
        pytest.param(TWO + "3,1.", 2, TWO, id="a row that was cut short"),
        pytest.param(TWO + "3,1.7,0.1\n4,2", 2, TWO, id="both"),
        pytest.param(TWO, 2, TWO, id="nothing to be redone"),
        pytest.param(TWO + "1,0.5,0.3\n2,", 1, TWO + "1,0.5,0.3\n", id="rows of an earlier training in the folder"),
        pytest.param(TWO + "3,1", 7, TWO, id="rows that are missing"),
        pytest.param(HEADER[:9], 0, None, id="the header is written again"),
        pytest.param("   epoch,  box\n   1,  0.2\n   2,  0.1\n", 1, "   epoch,  box\n   1,  0.2\n", id="8.0 aligns"),
    ],
)
def test_each_epoch_has_one_row(tmp_path: Path, found: str, made: int, left: str | None) -> None:
    csv = tmp_path / "results.csv"
    csv.write_text(found)
    ultralytics_results.cut_rows(str(csv), made)
    assert (csv.read_text() if csv.exists() else None) == left


def test_a_best_model_that_was_cut_short_is_the_save_that_it_was_to_be(scene: Scene) -> None:
    saved = ckpt(1, 0.3, 0.3)
    save(scene.last, saved)
    save(scene.best, saved)
    halve(scene.best)
    scene.resume(saved)
    assert load(str(scene.best)) == saved
    assert scene.names() == ["best.pt", "last.pt"]


def test_a_best_model_that_was_not_yet_written_is_saved(scene: Scene) -> None:
    save(scene.last, ckpt(1, 0.3, 0.3))
    save(scene.best, ckpt(0, 0.1, 0.1))
    scene.resume(ckpt(1, 0.3, 0.3))
    assert load(str(scene.best))["epoch"] == 1


def test_without_validations_the_newest_model_is_the_best(scene: Scene) -> None:
    save(scene.last, ckpt(1, None, None))
    save(scene.best, ckpt(0, None, None))
    scene.resume(ckpt(1, None, None))
    assert load(str(scene.best))["epoch"] == 1


@pytest.mark.parametrize("more", [{}, {OURS: {}}])
def test_a_best_model_that_did_better_is_left(scene: Scene, more: dict[str, Any]) -> None:
    """Of a snapshot in a later epoch the validation is that of the epoch before."""
    saved = ckpt(2, 0.3, 0.3, **more) if more else ckpt(2, 0.2, 0.3)
    save(scene.last, saved)
    save(scene.best, ckpt(1, 0.3, 0.3))
    scene.resume(saved)
    assert load(str(scene.best))["epoch"] == 1


def test_where_the_best_model_is_lost_the_best_of_the_epochs_to_come_is_saved(scene: Scene) -> None:
    """Without one the final evaluation would fail with the damaged file, each time that the training is resumed."""
    saved = ckpt(2, 0.2, 0.3)
    save(scene.last, saved)
    save(scene.best, ckpt(1, 0.3, 0.3))
    halve(scene.best)
    for _ in range(2):  # it may be killed before the next save
        scene.resume(saved)
        assert scene.trainer.best_fitness is None
        assert scene.names() == ["best.pt", "last.pt"], "the next save overwrites it"
    ultralytics_results.keep_best(scene.trainer)
    assert scene.names() == ["best.pt.damaged", "last.pt"]


def test_a_best_model_whose_optimizer_was_being_removed_is_put_back(scene: Scene) -> None:
    snapshot = ckpt(3, 0.2, 0.3, **{OURS: {}})
    save(scene.best, ckpt(1, 0.3, 0.3))
    ultralytics_results.keep_best(scene.trainer)
    halve(scene.best)
    scene.resume(snapshot)
    assert load(str(scene.best))["epoch"] == 1
    assert scene.trainer.best_fitness == 0.3
    ultralytics_results.forget_best(scene.trainer)
    assert list((scene.folder.parent / "snapshots").iterdir()) == []


def test_a_last_model_that_was_cut_short_is_the_one_that_is_gone_on_from(scene: Scene) -> None:
    """The file to go on from is a copy in the supervisor's state directory."""
    copy = scene.folder.parent / "copy.pt"
    save(copy, ckpt(4, 0.2, 0.3))
    save(scene.best, ckpt(1, 0.3, 0.3))
    save(scene.last, ckpt(4, 0.2, 0.3))
    halve(scene.last)
    scene.resume(ckpt(4, 0.2, 0.3), copy)
    assert load(str(scene.last))["epoch"] == 4
    assert load(str(scene.best))["epoch"] == 1


@pytest.mark.parametrize("content", [b"", b"PK\3\4" + b"x" * 40, b"\0" * 40])
def test_what_a_killed_process_or_a_power_failure_leaves_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "best.pt").write_bytes(content)
    assert ultralytics_results.is_damaged(str(tmp_path / "best.pt"))


def test_a_file_of_another_form_and_one_that_is_not_there_are_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_bytes(b"\x80\4." * 9)
    assert not ultralytics_results.is_damaged(str(tmp_path / "best.pt"))
    assert not ultralytics_results.is_damaged(str(tmp_path / "last.pt"))
