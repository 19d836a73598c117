"""The forks in which `make test` runs tests: each test runs once, none is lost, and no worker fails unnoticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rigs.forked_workers import ALWAYS, Level, may_raise_priorities
from tests.rigs.run_tests import Outcome, Stage, run_stage

BEGIN = """
import os
import subprocess
import time
import warnings
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def note(kind):
    with (HERE / kind).open("a") as file:
        file.write(f"{os.getpid()}\\n")

def wait_for(kind, count):
    deadline = time.monotonic() + 60
    while not (HERE / kind).exists() or len((HERE / kind).read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)

note("imported")
"""


@pytest.fixture(autouse=True)
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def run(folder: Path, text: str, workers: int = 3, *more: str) -> Outcome:
    path = folder / "test_some.py"
    path.write_text(BEGIN + text)
    words = [str(path), "-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider", *more]
    return run_stage(Stage("parallel", "not alone", workers), [*words, f"--basetemp={folder}/tmp"])


def noted(folder: Path, kind: str) -> list[str]:
    return (folder / kind).read_text().split()


def test_a_file_is_imported_once_and_every_test_runs_once_in_a_fork(tmp_path: Path) -> None:
    text = """
@pytest.mark.parametrize("number", range(40))
def test_unit(number, tmp_path):
    note("unit")
    assert tmp_path.parent.name == "popen-" + os.environ["PYTEST_XDIST_WORKER"]

@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_slow(number):
    note("slow")
    wait_for("slow", 3)
"""
    ran = run(tmp_path, text)
    assert ran.ok
    assert ran.counts["passed"] == 43 == len(ran.seconds)
    assert len(noted(tmp_path, "unit")) == 40
    assert len(set(noted(tmp_path, "slow"))) == 3
    assert len(noted(tmp_path, "imported")) == 1
    assert noted(tmp_path, "imported")[0] not in noted(tmp_path, "unit")


def test_no_test_waits_behind_a_long_one(tmp_path: Path) -> None:
    text = """
@pytest.mark.slow
@pytest.mark.long
def test_long():
    note("begun")
    wait_for("begun", 8)

@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_short(number): note("begun")
"""
    assert run(tmp_path, text, workers=2).counts["passed"] == 8


def test_two_tests_more_than_there_are_cores_run_at_once_however_busy_these_are(tmp_path: Path) -> None:
    count = len(os.sched_getaffinity(0)) + 2
    text = f"""
@pytest.mark.slow
@pytest.mark.parametrize("number", range({count}))
def test_busy(number):
    note("begun")
    while len((HERE / "begun").read_text().split()) < {count}: pass
"""
    assert run(tmp_path, text, count).counts["passed"] == count


def test_where_cores_are_idle_after_a_burst_one_more_than_run_may_run_at_once() -> None:
    level = Level(16 + len(os.sched_getaffinity(0)))
    least = level.shares
    for running in range(least, least + 9):
        level.follow(1.0, running)
        assert level.shares == running + 1
    for _ in range(20):
        level.follow(0.0, least + 9)
    assert level.shares == least == level.cores + ALWAYS
    level.follow(0.1, least + 9)
    level.follow(1.0, least - 1)
    assert level.shares == least, "neither idle enough, nor because too few may run"
    level.follow(1.0, least + 9)
    assert level.shares == least + 10
    for running in (least + 16, least + 18):
        level.follow(1.0, running)
        assert level.shares == 16 + level.cores, "never more than at most"


def test_a_worker_that_ends_has_failed_its_test_and_another_one_runs_the_rest(tmp_path: Path) -> None:
    text = """
@pytest.mark.parametrize("number", range(20))
def test_unit(number):
    if number == 3:
        os.kill(os.getpid(), 9)

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(4))
def test_shared(number):
    note("shared")
    if number == 1:
        os._exit(0)
