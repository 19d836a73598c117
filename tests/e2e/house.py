"""A whole installation in a temporary folder: configuration, daemon as a process of its own, the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from supervisor.control.client import Client, ControlError
from tests.rigs.forked_daemon import ForkedDaemon, is_forkable, run_command, start_daemon
from tests.rigs.laid_code import lay_code

BIN = Path(sys.executable).parent
TRAINING = Path(__file__).with_name("training_by_hand.py")
STOPPING = "daemon.stopping"
"""In the log once a SIGTERM was taken."""
RECORDED_S = 1.0
OUTPUT_READ_S = 10.0
QUERY = """
import json, sqlite3, sys
database = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=60)
print(json.dumps(database.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))
"""
PATIENCE_S = 180.0
"""No wait ends sooner: its limit is for what never comes, and a machine that is shared takes its time."""


class House:
    """One state directory with its daemon; every process that it started is gone when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.state = folder / "state"
        self.daemon: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self.shares_imports = False
        """Whether its daemons and commands are forks of a process with their imports; else each is started itself."""
        self.code_copies: Path | None = None
        """Code that was copied and compiled for trainings before: the first launch of each would make the same."""
        self.log = folder / "daemon.log"
        self.bin = BIN
        self.client = Client(self.state / "control.sock")

    # --- configuration --------------------------------------------------------------------------------------------

    def write(self, text: str, head: str = "") -> None:
        """Write the configuration; `head` adds to [supervisor]. The kernel log is off unless `text` speaks of it.

        Where imports are shared, GPUs are looked for in sysfs alone: each daemon would start rocm-smi, which is Python.
        """
        kernel = "" if "[kernel_log]" in text else "[kernel_log]\nenabled = false\n"
        if self.shares_imports and "[telemetry]" not in text:
            kernel += '[telemetry]\nsources = ["sysfs"]\n'
        supervisor = f'[supervisor]\nstate_dir = "{self.state}"\nlauncher = "direct"\n{head}\n'
        self.config.write_text(f"{supervisor}\n{kernel}\n{text}")

    def by_hand(self, name: str, *options: str, table: str = "", **rules: str) -> str:
        """Return a job of training_by_hand.py; `table` adds to its table, `rules` are tables of rules by name."""
        words = [sys.executable, str(TRAINING), "--folder", str(self.folder / name), *options]
        return self.job_of(name, words, table, **rules)

    def job_of(self, name: str, command: list[str], table: str = "", **rules: str) -> str:
        """Return a job that runs `command`, with limits short enough for a test."""
        text = f"[jobs.{name}]\ncommand = {json.dumps(command)}\n"
        for key, value in (("grace_s", "1"), ("save_s", "5"), ("kill_wait_s", "5")):
            text += "" if f"{key} =" in table else f"{key} = {value}\n"
        text += f"{table}\n"
        rules = {"disk_low": "enabled = false", "host_memory": "enabled = false", **rules}
        return text + "".join(f"[jobs.{name}.rules.{rule}]\n{keys}\n" for rule, keys in rules.items())

    # --- the daemon -----------------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """What starts the daemon."""
        return [str(self.bin / "rocm-supervisord"), "--config", str(self.config)]

    def start(self, *, wait: bool = True, env: dict[str, str] | None = None) -> subprocess.Popen[bytes] | ForkedDaemon:
        """Start the daemon in the foreground of nobody."""
        program, *arguments = self.command()
        self.lay_code()
        with self.log.open("ab") as log:
            if self.shares_imports and is_forkable(env or {}) and program == str(BIN / "rocm-supervisord"):
                self.daemon = start_daemon(arguments, log.fileno(), env=env)
            else:
                self.daemon = subprocess.Popen(
                    [program, *arguments],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env={**os.environ, **(env or {})},
                )
        if wait:
            self.until(lambda: self.status() is not None, 30, "the daemon to answer")
        return self.daemon

    def lay_code(self) -> None:
        """Have the first daemon find the code that trainings run, for a test that starts it otherwise."""
        if self.code_copies is not None and not self.state.exists():
            lay_code(self.code_copies, self.state)

    def run_daemon(self, config: Path) -> tuple[int, str]:
        """Run a daemon that is to end by itself, and return its exit status and what it printed."""
        with tempfile.TemporaryFile() as log:
            status = start_daemon(["--config", str(config)], log.fileno()).wait(PATIENCE_S)
            log.seek(0)
            return status, log.read().decode()

    def stop(self, limit_s: float = PATIENCE_S) -> int:
        """SIGTERM to the daemon; return its exit status."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(limit_s)

    def stop_at_once(self, limit_s: float) -> int:
        """SIGTERM twice: it waits for no training. The second is sent once the first was taken: two merge into one."""
        assert self.daemon is not None
        taken = self.log.read_text().count(STOPPING)
        self.daemon.send_signal(signal.SIGTERM)
        self.until(
            lambda: self.log.read_text().count(STOPPING) > taken, 30, "the daemon to begin its end", daemon=False
        )
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(limit_s)

    def kill(self) -> None:
        """SIGKILL to the daemon alone."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)

    # --- what can be seen from outside ----------------------------------------------------------------------------

    def ctl(self, *words: str, limit_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run supervisorctl; where imports are shared it is a fork, as the daemon is."""
        words = ("--config", str(self.config), *words)
        if self.shares_imports and self.bin == BIN:
            return run_command(words, limit_s)
        command = [str(self.bin / "rocm-supervisorctl"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)

    def status(self) -> dict[str, Any] | None:
        """Return the status without its gauges, which are half of the work; None where the daemon does not answer."""
        try:
            return self.client.get("/v1/status", watched=0)
        except ControlError:
            return None

    def job(self, name: str) -> dict[str, Any]:
        """Return one job's status."""
        status = self.status()
        assert status is not None, self.read_output()
        return next(job for job in status["jobs"] if job["name"] == name)

    def incidents(self, job: str | None = None) -> list[dict[str, Any]]:
        """Return the incidents, oldest first."""
        found: list[dict[str, Any]] = self.client.get("/v1/incidents", job=job)["incidents"]
        return sorted(found, key=lambda item: item["at"])

    def incident(self, job: str) -> dict[str, Any]:
        """Return the one incident that a job had."""
        found = self.incidents(job)
        assert len(found) == 1, (found, self.read_output())
        return found[0]

    def steps_made(self, name: str) -> list[int]:
        """Return the steps in the order in which a training by hand made them, over all its attempts."""
        try:
            lines = (self.folder / name / "steps.log").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [int(line) for line in lines]

    def steps_recorded(self, name: str) -> int:
        """Return how many steps of a job the database holds."""
        found = self.query("SELECT COALESCE(SUM(steps), 0) FROM step_metrics WHERE job = ? AND rank = 0", name)
        return int(found[0][0])

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database as any reader may; a disk that this process serves is asked by another."""
        if not self.state.is_relative_to(self.folder):
            words = [sys.executable, "-c", QUERY, str(self.state / "supervisor.db"), sql, json.dumps(values)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            if done.returncode != 0:
                raise sqlite3.OperationalError(done.stderr)
            return [tuple(row) for row in json.loads(done.stdout)]
        with closing(sqlite3.connect(f"file:{self.state / 'supervisor.db'}?mode=ro", uri=True, timeout=60)) as database:
            return database.execute(sql, values).fetchall()

    def training_pids(self) -> list[int]:
        """Return the pids of every process of every attempt that still runs or stands by, shims first.

        By what they were started with: the file system of the state may be gone.
        """
        folder = re.compile(re.escape(f"{self.state}/jobs/") + r"[^/]+/(?:\d|standby-|triage-)[^/]*")
        shims = [pid for pid, words in _command_lines() if any(map(folder.fullmatch, words))]
        return list(dict.fromkeys(pid for shim in shims for pid in (shim, *_children(shim))))

    # --- waiting --------------------------------------------------------------------------------------------------

    def until(
        self, question: Callable[[], bool], limit_s: float, what: str, *, daemon: bool = True, strictly: bool = False
    ) -> None:
        """Wait until `question` is answered yes, PATIENCE_S or `limit_s` if that is longer.

        With `daemon`, its end is the end of waiting too; with `strictly`, `limit_s` is what is asserted. What has long
        been asked is asked more rarely: to be asked twenty times a second takes a daemon more than all its other work.
        """
        limit_s = limit_s if strictly else max(limit_s, PATIENCE_S)
        began = time.monotonic()  # noqa: TID251 - a test's deadline
        while not question():
            waited_s = time.monotonic() - began  # noqa: TID251 - a test's deadline
            if waited_s > limit_s:
                raise AssertionError(f"waited {limit_s} s for {what}\n{self.read_output()}")
            if daemon and self.daemon is not None and self.daemon.poll() is not None:
                code = self.daemon.returncode
                raise AssertionError(f"the daemon ended with {code} while waiting for {what}\n{self.read_output()}")
            time.sleep(0.05 if strictly else min(0.25, max(0.05, waited_s / 5)))

    def phase(self, name: str, *phases: str, limit_s: float = 30) -> dict[str, Any]:
        """Wait until the job is in one of the phases; return its status then.

        The record follows at the end of a commit, which it is given a second for: not each test has a disk that works.
        """
        self.until(lambda: self.job(name)["phase"] in phases, limit_s, f"{name} to be {' or '.join(phases)}")
        job, end = self.job(name), time.monotonic() + RECORDED_S  # noqa: TID251 - a test's deadline
        while self.recorded_phase(name) not in phases and time.monotonic() < end:  # noqa: TID251 - the same
            time.sleep(0.01)
        return job

    def recorded_phase(self, name: str) -> str | None:
        """Return the phase of a job in the record; None where it has none yet or cannot be read."""
        try:
            found = self.query("SELECT phase FROM jobs WHERE name = ?", name)
        except sqlite3.Error:
            return None
        return found[0][0] if found else None

    def step(self, name: str, step: int, *, attempt: int = 1, limit_s: float = 30) -> dict[str, Any]:
        """Wait until the daemon knows of a step of an attempt, or of one beyond; return the job's status then."""

        def reached() -> bool:
            job = self.job(name)
            return job["attempt"] >= attempt and (job["step"] or 0) >= step

        self.until(reached, limit_s, f"{name} to make step {step} in attempt {attempt}")
        return self.job(name)

    def checkpoints(self, name: str) -> list[dict[str, Any]]:
        """Return the checkpoints as the daemon lists them: who waits for one asks often, which starts no process."""
        found: list[dict[str, Any]] = self.client.get(f"/v1/jobs/{name}/checkpoints")["checkpoints"]
        return found

    def proven(self, name: str) -> list[int | None]:
        """Return the steps of the proven checkpoints."""
        return [report["step"] for report in self.checkpoints(name) if report["verdict"] == "proven"]

    def resumed(self, name: str, *, count: int = 1, limit_s: float = 40) -> dict[str, Any]:
        """Wait until the job had `count` incidents and steps again after the last; return that one."""

        def closed() -> bool:
            found = self.incidents(name)
            return len(found) >= count and all(match["resumed_at"] is not None for match in found)

        self.until(closed, limit_s, f"{name} to step again after {count} incidents")
        return self.incidents(name)[-1]

    def made(self, name: str, step: int, limit_s: float = 20) -> None:
        """Wait until a training by hand made a step, whether a daemon is there or not."""
        self.until(lambda: step in self.steps_made(name), limit_s, f"step {step} to be made", daemon=False)

    def nothing_runs(self, limit_s: float = 20) -> None:
        """Wait until no process of any attempt is left."""
        self.until(lambda: not self.training_pids(), limit_s, "every process of the trainings to be gone", daemon=False)

    def read_output(self) -> str:
        """Return what the daemon logged, and the newest output of each job whose folder does not hang."""
        text = [self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""]
        reading = threading.Thread(target=self._read_outputs, args=(text,), daemon=True)
        reading.start()
        reading.join(OUTPUT_READ_S)
        return "\n".join(text)

    def _read_outputs(self, text: list[str]) -> None:
        for output in sorted(self.state.glob("jobs/*/[0-9]*/run/output.log")):
            with output.open("rb") as file:
                file.seek(max(0, output.stat().st_size - 1500))
                text.append(f"--- {output}\n{file.read().decode(errors='replace')}")

    def leave(self) -> None:
        """End everything that was started here."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill()
        for pid in self.training_pids():
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _command_lines() -> Iterator[tuple[int, set[str]]]:
    """Yield the pid of each process and the words that it was started with."""
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - a path for each takes as long as the rest
        try:
            content = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        yield int(name), set(content.decode(errors="surrogateescape").split("\0"))


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


@contextmanager
def house(folder: Path) -> Iterator[House]:
    """Yield an installation and clear it away."""
    item = House(folder)
    try:
        yield item
    finally:
        item.leave()
