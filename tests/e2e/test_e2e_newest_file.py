"""A program that goes on from the newest file that it finds, which is spoilt, is led to the proven one where asked."""

from __future__ import annotations

import json
import sys

from house import House

TRAINING = """
import json, math, pathlib, struct, sys, time
import rocm_agent

folder = pathlib.Path(sys.argv[1])


def save(step, weight):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = folder / ("epoch_%d.safetensors" % step)
    part = path.with_suffix(".part")
    part.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", weight))
    part.rename(path)
    (folder / "latest").write_text(path.name)
    rocm_agent.checkpoint_saved(str(path), epoch=None, step=step)


first, weight = 1, 1.0
if "latest" in sys.argv:
    found = max(folder.glob("*.safetensors"), key=lambda path: int(path.stem.partition("_")[2]))
    first, weight = int(found.stem.partition("_")[2]) + 1, struct.unpack("<f", found.read_bytes()[-4:])[0]
with (folder / "starts").open("a") as starts:
    print(first, weight, (folder / "latest").read_text() if first > 1 else "", file=starts)
for step in range(first, 201):
    time.sleep(0.02)
    if step == 55 and not (folder / "spoilt").exists():
        (folder / "spoilt").touch()
        weight = math.nan
    rocm_agent.step(loss=weight, step=step)
    if step % 10 == 0:
        save(step, weight)
while math.isnan(weight):  # however long a busy machine takes to end it
    time.sleep(1)
"""


def lay_out(home: House, asks: str) -> None:
    folder = home.folder / "night"
    folder.mkdir()
    script = home.folder / "training.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), str(folder)]
    table = f'checkpoints.paths = ["{folder}/*.safetensors"]\nbudget.backoff_s = [0.0]\nsnapshot_every_s = 0\n'
    table += f"resume.command = {json.dumps([*command, '--resume', 'latest'])}\n{asks}"
    home.write(home.job_of("night", command, table))


def test_newer_files_are_moved_out_of_its_search_where_the_job_asks_for_it(home: House) -> None:
    lay_out(home, "resume.set_newer_aside = true\n")
    home.start()
    job = home.phase("night", "finished", "failed")
    assert job["phase"] == "finished", home.read_output()
    starts = (home.folder / "night" / "starts").read_text().splitlines()
    assert starts == ["1 1.0 ", "51 1.0 epoch_50.safetensors"]
    (incident,) = home.incidents()
    assert (incident["rule"], incident["outcome"], incident["confirmed"]) == ("non_finite_loss", "resumed", True)
    aside = sorted((home.folder / "night" / ".rocm-supervisor-aside" / "2").glob("aside.epoch_*"))
    assert {f"aside.{path.rpartition('/')[2]}.aside" for path in incident["set_aside"]} == {path.name for path in aside}
    assert aside, "those with weights that are not finite"
    assert "newer checkpoints moved: " in home.ctl("history").stdout
    assert "names checkpoints but no way" not in home.ctl("config", "check").stderr
    assert "moved aside, newer than it: " in home.query("select reason from decisions where kind = 'launch'")[1][0]


def test_without_it_those_are_moved_whose_numbers_are_lost(home: House) -> None:
    lay_out(home, "")
    home.start()
    job = home.phase("night", "finished", "failed")
    assert job["phase"] == "finished", home.read_output()
    assert (home.folder / "night" / "starts").read_text().splitlines() == ["1 1.0 ", "51 1.0 epoch_50.safetensors"]
    assert list((home.folder / "night" / ".rocm-supervisor-aside" / "2").glob("aside.epoch_*"))
    assert "moved aside, damaged and newer" in home.query("select reason from decisions where kind = 'launch'")[1][0]


CUT = """
import os, pathlib, signal, struct, sys, time
import rocm_agent

folder, header = pathlib.Path(sys.argv[1]), b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'


def save(step):
    path = folder / ("epoch_%d.safetensors" % step)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        if step == 60 and not (folder / "died").exists():
            (folder / "died").touch()
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        file.write(struct.pack("<f", 1.0))
    rocm_agent.checkpoint_saved(str(path), epoch=None, step=step)


first = 1
if "latest" in sys.argv:
    found = max(folder.glob("*.safetensors"), key=lambda path: int(path.stem.partition("_")[2]))
    with (folder / "starts").open("a") as starts:
        print(found.name, file=starts)
    content = found.read_bytes()
    if len(content) != 8 + len(header) + 4:
        raise RuntimeError("the file ends before its numbers do")
    first = int(found.stem.partition("_")[2]) + 1
for step in range(first, 121):
    time.sleep(0.02)
    rocm_agent.step(loss=1.0, step=step)
    if step % 10 == 0:
        save(step)
"""


def test_its_newest_save_that_the_kill_cut_short_is_moved_before_it_starts_again(home: House) -> None:
    folder = home.folder / "night"
    folder.mkdir()
    script = home.folder / "training.py"
    script.write_text(CUT)
    command = [sys.executable, str(script), str(folder)]
    table = f'checkpoints.paths = ["{folder}/*.safetensors"]\nbudget.backoff_s = [0.0]\nsnapshot_every_s = 0\n'
    table += f"resume.command = {json.dumps([*command, '--resume', 'latest'])}\n"
    home.write(home.job_of("night", command, table))
    home.start()
    job = home.phase("night", "finished", "failed")
    assert job["phase"] == "finished", job
    starts = (folder / "starts").read_text().split()
    assert starts == ["epoch_50.safetensors"], "by its resume command it loads the newest, of which it would die"
    assert [path.name for path in (folder / ".rocm-supervisor-aside").rglob("*.aside")] == [
        "aside.epoch_60.safetensors.aside"
    ]
    reason = home.query("select reason from decisions where kind = 'launch'")[-1][0]
    assert "moved aside, damaged and newer than it: " in reason
    assert "newer checkpoints moved: " in home.ctl("history").stdout
