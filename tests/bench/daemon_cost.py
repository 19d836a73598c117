"""What the daemon takes of a processor beside one training: this tree against another commit's, in turns, in one run.

    python tests/bench/daemon_cost.py --against 071b20f
    python tests/bench/daemon_cost.py --sources sysfs       # without the tools that 071b20f starts, GPU or not

Readings come once a second, the training makes 18 steps a second; what the daemon's own children take is counted too.
Both trees are compiled first, as an installation is: a daemon that compiles its own modules keeps 0.6 MB of that.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parents[2]
STEPS_PER_S = 18.0
WARM_S = 6.0


def configuration(folder: Path, tree: Path, sources: Sequence[str] = ()) -> Path:
    """Write the configuration of one run, with all sources of GPU readings or those given; return its path."""
    training = [sys.executable, str(tree / "tests/e2e/training_by_hand.py"), "--folder", str(folder / "one")]
    training += ["--every-s", str(1 / STEPS_PER_S), "--save-every", "1000000"]
    text = (
        f'[supervisor]\nstate_dir = "{folder / "state"}"\nlauncher = "direct"\n'
        "[kernel_log]\nenabled = false\n[telemetry]\ninterval_s = 1.0\n"
        f"{f'sources = {json.dumps(list(sources))}' if sources else ''}\n"
        f"[jobs.one]\ncommand = {json.dumps(training)}\n"
        "[jobs.one.rules.disk_low]\nenabled = false\n[jobs.one.rules.host_memory]\nenabled = false\n"
    )
    path = folder / "config.toml"
    path.write_text(text)
    return path


def cost(tree: Path, measure_s: float, sources: Sequence[str] = ()) -> tuple[float, float]:
    """Return the share of a core in percent, and the resident memory in MB, of that tree's daemon."""
    with tempfile.TemporaryDirectory(prefix="daemon-cost-") as made:
        folder = Path(made)
        path = configuration(folder, tree, sources)
        command = [sys.executable, "-m", "supervisor.daemon.main", "--config", str(path)]
        env = {**os.environ, "PYTHONPATH": str(tree)}
        with (folder / "log").open("wb") as log:
            daemon = psutil.Popen(command, cwd=tree, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            steps = folder / "one" / "steps.log"
            until = time.monotonic() + 30  # noqa: TID251 - a benchmark measures
            while not steps.exists() or steps.stat().st_size < 40:
                if daemon.poll() is not None or time.monotonic() > until:  # noqa: TID251 - the same
                    raise SystemExit(f"no training came up:\n{(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.1)
            time.sleep(WARM_S)
            began, before = time.perf_counter(), _used_s(daemon)
            time.sleep(measure_s)
            used_s, took_s = _used_s(daemon) - before, time.perf_counter() - began
            return 100 * used_s / took_s, _resident_mb(daemon)
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _resident_mb(daemon: psutil.Process) -> float:
    """Return its resident memory, and of its children that run what they share with nobody."""
    children = daemon.children(recursive=True)
    return (daemon.memory_info().rss + sum(child.memory_full_info().uss for child in children)) / 1e6


def _used_s(daemon: psutil.Process) -> float:
    """Return what it and its children have used, those that run included: the training is none of them."""
    total = 0.0
    for process in (daemon, *daemon.children(recursive=True)):
        times = process.cpu_times()
        total += float(times.user + times.system + times.children_user + times.children_system)
    return total


def main() -> None:
    """Measure both in turns and print them."""
    parser = argparse.ArgumentParser(description="CPU and memory of the daemon beside one training of 18 steps/s")
    parser.add_argument("--against", default="071b20f", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sources", nargs="*", default=[], help="of GPU readings; all of them if left out")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="daemon-cost-tree-") as folder:
        other = Path(folder) / "tree"
        subprocess.run(["git", "-C", HERE, "worktree", "add", "-q", "--detach", other, asked.against], check=True)
        try:
            for tree in (other, HERE):
                subprocess.run([sys.executable, "-m", "compileall", "-q", tree / "supervisor"], check=True)
            _compare(other, asked)
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", other], check=True)


def _compare(other: Path, asked: argparse.Namespace) -> None:
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(asked.runs):
        for tree, found in ((other, theirs), (HERE, ours)) if number % 2 == 0 else ((HERE, ours), (other, theirs)):
            found.append(cost(tree, asked.seconds, asked.sources))
            name = "this tree" if tree == HERE else asked.against
            print(f"  {name}: {found[-1][0]:.2f} %, {found[-1][1]:.1f} MB", flush=True)  # noqa: T201 - its result
    for name, found in ((asked.against, theirs), ("this tree", ours)):
        shares = [share for share, _ in found]
        memory = max(mb for _, mb in found)
        low, high, middle = min(shares), max(shares), statistics.median(shares)
        spread = f"median of {len(shares)}, {low:.2f} to {high:.2f}"
        print(f"{name}: {middle:.2f} % of a core ({spread}), {memory:.1f} MB")  # noqa: T201 - its result
    ratio = statistics.median([our for our, _ in ours]) / statistics.median([their for their, _ in theirs])
    print(f"this tree takes {ratio:.2f} times as much")  # noqa: T201 - its result


if __name__ == "__main__":
    main()
