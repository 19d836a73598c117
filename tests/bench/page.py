"""The figures of the page on the record of a long training: bytes, times, memory; printed as a table.

    python tests/bench/page.py --turns 20

A real Chromium draws; times are of this machine under the load that it has, which is printed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "web"), str(ROOT)]

from browser import Browser, browser  # noqa: E402  # found on the path above
from long_record import BEGAN_UNIX_S, write_long_record  # noqa: E402  # the same
from served_page import ServedPage, serving_page  # noqa: E402  # the same

FIRST_CHART = "performance.getEntriesByName('first-chart')[0]?.startTime || 0"
DAY_S = 86_400


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def measure_load(shown: Browser, page: ServedPage) -> tuple[int, float]:
    """Return bytes on the wire and milliseconds to the first chart, with nothing kept from before."""
    shown.send("Network.clearBrowserCache")
    shown.open("about:blank")
    shown.open(f"{page.origin}/#/training/yolo")
    shown.wait_for(FIRST_CHART)
    milliseconds = float(shown.evaluate(FIRST_CHART))
    shown.collect(0.5)
    ended = [event for event in shown.events if event.get("method") == "Network.loadingFinished"]
    return int(sum(event["params"]["encodedDataLength"] for event in ended)), milliseconds


def measure_answer(page: ServedPage, path: str) -> tuple[int, float]:
    """Return bytes and milliseconds of one answer of the server."""
    began = time.perf_counter()
    answer = page.ask(path, headers={**page.secrets, "Accept-Encoding": "gzip"})
    assert answer.status == 200, answer.body
    return len(answer.body), (time.perf_counter() - began) * 1000


def read_pss_mb(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))) / 1024


def print_row(what: str, wanted: str, values: list[float], unit: str) -> None:
    spread = f"{min(values):.1f} to {max(values):.1f}" if len(values) > 1 else ""
    write_line(f"| {what} | {wanted} | {statistics.median(values):.1f} {unit} | {spread} | {len(values)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--gpu-days", type=float, default=0.0, help="also zoom in a record of so many days of 8 GPUs")
    given = parser.parse_args()
    write_line(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n\n| what | must be | median | range | n |")
    write_line("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        write_long_record(state / "supervisor.db")
        with serving_page(state) as page, browser(state / "profile") as shown:
            shown.open(page.address)
            shown.wait_for("document.querySelector('.card')")
            loads = [measure_load(shown, page) for _ in range(given.turns)]
            print_row("first load, a training of 62 h", "<= 80 kB", [size / 1000 for size, _ in loads], "kB")
            print_row("first chart", "<= 300 ms", [ms for _, ms in loads], "ms")
        with serving_page(state) as page:
            page.sign_in()
            steps, samples = "/api/trainings/yolo/steps?points=600", "/api/trainings/yolo/samples?points=600"
            zoomed = f"{steps}&from={BEGAN_UNIX_S + DAY_S}&to={BEGAN_UNIX_S + DAY_S + 7200}"
            for what, path, wanted in (
                ("server: steps of 62 h", steps, "<= 30 ms"),
                ("server: steps of 2 h in it", zoomed, ""),
                ("server: readings of 1 gpu, 62 h", samples, ""),
            ):
                print_row(what, wanted, [measure_answer(page, path)[1] for _ in range(given.turns)], "ms")
            print_row("memory of the process (PSS)", "<= 35 MB", [read_pss_mb(page.pid)], "MB")
    if given.gpu_days:
        zoom_in_gpu_days(given.gpu_days, given.turns)


WINDOWS_S = {"10 min": 600.0, "1 h": 3600.0, "1 d": 86_400.0, "3 d": 3 * 86_400.0, "all": math.inf}


def zoom_in_gpu_days(days: float, turns: int) -> None:
    """Print how long the readings of 8 GPUs take, and the steps of that time, in windows that lie anywhere in it."""
    drawn = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        end = write_long_record(state / "supervisor.db", hours=24 * days, steps=int(days * 1_500_000), gpus=8)
        with serving_page(state) as page:
            page.sign_in()
            for what, asked in (("8 gpus", "/api/gpus"), ("steps", "/api/trainings/yolo/steps")):
                for name, at_most_s in WINDOWS_S.items():
                    length_s = min(at_most_s, end - BEGAN_UNIX_S)
                    took_ms = []
                    for _ in range(turns):
                        since = drawn.uniform(BEGAN_UNIX_S, end - length_s)
                        path = f"{asked}?points=600&from={since:.0f}&to={since + length_s:.0f}"
                        took_ms.append(measure_answer(page, path)[1])
                    print_row(f"server: {what}, {name} of {days:g} d", "<= 150 ms", took_ms, "ms")


if __name__ == "__main__":
    main()
