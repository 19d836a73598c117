"""Checkpoints that are newer than the one to resume from are moved out of a training's own search, and kept."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import last_number
from supervisor.runner import set_aside
from supervisor.runner.set_aside import COULD_NOT, FOLDER


def moving(
    chosen: Path, *paths: Path, attempt: int = 2, then: str = "true", kept: Path | None = None
) -> subprocess.CompletedProcess[str]:
    words = [str(attempt), str(kept or chosen), str(chosen), *map(str, paths), "--", "sh", "-c", then]
    return subprocess.run(
        [sys.executable, "-I", "-S", set_aside.__file__, *words],
        cwd=chosen.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def save(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / name for name in names]
    for path in paths:
        path.write_text(path.name)
    return paths


def find_by_open_clip(folder: Path) -> str:
    """As `get_latest_checkpoint` of open_clip: by the numbers in the names, in folders below as well."""
    found = glob.glob(f"{folder}/**/*.pt", recursive=True)  # noqa: PTH207 - as the program does
    return max(found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])


def find_by_trainer(folder: Path) -> str:
    """As `get_last_checkpoint` of transformers, which `resume_from_checkpoint=True` asks."""
    pattern = re.compile(r"^checkpoint\-(\d+)$")
    names = [name for name in os.listdir(folder) if pattern.search(name) and (folder / name).is_dir()]  # noqa: PTH208 - as the program does
    return str(folder / max(names, key=lambda name: int(name.partition("-")[2])))


def find_by_sorting(folder: Path) -> str:
    return sorted(glob.glob(f"{folder}/*"))[-1]  # noqa: PTH207 - as the program does


@pytest.mark.parametrize("find", [find_by_open_clip, find_by_sorting])
def test_a_program_that_takes_the_newest_file_finds_the_chosen_one(tmp_path: Path, find: Callable[[Path], str]) -> None:
    chosen, *newer = save(tmp_path, "epoch_9.pt", "epoch_91.pt", "epoch_92.pt")
    assert find(tmp_path) == str(newer[-1])
    done = moving(chosen, *newer, then="echo trained")
    assert (done.returncode, find(tmp_path)) == (0, str(chosen))
    assert done.stdout.splitlines()[-1] == "trained"
    assert f"moved to {tmp_path}/{FOLDER}/2/aside.epoch_91.pt.aside" in done.stdout
    moved = (tmp_path / FOLDER / "2").glob("aside.*")
    assert {path.read_text() for path in moved} == {"epoch_91.pt", "epoch_92.pt"}


def test_a_program_that_takes_the_newest_folder_finds_the_chosen_one(tmp_path: Path) -> None:
    chosen, newer = tmp_path / "checkpoint-50", tmp_path / "checkpoint-100"
    for folder in (chosen, newer):
        save(folder, "model.safetensors", "trainer_state.json")
    moving(chosen, newer)
    assert find_by_trainer(tmp_path) == str(chosen)
    assert (tmp_path / FOLDER / "2" / "aside.checkpoint-100.aside" / "model.safetensors").exists()


def test_a_program_that_searches_hidden_folders_too_finds_the_chosen_one(tmp_path: Path) -> None:
    """As LitGPT, which takes each folder below its own whose name begins so, and the number after that."""
    chosen, newer = tmp_path / "step-000054", tmp_path / "step-000066"
    for folder in (chosen, newer):
        save(folder, "lit_model.pth")
    moving(chosen, newer)
    assert (tmp_path / FOLDER).exists()
    assert [path.parent for path in tmp_path.rglob("step-*/*.pth")] == [chosen]


@pytest.mark.parametrize(
    ("name", "text", "names_then"),
    [
        ("latest", "model_200.pth", "model_100.pth"),
        ("last_checkpoint", "/runs/3/model_200.pth\n", "/runs/3/model_100.pth"),
        ("checkpoint", "model_100.pth", "model_100.pth"),
        ("latest_checkpointed_iteration.txt", "200", "100"),
        ("latest", "000200\n", "000100"),
        ("last_epoch", "300", "300"),
        ("latest_checkpointed_iteration.txt", "release", "release"),
        ("notes", "model_200.pth", "model_200.pth"),
    ],
)
def test_a_file_that_names_the_newest_one_names_the_chosen_one(
    tmp_path: Path, name: str, text: str, names_then: str
) -> None:
    chosen, newer = save(tmp_path, "model_100.pth", "model_200.pth")
    (tmp_path / name).write_text(text)
    moving(chosen, newer)
    assert (tmp_path / name).read_text() == names_then
    assert text == names_then or (
        tmp_path / FOLDER / "2" / f"aside.{name}.aside"
    ).read_text() == text  # fmt: skip


def test_a_file_that_names_the_newest_folder_names_the_one_that_holds_the_chosen_file(tmp_path: Path) -> None:
    for step in (40, 80):
        (tmp_path / f"iter_00000{step}" / "mp_rank_00").mkdir(parents=True)
        save(tmp_path / f"iter_00000{step}" / "mp_rank_00", "model.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("80")
    (tmp_path / "latest").write_text("iter_0000080")
    moving(tmp_path / "iter_0000040" / "mp_rank_00" / "model.pt", tmp_path / "iter_0000080")
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "40"
    assert (tmp_path / "latest").read_text() == "iter_0000040"
    assert (tmp_path / FOLDER / "2" / "aside.iter_0000080.aside" / "mp_rank_00" / "model.pt").exists()


TENSORFLOW = 'model_checkpoint_path: "{0}"\nall_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "{0}"\n'


@pytest.mark.parametrize("folder", ["", "/runs/3/"])
def test_the_state_of_tensorflow_names_the_chosen_save(tmp_path: Path, folder: str) -> None:
    chosen, *newer = save(tmp_path, "ckpt-1.index", "ckpt-2.data-00000-of-00001", "ckpt-2.index")
    (tmp_path / "checkpoint").write_text(TENSORFLOW.format(f"{folder}ckpt-2"))
    moving(chosen, *newer)
    names = (tmp_path / "checkpoint").read_text().splitlines()
    assert names[0] == f'model_checkpoint_path: "{folder}ckpt-1"'
    assert names[1:] == TENSORFLOW.format(f"{folder}ckpt-2").splitlines()[1:]
    kept = tmp_path / FOLDER / "2" / "aside.checkpoint.aside"
    assert kept.read_text() == TENSORFLOW.format(f"{folder}ckpt-2")
    moving(chosen, attempt=3)
    assert (tmp_path / "checkpoint").read_text().splitlines() == names, "it is there, and stays"


@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_to_the_newest_one_leads_to_the_chosen_one(tmp_path: Path, absolute: bool) -> None:
    chosen, newer = save(tmp_path, "model_100.pt", "model_200.pt")
    link = tmp_path / "latest.pt"
    link.symlink_to(newer if absolute else newer.name)
    moving(chosen, newer)
    assert link.read_text() == "model_100.pt"
    assert os.readlink(tmp_path / FOLDER / "2" / "aside.latest.pt.aside").endswith("model_200.pt")  # noqa: PTH115 - its text


def test_a_run_that_was_killed_in_between_is_completed_by_the_next(tmp_path: Path) -> None:
    chosen, second, third = save(tmp_path, "model_100.pt", "model_200.pt", "model_300.pt")
    (tmp_path / "latest").write_text(third.name)
    assert moving(tmp_path / "elsewhere.pt", third).returncode == 0, "moved, and the pointer not yet changed"
    (tmp_path / "latest").write_text(third.name)
    assert moving(chosen, second, third, attempt=3).returncode == 0
    assert (tmp_path / "latest").read_text() == chosen.name
    assert sorted(path.name for path in (tmp_path / FOLDER).glob("*/aside.*")) == [
        "aside.latest.aside", "aside.latest.aside", "aside.model_200.pt.aside", "aside.model_300.pt.aside",
    ]  # fmt: skip


def test_what_was_moved_before_keeps_its_name(tmp_path: Path) -> None:
    chosen, newer = save(tmp_path, "a.pt", "b.pt")
    moving(chosen, newer)
    newer.write_text("another")
    moving(chosen, newer)
    texts = {path.name: path.read_text() for path in (tmp_path / FOLDER / "2").iterdir()}
    assert texts == {"aside.b.pt.aside": "b.pt", "aside.b.pt.2.aside": "another"}


def test_where_one_cannot_be_moved_the_training_is_not_started(tmp_path: Path) -> None:
    chosen, newer = save(tmp_path, "a.pt", "b.pt")
    (tmp_path / FOLDER).write_text("a file")
    done = moving(chosen, newer, then="echo started")
    assert (done.returncode, "started" in done.stdout) == (COULD_NOT, False)
    assert "could not be moved aside" in done.stderr
    assert newer.exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    chosen, newer = save(run, "a.pt", "b.pt")
    elsewhere.mkdir()
    (run / FOLDER).symlink_to(elsewhere)
    done = moving(chosen, newer)
    assert (done.returncode, newer.exists()) == (COULD_NOT, True)


def lay_out_saves_in_parts(folder: Path) -> dict[int, list[Path]]:
    """As BasicSR: networks in one folder, the state of the optimizers, which is what it looks for, in another."""
    for name in ("models", "training_states"):
        (folder / name).mkdir(parents=True)
    saves = {}
    for number in (40, 60, 80):
        saves[number] = [folder / f"models/net_g_{number}.pth", folder / f"training_states/{number}.state"]
        for path in saves[number]:
            path.write_text(f"{number} " * number)
    return saves


@pytest.mark.parametrize("written_since", [False, True])
def test_all_files_of_a_save_are_put_back_with_the_one_that_is_chosen_again(
    tmp_path: Path, written_since: bool
) -> None:
    saves, generation = lay_out_saves_in_parts(tmp_path), tmp_path / "000007-net_g_60.pth"
    shutil.copy2(saves[60][0], generation)
    (tmp_path / "models/latest").symlink_to("net_g_80.pth")
    moving(saves[40][0], *saves[60], *saves[80])
    if written_since:
        saves[60][1].write_text("of another course")
    done = moving(saves[60][0], attempt=4, kept=generation)
    texts = {path.name: path.read_text() for part in ("models/*.pth", "*/*.state") for path in tmp_path.glob(part)}
    of_60 = {path.name: "60 " * 60 for path in saves[60]}
    assert texts == {path.name: "40 " * 40 for path in saves[40]} | of_60
    assert os.readlink(tmp_path / "models/latest") == "net_g_60.pth"  # noqa: PTH115 - its text
    assert f"moved before, put back as {saves[60][1]}\n" in done.stdout
    aside = tmp_path / "training_states" / FOLDER / "4" / "aside.60.state.aside"
    assert (aside.read_text() if aside.exists() else None) == ("of another course" if written_since else None)


def test_files_whose_last_number_stays_are_put_back_by_all_their_numbers(tmp_path: Path) -> None:
    """Those of an AllenNLP training end with the batch in the epoch, which is 0 in all of them."""
    saves = {
        epoch: [tmp_path / f"{part}_e{epoch}_b0.th" for part in ("model_state", "training_state")]
        for epoch in (5, 6, 7)
    }
    for path in (path for files in saves.values() for path in files):
        path.write_text(path.name)
    generation = tmp_path / "000007-model"
    shutil.copy2(saves[6][0], generation)
    moving(saves[5][0], *saves[6], *saves[7])
    moving(saves[6][0], attempt=4, kept=generation)
    assert set(tmp_path.glob("*.th")) == {*saves[5], *saves[6]}


def test_another_content_of_the_chosen_name_brings_nothing_back(tmp_path: Path) -> None:
    saves, generation = lay_out_saves_in_parts(tmp_path), tmp_path / "000009-net_g_60.pth"
    generation.write_text("of another course")
    moving(saves[40][0], *saves[60], *saves[80])
    moving(saves[60][0], attempt=4, kept=generation)
    assert not any(path.exists() for path in (*saves[60], *saves[80]))


KILLED = """
import os, runpy, sys
left, folder = int(sys.argv[1]), os.getcwd()

