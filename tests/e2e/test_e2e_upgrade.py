"""The package is upgraded while trainings run: none of them imports anything of the new version, or loses a step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from house import House

from supervisor.runner.code_copy import PARTS
from supervisor.runner.shim_files import VERSION
from tests.rigs.forked_daemon import ForkedDaemon

ROOT = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).with_name("training_with_workers.py")
STANDBY = 'standby = true\nstandby_modules = ["decimal", "fractions"]\n'


class Upgradable(House):
    """An installation whose package a test may replace; what is imported from the later version says so in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.installed, self.witness = folder / "installed", folder / "imported-from-the-new-version"
        for name in ("supervisor", "migrations", "systemd"):
            shutil.copytree(ROOT / name, self.installed / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.witness.touch()
        self.program = self.installed / "rocm-supervisord"
        self.program.write_text("import sys\nfrom supervisor.daemon.main import main\nsys.exit(main())\n")

    def command(self) -> list[str]:
        """What starts the daemon of the installed version."""
        return [sys.executable, str(self.program), "--config", str(self.config)]

    def start(self, *, wait: bool = True, env: dict[str, str] | None = None) -> subprocess.Popen[bytes] | ForkedDaemon:
        """Start the daemon of the version that is installed now."""
        return super().start(wait=wait, env={**(env or {}), "PYTHONPATH": str(self.installed)})

    def upgrade(self) -> None:
        """Replace every file that trainings and shims import, as pip does: each is another file afterwards."""
        line = f"\nwith open({str(self.witness)!r}, 'a') as file:\n    file.write('%s %s\\n' % (__name__, __file__))\n"
        for part in PARTS:
            place = self.installed / "supervisor" / part
            for path in [*place.rglob("*.py")] or [place]:
                new = path.with_suffix(".new")
                new.write_text(path.read_text() + line)
                new.replace(path)

    def strangers(self) -> list[str]:
        """Return what was imported from the new version, but by the daemon itself."""
        return [line for line in self.witness.read_text().splitlines() if not line.startswith("supervisor.")]

    def imported(self) -> list[tuple[str, Path]]:
        """Return who in the training imported which file of the agent."""
        file = self.folder / "one" / "imports.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(line.partition(" ")[0], Path(line.partition(" ")[2])) for line in lines]

    def workers(self) -> int:
        """Return how many loader workers have come so far as to import."""
        return len({who for who, _ in self.imported() if who.startswith("worker")})

    def copies(self) -> list[Path]:
        """Return the copies of the code, the first made first."""
        return sorted((self.state / "code").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def upgradable(tmp_path: Path) -> Iterator[Upgradable]:
    """An installation in a folder of its own; nothing of it runs on after the test."""
    place = Upgradable(tmp_path)
    try:
        yield place
    finally:
        place.leave()


def with_workers(home: House, *options: str, table: str = "") -> str:
    return home.job_of("one", [sys.executable, str(TRAINING), "--folder", str(home.folder / "one"), *options], table)


def more(home: Upgradable, workers: int) -> Callable[[], bool]:
    """Return the question whether so many more workers have imported."""
    wanted = home.workers() + workers
    return lambda: home.workers() >= wanted


def test_an_upgrade_changes_nothing_under_a_running_training_and_a_new_daemon_adopts_it(upgradable: Upgradable) -> None:
    home = upgradable
    home.write(with_workers(home, "--steps", "900"))
    home.start()
    pid = home.step("one", 30)["pid"]
    (old,) = home.copies()
    home.upgrade()
    home.until(more(home, 2), 40, "loader workers after the upgrade")
    home.kill()
    home.until(more(home, 1), 40, "a loader worker without a daemon", daemon=False)
    home.start()
    job = home.step("one", home.steps_made("one")[-1] + 10)
    assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    shim = psutil.Process(pid).parent()
    assert shim is not None
    assert str(old / "runner") in shim.cmdline()
    home.phase("one", "finished", limit_s=60)
    home.until(lambda: home.steps_recorded("one") >= 900, 10, "the steps to be recorded")
    assert home.steps_made("one") == list(range(1, 901))
    assert home.steps_recorded("one") == 900
    assert {path.relative_to(old).parts[0] for _, path in home.imported()} == {"agent"}
    assert home.strangers() == []
    assert home.witness.read_text()  # the daemon imports the new version, and says so: a witness that speaks


def test_the_attempt_after_an_upgrade_runs_the_version_of_its_daemon(upgradable: Upgradable) -> None:
    home = upgradable
    home.write(with_workers(home))
    home.start()
    pid = home.step("one", 30)["pid"]
    (old,) = home.copies()
    home.upgrade()
    os.kill(pid, signal.SIGKILL)
    pid = home.step("one", 1, attempt=2)["pid"]
    assert home.strangers() == []
    home.kill()
    home.start()
    home.step("one", 160, attempt=2)  # much farther than the first: two crashes at one place are given up
    os.kill(pid, signal.SIGKILL)
    home.step("one", 1, attempt=3)
    first, new = home.copies()
    assert first == old
    assert home.strangers() != []
    assert all(Path(line.partition(" ")[2]).resolve().is_relative_to(new) for line in home.strangers())


def test_what_stands_by_is_of_the_version_that_it_was_started_with(upgradable: Upgradable) -> None:
    home = upgradable
    home.write(with_workers(home, table=STANDBY))
    home.start()
    pid = home.step("one", 30)["pid"]
    home.until(lambda: home.job("one")["standby"] == "ready", 40, "something to stand by")
    folder = str(home.state / "jobs" / "one" / "standby-2")
    shim = next(found for found in psutil.process_iter(["cmdline"]) if folder in (found.info["cmdline"] or ()))
    (waiting,) = shim.children()
    home.upgrade()
    os.kill(pid, signal.SIGKILL)
    job = home.step("one", 30, attempt=2)
    assert job["pid"] == waiting.pid
    home.until(more(home, 1), 40, "a loader worker of what stood by")
    assert home.strangers() == []


@pytest.mark.parametrize("version", [0, 2])
def test_a_daemon_that_was_put_back_leaves_alone_what_a_later_one_started(home: House, version: int) -> None:
    """An older record is read; a later one is named, and its training neither judged, ended nor started again."""
    home.write(home.by_hand("one", "--wound", "hang:100", stall="limit_s = 2"))
    home.start()
    home.step("one", 30)
    home.kill()
    record = home.state / "jobs" / "one" / "1" / "launch.json"
    written = record.read_text()
    record.write_text(json.dumps({**json.loads(written), "version": version}))
    home.start()
    if version > VERSION:
        named = f"{record} has version {version}"
        home.until(lambda: any(named in item for item in home.job("one")["degraded"]), 30, "the record to be named")
        home.made("one", 99)
        home.until(lambda: (home.folder / "one" / "steps.log").stat().st_mtime < time.time() - 4, 30, "it to stand")  # noqa: TID251 - that of files
        assert home.incidents("one") == []
        assert (home.job("one")["phase"], home.job("one")["attempt"]) == ("running", 1)
        home.kill()
        record.write_text(written)
        home.start()
    home.resumed("one")
    assert home.incident("one")["rule"] == "stall"


@pytest.mark.parametrize("command", ["stop", "restart"])
def test_what_a_later_version_started_can_be_stopped_although_its_records_cannot_be_read(
    home: House, command: str
) -> None:
    home.write(home.by_hand("one"))
    home.start()
    home.step("one", 30)
    home.kill()
    for name in ("launch.json", "run/shim.json"):
        (home.state / "jobs" / "one" / "1" / name).write_text('{"version": 2}')
    home.start()
    hint = "`supervisorctl stop` ends it"
    home.until(lambda: any(hint in item for item in home.job("one")["degraded"]), 30, "the way out to be named")
    assert home.ctl(command, "one", "--wait").returncode == 0
    if command == "restart":
        home.step("one", 10, attempt=2)
        assert home.incidents("one") == []
    else:
        assert (home.job("one")["phase"], home.job("one")["attempt"]) == ("stopped", 1)
        home.nothing_runs()
