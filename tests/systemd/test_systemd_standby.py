"""An interpreter that stands by in a unit of its own, as the owner, and becomes the attempt where it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rigs.installed_box import OWNER, PYTHON, InstalledBox

pytestmark = pytest.mark.systemd
UNIT = "rocm-supervisor.service"
PROGRAM = """
import getpass, sys, time
(cgroup,) = [line.strip() for line in open("/proc/self/cgroup") if line.startswith("0:")]
print(getpass.getuser(), "fractions" in sys.modules, cgroup, flush=True)
time.sleep(60)
"""
STORY = f"""
from supervisor.runner import standby
from supervisor.runner.attempt_folder import compose_env
from supervisor.runner.code_copy import INSTALLED

def until(question):
    deadline = time.perf_counter() + 60
    while not question() and time.perf_counter() < deadline:
        time.sleep(0.02)
    return bool(question())

argv = [{str(PYTHON)!r}, "-c", {PROGRAM!r}]

def env(number, resume_from):
    folder = STATE / "jobs" / "yolo" / str(number)
    return compose_env(job="yolo", number=number, folder=folder, env={{}}, inherited={{}}, agent=INSTALLED.agent,
                       conv2d="off", agent_settings={{}}, resume_from=resume_from, snapshot_every="0", mean_fault_s=1)

def stand_by(number, before):
    wanted = standby.Wanted(number=number, argv=argv, cwd="/home/ann", env=env(number, "some"), remedies={{}},
                            modules=[("fractions", None)], alone_s=60.0)
    attempt = standby.prepare(STATE, "yolo", wanted, before, (STATE / "jobs").stat().st_gid)
    units.stand_by("yolo", attempt)
    ready = until(lambda: standby.was_ready(attempt) or standby.refused(attempt))
    print(number, "ready", standby.was_ready(attempt), standby.refused(attempt), units.alive("yolo", attempt))
    return attempt

def go(number, before):
    units.signal("yolo", before, signal.SIGQUIT)
    gone("yolo", before)
    prepare(STATE, "yolo", number, argv=argv, cwd="/home/ann", env=env(number, "/a.pt"), grace_s=5, save_s=1,
            group=(STATE / "jobs").stat().st_gid)
    why = standby.go(STATE / "jobs" / "yolo" / str(number))
    folder = STATE / "jobs" / "yolo" / str(number)
    until(lambda: (folder / "run/output.log").read_text().endswith("\\n"))
    print(number, "went", why, units.alive("yolo", folder), (folder / "run/output.log").read_text())
    return folder

first = begin("yolo", 1, "sleep 1000")
second = stand_by(2, first)
second = go(2, first)
third = stand_by(3, second)
third = go(3, second)
print("ended", units.signal("yolo", third, signal.SIGTERM), gone("yolo", third), (third / "run/exit.json").exists())
fourth = stand_by(4, begin("yolo", 5, "sleep 1000"))
units.dismiss("yolo", fourth)
print("dismissed", until(lambda: not standby.waits(fourth)), standby.go(fourth))
"""


@pytest.fixture
def started(installed: InstalledBox) -> Iterator[InstalledBox]:
    """The stand-in runs; afterwards no training and no word is left."""
    installed.box.run(f"systemctl reset-failed; systemctl start {UNIT}", check=True)
    yield installed
    installed.box.run("systemctl kill --signal=KILL 'rocm-run@*.service'; systemctl stop 'rocm-run@*.service'")
    installed.box.run(f"systemctl stop {UNIT}; rm -rf /var/lib/rocm-supervisor/words /var/lib/rocm-supervisor/jobs/*")


def test_it_waits_in_a_unit_next_to_the_attempts_and_is_the_attempt_there(started: InstalledBox) -> None:
    output = [line for line in started.ask(STORY, timeout_s=240).splitlines() if line.strip()]
    cgroup = "0::/rocm.slice/rocm-runs.slice/rocm-run@yolo--standby-{}.service"
    assert output == [
        "2 ready True None False",
        f"2 went None True {OWNER} True {cgroup.format(1)}",
        "3 ready True None False",
        f"3 went None True {OWNER} True {cgroup.format(2)}",
        "ended True True True",
        "4 ready True None False",
        "dismissed True it ended without a reason (killed, or out of memory)",
    ]
    units = "systemctl list-units --no-legend --all 'rocm-run@*--standby-*'"
    started.box.until(f"test $({units} | wc -l) = 0")


def test_it_is_not_used_where_the_jobs_own_unit_is_limited_by_its_owner(started: InstalledBox) -> None:
    """A drop-in of the instance would not hold for the unit beside it."""
    drop_in = "/run/systemd/system/rocm-run@yolo.service.d/limit.conf"
    started.box.write(drop_in, "[Service]\nMemoryHigh=1G\n")
    started.box.run("systemctl daemon-reload", check=True)
    try:
        output = started.ask(STORY.partition("second = stand_by")[0] + "second = stand_by(2, first)\n")
        assert "LaunchError: yolo: rocm-run@yolo.service has drop-ins that" in output
    finally:
        started.box.run(f"rm {drop_in}; systemctl daemon-reload")
