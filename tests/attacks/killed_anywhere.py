"""Kills daemon, shim or training at a system call drawn by chance, and looks whether one training goes on from there.

    python tests/attacks/killed_anywhere.py [--runs 50] [--seed 1]

`strace` is attached to the daemon and everything that it starts, and sends SIGKILL to the process whose thread makes
the N-th call of a kind, while the daemon launches a training, adopts one, has one saved and stopped, or resumes one
that crashed. Then a new daemon is started. One training must run, its steps must follow one another without a gap, and
every one of them must be in the record.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from supervisor.control.client import ControlError  # noqa: E402 (after the path is set)
from tests.e2e.house import TRAINING, House, house  # noqa: E402

PHASES = ("launch", "adoption", "stop", "resume")
CALLS = {
    "openat": 60, "write": 40, "pwrite64": 40, "pread64": 100, "rename": 4, "fdatasync": 10, "fcntl": 40, "close": 60,
    "clone3": 3, "execve": 2, "sendto": 6, "mkdir": 4, "unlink": 3, "flock": 3, "wait4": 3, "poll": 40, "kill": 2,
    "newfstatat": 100, "symlink": 1, "exit_group": 1, "pidfd_open": 2, "futex": 100,
}  # fmt: skip
"""Calls that change something or that a change waits for, and up to which of them a process is killed."""
STRUCK_S = 8.0
SAVE_EVERY = 25
NOTES = Path(tempfile.gettempdir()) / f"killed-{os.getpid()}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """Where SIGKILL comes."""

    phase: str
    call: str
    number: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"at {self.call} number {self.number} during {self.phase}"


def drawn(seed: int, runs: int) -> list[Blow]:
    """Return blows drawn from `seed`; each phase comes as often as the others."""
    chance = random.Random(seed)
    blows = []
    for number in range(runs):
        call = chance.choice(list(CALLS))
        blows.append(Blow(phase=PHASES[number % len(PHASES)], call=call, number=chance.randint(1, CALLS[call])))
    return blows


def strike(home: House, blow: Blow) -> bool:
    """Play the blow in a fresh installation; return whether anybody was killed by it."""
    options = ["--wound", "exit:60"] if blow.phase == "resume" else []
    home.write(home.by_hand("one", *options, "--save-every", str(SAVE_EVERY)))
    home.start()
    if blow.phase == "resume":
        home.step("one", 30)
    elif blow.phase != "launch":
        home.step("one", 60)
    if blow.phase == "adoption":
        home.kill()
        home.start(wait=False)
    assert home.daemon is not None
    before = [home.daemon.pid, *home.training_pids()]
    tracer = attach(before, blow)
    try:
        if blow.phase == "launch":
            ask(home, "restart")
        if blow.phase == "stop":
            ask(home, "stop")
        return waited(lambda: "killed by SIGKILL" in read_output(), STRUCK_S)
    finally:
        tracer.kill()
        tracer.wait()


def attach(pids: list[int], blow: Blow) -> subprocess.Popen[bytes]:
    """Attach strace to processes and to all that they start."""
    words = ["strace", "-f"]
    words += ["-e", f"trace={blow.call}"]
    words += ["-e", f"inject={blow.call}:signal=KILL:when={blow.number}"]
    for pid in pids:
        words += ["-p", str(pid)]
    with NOTES.open("wb") as notes:
        return subprocess.Popen(words, stderr=notes)  # to a file named by -o it would write late


def read_output() -> str:
    """Return what strace wrote."""
    return NOTES.read_text(errors="replace")


def ask(home: House, what: str) -> None:
    """Ask it of a daemon that may be killed over it."""
    try:
        home.client.post(f"/v1/jobs/one/{what}")
    except ControlError:
        return


def waited(question: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `question()` is answered yes; return whether it was."""
    end = time.perf_counter() + limit_s
    while not question():
        if time.perf_counter() > end:
            return False
        time.sleep(0.02)
    return True


def look(home: House, blow: Blow) -> None:
    """Start another daemon and assert that one training goes on and nothing of it is lost."""
    assert home.daemon is not None
    if home.daemon.poll() is None:
        home.daemon.send_signal(signal.SIGKILL)
    home.daemon.wait(10)
    home.start()
    if blow.phase == "stop":
        # A stop that the daemon did not live to record is no stop: either way a start must lead to one training.
        home.until(lambda: home.job("one")["phase"] in {"stopped", "running"}, 60, "the stop to be over, or forgotten")
        if home.job("one")["phase"] == "stopped":
            assert home.training_pids() == [], "it is stopped, and something of it runs"
            ask(home, "start")
    last = (home.steps_made("one") or [0])[-1]
    home.phase("one", "running", limit_s=60)
    home.until(lambda: beyond(home, last), 60, "the training to go on")
    trainings = running_trainings(home)
    assert len(trainings) == 1, f"{len(trainings)} trainings run: {trainings}"
    made = home.steps_made("one")
    for before, after in pairwise(made):
        assert after == before + 1 or before - 2 * SAVE_EVERY <= after <= before, f"step {after} came after {before}"
    home.until(lambda: home.steps_recorded("one") >= len(made), 30, f"{len(made)} steps to be recorded")


def beyond(home: House, last: int) -> bool:
    """Whether steps were made that are new."""
    made = home.steps_made("one")
    return bool(made) and made[-1] > last + 5


def running_trainings(home: House) -> list[int]:
    """Return the processes that run the training itself."""
    found = []
    for pid in home.training_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[1] == str(TRAINING).encode():
            found.append(pid)
    return found


def main() -> int:
    """Strike, look, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended even then
    hit = broken = 0
    for blow in drawn(given.seed, given.runs):
        with tempfile.TemporaryDirectory(prefix="killed-") as folder, house(Path(folder)) as home:
            try:
                struck = strike(home, blow)
                look(home, blow)
            except (AssertionError, ControlError) as error:
                broken += 1
                sys.stdout.write(f"BROKEN {blow}: {str(error)[:1500]}\n")
            else:
                hit += struck
                sys.stdout.write(f"{'killed' if struck else 'not reached'} {blow}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{given.runs} blows, {hit} killed and went on, {broken} broken\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
