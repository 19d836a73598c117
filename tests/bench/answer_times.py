"""How long a real daemon takes to answer `GET /metrics`, and to have a critical alert delivered.

    .venv/bin/python tests/bench/answer_times.py [--jobs 100] [--asks 300]

One training counts its steps throughout. It is asked for its metrics first, as a scraper does, each time on a new
connection, where nothing else is configured and beside `--jobs` others. Those begin then, one after the other; they
fail at their start and are given up: each is one critical notice, whose age when a receiver on the loopback has it is
counted from the notice's own time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BIN = Path(sys.executable).parent
LIMIT_S = 300.0
COUNT = "import time, rocm_agent\nwhile True:\n    rocm_agent.step(loss=1.0)\n    time.sleep(0.05)\n"


class Receiver(BaseHTTPRequestHandler):
    """Notes how old each job's last notice is when it comes."""

    ages_s: dict[str, float]

    def do_POST(self) -> None:
        """Take a notice."""
        notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if notice["type"] == "job.gave_up":
            sent = datetime.fromisoformat(notice["timestamp"].replace("Z", "+00:00"))
            now = datetime.now(timezone.utc)  # noqa: TID251 - compared with the notice's own time
            self.ages_s.setdefault(notice["data"]["job"], (now - sent).total_seconds())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def ask(control: Path, path: str) -> tuple[float, bytes]:
    """Return how long an answer took, in milliseconds, and its body."""
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection("daemon")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(control))
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return (time.perf_counter() - began_s) * 1000, body


def write_config(home: Path, port: int, jobs: int) -> Path:
    """Return a configuration with one training that counts and `jobs` that fail."""
    (home / "count.py").write_text(COUNT)
    failing = "".join(
        f'[jobs.f{number}]\nautostart = false\ncommand = ["/bin/false"]\n[jobs.f{number}.budget]\nrestarts = 0\n'
        for number in range(jobs)
    )
    path = home / "config.toml"
    path.write_text(
        f'[supervisor]\nstate_dir = "{home}/state"\nlauncher = "direct"\n[kernel_log]\nenabled = false\n'
        f'[alerts.phone]\nurl = "http://127.0.0.1:{port}/"\nallow_private = true\n'
        f'[jobs.count]\ncommand = ["{sys.executable}", "{home}/count.py"]\n{failing}'
    )
    return path


@contextmanager
def running_daemon(home: Path, config: Path) -> Iterator[Path]:
    """Run a daemon, and give its control socket once it answers."""
    with (home / "log").open("wb") as log:
        daemon = subprocess.Popen([BIN / "rocm-supervisord", "--config", config], stdout=log, stderr=log)
        control = home / "state/control.sock"
        try:
            wait_until(lambda: control.exists() and b"count" in ask(control, "/metrics")[1])
            yield control
        finally:
            subprocess.run(
                [BIN / "supervisorctl", "--config", config, "stop", "count"], capture_output=True, check=False
            )
            daemon.terminate()
            daemon.wait(120)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition. Raises TimeoutError."""
    until_s = time.perf_counter() + LIMIT_S
    while not holds():
        if time.perf_counter() > until_s:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s")
        time.sleep(0.2)


def write_line(text: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(text + "\n")


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def print_scrapes(control: Path, jobs: int, asks: int) -> None:
    """Print how long the answers to a scraper take."""
    took_ms = [ask(control, "/metrics")[0] for _ in range(asks)]
    lines = [line for line in ask(control, "/metrics")[1].splitlines() if not line.startswith(b"#")]
    of_training = sum(b'training="count"' in line for line in lines)
    write_line(f"load {os.getloadavg()[0]:.1f}, {jobs + 1} trainings known, {len(lines)} series, {of_training} of one")
    write_line(f"GET /metrics: median {statistics.median(took_ms):.1f} ms, p99 {percentile(took_ms, 0.99):.1f} ms")


def fail_jobs(config: Path, jobs: int) -> None:
    """Have each job be given up, and wait for the notices."""
    for number in range(jobs):
        subprocess.run(
            [BIN / "supervisorctl", "--config", config, "start", f"f{number}"], capture_output=True, check=True
        )
    wait_until(lambda: len(Receiver.ages_s) >= jobs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--asks", type=int, default=300)
    given = parser.parse_args()
    Receiver.ages_s = {}
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    for jobs in (0, given.jobs):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            config = write_config(home, receiver.server_port, jobs)
            with running_daemon(home, config) as control:
                time.sleep(5)  # the training has begun
                print_scrapes(control, jobs, given.asks)
                fail_jobs(config, jobs)
    ages_s = list(Receiver.ages_s.values())
    write_line(f"critical to delivered: median {statistics.median(ages_s):.2f} s, p99 {percentile(ages_s, 0.99):.2f} s")


if __name__ == "__main__":
    main()