"""
    ran = run(tmp_path, text)
    assert not ran.ok
    assert ran.counts["passed"] == 22
    reasons = {name.rpartition("::")[2]: reason for name, reason in ran.failed.items()}
    assert set(reasons) == {"test_unit[3]", "test_shared[1]"}
    assert "ended with status -9 while it ran" in reasons["test_unit[3]"]
    assert "ended with status 0 while it ran" in reasons["test_shared[1]"]
    assert len(noted(tmp_path, "shared")) == 4


def test_where_one_worker_after_another_ends_the_stage_does(tmp_path: Path) -> None:
    ran = run(tmp_path, "@pytest.mark.parametrize('number', range(60))\ndef test_dies(number): os._exit(1)\n")
    assert not ran.ended
    assert len(ran.failed) < 60


def test_a_test_whose_report_is_lost_fails_the_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = """
def test_silences_its_worker(request):
    plugins = request.config.pluginmanager
    plugins.unregister(next(plugin for plugin in plugins.get_plugins() if type(plugin).__name__ == "Reporter"))

@pytest.mark.slow
def test_other(): pass
"""
    ran = run(tmp_path, text, workers=2)
    assert not ran.ended
    assert "1 tests were not reported: " in "".join(capfd.readouterr())


SHARED = """
@pytest.fixture(scope="session", autouse=True)
def of_the_session():
    note("began session")
    yield
    note("ended session")

@pytest.fixture(scope="module", autouse=True)
def of_the_module():
    yield
    note("ended module")

@pytest.mark.parametrize("number", range(30))
def test_unit(number): pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_slow(number): pass
"""


def test_each_worker_tears_down_what_it_has_set_up(tmp_path: Path) -> None:
    assert run(tmp_path, SHARED).ok
    assert sorted(noted(tmp_path, "ended session")) == sorted(noted(tmp_path, "began session"))
    assert len(set(noted(tmp_path, "began session"))) <= 3
    assert set(noted(tmp_path, "ended module")) == set(noted(tmp_path, "began session"))


def test_a_worker_goes_on_with_the_file_whose_fixtures_it_has(tmp_path: Path) -> None:
    text = """
@pytest.fixture(scope="module", autouse=True)
def of_the_module(): note("began module")

@pytest.mark.slow
@pytest.mark.MARK
@pytest.mark.parametrize("number", range(12))
def test_some(number): note("ran")
"""
    (tmp_path / "test_other.py").write_text(BEGIN + text.replace("MARK", "waits"))  # which are spread among the others
    ran = run(tmp_path, text.replace("MARK", "slow"), 2, str(tmp_path / "test_other.py"))
    assert ran.counts["passed"] == 24
    assert len(noted(tmp_path, "began module")) <= 6


def test_what_a_test_has_written_is_kept_where_it_has_failed(tmp_path: Path) -> None:
    text = """
@pytest.mark.parametrize("number", range(3))
def test_writes(number, tmp_path):
    (tmp_path / f"written-{number}").touch()
    assert number != 1
"""
    assert run(tmp_path, text).counts["passed"] == 2
    assert [path.name for path in (tmp_path / "tmp").rglob("written-*")] == ["written-1"]


def test_what_is_to_be_done_at_the_end_of_the_run_is_no_workers(tmp_path: Path) -> None:
    text = """
import atexit

atexit.register(note, "end of the run")

@pytest.mark.parametrize("number", range(2))
def test_unit(number): atexit.register(note, "end of a worker")
"""
    assert run(tmp_path, text).counts["passed"] == 2
    assert noted(tmp_path, "end of the run") == noted(tmp_path, "imported")
    assert len(noted(tmp_path, "end of a worker")) == 2


def test_a_tear_down_that_fails_at_the_end_of_a_worker_fails_the_stage(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = run(tmp_path, SHARED.replace('note("ended session")', 'raise OSError("no disk")'), workers=1)
    assert not ran.ok
    output = "".join(capfd.readouterr())
    assert "OSError: no disk" in output
    assert "workers that failed when they ended: gw0 with status 1" in output


def test_what_a_test_printed_and_was_warned_of_is_in_its_report_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_prints(number):
    print(f"number {number} of python")
    os.system(f"echo number {number} of a shell")
    warnings.warn(f"number {number} is old", DeprecationWarning)
    note("printed")
    assert number % 3
"""
    ran = run(tmp_path, text)
    assert len(ran.failed) == 2
    output = capfd.readouterr().out
    for number in range(6):
        shown = 0 if number % 3 else 1
        assert (
            output.count(f"\nnumber {number} of python\n") == output.count(f"\nnumber {number} of a shell\n") == shown
        )
        assert output.count(f"DeprecationWarning: number {number} is old") == 1


