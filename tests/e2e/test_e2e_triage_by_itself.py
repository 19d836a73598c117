"""A daemon that finds out by itself why a loss ceased to be a number, before it retries."""

from __future__ import annotations

from pathlib import Path

from house import House

ALLOWED = 'triage = "by-itself"\n'
SINK = '[alerts.nobody]\nurl = "http://127.0.0.1:9/hook"\nallow_private = true\nmin_severity = "info"\n'


def replays(home: House, name: str = "one") -> list[str]:
    """Return the folders of replays that are there."""
    return sorted(one.name for one in (home.state / "jobs" / name).glob("triage-*"))


def told(home: House) -> list[str]:
    return [kind for (kind,) in home.query("SELECT type FROM alerts ORDER BY queued_unix_s, rowid")]


def decided(home: House) -> list[str]:
    return [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE kind != 'warn' ORDER BY id")]


def test_what_came_once_is_replayed_once_and_told_before_the_retry(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "nan:30", "--steps", "60", table=ALLOWED) + SINK)
    home.start()
    home.phase("one", "finished", limit_s=60)
    incident = home.incident("one")
    assert incident["finding"]["verdict"] == "hardware", incident["finding"]
    assert (incident["cause"], incident["remedy"], incident["outcome"]) == ("hardware", "restart", "resumed")
    assert decided(home) == ["launch", "stop", "examine", "triage", "retry", "launch", "finish"]
    made = home.steps_made("one")
    assert made[made.index(26, 26) :] == [*range(26, 31), *range(26, 61)], "one replay, one training, in this order"
    kinds = told(home)
    assert [kinds.count(one) for one in ("incident.opened", "incident.triaged", "incident.resumed")] == [1, 1, 1]
    shown = home.ctl("show", incident["id"]).stdout
    assert "hardware: the same step on the same device is finite now" in shown
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


def test_a_replay_that_hangs_is_ended_at_its_limit_and_the_retry_goes_on_as_without_it(home: House) -> None:
    hanging(home, 1.5)
    home.phase("one", "finished", limit_s=60)
    incident = home.incident("one")
    assert incident["finding"]["verdict"] == "unknown"
    assert "within the 2 s of the triage" in incident["finding"]["words"]
    assert (incident["cause"], incident["outcome"]) == ("non_finite", "resumed")
    assert "incident.triaged" not in told(home), "that nothing was found is no news"
    assert decided(home) == ["launch", "stop", "examine", "triage", "retry", "launch", "finish"]
    home.nothing_runs()


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
    assert decided(home) == ["launch", "stop", "examine", "triage", "retry", "launch", "finish"]
    assert home.incident("one")["finding"]["verdict"] == "unknown"


def test_a_daemon_that_is_killed_takes_its_triage_up_again_and_no_second_replay_is_made(home: House) -> None:
    hanging(home, 5)
    pids = home.training_pids()
    assert len(pids) == 2, "a shim and a training"
    home.kill()
    home.start()
    assert home.training_pids() == pids
    home.phase("one", "finished", limit_s=60)
    assert "within the 5 s of the triage" in home.incident("one")["finding"]["words"]
    assert [one for one in home.log.read_text().splitlines() if "triage.taken_up" in one]
    home.nothing_runs()
