"""Hurts a daemon with three trainings at random for some minutes, and looks afterwards whether anything was lost.

    python tests/attacks/hostile_night.py [--minutes 15] [--seed 1] [--only KIND ...] [--replay SCRIPT] [--steps 4000]

Every few seconds an act of `night_acts.WEIGHTS` is drawn: any process of the daemon's tree or of a training is killed
or frozen, or all of a training's, the daemon is ended (and started again as systemd does, which also ends one whose
watchdog is silent), a file of its state or a checkpoint is damaged, a folder of checkpoints is read-only for a while,
the daemon's small disk or the inodes of it are used up, or a command of the user is given. Then everything that lasts
is undone, jobs that were stopped or given up are started, and all have to come to their end: with steps that follow one
another from a checkpoint, with the losses of an undisturbed run to the last bit, without an exception in the log and
without a process that is left. Exit status 1 where something of that is not so.
Needs root, for the disk, and ROCM_SUPERVISOR_TRAIN_PYTHON. `--replay` performs a script of lines KIND SEED.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(HERE)]

from night_acts import JOBS, WEIGHTS, Acts  # noqa: E402 (after the path is set)

from tests.e2e.house import TRAINING, House, house  # noqa: E402 (the same)

PYTHON = os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON", sys.executable)
WATCHDOG_S = 45.0
RESTART_S = 2.0
PAUSE_S = (3.0, 12.0)
SETTLED_S = 600.0
STARTS = 5
"""How often a job that has ended is started after the night."""
UNENDING = "restarts = 1000000\nrestarts_per_cause = 1000000\nrestarts_per_period = 1000000\nbackoff_s = [0.5]\n"
# Generations are kept where 1000 MB remain free.
MOUNT = ("mount", "-t", "tmpfs", "-o", "size=1200m,nr_inodes=12000", "tmpfs")
EXPECTED = re.compile(r"No space left on device|can't start new thread")
"""What is no fault of the daemon's in its log: it was refused something."""


class Manager(threading.Thread):
    """Starts the daemon again after its end, and ends one that does not answer for its watchdog, as systemd does."""

    def __init__(self, home: House) -> None:
        super().__init__(daemon=True)
        self._home, self._ended = home, threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = str(home.folder / "notify.sock")
        self._socket.bind(self._address)
        self._socket.settimeout(0.5)
        self._answered_at = time.monotonic()  # noqa: TID251 - a watchdog
        self.frozen_until = 0.0
        self.silent = 0

    def begin(self) -> None:
        """Start the daemon."""
        env = {**os.environ, "NOTIFY_SOCKET": self._address, "WATCHDOG_USEC": "30000000"}
        self._home.shares_imports = False
        self._home.start(wait=False, env=env)
        self._answered_at = time.monotonic()  # noqa: TID251 - the same

    def run(self) -> None:
        """Look after it until `end`."""
        while not self._ended.is_set():
            with suppress(TimeoutError):
                self._socket.recv(65536)
                self._answered_at = time.monotonic()  # noqa: TID251 - the same
            daemon = self._home.daemon
            assert daemon is not None
            silent_s = time.monotonic() - max(self._answered_at, self.frozen_until)  # noqa: TID251 - the same
            if daemon.poll() is not None:
                show(f"the daemon ended with {daemon.poll()}")
                if not self._ended.wait(RESTART_S):
                    self.begin()
            elif silent_s > WATCHDOG_S:
                self.silent += 1
                daemon.send_signal(signal.SIGABRT)
                self._answered_at = time.monotonic()  # noqa: TID251 - the same

    def end(self) -> None:
        """Leave the daemon alone."""
        self._ended.set()
        self.join()