@pytest.mark.parametrize("ending", ["pytest.exit('no more', 3)", "raise KeyboardInterrupt"])
def test_a_test_that_ends_pytest_ends_the_stage(tmp_path: Path, ending: str) -> None:
    text = f"@pytest.mark.slow\ndef test_ends(): {ending}\n\n@pytest.mark.slow\ndef test_other(): pass\n"
    assert not run(tmp_path, text, 1).ended


def test_after_the_first_failure_nothing_is_begun_where_pytest_was_asked_to_stop(tmp_path: Path) -> None:
    text = """
@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_wrong(number): raise AssertionError
"""
    ran = run(tmp_path, text, 2, "-x")
    assert not ran.ok
    assert 1 <= len(ran.failed) < 10


@pytest.mark.alone(reason="what has the lowest priority runs where nothing else does")
def test_what_fills_has_the_lowest_priority_until_the_other_tests_are_finished(tmp_path: Path) -> None:
    text = """
@pytest.mark.fills
@pytest.mark.slow
def test_starts():
    with subprocess.Popen(["sleep", "99"]) as process:
        assert [priority(pid) for pid in (0, process.pid)] == [LOW] * 2
        note("filled")
        wait_for("begun", 4)
        wait_for_priority(process.pid)
        process.kill()

@pytest.mark.fills
@pytest.mark.parametrize("number", range(20))
def test_fills(number):
    wait_for("begun", 4)
    wait_for_priority(0)

def wait_for_priority(pid):
    deadline = time.monotonic() + 60
    while priority(pid) != (0, os.SCHED_OTHER):
        assert time.monotonic() < deadline
        time.sleep(0.01)

def priority(pid):
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)

@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_other(number):
    assert (os.nice(0), os.sched_getscheduler(0)) == (0, os.SCHED_OTHER)
    wait_for("filled", 1)
    note("begun")
"""
    low = "(19, os.SCHED_IDLE)" if may_raise_priorities() else "(0, os.SCHED_OTHER)"
    ran = run(tmp_path, text.replace("LOW", low), 4)
    assert ran.counts["passed"] == 25, ran.failed
    assert not set(noted(tmp_path, "filled")) & set(noted(tmp_path, "begun"))


def test_all_workers_share_the_imports_of_daemons_and_commands(tmp_path: Path) -> None:
    """Each would take 0.7 s of processor time once more."""
    text = """
from tests.rigs import forked_daemon

forked_daemon.share()
forked_daemon.share(forked_daemon.COMMAND)

@pytest.mark.slow
def test_calls():
    good, wrong = (forked_daemon.run_command([word], 60) for word in ("--version", "--no-such-option"))
    assert (good.returncode, good.stdout.split()[0], good.stderr) == (0, "rocm-supervisor", "")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--no-such-option" in wrong.stderr
    both = forked_daemon.DAEMON, forked_daemon.COMMAND
    assert list(forked_daemon._prepared) == [(os.getppid(), program) for program in both], "none of its own"

@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_starts(number):
    with (HERE / f"log{number}").open("wb") as log:
        daemon = forked_daemon.start_daemon(["--version"], log.fileno())
    status = int(Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert daemon.wait(60) == 0
    assert "rocm-supervisord" in (HERE / f"log{number}").read_text()
    with (HERE / "servers").open("a") as file:
        file.write(f"{status}\\n")
    note("begun")
    wait_for("begun", 2)
"""
    ran = run(tmp_path, text)
    assert ran.counts.get("passed") == 5, ran.failed
    assert len(set(noted(tmp_path, "begun"))) > 1
    assert len(set(noted(tmp_path, "servers"))) == 1
