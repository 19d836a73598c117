"""A stand-in for the daemon, in the real unit and sandbox: what it can do, what it cannot, and what outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.control.control_socket import RESTART_BOTH
from tests.rigs.installed_box import OWNER, InstalledBox, installed_box, may_boot

pytestmark = pytest.mark.systemd
UNIT = "rocm-supervisor.service"
SLEEP = "echo $$ >/home/ann/pid; sleep 1000"


@pytest.fixture
def started(installed: InstalledBox) -> Iterator[InstalledBox]:
    """The stand-in runs; afterwards no training and no word is left."""
    installed.box.run(f"systemctl reset-failed; systemctl start {UNIT}", check=True)
    yield installed
    installed.box.run("systemctl kill --signal=KILL 'rocm-run@*.service'; systemctl stop 'rocm-run@*.service'")
    installed.box.run(f"systemctl stop {UNIT}; rm -rf /var/lib/rocm-supervisor/words /var/lib/rocm-supervisor/jobs/*")


def main_pid(installed: InstalledBox, unit: str = UNIT) -> str:
    return installed.box.run(f"systemctl show --value -p MainPID {unit}", check=True).output.strip()


def test_the_sandboxed_daemon_reads_what_it_judges_by(started: InstalledBox) -> None:
    """The kernel log, the cards in /sys, and the processes of other users."""
    report = started.ask(
        "log = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK); print(os.read(log, 8192).count(b';'))\n"
        "print(len(os.listdir('/sys/class')) > 0)\n"
        "print(Path('/proc/1/comm').read_text().strip(), 'State:' in Path('/proc/1/status').read_text())\n"
        "print(os.statvfs('/home/ann').f_blocks > 0)\n"
    )
    first, *rest = report.splitlines()
    assert int(first) >= 1
    assert rest == ["True", "systemd True", "True"]


def test_the_sandbox_lets_children_begin_apart_from_the_daemons_files(started: InstalledBox) -> None:
    report = started.ask("from supervisor.children.keeper import Keeper; Keeper(); print('apart')")
    assert report.strip() == "apart"


@pytest.mark.parametrize(
    "attack",
    [
        "open('/etc/rocm-supervisor/config.toml', 'a')",
        "open('/etc/shadow')",
        "open('/home/ann/x', 'w')",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "open('/dev/kmsg', 'w')",
        "os.mknod('/var/lib/rocm-supervisor/null', 0o20666, os.makedev(1, 3))",
        "os.chmod('/var/lib/rocm-supervisor/words', 0o6755)",
        "os.kill(1, 0)",
        "os.setuid(0)",
        "import ctypes; assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0, 'refused'",
    ],
)
def test_the_sandbox_refuses_what_the_daemon_never_needs(started: InstalledBox, attack: str) -> None:
    assert "Error" in started.ask(attack).splitlines()[-1]


def test_a_program_that_is_sent_alerts_runs_in_the_sandbox_of_the_daemon(started: InstalledBox) -> None:
    """What config.toml says of `kind = "command"`: what such a program can do there, and what fails."""
    report = started.ask(
        "import subprocess\n"
        "def run(line):\n"
        "    shell = ['/bin/sh', '-c', line]\n"
        "    return subprocess.run(shell, input=b'{}', capture_output=True, check=False).returncode\n"
        "print(run('test \"$(cat)\" = \"{}\"'), run('echo paged >/tmp/page && cat /tmp/page'))\n"
        "print(run('echo paged >/var/lib/rocm-supervisor/page && rm /var/lib/rocm-supervisor/page'))\n"
        "print(run('grep -q \"^NoNewPrivs:.*1\" /proc/self/status'))\n"
        "print(run('python3 -c \"import socket; socket.socket(socket.AF_INET)\"'))\n"
        "print(run('echo paged >/home/ann/page') > 0, run('echo paged >/var/log/page') > 0)\n"
        "print(run('python3 -c \"import mmap; mmap.mmap(-1, 4096, prot=7)\"') > 0)\n"
        "print(run('python3 -c \"import os; os.nice(1)\"') > 0)\n"
    )
    assert report.split() == ["0", "0", "0", "0", "0", "True", "True", "True", "True"]


@pytest.mark.parametrize("slot", ["yolo", "night_run-2", "yolo--prove"])
def test_a_training_runs_as_its_owner_in_a_cgroup_of_its_own(started: InstalledBox, slot: str) -> None:
    report = started.ask(
        f"folder = begin({slot!r}, 1, 'id -un; grep ^0: /proc/self/cgroup; umask')\n"
        f"print(gone({slot!r}, folder), (folder / 'run/exit.json').exists())\n"
        "print((folder / 'run/output.log').read_text())"
    )
    cgroup = f"0::/rocm.slice/rocm-runs.slice/rocm-run@{slot}.service"
    assert report.split() == ["True", "True", OWNER, cgroup, "0022"]


def test_a_training_outlives_restart_and_sudden_death_of_the_daemon(started: InstalledBox) -> None:
    report = started.ask(f"folder = begin('yolo', 1, {SLEEP!r}); print(read_shim(folder).pid, folder)")
    shim, folder = report.split()
    for end in (f"systemctl restart {UNIT}", f"systemctl kill --signal=KILL {UNIT}"):
        before = main_pid(started)
        started.box.run(end, check=True)
        started.box.until(f"systemctl is-active {UNIT} && test $(systemctl show --value -p MainPID {UNIT}) != {before}")
        assert main_pid(started, "rocm-run@yolo.service") == shim
        assert started.ask(f"print(units.alive('yolo', Path({folder!r})))").strip() == "True"
    ending = f"folder = Path({folder!r}); print(units.signal('yolo', folder, signal.SIGTERM), gone('yolo', folder))"
    assert started.ask(ending).split() == ["True", "True"]


@pytest.mark.alone(reason="its watchdog has 1 s")
def test_a_hung_daemon_is_restarted_and_costs_the_training_nothing(started: InstalledBox) -> None:
    started.box.write("/run/systemd/system/rocm-supervisor.service.d/impatient.conf", IMPATIENT)
    started.box.run(f"systemctl daemon-reload; systemctl restart {UNIT}", check=True)
    try:
        shim = started.ask(f"folder = begin('yolo', 1, {SLEEP!r}); print(read_shim(folder).pid)").strip()
        before = main_pid(started)
        report = started.ask("time.sleep(60)")
        assert report == ""
        started.box.until(f"systemctl is-active {UNIT} && test $(systemctl show --value -p NRestarts {UNIT}) -ge 1")
        assert main_pid(started) != before
        assert main_pid(started, "rocm-run@yolo.service") == shim
    finally:
        started.box.run("rm /run/systemd/system/rocm-supervisor.service.d/impatient.conf; systemctl daemon-reload")


IMPATIENT = """\
[Service]
WatchdogSec=1
RestartSec=0
LimitCORE=0
"""


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (f"systemctl restart {UNIT}", ["start", "stop for a restart", "start"]),
        (f"systemctl try-restart {UNIT}", ["start", "stop for a restart", "start"]),
        (f"systemctl daemon-reexec; systemctl restart {UNIT}", ["start", "stop for a restart", "start"]),
        (f"systemctl stop {UNIT}", ["start", "stop"]),
        ("systemctl isolate box.target", ["start", "stop"]),
    ],
)
def test_the_daemon_knows_a_restart_from_a_stop(started: InstalledBox, order: str, expected: list[str]) -> None:
    started.box.run(order, check=True)
    started.box.until(f"test $(systemctl show --value -p Job {UNIT} | wc -w) = 0")
    assert started.words() == expected


def test_a_kill_that_systemd_makes_up_for_is_a_restart(started: InstalledBox) -> None:
    started.box.run(f"systemctl kill {UNIT}", check=True)
    started.box.until("test $(wc -l </var/lib/rocm-supervisor/words) = 3")
    assert started.words() == ["start", "stop for a restart", "start"]


def test_a_stopped_daemon_ends_its_training_first(started: InstalledBox) -> None:
    started.ask(f"begin('yolo', 1, {SLEEP!r})")
    started.box.run(f"systemctl stop {UNIT}", check=True)
    assert started.words() == ["start", "stop", "yolo ended"]
    assert not started.box.run("systemctl is-active rocm-run@yolo.service").ok


def test_reload_is_reported_to_systemd_and_keeps_the_daemon(started: InstalledBox) -> None:
    drop_in = "/run/systemd/system/rocm-supervisor.service.d/signalled.conf"
    started.box.write(drop_in, SIGNALLED)
    started.box.run("systemctl daemon-reload", check=True)
    try:
        before = main_pid(started)
        started.box.run(f"systemctl reload {UNIT}", check=True)
        started.box.until("grep -q reload /var/lib/rocm-supervisor/words")
        assert main_pid(started) == before
        assert "the stand-in answers" in started.box.run(f"systemctl show -p StatusText {UNIT}").output
    finally:
        started.box.run(f"rm {drop_in}; systemctl daemon-reload")


SIGNALLED = """\
[Service]
ExecReload=
# supervisorctl, which the unit has ask for it, finds no route at the stand-in.
ExecReload=kill -HUP $MAINPID
"""


def test_a_question_waits_over_a_restart(started: InstalledBox) -> None:
    """The socket is systemd's: between two daemons it queues callers instead of refusing them."""
    before = main_pid(started)
    started.box.run(f"systemctl restart --no-block {UNIT}", check=True)
    answers = {started.ask("print(os.getpid())").strip() for _ in range(10)}
    assert answers - {before}
    assert "" not in answers


