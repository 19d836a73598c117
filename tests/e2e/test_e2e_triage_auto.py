"""A daemon that finds out by itself why a loss ceased to be a number, before it retries."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from house import House

TESTS = Path(__file__).resolve().parents[1]

ALLOWED = 'triage = "auto"\n'
SINK = '[alerts.nobody]\nurl = "http://127.0.0.1:9/hook"\nallow_private = true\nmin_severity = "info"\n'


def replays(home: House, name: str = "one") -> list[str]:
    """Return the folders of replays that are there."""
    return sorted(path.name for path in (home.state / "jobs" / name).glob("triage-*"))


def list_alerts(home: House) -> list[str]:
    return [kind for (kind,) in home.query("SELECT type FROM alerts ORDER BY queued_unix_s, rowid")]


def decided(home: House) -> list[str]:
    return [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE kind != 'warn' ORDER BY id")]


def test_what_came_once_is_replayed_once_and_reported_before_the_retry(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "nan:30", "--steps", "60", table=ALLOWED) + SINK)
    home.start()
    home.phase("one", "finished", limit_s=60)
    incident = home.incident("one")
    assert incident["finding"]["verdict"] == "hardware", incident["finding"]
    assert (incident["cause"], incident["remedy"], incident["outcome"]) == ("hardware", "restart", "resumed")
    assert decided(home) == ["launch", "stop", "start_triage", "triage", "retry", "launch", "finish"]
    made = home.steps_made("one")
    assert made[made.index(26, 26) :] == [*range(26, 31), *range(26, 61)], "one replay, one training, in this order"
    kinds = list_alerts(home)
    assert [kinds.count(item) for item in ("incident.opened", "incident.triaged", "incident.resumed")] == [1, 1, 1]
    shown = home.ctl("show", incident["id"]).stdout
    assert "hardware: the same step on the same device is finite on replay" in shown
    assert "triage  hardware" in home.ctl("history").stdout
    assert "replaying a bad step" in home.ctl("account", "one").stdout
    home.until(lambda: replays(home) == [], 10, "the replays' folders to be cleared away")
    assert (home.state / "jobs" / "one" / "current").resolve().name == "2"
    assert (Path(incident["evidence"]) / "triage" / "report.json").exists()


def hanging(home: House, limit_s: float) -> None:
    """Start a training whose replay hangs, and wait until it does."""
    table = f"{ALLOWED}triage_limit_s = {limit_s}"
    words = ("--wound", "nan:30", "--steps", "60", "--stuck-when-resumed")
    home.write(home.by_hand("one", *words, table=table) + SINK)
    home.start()
    stuck = home.folder / "one" / "stuck"
    home.until(stuck.exists, 40, "the replay to hang")
    assert len(replays(home)) == 1


def test_a_stop_ends_a_triage_at_once_and_leaves_nothing_running(home: House) -> None:
    hanging(home, 600)
    assert "replayed" in home.job("one")["reason"]
    assert home.ctl("stop", "one").returncode == 0
    home.phase("one", "stopped", limit_s=20)
    assert home.training_pids() == []
    assert decided(home)[-2:] == ["triage", "finish"]
    assert home.incident("one")["outcome"] == "stopped"


def test_the_daemon_ends_its_triage_with_itself_and_the_next_one_retries(home: House) -> None:
    hanging(home, 600)
    assert home.stop() == 0
    assert home.training_pids() == []
    home.start()
    home.phase("one", "finished", limit_s=60)
    assert decided(home) == ["launch", "stop", "start_triage", "triage", "retry", "launch", "finish"]
    assert home.incident("one")["finding"]["verdict"] == "unknown"


def test_a_killed_daemon_takes_its_triage_up_and_at_the_limit_the_retry_goes_on_as_without_it(home: House) -> None:
    hanging(home, 15)
    pids = home.training_pids()
    assert len(pids) == 2, "a shim and a training"
    home.kill()
    home.start()
    assert home.training_pids() == pids
    home.phase("one", "finished", limit_s=60)
    incident = home.incident("one")
    assert incident["finding"]["verdict"] == "unknown"
    assert "within the 15 s of the triage" in incident["finding"]["words"]
    assert (incident["cause"], incident["outcome"]) == ("non_finite", "resumed")
    assert "incident.triaged" not in list_alerts(home), "that nothing was found is no news"
    assert decided(home) == ["launch", "stop", "start_triage", "triage", "retry", "launch", "finish"]
    assert [line for line in home.log.read_text().splitlines() if "triage.adopted" in line]
    home.nothing_runs()


@pytest.mark.train
def test_a_poisoned_image_is_named_and_its_batch_left_out(home: House, quickest_python: Path) -> None:
    data = home.folder / "data"
    subprocess.run([quickest_python, TESTS / "agent" / "draw_images.py", data, "8", "64"], check=True)
    program = str(TESTS / "runner" / "train_with_nan.py")
    command = [str(quickest_python), program, str(data / "data.yaml"), str(home.folder / "runs"), "image:3.png"]
    table = 'env = { OMP_NUM_THREADS = "1" }\ntriage = "auto"'
    home.write(home.job_of("one", command, table, non_finite_loss="tolerated = 0") + SINK)
    home.start()
    home.until(lambda: bool(home.query("SELECT 1 FROM decisions WHERE kind = 'retry'")), 120, "the retry")
    home.ctl("stop", "one")
    incident = home.incidents("one")[0]
    assert incident["finding"]["verdict"] == "data", incident["finding"]
    assert [Path(file).name for file in incident["finding"]["files"]] == ["3.png"]
    assert incident["remedy"] == "skip_data"
    (body,) = home.query("SELECT body FROM alerts WHERE type = 'incident.triaged'")
    assert json.loads(body[0])["data"]["triage"]["files"] == incident["finding"]["files"]
    assert "3.png" in home.ctl("history").stdout
    assert not list((home.folder / "runs").glob("run2*")), "the replay wrote elsewhere"
