"""A tune that may restart: what helps a start is adopted, what harms or cannot start is refused and costs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from house import House

pytestmark = pytest.mark.train

SCRIPT = Path(__file__).with_name("startable.py")
OWN_S, QUICK_S, SLOW_S = "0.03", "0.012", "0.06"


def configure(home: House, python: Path, environments: str) -> None:
    command = [str(python), str(SCRIPT)]
    # With these decided by its owner no other start is tried than those in its environments.
    env = {"STEP_S": OWN_S, "OMP_NUM_THREADS": "1", "MALLOC_CONF": "narenas:1"}
    table = "env = { " + ", ".join(f'{name} = "{value}"' for name, value in env.items()) + " }\nsnapshot_every_s = 1\n"
    home.write(home.job_of("one", command, table) + environments)


def place(name: str, python: Path, variable: str, value: str) -> str:
    return f'[jobs.one.environments.{name}]\npython = "{python}"\nenv = {{ {variable} = "{value}" }}\n'


def snapshots_of(home: House) -> list[dict[str, Any]]:
    return [item for item in home.checkpoints("one") if item["verdict"] == "proven"]


def state_of(home: House) -> dict[str, Any]:
    """Return the job as the record has it."""
    found: dict[str, Any] = json.loads(home.query("SELECT state FROM jobs WHERE name = 'one'")[0][0])
    return found


def started_with(home: House, attempt: int) -> str | None:
    """Return how long a step of an attempt is to take, by its own words; None before it has printed it."""
    try:
        printed = (home.state / f"jobs/one/{attempt}/run/output.log").read_text()
    except FileNotFoundError:
        return None
    found = re.search(r"from step (\d+), (\S+) s a step", printed)
    return found[2] if found is not None else None


def runs_with(home: House, step_s: str) -> bool:
    job = home.job("one")
    return job["phase"] == "running" and started_with(home, job["attempt"]) == step_s


def start_training(home: House) -> None:
    home.start()
    home.phase("one", "running", limit_s=60)
    home.until(lambda: bool(snapshots_of(home)), 60, "a proven snapshot")


@pytest.mark.long
def test_an_environment_that_helps_is_adopted_and_those_that_harm_or_do_not_start_cost_nothing(
    home: House, quickest_python: Path
) -> None:
    others = place("broken", quickest_python, "BREAKS", "1") + place("slow", quickest_python, "STEP_S", SLOW_S)
    configure(home, quickest_python, others + place("quick", quickest_python, "STEP_S", QUICK_S))
    start_training(home)
    report = json.loads(home.ctl("tune", "one", "--may", "restart", "--json", limit_s=900).stdout)
    assert report["problem"] is None
    assert [(row["knob"], row["value"]) for row in report["adopted"]] == [("environment", "quick")], report
    why = {row["value"]: row["why"] for row in report["refused"] if row["knob"] == "environment"}
    assert "no library of that name" in why["broken"]
    assert why["slow"].startswith("slower by"), why

    home.until(lambda: runs_with(home, QUICK_S), 60, "the start that was adopted")
    assert home.incidents("one") == []
    state = state_of(home)
    assert state["ledger"]["total"] == 0
    assert state["attempt"]["order"] is None
    assert "checkpoint_bad" not in home.ctl("history", "one").stdout, "what was saved on trial is no bad checkpoint"

    before = home.job("one")["attempt"]
    home.ctl("restart", "one")
    home.until(lambda: home.job("one")["attempt"] > before and runs_with(home, QUICK_S), 60, "the same start again")
    undone = home.ctl("tune", "one", "--undo").stdout
    assert "its next start is without environment quick: supervisorctl restart one" in undone
    before = home.job("one")["attempt"]
    home.ctl("restart", "one")
    home.until(lambda: home.job("one")["attempt"] > before and runs_with(home, OWN_S), 60, "a start as configured")


def test_without_permission_no_start_is_made_and_what_takes_one_is_named(home: House, current_python: Path) -> None:
    configure(home, current_python, place("quick", current_python, "STEP_S", QUICK_S))
    start_training(home)
    report = json.loads(home.ctl("tune", "one", "--dry-run", "--json").stdout)
    why = {row["value"]: row["why"] for row in report["not_tried"] if row["knob"] == "environment"}
    assert why == {"quick": "takes a start: not without permission: --may restart"}
    shown = home.ctl("tune", "one", "--dry-run", "--may", "restart").stdout
    assert "environment quick (by starts)" in shown
    assert home.job("one")["attempt"] == 1


@pytest.mark.long
def test_a_daemon_that_is_killed_amid_a_trial_leaves_the_training_as_configured(
    home: House, quickest_python: Path
) -> None:
    configure(home, quickest_python, place("quick", quickest_python, "STEP_S", QUICK_S))
    start_training(home)
    home.client.post("/v1/jobs/one/tune", may=["restart"])
    home.until(lambda: runs_with(home, QUICK_S), 300, "a start on trial")
    tried = home.job("one")["attempt"]
    home.until(lambda: state_of(home)["attempt"]["number"] == tried, 30, "its launch in the record")
    since = state_of(home)["attempt"]["order"]["since_unix_s"]
    home.kill()
    home.start()
    home.until(lambda: home.job("one")["attempt"] > tried and runs_with(home, OWN_S), 60, "a start as configured")
    state = state_of(home)
    assert (state["tuned"], state["ledger"]["total"]) == (None, 0)
    resumed = state["attempt"]["resume_from"]
    assert resumed["fingerprint"]["modified_ns"] / 1e9 < since, "nothing of the trial is gone on from"
    assert home.incidents("one") == []


def batches_of(home: House) -> str:
    """Return what the attempt under way has printed of its batches."""
    path = home.state / f"jobs/one/{home.job('one')['attempt']}/run/output.log"
    return path.read_text().split("\n")[0] if path.exists() else ""


@pytest.mark.long
def test_twice_the_batch_is_shown_before_tried_with_permission_and_put_back(home: House, quickest_python: Path) -> None:
    script = Path(__file__).with_name("batched.py")
    home.write(home.job_of("one", [str(quickest_python), str(script)], "snapshot_every_s = 1\n"))
    start_training(home)
    shown = json.loads(home.ctl("tune", "one", "--dry-run", "--json").stdout)["not_tried"]
    assert {row["why"] for row in shown if row["knob"] == "batch"} == {"not without permission: --may batch"}
    words = "x2: 8 -> 16 samples a micro-batch, 8 -> 16 samples an update, learning rate x2 (linear, SGD)"
    assert f"batch {words} (by starts)" in home.ctl("tune", "one", "--dry-run", "--may", "batch").stdout
    assert home.job("one")["attempt"] == 1

    tuned = home.ctl("tune", "one", "--may", "batch", "--steps", "100", "--json", limit_s=900)
    rows = {row["knob"]: row for row in json.loads(tuned.stdout)["adopted"]}
    assert (rows["batch"]["value"], rows["batch"]["gain"] > 0.8) == (words, True), tuned.stdout
    home.until(lambda: home.job("one")["phase"] == "running", 60, "the start that was adopted")
    home.until(lambda: batches_of(home) == "batches of 16", 60, "its larger batches")
    assert state_of(home)["ledger"]["total"] == 0
    assert home.incidents("one") == []

    assert "its next start is without batch x2" in home.ctl("tune", "one", "--undo").stdout
    home.ctl("restart", "one")
    home.until(lambda: batches_of(home) == "batches of 8", 60, "the owner's batches")
