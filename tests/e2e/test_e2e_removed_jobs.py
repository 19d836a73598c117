"""A job is taken out of the configuration while its training runs, and the daemon dies or is restarted over it."""

from __future__ import annotations

from typing import Any

from house import House


def reload(home: House, *jobs: str) -> dict[str, Any]:
    """Write a configuration of these jobs and have it applied; return the report."""
    home.write("".join(jobs))
    report: dict[str, Any] = home.client.post("/v1/reload")
    return report


def test_a_training_that_runs_when_its_job_is_configured_again_is_adopted(home: House) -> None:
    """It was left out of the configuration of a start, which ends nothing that runs."""
    first, second = home.by_hand("one"), home.by_hand("two")
    home.write(first + second)
    home.start()
    pid = home.step("two", 30)["pid"]
    home.kill()
    home.write(first)
    home.start()
    home.until(lambda: "job.not_configured" in home.log.read_text(), 20, "the daemon to say what it leaves alone")
    home.made("two", len(home.steps_made("two")) + 20)
    assert "two: runs unsupervised: [jobs.two] is not in the configuration" in home.ctl("status").stdout
    assert "add [jobs.two] again, then `supervisorctl reload`" in home.ctl("doctor").stdout
    assert reload(home, first, second)["problems"] == []
    job = home.step("two", len(home.steps_made("two")) + 20)
    assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    assert (home.status() or {})["daemon"]["not_configured"] == []
    made = home.steps_made("two")
    home.until(lambda: home.steps_recorded("two") >= len(made), 20, "its steps to be recorded")
    assert made == list(range(1, len(made) + 1))
    assert home.incidents() == []


def test_a_job_that_was_removed_is_stopped_although_the_daemon_dies_over_it(home: House) -> None:
    first = home.by_hand("one")
    home.write(first + home.by_hand("two", "--save-takes-s", "2", table="save_s = 60"))
    home.start()
    home.step("two", 30)
    home.step("one", 30)
    report = reload(home, first)
    assert report["needs_restart"] == ["jobs.two: removed; it is being stopped first"]
    home.kill()
    home.start()
    home.until(lambda: home.recorded_phase("two") == "stopped", 60, "the training of the removed job to be stopped")
    home.until(lambda: [job["name"] for job in (home.status() or {})["jobs"]] == ["one"], 20, "it to be forgotten")
    assert len(home.training_pids()) == 2
    saved = sorted((home.folder / "two").glob("state-*.safetensors"))[-1]
    assert int(saved.stem.rpartition("-")[2]) == home.steps_made("two")[-1]
    assert home.job("one")["attempt"] == 1
