"""A training that crashes goes on in the interpreter that stood by, and from cold where that is not to be had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from house import PATIENCE_S, House

pytestmark = pytest.mark.whole_torch(reason="what an interpreter has imported")

MORTAL = Path(__file__).with_name("mortal_daemon.py")
DRAW = Path(__file__).resolve().parents[1] / "agent" / "draw_images.py"
SET = 'standby = true\nstandby_modules = ["decimal", "fractions"]\n'


def ready(home: House, name: str = "one", limit_s: float = 40) -> int:
    """Wait until something stands by; return its pid."""
    home.until(lambda: home.job(name)["standby"] == "ready", limit_s, "something to stand by")
    folder = str(home.state / "jobs" / name / f"standby-{home.job(name)['attempt'] + 1}")
    shim = next(item for item in psutil.process_iter(["cmdline"]) if folder in (item.info["cmdline"] or ()))
    (interpreter,) = shim.children()
    return interpreter.pid


def crash(home: House, name: str = "one", number: signal.Signals = signal.SIGKILL) -> dict[str, Any]:
    """Kill the training; wait until the next attempt has made a step, and return the job's status then."""
    before = home.job(name)
    os.kill(before["pid"], number)
    return home.step(name, before["step"], attempt=before["attempt"] + 1)


def list_events(home: House, event: str) -> list[str]:
    return [line for line in home.log.read_text().splitlines() if f" {event} " in line]


def test_the_next_attempt_is_the_interpreter_that_stood_by_unless_that_does_not_fit_any_more(home: House) -> None:
    home.write(home.by_hand("one", table=SET))
    home.start()
    waiting = ready(home)
    assert "standby interpreter for the next attempt: ready" in home.ctl("status", "one").stdout
    job = crash(home)
    assert (job["attempt"], job["pid"], job["restarts"], job["standby"]) == (2, waiting, 1, None)
    made = home.steps_made("one")
    assert sorted(set(made)) == list(range(1, max(made) + 1))
    assert len(home.query("SELECT * FROM attempts WHERE job = 'one'")) == 2

    waiting = ready(home)
    home.write(home.by_hand("one", table=SET + 'env = { OMP_NUM_THREADS = "3" }\n'))
    assert home.ctl("reload").returncode == 0
    job = crash(home)
    assert (job["attempt"], job["pid"] == waiting) == (3, False)
    assert "the variable OMP_NUM_THREADS differs" in list_events(home, "standby.not_used")[-1]
    home.until(lambda: not psutil.pid_exists(waiting), 20, "the end of what stood by")
    ready(home)
    assert home.ctl("stop", "one").returncode == 0
    home.phase("one", "stopped")
    home.nothing_runs()


def test_a_daemon_that_restarts_has_another_stand_by_and_where_that_is_killed_none(home: House) -> None:
    home.write(home.by_hand("one", table=SET))
    home.start()
    first = ready(home)
    home.kill()
    assert psutil.pid_exists(first)
    home.start()
    second = ready(home)
    home.until(lambda: not psutil.pid_exists(first), 20, "the end of what stood by for the daemon before")
    os.kill(second, signal.SIGKILL)
    home.until(lambda: home.job("one")["standby"] is None, 10, "the daemon to see it")
    assert crash(home)["attempt"] == 2
    assert "it has ended" in list_events(home, "standby.failed")[-1]
    ready(home)
    home.stop()
    home.nothing_runs()
    assert list((home.state / "jobs" / "one").glob("standby-*")) == []


@pytest.mark.parametrize("point", ["before go", "after go"])
def test_a_daemon_that_dies_as_it_gives_the_word_leaves_one_training(home: House, point: str) -> None:
    home.write(home.by_hand("one", table=SET))
    mortal = [sys.executable, str(MORTAL), str(home.folder / "points"), "--config", str(home.config)]
    with home.log.open("ab") as log:
        home.daemon = subprocess.Popen(mortal, stdout=log, stderr=log, env={**os.environ, "DIE_AT": point})
    home.until(lambda: home.status() is not None, 30, "the daemon to answer")
    waiting = ready(home)
    os.kill(home.job("one")["pid"], signal.SIGKILL)
    assert home.daemon.wait(PATIENCE_S) == -signal.SIGKILL
    home.start()
    job = home.step("one", max(home.steps_made("one")) + 10, attempt=2)
    assert (job["attempt"], job["pid"] == waiting) == (2, point == "after go")
    made = home.steps_made("one")
    back = [first for first, second in pairwise(made) if second != first + 1]
    assert len(back) <= 1, "one training at a time"
    assert len(home.query("SELECT * FROM attempts")) == 2
    assert home.incident("one")["outcome"] == "resumed"


STORY = """
import json, sys, time
from ultralytics import YOLO
model = YOLO("yolov8n.yaml")
model.add_callback("on_train_batch_end", lambda _: time.sleep(0.15))
model.train(**json.loads(sys.argv[1]))
"""


@pytest.mark.train
def test_a_yolo_goes_on_from_its_snapshot_without_a_second_of_imports(home: House, owner_python: Path) -> None:
    subprocess.run([str(owner_python), str(DRAW), str(home.folder / "data"), "64", "32"], check=True)
    fixed = {"imgsz": 32, "batch": 2, "workers": 0, "amp": False, "plots": False, "device": "cpu", "exist_ok": True}
    data = {"data": str(home.folder / "data" / "data.yaml"), "project": str(home.folder), "name": "run"}
    command = [str(owner_python), "-c", STORY, json.dumps({**fixed, **data, "epochs": 9, "val": False, "nbs": 2})]
    quiet = {"HOME": home.folder, "YOLO_CONFIG_DIR": home.folder, "YOLO_OFFLINE": "true"}
    table = "env = { " + ", ".join(f'{name} = "{value}"' for name, value in quiet.items()) + " }\n"
    home.write(home.job_of("one", command, table + "standby = true\nsnapshot_every_s = 2.0\nsave_s = 0.5"))
    home.start()
    home.step("one", 1, limit_s=60)
    waiting = ready(home, limit_s=60)
    assert '"ultralytics"' in list_events(home, "standby.started")[-1]
    assert crash(home)["pid"] == waiting
    assert home.incident("one")["resumed_from"] is not None
