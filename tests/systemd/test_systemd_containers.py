"""A training in a container, by podman without root, under the installed unit: what ends the attempt ends it wholly."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator

import pytest

from supervisor.config.environments import contained, removal
from supervisor.config.settings import EnvironmentSettings
from tests.rigs.installed_box import OWNER, STATE, InstalledBox, installed_box, may_boot

pytestmark = pytest.mark.systemd
IMAGE = "localhost/tiny:1"
NAME = "rocm-supervisor-one-test"
HOME = f"/home/{OWNER}"
UNIT = "rocm-run@one.service"
RUNTIME = "/run/user/1001"
SHOWN = "/opt/shown-only"
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "/run/graph"\n'
PROGRAMS = ("/bin/sh", "/bin/sleep", "/bin/cat", "/usr/bin/id", "/usr/bin/env", "/usr/bin/touch")
TRAINING = """\
trap 'echo saved >>{home}/marks; exit 3' TERM
id -u >{home}/ids; env >{home}/environment
touch {shown}/written 2>/dev/null && echo writable >>{home}/marks
(while :; do echo worker >>{home}/beats; sleep 0.05; done) &
while :; do echo training >>{home}/beats; sleep 0.05; done
"""


def why_not() -> str | None:
    """Return why these tests cannot run here."""
    missing = [tool for tool in ("podman", "crun", "unshare") if shutil.which(tool) is None]
    return may_boot() or (f"not installed: {', '.join(missing)}" if missing else None)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledBox]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    wanted = set(PROGRAMS)
    for program in PROGRAMS:
        printed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        wanted |= {word for word in printed.split() if word.startswith("/")}
    with tarfile.open(folder / "image.tar", "w", dereference=True) as archive:
        for path in sorted(wanted):
            archive.add(os.path.realpath(path), path.lstrip("/"))
    with installed_box(keep={folder: "/opt/image"}) as item:
        # The box's /proc is covered in part, and the kernel gives no user a new one where no whole one is seen.
        item.box.run("mkdir /run/proc; mount -t proc proc /run/proc", check=True)
        item.box.run(f"mkdir -p /run/graph {RUNTIME} {SHOWN}; chown {OWNER} /run/graph {RUNTIME} {SHOWN}", check=True)
        item.box.write(f"{HOME}/.config/containers/storage.conf", STORAGE)
        item.box.run(f"chown -R {OWNER} {HOME}/.config; systemctl start rocm-supervisor.service", check=True)
        assert item.box.run(f"grep {OWNER} /etc/subuid").ok, "the usual case: a user who has further ids"
        # She has the image from a shell of her own, in which podman keeps what runs elsewhere than in a unit.
        imported = shlex.join([*removal(NAME)[:-5], "import", "/opt/image/image.tar", IMAGE])
        item.box.run(imported, user=OWNER, environment={"HOME": HOME, "XDG_RUNTIME_DIR": RUNTIME}, check=True)
        yield item


def command() -> list[str]:
    environment = EnvironmentSettings(image=IMAGE, mounts=[HOME])
    argv = ["/bin/sh", "-c", TRAINING.format(home=HOME, shown=SHOWN)]
    return contained(environment, argv, name=NAME, cwd=HOME, env=["GIVEN"], folders=[f"{SHOWN}:{SHOWN}:ro"])


def begin(item: InstalledBox, number: int, argv: list[str]) -> None:
    script = f"export HOME={HOME} GIVEN=yes SECRET=daemon http_proxy=http://user:secret@proxy; exec {shlex.join(argv)}"
    printed = item.ask(f"print(begin('one', {number}, {script!r}, grace_s=60))")
    assert printed.strip() == f"{STATE}/jobs/one/{number}", printed


def run_to_its_end(item: InstalledBox, number: int, argv: list[str]) -> dict[str, object]:
    begin(item, number, argv)
    item.box.until(f"! systemctl is-active -q {UNIT}", timeout_s=30)
    return dict(json.loads(item.box.read(f"{STATE}/jobs/one/{number}/run/exit.json")))


def beats(item: InstalledBox) -> int:
    return int(item.box.run(f"wc -l <{HOME}/beats", check=True).output)


def assert_ended(item: InstalledBox) -> None:
    """Nothing of the container runs, and no step is made any more."""
    item.box.until(f"! systemctl is-active -q {UNIT}", timeout_s=30)
    made = beats(item)
    time.sleep(0.5)
    assert beats(item) == made, "steps were made after the attempt's end"
    assert item.box.run("pgrep -a 'conmon|podman'; pgrep -a sleep").output == ""


@pytest.fixture
def running(podman: InstalledBox) -> Iterator[InstalledBox]:
    """A training that makes steps in a container, as attempt 1."""
    podman.box.run(f"rm -rf {STATE}/jobs/one/1 {HOME}/beats {HOME}/marks", check=True)
    begin(podman, 1, command())
    try:
        podman.box.until(f"grep -q worker {HOME}/beats", timeout_s=30)
        yield podman
    finally:
        podman.box.run(f"systemctl kill -s KILL {UNIT}; true")
        podman.box.until(f"! systemctl is-active -q {UNIT}", timeout_s=30)
        assert run_to_its_end(podman, 90, removal(NAME))["exit_code"] == 0
        podman.box.run(f"rm -rf {STATE}/jobs/one/90", check=True)


def test_all_of_a_container_is_in_the_cgroup_of_its_attempt(running: InstalledBox) -> None:
    listed = (
        "for pid in $(pgrep 'conmon|podman') $(pgrep -x sh); do echo $(cat /proc/$pid/comm /proc/$pid/cgroup); done"
    )
    rows = [line.split() for line in running.box.run(listed, check=True).output.splitlines()]
    assert sorted(row[0] for row in rows) == ["conmon", "podman", "sh", "sh", "sh"]
    assert {row[-1] for row in rows} == {f"0::/rocm.slice/rocm-runs.slice/{UNIT}"}


def test_a_stop_has_it_saved_once_and_is_how_it_ended(running: InstalledBox) -> None:
    """Podman ends itself by the signal that it cannot pass on any more, where the training has ended before."""
    assert "ended" in running.ask(
        "f = STATE / 'jobs/one/1'\nunits.signal('one', f, signal.SIGTERM)\n"
        "print('ended' if gone('one', f, 60) else 'runs')"
    )
    assert_ended(running)
    assert running.box.read(f"{HOME}/marks").splitlines() == ["saved"]
    ended = json.loads(running.box.read(f"{STATE}/jobs/one/1/run/exit.json"))
    assert ended["exit_code"] == 3 or ended["signal"] == signal.SIGTERM, ended


def test_the_kill_of_the_client_ends_it(running: InstalledBox) -> None:
    running.box.run("kill -9 $(pgrep -x podman)", check=True)
    assert_ended(running)


def test_the_kill_of_the_shim_ends_it(running: InstalledBox) -> None:
    running.box.run(f"kill -9 $(systemctl show -P MainPID {UNIT})", check=True)
    assert_ended(running)


def test_the_kill_of_what_holds_the_container_ends_it(running: InstalledBox) -> None:
    running.box.run("kill -9 $(pgrep -x conmon)", check=True)
    running.box.run(f"systemctl stop {UNIT}", check=True)
    assert_ended(running)


def test_it_outlives_the_daemon_and_ends_with_a_stop_by_the_next(running: InstalledBox) -> None:
    running.box.run("kill -9 $(systemctl show -P MainPID rocm-supervisor.service)", check=True)
    running.box.until("systemctl is-active -q rocm-supervisor.service")
    before = beats(running)
    running.box.until(f"test $(wc -l <{HOME}/beats) -gt {before}")
    running.box.until("test -S /run/rocm-supervisor/control.sock")
    running.ask("units.kill_all('one', STATE / 'jobs/one/1')")
    assert_ended(running)


def test_a_second_container_of_the_job_is_refused_while_the_first_runs(running: InstalledBox) -> None:
    script = f"export HOME={HOME}; exec {shlex.join(command())}"
    printed = running.box.run(script, user=OWNER, environment={"HOME": HOME})
    assert printed.status != 0
    assert "already in use" in printed.output, printed.output


def test_it_is_the_owners_sees_no_secret_and_cannot_write_what_is_only_shown(running: InstalledBox) -> None:
    assert running.box.run(f"stat -c %U {HOME}/beats", check=True).output.strip() == OWNER
    inside = dict(line.partition("=")[::2] for line in running.box.read(f"{HOME}/environment").splitlines())
    assert inside["GIVEN"] == "yes"
    assert "SECRET" not in inside
    assert "http_proxy" not in inside
    assert "marks" not in running.box.run(f"ls {HOME}", check=True).output


def test_an_image_that_is_not_there_is_one_line_and_is_not_fetched(podman: InstalledBox) -> None:
    environment = EnvironmentSettings(image="registry.invalid/absent:1")
    argv = contained(environment, ["true"], name=NAME, cwd="/", env=[], folders=[])
    podman.box.run(f"rm -rf {STATE}/jobs/one/91", check=True)
    assert run_to_its_end(podman, 91, argv)["exit_code"] == 125
    (line,) = podman.box.read(f"{STATE}/jobs/one/91/run/output.log").strip().splitlines()
    assert line == "Error: registry.invalid/absent:1: image not known"
