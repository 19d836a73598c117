"""Trainings as units: what the launcher says when systemd refuses, and that it finds again what it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.runner.attempt_folder import point
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.launcher import Launcher, LaunchError
from supervisor.runner.units import BOOTED, UnitLauncher, available, unit_of, with_remedy
from tests.rigs.installed_box import OWNER, PYTHON, ROOT, InstalledBox, installed_box, may_boot

SLEEP = "sleep 1000"
DROP_IN = "/etc/systemd/system/rocm-run@.service.d/owner.conf"
OF_A_PERSON = """\
import os, signal, sys, time
from pathlib import Path
from supervisor.runner.attempt_folder import prepare, read_exit, read_shim
from supervisor.core.moments import Moment
from supervisor.runner.units import UnitLauncher, available
state = Path.home() / ".local/state/rocm-supervisor"
reason = available(user=True, state=state)
if reason:
    sys.exit(reason)
units = UnitLauncher(user=True, state=state)
folder = prepare(state, "yolo", 1, argv=["/bin/sh", "-c", "cat /proc/self/cgroup; exec sleep 1000"], cwd="/", env={},
                 grace_s=5, save_s=1, group=None)
units.launch("yolo", folder)
deadline = time.perf_counter() + 60
while not (folder / "run/output.log").read_text() and time.perf_counter() < deadline:
    time.sleep(0.02)
print(units.alive("yolo", folder), units.signal("yolo", folder, signal.SIGTERM))
while units.alive("yolo", folder) and time.perf_counter() < deadline:
    time.sleep(0.02)
print(units.alive("yolo", folder), read_exit(folder, Moment(0, 0)).signal)
print((folder / "run/output.log").read_text())
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[InstalledBox]:
    reason = may_boot()
    if reason:
        pytest.skip(reason)
    with installed_box() as item:
        item.box.run("systemctl start rocm-supervisor.service", check=True)
        yield item


def attempt_of(installed: InstalledBox, slot: str, script: str = SLEEP, number: int = 1) -> str:
    """Have the sandboxed stand-in start an attempt; return its folder, or what the launcher complained."""
    code = f"try:\n    print(begin({slot!r}, {number}, {script!r}))\nexcept LaunchError as error:\n    print(error)"
    return installed.ask(code).strip()


def test_it_is_a_launcher(tmp_path: Path) -> None:
    launcher: Launcher = UnitLauncher(user=False, state=tmp_path)
    assert not launcher.alive("yolo", tmp_path)
    assert not launcher.signal("yolo", tmp_path, 15)


@pytest.mark.parametrize("slot", ["", "../x", "a/b", "-rf", "a b", "a;b", ".hidden", "x\n", "a%b", "a@b"])
def test_a_slot_that_is_no_plain_word_names_no_unit(slot: str) -> None:
    with pytest.raises(LaunchError, match="cannot be part of a unit name"):
        unit_of(slot)


@pytest.mark.parametrize("slot", ["yolo", "yolo--prove", "night_run-2", "0"])
def test_a_unit_is_named_after_its_slot(slot: str) -> None:
    assert unit_of(slot) == f"rocm-run@{slot}.service"


def test_what_systemd_says_comes_with_what_helps() -> None:
    report = with_remedy("Failed to start x: Interactive authentication required.\nSee system logs and so on.")
    assert report.startswith("Failed to start x: Interactive authentication required. (polkit")
    assert "supervisorctl setup" in report
    assert with_remedy("something new") == "something new"


@pytest.mark.parametrize(
    "message",
    [
        "Failed to try-restart rocm-run@a.service: Unit polkit.service is masked.",
        "Failed to try-restart rocm-run@a.service: Unit polkit.service not found.",
        "Failed to start rocm-run@a.service: Activation request for 'org.freedesktop.PolicyKit1' failed.",
    ],
)
def test_where_polkit_does_not_run_it_is_named_and_not_the_unit_that_was_asked_for(message: str) -> None:
    report = with_remedy(message)
    assert "polkit does not run" in report
    assert "rocm-run" not in report.removeprefix(message)


