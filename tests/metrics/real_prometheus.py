"""A real Prometheus scrapes a real daemon with a training, reads the rules and answers the board's queries.

    python tests/metrics/real_prometheus.py --prometheus /usr/bin/prometheus [--train-python PYTHON]

With --train-python the training is that of `make demo`, hurt three times; without, one that counts for some seconds.

Debian's package starts a server; `apt-get download prometheus` and `dpkg -x` give the program alone.
It prints what Prometheus says of the target, each rule and each query of the board; its status is 1 where the target is
down, a rule fails or a query is refused. A query without data is printed: the machine may have no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench"), str(ROOT / "tests" / "web"), str(ROOT)]

import viewers  # noqa: E402  # found on the path above

from supervisor.demo import night  # noqa: E402  # the same
from supervisor.web.clock import now_unix_s  # noqa: E402  # the same

BOARD = ROOT / "supervisor/metrics/grafana-board.json"
VARIABLES = {"$__rate_interval": "30s", "$__range": "1h", "$training": ".*", "$gpu": ".*"}
"""Of Grafana in the board's queries, and what stands for them here."""
SETTINGS = """global: {{scrape_interval: 2s, evaluation_interval: 2s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: rocm-supervisor
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=45.0, help="of scraping before it is asked")
    parser.add_argument("--train-python", type=Path, help="with torch and ultralytics: scrape the demonstration")
    given = parser.parse_args()
    listening = free_port()
    table = f'\n[metrics]\nlisten = ["127.0.0.1:{listening}"]\n'
    with tempfile.TemporaryDirectory() as folder, scraping(given.prometheus, Path(folder), listening) as own:
        began = now_unix_s()
        if given.train_python is not None:
            return scrape_demo(Path(folder) / "demo", given.train_python, table, own)
        viewers.CONFIG += table
        state = Path(folder) / "state"
        state.mkdir()
        with viewers.running_daemon(state):
            time.sleep(given.seconds)
            return print_findings(own, began)


def scrape_demo(folder: Path, train_python: Path, table: str, own: int) -> int:
    """Run the demonstration and ask Prometheus before its daemon ends."""
    night.CONFIG += table
    folder.mkdir()
    began, found = now_unix_s(), list[int]()
    shown = night.Night(folder=folder, train_python=train_python, daemon=night.daemon_command(), say=write_line)
    shown.run(lambda: found.append(print_findings(own, began)))
    return found[0]


@contextlib.contextmanager
def scraping(prometheus: Path, folder: Path, listening: int) -> Iterator[int]:
    """Run a Prometheus that scrapes a port; give the port at which it answers."""
    place, own = folder / "prometheus", free_port()
    place.mkdir()
    rules = subprocess.run([viewers.BIN / "supervisorctl", "metrics", "--rules"], capture_output=True, check=True)
    (place / "rules.yml").write_bytes(rules.stdout)
    (place / "settings.yml").write_text(SETTINGS.format(port=listening))
    options = [f"--config.file={place}/settings.yml", f"--storage.tsdb.path={place}/data"]
    command = [str(prometheus), *options, f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"]
    with subprocess.Popen(command) as started:
        try:
            yield own
        finally:
            started.terminate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def print_findings(port: int, began: float) -> int:
    """Print target, rules and, over all the time, queries; return 1 where one of them is at fault."""
    target = ask(port, "targets")["activeTargets"][0]
    faults = int(target["health"] != "up")
    series = query(port, 'count({job="rocm-supervisor", __name__=~"rocm_supervisor_.*"})')
    steps = query(port, "rate(rocm_supervisor_training_steps_total[30s])")
    write_line(
        f"target {target['health']} {target['lastError']}, scraped in {target['lastScrapeDuration'] * 1000:.1f} ms"
    )
    write_line(f"series {series[0]['value'][1]}, steps a second {float(steps[0]['value'][1]):.1f}")
    for group in ask(port, "rules")["groups"]:
        for rule in group["rules"]:
            faults += rule["health"] != "ok"
            write_line(f"rule {rule['name']}: {rule['health']} {rule.get('state', '')} {rule.get('lastError', '')}")
    for panel in json.loads(BOARD.read_text())["panels"]:
        for expression in (target["expr"] for target in panel.get("targets", [])):
            try:
                found = f"{len(query(port, expression, began))} series"
            except urllib.error.HTTPError as error:
                faults += 1
                found = f"refused: {error.read().decode()}"
            write_line(f"board, {panel['title']}: {found}")
    return int(faults > 0)


def query(port: int, expression: str, began: float | None = None) -> list[dict[str, Any]]:
    """Return the series of a query of the board or of our own, now or since `began`."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    since = {} if began is None else {"start": str(began), "end": str(now_unix_s()), "step": "2"}
    found: list[dict[str, Any]] = ask(port, "query_range" if since else "query", query=expression, **since)["result"]
    return found


def ask(port: int, path: str, **given: str) -> Any:
    address = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(given)}"
    with urllib.request.urlopen(address, timeout=20) as answer:
        return json.load(answer)["data"]


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
