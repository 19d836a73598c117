"""Several jobs at once: one that misbehaves disturbs no other, and the configuration changes under all of them."""

import signal

from house import House


def test_a_misbehaving_job_disturbs_no_other(home: House) -> None:
    flood = home.job_of("flood", ["/bin/sh", "-c", "exec yes a line of output that never ends"])
    home.write(
        home.by_hand("good", "--steps", "250")
        + home.by_hand("hung", "--wound", "deaf:20", table="save_s = 0.5", stall="limit_s = 2")
        + home.by_hand("dying", "--wound", "kill!:10")
        + "[jobs.dying.budget]\nrestarts = 3\nbackoff_s = [0.0]\n"
        + flood,
        "\n[retention]\noutput_limit_mb = 2\n",
    )
    home.start()
    home.phase("good", "finished", limit_s=60)
    home.phase("dying", "failed", limit_s=60)
    assert home.resumed("hung", limit_s=60)["rule"] == "stall"
    assert home.steps_made("good") == list(range(1, 251))
    home.until(lambda: home.steps_recorded("good") == 250, 10, "every step of the good one to be recorded")
    assert home.incidents("good") == []
    assert home.job("flood")["phase"] == "running" or home.job("flood")["phase"] == "starting"


def test_a_reload_applies_a_changed_limit_and_leaves_the_training_alone(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "hang:40", stall="limit_s = 600"))
    daemon = home.start()
    pid = home.step("one", 39)["pid"]
    home.write(home.by_hand("one", "--wound", "hang:40", stall="limit_s = 2"))
    daemon.send_signal(signal.SIGHUP)
    incident = home.resumed("one")
    assert (incident["rule"], incident["attempt"]) == ("stall", 1)
    assert home.job("one")["pid"] != pid


def test_a_reload_with_a_mistake_changes_nothing(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "hang:40", stall="limit_s = 2"))
    home.start()
    home.step("one", 10)
    home.write(home.by_hand("one", table="gracious_s = 3", stall="limit_s = 600") + "[jobs.two]\n")
    done = home.ctl("reload")
    assert done.returncode == 1
    assert "gracious_s" in done.stderr
    assert "jobs.two.command" in done.stderr
    assert home.resumed("one")["rule"] == "stall"
    assert [job["name"] for job in (home.status() or {})["jobs"]] == ["one"]


def test_a_reload_starts_an_added_job_and_stops_a_removed_one(home: House) -> None:
    home.write(home.by_hand("one", "--save-every", "1000"))
    home.start()
    home.step("one", 10)
    home.write(home.by_hand("two"))
    done = home.ctl("reload")
    assert done.returncode == 0, done.stderr
    home.step("two", 5)
    home.until(lambda: len(home.training_pids()) == 2, 20, "the removed job to end")
    last = home.steps_made("one")[-1]
    assert (home.folder / "one" / f"state-{last:06}.safetensors").exists()
    home.until(
        lambda: [job["name"] for job in (home.status() or {})["jobs"]] == ["two"], 20, "the removed job to be forgotten"
    )