@pytest.mark.skipif(BOOTED.is_dir(), reason="this machine was booted with systemd")
def test_where_no_systemd_runs_units_are_not_available() -> None:
    for user in (False, True):
        assert available(user=user) == "this system was not booted with systemd"


def test_a_folder_that_is_not_the_current_one_is_not_started(tmp_path: Path) -> None:
    """The unit would start another attempt than the one that was asked for."""
    folder = tmp_path / "jobs" / "yolo" / "1"
    folder.mkdir(parents=True)
    with pytest.raises(LaunchError, match="the job's `current` link points elsewhere"):
        UnitLauncher(user=False, state=tmp_path).launch("yolo", folder)


def test_the_unit_of_an_attempt_is_known_while_it_is_the_current_one(tmp_path: Path) -> None:
    first, second = (tmp_path / "jobs" / "yolo" / number for number in "12")
    first.mkdir(parents=True)
    second.mkdir()
    point(first.parent, second)
    launcher = UnitLauncher(user=False, state=tmp_path)
    assert launcher.find_unit("yolo", second) == "rocm-run@yolo.service"
    assert launcher.find_unit("yolo", first) is None
    assert DirectLauncher().find_unit("yolo", second) is None


@pytest.mark.systemd
def test_an_attempt_is_found_signalled_and_gone_again(installed: InstalledBox) -> None:
    folder = attempt_of(installed, "found")
    report = installed.ask(
        f"folder = Path({folder!r})\nagain = UnitLauncher(user=False, state=STATE)\n"
        "print(again.alive('found', folder), again.signal('found', folder, signal.SIGINT), gone('found', folder),"
        " again.signal('found', folder, signal.SIGINT))"
    )
    assert report.split() == ["True", "True", "True", "False"]
    assert '"signal": 15' in installed.box.read(f"{folder}/run/exit.json")


@pytest.mark.systemd
def test_kill_all_takes_processes_of_their_own_session_too(installed: InstalledBox) -> None:
    folder = attempt_of(installed, "killed", "setsid sleep 1000 & trap '' TERM; sleep 1000")
    cgroup = "/sys/fs/cgroup/rocm.slice/rocm-runs.slice/rocm-run@killed.service"
    installed.box.until(f"test $(wc -l <{cgroup}/cgroup.procs) -ge 4")
    report = installed.ask(
        f"folder = Path({folder!r}); units.kill_all('killed', folder); print(gone('killed', folder))"
    )
    assert report.split() == ["True"]
    assert not installed.box.run(f"cat {cgroup}/cgroup.procs | grep .").ok
    assert installed.ask(f"units.kill_all('killed', Path({folder!r})); print('quiet')").strip() == "quiet"


@pytest.mark.systemd
def test_what_a_killed_shim_left_behind_still_counts_as_alive(installed: InstalledBox) -> None:
    """A process in its cgroup that no signal ends keeps the card: here systemd is told not to signal it at all."""
    installed.box.write("/run/systemd/system/rocm-run@left.service.d/leave.conf", "[Service]\nKillMode=none\n")
    installed.box.run("systemctl daemon-reload", check=True)
    folder = attempt_of(installed, "left")
    installed.box.run("systemctl kill --kill-who=main --signal=KILL rocm-run@left.service", check=True)
    installed.box.until("! systemctl is-active rocm-run@left.service")
    alive = f"print(units.alive('left', Path({folder!r})))"
    assert installed.ask(alive).strip() == "True"
    installed.box.run("kill -KILL $(cat /sys/fs/cgroup/rocm.slice/rocm-runs.slice/rocm-run@left.service/cgroup.procs)")
    report = installed.ask(f"print(gone('left', Path({folder!r})))")
    assert report.strip() == "True"


