"""A YOLO that hangs in mid-epoch is ended by the daemon and goes on in mid-epoch, from its newest snapshot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from house import House

pytestmark = pytest.mark.train

DRAW = Path(__file__).resolve().parents[1] / "agent" / "draw_images.py"
PACE_S, EVERY_S, HANGS_AT, BATCHES = 0.25, 2.0, 26, 32

STORY = """
import json, os, sys, time
from pathlib import Path
from ultralytics import YOLO
made, scar, pace_s, hangs_at = 0, Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
def batch_ends(trainer):
    global made
    made += 1
    time.sleep(pace_s)
def batch_starts(trainer):
    if made == hangs_at and not scar.exists():
        scar.touch()
        time.sleep(3600)
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", batch_ends)
model.add_callback("on_train_batch_start", batch_starts)
model.train(**json.loads(sys.argv[1]))
"""


def test_a_hang_in_mid_epoch_costs_no_more_than_the_interval(home: House, owner_python: Path) -> None:
    drawn = [str(owner_python), str(DRAW), str(home.folder / "data"), str(2 * BATCHES), "64", "4"]
    subprocess.run(drawn, check=True)
    fixed = {"imgsz": 32, "batch": 2, "workers": 0, "amp": False, "plots": False, "device": "cpu", "exist_ok": True}
    data = {"data": str(home.folder / "data" / "data.yaml"), "project": str(home.folder), "name": "run"}
    arguments = json.dumps({**fixed, **data, "epochs": 1, "nbs": 2})
    command = [str(owner_python), "-c", STORY, arguments, str(home.folder / "scar"), str(PACE_S), str(HANGS_AT)]
    quiet = {"HOME": home.folder, "YOLO_CONFIG_DIR": home.folder, "OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true"}
    table = "env = { " + ", ".join(f'{name} = "{value}"' for name, value in quiet.items()) + " }\n"
    table += f"snapshot_every_s = {EVERY_S}\nsave_s = 0.5"
    home.write(home.job_of("yolo", command, table, stall="limit_s = 10"))
    home.start()

    folder = home.state / "jobs" / "yolo" / "snapshots"

    def listed() -> set[Path]:
        return {Path(checkpoint["source"] or checkpoint["path"]).parent for checkpoint in home.checkpoints("yolo")}

    home.until(lambda: listed() == {folder}, 60, "a snapshot in the list of checkpoints")
    incident = home.resumed("yolo", limit_s=90)
    assert incident["rule"] == "stall"
    assert incident["last_step"] == HANGS_AT
    used = incident["resumed_from"]
    assert Path(used["source"] or used["path"]).parent == folder
    assert incident["lost_steps"] == HANGS_AT - incident["resumed_from"]["step"]
    assert incident["lost_steps"] <= EVERY_S / PACE_S + 1

    home.phase("yolo", "finished", limit_s=60)
    made = [item for (item,) in home.query("SELECT SUM(steps) FROM step_metrics WHERE job = 'yolo'")]
    assert made == [BATCHES + incident["lost_steps"]]
    home.until(lambda: not any(folder.iterdir()), 10, "the snapshots of a finished training to be cleared away")