def show(text: str) -> None:
    """Print a line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def configure(home: House, steps: int, chance: random.Random | None = None) -> None:
    """Write the configuration of the three trainings, with other limits where `chance` draws them."""

    def train(job: str, *words: str) -> list[str]:
        folder = str(home.folder / job)
        own = [PYTHON, str(HERE / "night_training.py"), "--folder", folder, "--steps", str(steps)]
        return [*own, "--every-s", "0.1", *words]

    resume = json.dumps(train("patterns", "--resume", "{checkpoint}"))
    patterns = f'[jobs.patterns.resume]\ncommand = {resume}\n[jobs.patterns.checkpoints]\npaths = ["'
    tables = {"two_lines": "snapshot_every_s = 5\n", "patterns": f'{patterns}{home.folder}/patterns/state-*.pt"]\n'}
    by_hand = [sys.executable, str(TRAINING), "--folder", str(home.folder / "by_hand"), "--steps", str(steps)]
    commands = {
        "two_lines": train("two_lines", "--two-lines"),
        "patterns": train("patterns"),
        "by_hand": [*by_hand, "--every-s", "0.1", "--save-every", "40"],
    }
    limit_s = 8 if chance is None else chance.randrange(6, 15)
    text = "".join(
        home.job_of(job, command, tables.get(job, ""), stall=f"limit_s = {limit_s}")
        + f"[jobs.{job}.budget]\n{UNENDING}"
        for job, command in commands.items()
    )
    home.write(f'[telemetry]\ninterval_s = {1 + limit_s % 3}\nsources = ["sysfs"]\n{text}')


def play(home: House, acts: Acts, manager: Manager, planned: Iterator[tuple[str, int]], minutes: float) -> None:
    """Perform the acts one after the other, until all trainings have ended or the time is over."""
    end_s = time.monotonic() + 60 * minutes  # noqa: TID251 - a pace
    for kind, seed in planned:
        if time.monotonic() > end_s or all(phase == "finished" for phase in read_phases(home).values()):  # noqa: TID251
            return
        show(f"{kind} {seed}: {acts.perform(kind, seed)}")
        pause_s = random.Random(seed).uniform(*PAUSE_S)
        until_s = time.monotonic() + pause_s  # noqa: TID251 - a pace
        while time.monotonic() < until_s:  # noqa: TID251 - a pace
            manager.frozen_until = acts.frozen_until
            acts.undo()
            time.sleep(0.2)


def read_phases(home: House) -> dict[str, str]:
    """Return the phase of each job; of a daemon that does not answer, that they are not known."""
    status = home.status()
    return dict.fromkeys(JOBS, "unknown") if status is None else {job["name"]: job["phase"] for job in status["jobs"]}


def settle(home: House) -> None:
    """Wait until all jobs have finished; start those that were stopped or given up."""
    end_s, starts = time.monotonic() + SETTLED_S, dict.fromkeys(JOBS, STARTS)  # noqa: TID251 - a limit
    while time.monotonic() < end_s:  # noqa: TID251 - a limit
        phases = read_phases(home)
        if all(phase == "finished" for phase in phases.values()):
            return
        for job, phase in phases.items():
            if phase in ("stopped", "failed") and starts[job] > 0:
                starts[job] -= 1
                show(f"{job} {phase}: {home.job(job)['reason']}")
                home.ctl("start", job)
        time.sleep(2)


def find_breaks(lines: Sequence[str], undisturbed: Mapping[int, str], furthest_back: int) -> Iterator[str]:
    """Yield what is wrong with the log of a training: a gap, another loss, or a start too far back."""
    last, reached = 0, 0
    for line in lines:
        first, _, second = line.partition(" ")
        if first == "start":
            last = int(second)
            if last < reached - furthest_back:
                yield f"started from step {last} after step {reached}"
            continue
        step = int(first)
        if step != last + 1:
            yield f"step {step} came after {last}"
        if second != undisturbed.get(step):
            yield f"step {step} has the loss {second}, not {undisturbed.get(step)}"
        last, reached = step, max(reached, step)


def find_exceptions(log: str) -> dict[str, int]:
    """Return the last lines of the stack traces in the daemon's log, and how often each came."""
    found: dict[str, int] = {}
    for line in log.splitlines():
        trace = re.search(r'exception="(.*?)"?$', line)
        if trace is None and not line.startswith("Traceback"):
            continue
        last = line if trace is None else trace[1].split("\\n")[-1]
        if not EXPECTED.search(last):
            words = re.sub(r"\d+", "N", last)
            found[words] = found.get(words, 0) + 1
    return found


def run_undisturbed(folder: Path, steps: int) -> dict[int, str]:
    """Return the loss of each step of a run that nothing hurts."""
    words = [PYTHON, str(HERE / "night_training.py"), "--folder", str(folder), "--steps", str(steps)]
    subprocess.run(words, check=True, capture_output=True)
    lines = (folder / "steps.log").read_text().splitlines()
    return {int(line.split()[0]): line.split()[1] for line in lines if not line.startswith("start")}


def judge(home: House, undisturbed: Mapping[int, str], steps: int) -> Iterator[str]:
    """Yield what a night has broken."""
    for job, phase in read_phases(home).items():
        if phase != "finished":
            yield f"{job} is {phase}: {home.job(job)['reason'] if phase != 'unknown' else home.read_output()}"
    for job in ("two_lines", "patterns"):
        lines = (home.folder / job / "steps.log").read_text().splitlines()
        yield from (f"{job}: {text}" for text in find_breaks(lines, undisturbed, steps // 8))
    yield from (f"{count} times in the log: {text}" for text, count in find_exceptions(home.log.read_text()).items())


@contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    """Mount a small file system with few inodes."""
    at.mkdir()
    subprocess.run([*MOUNT, str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def plan(seed: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield acts without an end, drawn from `seed`."""
    chance = random.Random(seed)
    while True:
        yield chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0], chance.randrange(1 << 32)


def read_script(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the acts of a script, or of what an earlier night printed; other lines are left out."""
    for line in lines:
        found = re.match(r"(?:[\d:]{8} )?([a-z]+) (\d+)(?::|$)", line)
        if found is not None and found[1] in WEIGHTS:
            yield found[1], int(found[2])


def main() -> int:
    """Play a night, judge it, and print what it has broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--only", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    parser.add_argument("--replay", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended even then
    planned = plan(asked.seed, asked.only) if asked.replay is None else read_script(asked.replay.open())
    with tempfile.TemporaryDirectory(prefix="night-") as name, small_disk(Path(name) / "disk") as disk:
        undisturbed = run_undisturbed(Path(name) / "undisturbed", asked.steps)
        with house(Path(name)) as home:
            home.state = disk / "state"
            home.client.path = str(home.state / "control.sock")
            manager = Manager(home)
            acts = Acts(home, disk, lambda chance: configure(home, asked.steps, chance))
            configure(home, asked.steps)
            manager.begin()
            manager.start()
            home.until(lambda: home.status() is not None, 60, "the daemon to answer")
            try:
                play(home, acts, manager, planned, asked.minutes)
            finally:
                acts.undo(everything=True)
            configure(home, asked.steps)
            settle(home)
            broken = list(judge(home, undisturbed, asked.steps))
            broken += [f"{manager.silent} times the watchdog was silent"] if manager.silent else []
            manager.end()
            home.stop()
            broken += [f"left: {pid}" for pid in home.training_pids()]
    for text in broken:
        show(f"BROKEN {text}")
    show(f"{len(broken)} things broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