def test_a_question_does_not_wake_a_daemon_that_somebody_stopped(started: InstalledBox) -> None:
    started.box.run(f"systemctl stop {UNIT}", check=True)
    started.box.until("! systemctl is-active rocm-supervisor.socket")
    refused = started.box.run("test -e /run/rocm-supervisor/control.sock")
    assert not refused.ok
    assert not started.box.run(f"systemctl is-active {UNIT}").ok


def test_a_control_socket_that_was_cleared_away_is_made_again_by_a_restart_of_both_units_and_trainings_go_on(
    started: InstalledBox,
) -> None:
    """The daemon may not bind it: the folder is root's."""
    at = "/run/rocm-supervisor/control.sock"
    shim = started.ask("folder = begin('one', 1, 'sleep 100'); print(read_shim(folder).pid)").strip()
    started.box.run(f"rm {at}", check=True)
    started.box.run(RESTART_BOTH, check=True)
    started.box.until(f"test -S {at}")
    assert started.ask("print(os.getpid())").strip() == main_pid(started)
    assert started.box.run(f"kill -0 {shim}").ok


def test_only_the_group_may_talk_to_the_daemon(started: InstalledBox) -> None:
    stat = started.box.run("stat -c '%a %G' /run/rocm-supervisor/control.sock /run/rocm-supervisor", check=True)
    assert stat.output.split() == ["660", "rocm-supervisor", "750", "rocm-supervisor"]
    connect = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/run/rocm-supervisor/control.sock\")'"
    assert started.box.run(connect, user=OWNER).ok
    assert "PermissionError" in started.box.run(connect, user="bob").output


def test_at_shutdown_the_daemon_ends_first_and_can_still_end_its_training(tmp_path: Path) -> None:
    """Bus and polkit are still there, the unit is not stopped under its feet, and nothing waits for a limit."""
    reason = may_boot()
    if reason:
        pytest.skip(reason)
    tmp_path.chmod(0o777)
    with installed_box(keep={tmp_path: "/srv/kept"}) as item:
        drop_in = "[Service]\nReadWritePaths=/srv/kept\nEnvironment=WORDS=/srv/kept/words\n"
        item.box.write("/etc/systemd/system/rocm-supervisor.service.d/words.conf", drop_in)
        item.box.run(f"systemctl daemon-reload; systemctl start {UNIT}", check=True)
        item.ask("begin('yolo', 1, 'trap \"echo told >/srv/kept/training; exit 0\" TERM; sleep 1000 & wait')")
        item.box.goes_down("systemctl reboot", timeout_s=120)
    words = [line.partition(" ")[2] for line in (tmp_path / "words").read_text().splitlines()]
    assert words == ["start", "stop", "yolo ended"]
    assert (tmp_path / "training").read_text() == "told\n"