def count(event, words):
    global left
    if event.startswith(("os.", "open")) and any(str(word).startswith(folder) for word in words):
        left -= 1
        if left < 0:
            os._exit(9)

del sys.argv[:2]
sys.addaudithook(count)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Ends the program before what it asks of its folder for the n-th time."""


def lay_out_run(folder: Path) -> tuple[Path, list[Path]]:
    chosen, *newer = save(folder, "model_100.pt", "model_200.pt", "model_300.pt")
    (folder / "last_checkpoint").write_text("runs/model_300.pt")
    (folder / "latest.pt").symlink_to("model_300.pt")
    return chosen, newer


@pytest.mark.waits
def test_wherever_a_run_is_killed_the_next_one_completes_it_and_nothing_is_lost(tmp_path: Path) -> None:
    ended = set()
    for number in range(100):
        folder = tmp_path / str(number)
        chosen, newer = lay_out_run(folder)
        words = [
            sys.executable,
            "-c",
            KILLED,
            str(number),
            set_aside.__file__,
            "2",
            str(chosen),
            str(chosen),
            *map(str, newer),
            "--",
        ]
        ended.add(subprocess.run([*words, "true"], cwd=folder, check=False, capture_output=True, timeout=60).returncode)
        assert moving(chosen, *(path for path in newer if path.exists()), attempt=3).returncode == 0
        assert (folder / "last_checkpoint").read_text() == "runs/model_100.pt"
        assert os.readlink(folder / "latest.pt") == "model_100.pt"  # noqa: PTH115 - its text
        kept = [path.read_text() for path in (folder / FOLDER).glob("*/aside.model_*") if not path.is_symlink()]
        assert sorted(kept) == ["model_200.pt", "model_300.pt"]
        assert {path.name for path in folder.iterdir()} == {FOLDER, "last_checkpoint", "latest.pt", "model_100.pt"}
        if 0 in ended:
            break
    assert ended == {0, 9}


def test_wherever_it_is_killed_as_it_puts_a_save_back_the_next_one_completes_it(tmp_path: Path) -> None:
    ended = set()
    for number in range(100):
        folder = tmp_path / str(number)
        saves, generation = lay_out_saves_in_parts(folder), folder / "000007-net_g_60.pth"
        shutil.copy2(saves[60][0], generation)
        (folder / "models/latest").symlink_to("net_g_80.pth")
        set_aside.set_aside("2", saves[40][0], saves[40][0], [*saves[60], *saves[80]])
        words = [sys.executable, "-c", KILLED, str(number), set_aside.__file__, "3", str(generation), str(saves[60][0])]
        done = subprocess.run([*words, "--", "true"], cwd=folder, check=False, capture_output=True, timeout=60)
        ended.add(done.returncode)
        moving(saves[60][0], attempt=4, kept=generation)
        assert [path.read_text() for path in saves[60]] == ["60 " * 60] * 2
        assert os.readlink(folder / "models/latest") == "net_g_60.pth"  # noqa: PTH115 - its text
        if 0 in ended:
            break
    assert ended == {0, 9}


@pytest.mark.parametrize(
    "name",
    [
        "model_000040.pt",
        "optim_000040_rank0.pt",
        "net_40.pth.tar",
        "sac_replay_buffer_500_steps.pkl",
        "last.pt",
        "ckpt-12.data-00000-of-00001",
        "model.txt.snapshot_iter_225",
    ],
)
def test_a_save_has_the_number_that_the_search_knows_it_by(name: str) -> None:
    """The isolated program has its own copy of the rule."""
    assert set_aside.last_number(name) == last_number(name)
