"""The file system of the configuration hangs: jobs are judged as before, and whoever needs it says what hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

from tests.rigs.hanging_fs import HangingFs

pytestmark = [pytest.mark.mounts, pytest.mark.slow, pytest.mark.calm(reason="mostly waits for what hangs")]
STATUS_S = 1.0
RELOAD_S = 10.0


@pytest.fixture
def home(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[House]:
    """An installation whose configuration alone lies on that file system."""
    (tmp_path / "house").mkdir()
    with house(tmp_path / "house") as item:
        item.shares_imports, item.code_copies, item.config = True, code_copies, far.at / "config.toml"
        item.write(item.by_hand("one", "--wound", "hang:60", stall="limit_s = 3"))
        yield item
        far.end()


def refused(home: House) -> str:
    """Ask for a reload, and return why it is refused."""
    began_s = time.perf_counter()
    (problem,) = home.client.post("/v1/reload")["problems"]
    assert time.perf_counter() - began_s < RELOAD_S
    return str(problem)


def test_a_reload_says_what_hangs_and_jobs_are_judged_meanwhile(home: House, far: HangingFs) -> None:
    daemon = home.start()
    home.step("one", 5)
    far.hang()
    daemon.send_signal(signal.SIGHUP)
    until_s = time.perf_counter() + 3
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        assert home.status() is not None, home.read_output()
        assert time.perf_counter() - began_s < STATUS_S
        time.sleep(0.05)
    assert f"{far.at} does not answer" in refused(home)
    assert home.resumed("one")["rule"] == "stall"
    status = home.status()
    assert status is not None
    assert "does not answer" in status["daemon"]["problem"]
    far.go_on()
    assert home.client.post("/v1/reload")["problems"] == []


def hang_up_early(home: House, pid: int) -> None:
    """Ask a daemon that still reads its configuration to reload it, once it takes the signal."""

    def is_taken() -> bool:
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return bool(int(lines["SigCgt"], 16) & 1 << (signal.SIGHUP - 1))

    home.until(is_taken, 30, "the daemon to take SIGHUP")
    os.kill(pid, signal.SIGHUP)


def test_a_start_meanwhile_runs_with_what_was_last_in_force_or_ends_to_be_tried_again(
    home: House, far: HangingFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.start()
    home.step("one", 5)
    home.kill()
    far.hang()
    ended = home.start(wait=False)
    hang_up_early(home, ended.pid)
    assert ended.wait(60) == 69
    assert f"{far.at} does not answer" in home.log.read_text()
    monkeypatch.setenv("STATE_DIRECTORY", str(home.state))
    home.start()
    status = home.status()
    assert status is not None
    assert "running with the configuration that was last in force" in status["daemon"]["problem"]
    assert home.resumed("one")["rule"] == "stall"


@pytest.fixture
def fragment(home_of_fragment: House) -> House:
    """An installation of whose configuration a file in `conf.d` alone lies on that file system; its daemon runs."""
    home_of_fragment.start()
    home_of_fragment.step("one", 2)
    return home_of_fragment


@pytest.fixture
def home_of_fragment(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[House]:
    (tmp_path / "house/conf.d").mkdir(parents=True)
    with house(tmp_path / "house") as item:
        item.shares_imports, item.code_copies = True, code_copies
        item.write("")
        (far.at / "one.toml").write_text(item.by_hand("one"))
        (tmp_path / "house/conf.d/one.toml").symlink_to(far.at / "one.toml")
        yield item
        far.end()


def run_command(home: House, *words: str) -> tuple[int, str]:
    """Run supervisorctl; return its exit status and what it wrote, which takes bounded time."""
    began_s = time.perf_counter()
    done = home.ctl(*words)
    assert time.perf_counter() - began_s < RELOAD_S
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("beyond_sigkill", [False, True])
def test_a_command_says_that_a_fragment_hangs_or_needs_it_not(
    fragment: House, far: HangingFs, monkeypatch: pytest.MonkeyPatch, *, beyond_sigkill: bool
) -> None:
    far.hang(beyond_sigkill=beyond_sigkill)
    assert f"{far.at} does not answer" in refused(fragment)
    code, text = run_command(fragment, "config", "check")
    assert (code, f"{far.at} does not answer" in text) == (1, True), text
    code, text = run_command(fragment, "config", "check", str(fragment.config))
    assert (code, f"{far.at} does not answer" in text) == (1, True), text
    code, text = run_command(fragment, "status")
    assert (code, f"{fragment.config}, or conf.d next to it, does not answer" in text) == (1, True), text
    assert "--socket or ROCM_SUPERVISOR_SOCKET" in text
    code, text = run_command(fragment, "doctor")
    assert f"{far.at} does not answer" in text, text
    code, text = run_command(fragment, "--socket", fragment.client.path, "status")
    assert (code, "one" in text) == (0, True), text
    monkeypatch.setenv("ROCM_SUPERVISOR_SOCKET", fragment.client.path)
    assert run_command(fragment, "status")[0] == 0
    fragment.kill()
    code, text = run_command(fragment, "history")
    assert (code, f"{fragment.config}, or conf.d next to it, does not answer" in text) == (1, True), text


def test_the_users_daemon_is_found_while_their_configuration_hangs(
    fragment: House, far: HangingFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own/.config/rocm-supervisor"
    own.parent.mkdir(parents=True)
    own.symlink_to(far.at)
    (far.at / "config.toml").write_text(fragment.config.read_text())
    (tmp_path / "run/rocm-supervisor").mkdir(parents=True)
    (tmp_path / "run/rocm-supervisor/control.sock").symlink_to(fragment.client.path)
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    far.hang()
    began_s = time.perf_counter()
    command = [str(fragment.bin / "rocm-supervisorctl"), "status"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert time.perf_counter() - began_s < RELOAD_S
    assert (done.returncode, "one" in done.stdout) == (0, True), done.stderr
