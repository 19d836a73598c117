"""What the benchmark's processes say and take: lines of a clocked training, memory, processor time; waits and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

TRAINING = Path(__file__).with_name("clocked_training.py")
POLL_S = 0.005


class NotMeasuredError(Exception):
    """A figure could not be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a clocked training said."""

    word: str
    pid: int
    monotonic_ns: int
    unix_ns: int
    number: int


class Output:
    """The file that clocked trainings write, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, word: str) -> list[Line]:
        """Return the lines that begin with a word, oldest first."""
        text = self.path.read_text() if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [Line(word, *map(int, item.split()[1:])) for item in whole if item.startswith(f"{word} ")]

    def wait(self, word: str, after: int, limit_s: float) -> Line:
        """Return the first line of a word after the `after` that are known."""
        until(lambda: len(self.lines(word)) > after, limit_s, f"line {after + 1} of {word!r} in {self.path}")
        return self.lines(word)[after]

    def steps_on(self, steps: int, limit_s: float) -> Line:
        """Return the newest step, once the newest process made so many."""

        def made() -> list[Line]:
            began = self.lines("began")
            return [line for line in self.lines("step") if line.pid == began[-1].pid] if began else []

        until(lambda: len(made()) >= steps, limit_s, f"{steps} steps of one process in {self.path}")
        return made()[-1]


def until(question: Callable[[], object], limit_s: float, what: str) -> None:
    """Wait until `question` is answered yes; raise NotMeasuredError at the limit."""
    end_ns = time.monotonic_ns() + int(limit_s * 1e9)
    while not question():
        if time.monotonic_ns() > end_ns:
            raise NotMeasuredError(f"waited {limit_s:g} s for {what}")
        time.sleep(POLL_S)


def crash(output: Output, limit_s: float) -> tuple[float, float]:
    """SIGKILL the newest process; return the seconds until the next one began, and until its first step."""
    began, steps = output.lines("began"), output.lines("step")
    killed_ns = time.monotonic_ns()
    os.kill(began[-1].pid, signal.SIGKILL)
    again = output.wait("began", len(began), limit_s)
    until(lambda: any(line.pid == again.pid for line in output.lines("step")[len(steps) :]), limit_s, "the first step")
    first = next(line for line in output.lines("step") if line.pid == again.pid)
    return (again.monotonic_ns - killed_ns) / 1e9, (first.monotonic_ns - killed_ns) / 1e9


def family(pid: int, without: Iterable[int] = ()) -> list[psutil.Process]:
    """Return a process and what descends from it, without some processes and what descends from those."""
    left_out = set(without)
    own = psutil.Process(pid)
    if pid in left_out:
        return []
    return [own, *(item for child in own.children() for item in family(child.pid, left_out))]


def memory_mb(processes: Iterable[psutil.Process]) -> float:
    """Return the proportional set size of processes together, in MB: what several map is shared out among them."""
    total_kb = 0
    for process in processes:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kb += int(line.split()[1])
    return total_kb * 1024 / 1e6


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the processor seconds of processes, with those of their children that ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


@contextmanager
def running(command: Sequence[str | Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the background; it and all that descends from it are gone afterwards."""
    with (folder / "output.log").open("ab") as log:
        process = subprocess.Popen(
            [str(item) for item in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    except NotMeasuredError as error:
        last = (folder / "output.log").read_text(errors="replace").strip().rpartition("\n")[2]
        raise NotMeasuredError(f"{error}; it said last: {last!r}") from error
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to what is left; psutil's processes are never confused with later ones of the same id."""
    known = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    _kill(known)


def sweep(folder: Path) -> None:
    """SIGKILL to every process whose command line names this run's own folder: launchers that died leave some."""
    own = [
        item
        for item in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in item.info["cmdline"] or ())
    ]
    _kill(item for item in own if item.pid != os.getpid())


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