@pytest.mark.systemd
def test_a_second_attempt_of_a_slot_is_refused(installed: InstalledBox) -> None:
    first = attempt_of(installed, "twice")
    assert "an attempt is still running in rocm-run@twice.service" in attempt_of(installed, "twice", number=2)
    # The first one is no longer `current`, but its own shim is what answers for it.
    assert installed.ask(f"print(units.alive('twice', Path({first!r})))").strip() == "True"


@pytest.mark.systemd
def test_a_command_that_cannot_start_is_reported_in_the_shims_own_words(installed: InstalledBox) -> None:
    report = installed.ask(
        "folder = prepare(STATE, 'nocommand', 1, argv=['/no/such'], cwd='/', env={}, grace_s=5, save_s=1,"
        " group=(STATE / 'jobs').stat().st_gid)\n"
        "try:\n    units.launch('nocommand', folder)\nexcept LaunchError as error:\n    print(error)"
    )
    assert report.startswith("nocommand: command '/no/such' of the job: No such file or directory")
    assert "there is no folder /no" in report


@pytest.mark.systemd
def test_a_missing_owner_is_reported_with_the_journals_words(installed: InstalledBox) -> None:
    drop_in = installed.box.read(DROP_IN)
    installed.box.write(DROP_IN, drop_in.replace(OWNER, "carl"))
    installed.box.run("systemctl daemon-reload", check=True)
    try:
        report = attempt_of(installed, "noowner")
    finally:
        installed.box.write(DROP_IN, drop_in)
        installed.box.run("systemctl daemon-reload", check=True)
    assert "status=217/USER" in report
    assert "supervisorctl setup --owner NAME" in report


@pytest.mark.systemd
def test_available_names_what_is_missing(installed: InstalledBox) -> None:
    ask = "print(available(user=False, state=STATE))"
    assert installed.ask(ask).strip() == "None"
    elsewhere = installed.ask("print(available(user=False, state=Path('/srv/state')))")
    assert "rocm-run@.service uses another state directory than /srv/state" in elsewhere
    rule = "/etc/polkit-1/rules.d/50-rocm-supervisor.rules"
    unit = "/etc/systemd/system/rocm-run@.service"
    installed.box.run(f"mv {rule} /root/rule", check=True)
    try:
        refused = "polkit does not allow this user to start the unit: run `supervisorctl setup` as root"
        code = (
            f"for _ in range(100):\n    said = str({ask[6:-1]})\n    if said != 'None': break\n    time.sleep(0.05)\n"
        )
        assert refused in installed.ask(code + "print(said)")  # polkit notices by itself, a moment later
        assert refused in attempt_of(installed, "norule")
    finally:
        installed.box.run(f"mv /root/rule {rule}")
    installed.box.run(f"mv {unit} /root/unit; systemctl daemon-reload", check=True)
    try:
        assert "run `supervisorctl setup` to install the unit" in installed.ask(ask)
    finally:
        installed.box.run(f"mv /root/unit {unit}; systemctl daemon-reload")
    installed.box.until("pkaction >/dev/null")


@pytest.mark.systemd
def test_a_person_runs_trainings_under_their_own_systemd(installed: InstalledBox) -> None:
    box = installed.box
    assert installed.setup("--user", user=OWNER).ok
    box.run(f"systemctl start systemd-logind; loginctl enable-linger {OWNER}; systemctl start user@$(id -u {OWNER})",
            check=True)  # fmt: skip
    uid = box.run(f"id -u {OWNER}", check=True).output.strip()
    theirs = {"HOME": f"/home/{OWNER}", "XDG_RUNTIME_DIR": f"/run/user/{uid}", "PYTHONPATH": str(ROOT)}
    box.run("systemctl --user daemon-reload", user=OWNER, environment=theirs, check=True)
    box.write("/opt/person.py", OF_A_PERSON)
    done = box.run(f"{PYTHON} /opt/person.py", user=OWNER, environment=theirs)
    assert done.ok, done.output
    assert done.output.splitlines()[:2] == ["True True", "False 15"]
    assert f"user@{uid}.service/rocm.slice/rocm-runs.slice/rocm-run@yolo.service" in done.output
