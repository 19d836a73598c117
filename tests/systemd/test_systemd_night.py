"""The real daemon under its real unit, as `supervisorctl setup --owner ann` installs it: nights as they happen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from night import CONFIG, CTL, HOME, RUN, UNIT, Night, night

from tests.rigs.installed_box import OWNER, ROOT, InstalledBox, may_boot

pytestmark = pytest.mark.systemd
SAVES_WHEN_ASKED = ("--save-every", "100000")
IMPATIENT = """\
[Service]
WatchdogSec=2
TimeoutAbortSec=1
RestartSec=100ms
LimitCORE=0
"""


@pytest.fixture(scope="module")
def bootable() -> None:
    reason = may_boot()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def machine(bootable: None) -> Iterator[Night]:
    with night() as item:
        yield item


@pytest.fixture
def home(machine: Night) -> Iterator[Night]:
    """The machine with nothing left of the test before."""
    yield machine
    machine.clear()


def step_of(path: str) -> int:
    """Return the step in the name of a checkpoint that a training by hand saved."""
    found = re.search(r"state-(\d+)\.safetensors$", path)
    assert found, path
    return int(found.group(1))


def is_newest(step: int, last: int) -> bool:
    """Whether a training that saves every 25 steps and died after `last` had no newer checkpoint to resume from."""
    return step % 25 == 0 and last - 25 <= step <= last


def every_step_is_recorded_once(home: Night) -> None:
    """Assert that the training made each step once, and the database holds them all."""
    made = home.steps_made("one")
    assert made == list(range(1, len(made) + 1))
    home.until(lambda: home.steps_recorded("one") == len(made), 10, f"{len(made)} steps to be recorded")


def test_a_started_daemon_runs_its_job_as_the_owner_and_says_so_to_those_who_may_ask(home: Night) -> None:
    home.write(home.by_hand("one"))
    home.begin()
    pid = home.step("one", 10)["pid"]
    for user in (None, OWNER):
        asked = home.asked("--json status", user)
        assert asked.status == 0, asked.output
        job = json.loads(asked.output)["jobs"][0]
        assert (job["name"], job["phase"], job["pid"]) == ("one", "running", pid)
    for user in ("bob", "nobody"):
        refused = home.asked("status", user)
        assert (refused.status, "permission denied" in refused.output) == (5, True), refused.output
        assert "join the group: sudo usermod -aG rocm-supervisor " in refused.output
        assert "Traceback" not in refused.output
        for words in ("config check", "estimate one", "export one /tmp/one", "bench loader one"):
            refused = home.asked(words, user)
            assert (refused.status, "join the group: sudo usermod" in refused.output) == (5, True), refused.output
    assert (home.shown("ActiveState", RUN), home.shown("User", RUN)) == ("active", OWNER)
    ran_as = home.box.run(f"stat -c %U /proc/{pid}; grep ^0: /proc/{pid}/cgroup", check=True).output.split()
    assert ran_as == [OWNER, f"0::/rocm.slice/rocm-runs.slice/{RUN}"]
    folders = home.box.run(
        "cd /var/lib/rocm-supervisor/jobs; stat -c '%a %U %G' . one one/1 one/1/run one/1/run/recorder.bin"
    )
    assert folders.output.splitlines() == [
        *["2750 rocm-supervisor rocm-supervisor-jobs"] * 3,
        "2770 rocm-supervisor rocm-supervisor-jobs",
        f"660 {OWNER} rocm-supervisor-jobs",
    ]
    home.until(lambda: "one running (step " in home.shown("StatusText"), 10, "systemctl status to tell of the step")
    exposure = home.box.run(f"systemd-analyze security --no-pager {UNIT}").output
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", exposure)
    assert found, exposure
    assert float(found.group(1)) <= 2.5


@pytest.mark.long
@pytest.mark.calm(reason="its watchdog has 2 s")
def test_restart_kill_and_watchdog_cost_the_training_no_step(home: Night) -> None:
    drop_in = f"/run/systemd/system/{UNIT}.d/impatient.conf"
    home.box.write(drop_in, IMPATIENT)
    home.systemctl("daemon-reload")
    try:
        home.write(home.by_hand("one"))
        home.begin()
        pid = home.step("one", 10)["pid"]
        for end in (f"restart {UNIT}", f"kill --signal=KILL {UNIT}", f"kill --signal=STOP {UNIT}"):
            before, seen = home.shown("MainPID"), home.steps_made("one")[-1]
            home.systemctl(end)
            home.another_daemon(before)
            home.made_beyond("one", seen + 5)
            job = home.step("one", seen + 6)
            assert (job["phase"], job["attempt"], job["pid"], job["restarts"]) == ("running", 1, pid, 0), end
        assert home.box.run(f"journalctl -u {UNIT} | grep -F 'Watchdog timeout'").ok
        assert home.asked("stop one --wait").status == 0
        every_step_is_recorded_once(home)
        assert home.incidents() == []
    finally:
        home.box.run(f"rm {drop_in}; systemctl daemon-reload")


def test_a_daemon_that_sees_no_process_of_its_training_has_its_stacks_all_the_same(home: Night) -> None:
    """An administrator's ProtectProc hides other users' processes from it: those that hang dump their own stacks."""
    drop_in = f"/run/systemd/system/{UNIT}.d/hidden.conf"
    home.box.write(drop_in, "[Service]\nProtectProc=invisible\n")
    home.systemctl("daemon-reload")
    try:
        home.write(home.by_hand("one", "--wound", "hang:100", stall="limit_s = 3\nlearn = false"))
        home.begin()
        incident = home.resumed("one", limit_s=60)
        assert (incident["rule"], incident["outcome"], incident["last_step"]) == ("stall", "resumed", 99)
        kept = home.box.run(f"cat {incident['evidence']}/stacks-*.txt", check=True).output
        assert "in wait_for_ever" in kept
        assert "/proc hides its processes" in home.asked("doctor").output
        assert home.asked("stop one --wait").status == 0
    finally:
        home.box.run(f"rm {drop_in}; systemctl daemon-reload")


@pytest.mark.parametrize(
    ("wound", "acts"),
    [("hang", ["launch", "stop", "retry", "launch"]), ("deaf", ["launch", "stop", "kill", "retry", "launch"])],
)
def test_a_hung_training_of_another_user_is_looked_into_ended_and_resumed(
    home: Night, wound: str, acts: list[str]
) -> None:
    """The daemon may neither signal it nor write its home: it asks systemd, and reads through the owner's group."""
    home.write(home.by_hand("one", "--wound", f"{wound}:60", table="save_s = 1", stall="limit_s = 3"))
    home.begin()
    incident = home.resumed("one")
    assert (incident["rule"], incident["outcome"], incident["attempt"]) == ("stall", "resumed", 1)
    assert (incident["last_step"], incident["lost_steps"]) == (59, 9)
    assert incident["resumed_from"]["source"] == f"{HOME}/one/state-000050.safetensors"
    kept = incident["resumed_from"]["path"]
    assert home.box.run(f"stat -c '%a %U' {kept}", check=True).output.split() == ["640", "rocm-supervisor"]
    (verdict,) = home.query(f"SELECT verdict FROM checkpoints WHERE path = '{incident['resumed_from']['path']}'")
    assert verdict == ("proven",)
    assert home.box.run(f"stat -c '%a %U' {HOME}", check=True).output.split() == ["750", OWNER]
    evidence = home.inside(incident["evidence"])
    stacks = [path.read_text() for path in evidence.glob("stacks*.txt")]
    assert any("wait_for_ever" in stack for stack in stacks), sorted(path.name for path in evidence.iterdir())
    assert home.steps_made("one")[58:60] == [59, 51]
    kinds = [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = 'one' ORDER BY id")]
    assert kinds == acts


def test_a_stopped_daemon_has_the_training_saved_and_a_started_one_goes_on_from_there(home: Night) -> None:
    home.write(home.by_hand("one", *SAVES_WHEN_ASKED))
    home.begin()
    home.step("one", 20)
    home.systemctl(f"stop {UNIT}")
    assert (home.shown("Result"), home.shown("ActiveState", RUN)) == ("success", "inactive")
    last = home.steps_made("one")[-1]
    assert (home.folder / "one" / f"state-{last:06}.safetensors").exists()
    home.begin()
    job = home.step("one", last + 10, attempt=2)
    assert (job["attempt"], job["restarts"]) == (2, 0)
    assert home.asked("stop one --wait").status == 0
    every_step_is_recorded_once(home)


def test_a_stop_of_the_unit_by_hand_is_the_users_and_a_start_of_it_goes_on_under_the_daemon(home: Night) -> None:
    home.write(home.by_hand("one", *SAVES_WHEN_ASKED))
    home.begin()
    home.step("one", 20)
    home.systemctl(f"stop {RUN}")
    job = home.phase("one", "stopped")
    assert (job["attempt"], job["restarts"], home.incidents()) == (1, 0, [])
    last = home.steps_made("one")[-1]
    assert (home.folder / "one" / f"state-{last:06}.safetensors").exists(), "it was saved first"
    home.systemctl(f"restart {UNIT}")
    assert home.job("one")["phase"] == "stopped", "a daemon that comes later does not wake it"
    home.systemctl(f"start {RUN}")
    job = home.step("one", last + 5, attempt=2)
    assert (job["phase"], job["restarts"]) == ("running", 0)
    home.systemctl(f"restart {RUN}")
    home.step("one", home.steps_made("one")[-1] + 1, attempt=3)
    assert home.asked("stop one --wait").status == 0
    asked = home.query("SELECT json_extract(body, '$.by') FROM events WHERE kind = 'user_request' ORDER BY id")
    assert [by for (by,) in asked] == [*["systemctl stop", "systemctl start"] * 2, "uid 0"]
    assert home.incidents() == []


def test_a_unit_that_is_killed_or_runs_into_its_own_limit_was_not_stopped_by_its_user(home: Night) -> None:
    home.write(home.by_hand("one"))
    home.box.write(f"/run/systemd/system/{RUN}.d/limit.conf", "[Service]\nRuntimeMaxSec=4\n")
    home.systemctl("daemon-reload")
    try:
        home.begin()
        home.step("one", 5, attempt=2)
    finally:
        home.box.run(f"rm /run/systemd/system/{RUN}.d/limit.conf; systemctl daemon-reload")
    home.systemctl(f"kill {RUN}")
    home.until(lambda: home.job("one")["attempt"] >= 3, 20, "the next attempt")
    assert home.job("one")["phase"] != "stopped"


def test_the_owner_reads_of_the_night_whether_or_not_the_daemon_still_runs(home: Night) -> None:
    home.write(home.by_hand("one", "--wound", "kill:30"))
    home.begin()
    incident = home.resumed("one")["id"]
    assert "records.jsonl" in home.asked(f"evidence {incident}", OWNER).output
    for _ in ("while it runs", "after it was stopped"):
        reported = home.asked("history", OWNER)
        assert reported.status == 0, reported.output
        assert "was killed by SIGKILL" in reported.output
        assert "resumed from step 25" in reported.output
        home.systemctl(f"stop {UNIT}")


def test_a_stopped_daemon_does_not_leave_a_deaf_training_behind(home: Night) -> None:
    home.write(home.by_hand("one", "--wound", "deaf:20", table="save_s = 0.5"))
    home.begin()
    home.until((home.folder / "one" / "deaf").exists, 20, "the training to go deaf")
    home.systemctl(f"stop {UNIT}")
    assert (home.shown("Result"), home.shown("ActiveState", RUN)) == ("success", "inactive")
    assert not home.box.run(f"pgrep -u {OWNER}").ok
    assert "decision.kill" in home.box.run(f"journalctl --since=-10s -u {UNIT}").output


def test_a_shim_that_is_killed_takes_its_training_along_and_is_replaced(home: Night) -> None:
    home.write(home.by_hand("one"))
    home.begin()
    pid = home.step("one", 30)["pid"]
    home.systemctl(f"kill --kill-who=main --signal=KILL {RUN}")
    incident = home.resumed("one")
    assert (incident["fault"], incident["outcome"]) == ("host_lost", "resumed")
    assert is_newest(incident["resumed_from"]["step"], incident["last_step"])
    assert not home.box.run(f"test -e /proc/{pid}").ok
    assert len(home.box.run(f"pgrep -u {OWNER}", check=True).output.split()) == 2
    journal = home.box.run(f"journalctl --since=-10s -u {UNIT}").output
    assert "notification message" not in journal, "a child of the daemon spoke to its notify socket"


def test_a_daemon_that_starts_on_a_note_of_another_shim_adopts_the_training_of_the_unit(home: Night) -> None:
    """The training can write it; the daemon ended the unit's processes as what a dead shim had left."""
    home.write(home.by_hand("one"))
    home.begin()
    pid = home.step("one", 10)["pid"]
    home.box.run(
        "cd /var/lib/rocm-supervisor/jobs/one/1/run; "
        'sed -E \'s/"pid": [0-9]+/"pid": 4194303/\' shim.json > /tmp/forged && cat /tmp/forged > shim.json',
        check=True,
    )
    before, seen = home.shown("MainPID"), home.steps_made("one")[-1]
    home.systemctl(f"restart {UNIT}")
    home.another_daemon(before)
    home.made_beyond("one", seen + 5)
    job = home.step("one", seen + 6)
    assert (job["phase"], job["attempt"], job["pid"], job["restarts"]) == ("running", 1, pid, 0)
    assert home.asked("stop one --wait").status == 0
    every_step_is_recorded_once(home)


def test_a_home_that_was_closed_to_the_daemon_is_named_and_the_training_not_begun_again(home: Night) -> None:
    # With generations it would go on from the one that the daemon keeps.
    home.write(home.by_hand("one", table="checkpoints = { keep = false }"))
    home.begin()
    pid = home.step("one", 30)["pid"]
    home.until(lambda: bool(home.proven("one")), 20, "a proven checkpoint")
    home.box.run(f"chmod 0700 {HOME}; kill -KILL {pid}", check=True)
    try:
        failed = home.phase("one", "failed")
    finally:
        home.box.run(f"chmod 0750 {HOME}", check=True)
    assert failed["attempt"] == 1
    assert f"{HOME} is closed to the daemon" in failed["reason"]
    last = len(home.steps_made("one"))
    assert home.asked("start one --wait").status == 0
    home.step("one", last + 5, attempt=2)
    assert 25 < home.steps_made("one")[last] <= last + 1, "a kill just after a save costs no step"


def test_a_home_that_was_never_open_to_the_daemon_is_named_and_the_training_not_begun_again(home: Night) -> None:
    home.box.run(f"chmod 0700 {HOME}", check=True)
    try:
        home.write(home.by_hand("one", "--wound", "kill:60"))
        home.begin()
        failed = home.phase("one", "failed")
    finally:
        home.box.run(f"chmod 0750 {HOME}", check=True)
    assert failed["attempt"] == 1
    assert f"{HOME} is closed to the daemon" in failed["reason"]
    assert "checkpoint.unseen" in home.box.run(f"journalctl --since=-30s -u {UNIT}").output
    assert home.asked("start one --wait").status == 0
    home.step("one", 65, attempt=2)
    assert home.steps_made("one")[58:60] == [59, 51]


def test_a_wrong_configuration_fails_once_and_says_what_is_wrong(home: Night) -> None:
    home.write('[jobs.one]\ncommand = ["true"]\ngracious_s = 3\n')
    assert not home.box.run(f"systemctl start {UNIT}").ok
    assert (home.shown("ExecMainStatus"), home.shown("ActiveState"), home.shown("NRestarts")) == ("78", "failed", "0")
    assert "gracious_s" in home.box.run(f"systemctl status {UNIT}").output


def test_a_daemon_that_polkit_does_not_answer_is_started_again_until_it_does(home: Night) -> None:
    """As on a bare system, while apt still sets polkit up: the bus waits for a service that fails to start."""
    home.write(home.by_hand("one"))
    broken = "/run/systemd/system/polkit.service.d/broken.conf"
    home.box.write(broken, "[Service]\nExecStart=\nExecStart=/bin/false\n")
    home.box.run("systemctl daemon-reload; systemctl stop polkit", check=True)
    try:
        home.box.run(f"systemctl start --no-block {UNIT}", check=True)
        home.box.until(f"[ $(systemctl show --value --property=NRestarts {UNIT}) -ge 1 ]")
        assert "can start no units for trainings" in home.box.run(f"journalctl --since=-60s -u {UNIT}").output
    finally:
        home.box.run(f"rm {broken}; systemctl daemon-reload; systemctl reset-failed polkit", check=True)
    home.box.until(f"systemctl is-active {UNIT}")
    home.step("one", 1)


def test_a_reload_applies_what_changed_and_one_with_a_mistake_is_refused_aloud(home: Night) -> None:
    def limit(seconds: int, more: str = "") -> str:
        return home.by_hand("one", "--wound", "hang:40", table=more, stall=f"limit_s = {seconds}")

    home.write(limit(600))
    home.begin()
    home.step("one", 39)
    daemon = home.shown("MainPID")
    home.write(limit(2, "gracious_s = 3"))
    tried = home.asked("reload --dry-run")
    assert (tried.status, "gracious_s" in tried.output) == (1, True), tried.output
    assert "reload refused" not in home.shown("StatusText")
    assert not home.box.run(f"systemctl reload {UNIT}").ok
    home.until(lambda: "reload refused" in home.shown("StatusText"), 10, "the refusal in systemctl status")
    assert "gracious_s" in home.shown("StatusText")
    assert "gracious_s" in home.box.run(f"journalctl -u {UNIT} --grep=reload.problems").output
    assert (home.shown("MainPID"), home.shown("ActiveState")) == (daemon, "active")
    assert home.incidents() == []
    home.write(limit(2) + "[alerts.phone]\nkind = 'ntfy'\nurl_file = '/etc/rocm-supervisor/topic'\n")
    home.box.run("install -m 600 /dev/null /etc/rocm-supervisor/topic", check=True)  # root's, not the daemon's
    checked = home.box.run(f"{CTL} config check {CONFIG}", user="rocm-supervisor")
    assert "cannot be read by the daemon's user" in checked.output
    assert not home.box.run(f"systemctl reload {UNIT}").ok, "a receiver that the daemon cannot read is refused aloud"
    home.write(limit(2))
    tried = home.asked("reload --dry-run")
    assert (tried.status, "limit_s: 600.0 -> 2.0" in tried.output) == (0, True), tried.output
    again = home.asked("reload --dry-run")
    assert again.output == tried.output, "a dry run changes nothing"
    home.systemctl(f"reload {UNIT}")
    assert home.resumed("one")["rule"] == "stall"
    assert home.shown("MainPID") == daemon
    home.until(lambda: "reload refused" not in home.shown("StatusText"), 10, "the refusal to be forgotten")


def in_another_boot(home: Night) -> None:
    """Give the box a boot of its own: it shares the kernel, and so the boot id, with the box before it."""
    home.box.run("cat /proc/sys/kernel/random/uuid >/run/boot; chmod 444 /run/boot", check=True)
    for unit in (UNIT, "rocm-run@.service"):
        drop_in = "[Service]\nBindReadOnlyPaths=/run/boot:/proc/sys/kernel/random/boot_id\n"
        home.box.write(f"/run/systemd/system/{unit}.d/boot.conf", drop_in)
    home.systemctl("daemon-reload")


@pytest.mark.usefixtures("bootable")
def test_at_a_reboot_the_training_is_saved_and_the_daemon_of_the_next_boot_resumes_it(tmp_path: Path) -> None:
    with night(kept=tmp_path) as before:
        config = before.by_hand("one", *SAVES_WHEN_ASKED)
        before.write(config)
        before.begin()
        before.step("one", 20)
        before.box.goes_down("systemctl reboot", timeout_s=120)
    last = int((tmp_path / "home/one/steps.log").read_text().split()[-1])
    assert [step_of(str(path)) for path in (tmp_path / "home/one").glob("state-*")] == [last]
    with night(kept=tmp_path) as after:
        in_another_boot(after)
        after.write(config)
        after.begin()
        job = after.step("one", last + 10, attempt=2)
        assert (job["attempt"], job["restarts"]) == (2, 0)
        assert after.asked("stop one --wait").status == 0
        every_step_is_recorded_once(after)
        assert after.incidents() == []


@pytest.mark.usefixtures("bootable")
def test_after_a_power_cut_the_attempt_is_closed_as_lost_and_the_training_resumed(tmp_path: Path) -> None:
    with night(kept=tmp_path) as before:
        config = before.by_hand("one")
        before.write(config)
        before.begin()
        before.step("one", 60)
    last = int((tmp_path / "home/one/steps.log").read_text().split()[-1])
    with night(kept=tmp_path) as after:
        in_another_boot(after)
        after.write(config)
        after.begin()
        incident = after.resumed("one")
        assert (incident["attempt"], incident["outcome"]) == (1, "resumed")
        assert incident["last_step"] == last
        assert is_newest(step_of(incident["resumed_from"]["path"]), last)
        assert after.query("SELECT fault FROM incidents") == [("host_lost",)]
        assert after.job("one")["attempt"] == 2


def test_a_fault_of_the_gpu_in_the_kernel_log_ends_the_attempt(home: Night) -> None:
    """Read as an unprivileged user, by the one capability that it has."""
    card = "0000:7f:1f.0"
    home.write(
        home.by_hand("one", "--every-s", "0.05", table=f'gpus = ["{card}"]')
        + "[kernel_log]\naccept_user_records = true\n"
    )
    home.begin()
    home.step("one", 30)
    status = home.box.run(f"cat /proc/{home.shown('MainPID')}/status", check=True).output
    assert re.search(r"^CapEff:\s*0000000400000000$", status, re.MULTILINE), status
    assert not re.search(r"^Uid:\s+0\s", status, re.MULTILINE), status
    record = f"<3>amdgpu {card}: amdgpu: GPU reset begin! test {os.getpid()}"
    home.box.run(f"echo '{record}' >/dev/kmsg", check=True)
    incident = home.resumed("one")
    assert (incident["rule"], incident["outcome"]) == ("gpu_fault", "resumed")
    assert card in incident["message"]
    assert "GPU reset begin" in (home.inside(incident["evidence"]) / "kernel.txt").read_text()


@pytest.mark.train
def test_a_yolo_training_that_is_killed_is_resumed_and_finishes(home: Night, quickest_python: Path) -> None:
    draw = ROOT / "tests/agent/draw_images.py"
    home.box.run(f"cd; {quickest_python} {draw} {HOME}/images 8 64", user=OWNER, timeout_s=180, check=True)
    words = [
        f"{quickest_python.parent}/yolo", "detect", "train", "model=yolov8n.yaml", f"data={HOME}/images/data.yaml",
        "epochs=4", "imgsz=64", "batch=2", "workers=0", "device=cpu", "amp=False", "plots=False",
        f"project={HOME}/runs", "name=one", "exist_ok=True",
    ]  # fmt: skip
    home.write(home.job_of("one", words, f'cwd = "{HOME}"\nconv2d = "unfold"'))
    home.begin()
    pid = home.step("one", 6, limit_s=60)["pid"]
    home.until(lambda: bool(home.proven("one")), 20, "a proven checkpoint")
    home.box.run(f"kill -KILL {pid}", check=True)
    incident = home.resumed("one", limit_s=60)
    assert (incident["rule"], incident["outcome"]) == ("crash", "resumed")
    saved = home.folder / "runs/one/weights"
    # The agent's exact state beside the framework's save of an epoch, which is in half precision.
    step = incident["resumed_from"]["step"]
    assert step in (4, 8, 12)
    assert Path(incident["resumed_from"]["path"]).name == f"step-{step:012d}.pt"
    job = home.phase("one", "finished", limit_s=60)
    assert (job["attempt"], job["step"], job["epoch"]) == (2, 16, 3)
    assert (saved / "last.pt").stat().st_uid == saved.parents[2].stat().st_uid
    assert '"unfold"' in (home.state / "jobs/one/2/run/agent.jsonl").read_text()


def test_a_person_alone_has_the_same_under_their_own_systemd(home: Night) -> None:
    box = home.box
    done = InstalledBox(box=box).setup("--user", user=OWNER)
    assert done.ok, done.output
    box.run(f"loginctl enable-linger {OWNER}", check=True)
    mine = Night(box, user=OWNER)
    manager = f"user@{mine.uid}.service"
    box.until(f"test -S {mine.runtime}/bus")
    mine.write(mine.by_hand("one", *SAVES_WHEN_ASKED))
    try:
        mine.systemctl("daemon-reload")
        mine.systemctl(f"enable --now {UNIT}")
        pid = mine.step("one", 10)["pid"]
        daemon, seen = mine.shown("MainPID"), mine.steps_made("one")[-1]
        assert f"/{manager}/" in mine.shown("ControlGroup", RUN)
        mine.systemctl(f"restart {UNIT}")
        assert mine.shown("MainPID") != daemon
        job = mine.step("one", seen + 10)
        assert (job["attempt"], job["pid"]) == (1, pid)
        box.run(f"systemctl stop {manager}", timeout_s=180, check=True)
        last = mine.steps_made("one")[-1]
        assert (mine.folder / "one" / f"state-{last:06}.safetensors").exists()
        box.run(f"systemctl start {manager}", timeout_s=180, check=True)
        job = mine.step("one", last + 10, attempt=2)
        assert (job["attempt"], job["restarts"]) == (2, 0)
        mine.systemctl(f"stop {UNIT}")
        every_step_is_recorded_once(mine)
    finally:
        box.run(f"loginctl disable-linger {OWNER}; systemctl stop {manager}", timeout_s=180)


def test_a_replay_runs_as_the_owner_in_the_unit_of_the_job_and_nothing_of_it_is_left(home: Night) -> None:
    words = ("--wound", "nan:30", "--steps", "60", "--stuck-when-resumed")
    home.write(home.by_hand("one", *words, table='triage = "auto"\ntriage_limit_s = 4'))
    home.begin()
    folders = home.state / "jobs" / "one"
    home.until((home.folder / "one" / "stuck").exists, 60, "the replay to hang")
    (replay,) = folders.glob("triage-1-*")
    assert home.shown("ActiveState", RUN) == "active"
    assert (replay / "run/shim.json").stat().st_uid == home.uid
    home.phase("one", "finished", limit_s=60)
    incident = home.incident("one")
    assert incident["finding"]["verdict"] == "unknown"
    assert "within the 4 s of the triage" in incident["finding"]["words"]
    home.until(lambda: not list(folders.glob("triage-*")), 10, "the replay's folder to be cleared away")
    assert (folders / "current").readlink() == Path("2")
