"""How long a daemon takes to answer a status while it reads a configuration of 160,000 keys.

    .venv/bin/python tests/bench/reload_answers.py [--keys 80000] [--asks 100]

One training steps throughout. A second file in `conf.d` doubles the keys of the first: the same ones, which is refused,
or those of another job, which is applied. Reloads follow each other until a status was asked so many times, each 50 ms
after the answer before. A status is answered by the deciding thread: a round of it in which it is asked for took no
longer than the slowest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402

EVERY_S = 0.05
KINDS = 3
"""Jobs come, change, go."""


def variables(job: str, keys: int, value: str) -> str:
    """Return a job that is not started, with so many variables."""
    lines = "".join(f'k{number:06d}="{value}"\n' for number in range(keys))
    return f'[jobs.{job}]\nautostart = false\ncommand = ["/bin/true"]\n[jobs.{job}.env]\n{lines}'


def unknown(keys: int) -> str:
    """Return a table of so many keys that are not known."""
    return "[kernel_log]\n" + "".join(f"k{number:06d}={number % 10}\n" for number in range(keys))


def reload(home: House, took_s: list[float], accepted: bool) -> None:
    """Reload once."""
    began_s = time.perf_counter()
    report = home.client.post("/v1/reload")
    took_s.append(time.perf_counter() - began_s)
    if bool(report["problems"]) == accepted:
        raise AssertionError(report["problems"][:3])


def measure(home: House, asks: int, accepted: bool, change: Callable[[int], None]) -> str:
    """Return how long reloads and the answers meanwhile took."""
    reloads_s: list[float] = []
    answers_s: list[float] = []
    assert home.daemon is not None
    daemon = psutil.Process(home.daemon.pid)
    before = daemon.cpu_times()
    while len(answers_s) < asks or len(reloads_s) < KINDS:
        change(len(reloads_s))
        thread = threading.Thread(target=reload, args=(home, reloads_s, accepted))
        thread.start()
        while thread.is_alive():
            began_s = time.perf_counter()
            if home.status() is None:
                raise AssertionError("no status")
            answers_s.append(time.perf_counter() - began_s)
            time.sleep(EVERY_S)
        thread.join()
    after = daemon.cpu_times()
    core_s = after.user + after.system - before.user - before.system
    answers_s.sort()
    return (
        f"{len(reloads_s)} reloads of {min(reloads_s):.1f} to {max(reloads_s):.1f} s, "
        f"{core_s:.1f} core-s of the daemon; "
        f"status (n={len(answers_s)}) median {statistics.median(answers_s) * 1000:.0f} ms, "
        f"p99 {answers_s[int(len(answers_s) * 0.99)] * 1000:.0f} ms, at most {answers_s[-1] * 1000:.0f} ms; "
        f"load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=80_000, help="in each of the two files")
    parser.add_argument("--asks", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, house(Path(folder)) as home:
        training = home.by_hand("one", "--every-s", "0.05")
        home.write(training)
        (home.folder / "conf.d").mkdir()
        second = home.folder / "conf.d/second.toml"
        home.start()
        home.step("one", 5)

        def refuse(_: int) -> None:
            home.write(training + unknown(given.keys))
            second.write_text(unknown(given.keys))

        def apply(number: int) -> None:
            """Have jobs come, change in each key, and go."""
            if number % 3 == 2:
                home.write(training)
                second.unlink()
            else:
                home.write(training + variables("first", given.keys, str(number % 3)))
                second.write_text(variables("second", given.keys, str(number % 3)))

        sys.stdout.write(f"refused: {measure(home, given.asks, False, refuse)}\n")
        second.unlink()
        sys.stdout.write(f"applied: {measure(home, given.asks, True, apply)}\n")
        assert home.incidents() == []


if __name__ == "__main__":
    main()
