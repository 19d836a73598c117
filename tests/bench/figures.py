"""Measures the published figures beside their peers, on this machine and in one run; it judges, it never fails.

    .venv/bin/python tests/bench/figures.py --train-python PYTHON --peers DIR [--only crash] [--json FILE]

`make bench` sets up the training environment and the peers. As root it also measures the kernel log and shows the
daemon a simulated card. A busy machine makes every number worse: it says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "rigs")]

from bench_daemon import answers, deaths  # noqa: E402 - after the path is set
from bench_peers import Peers  # noqa: E402 - the same
from bench_steady import load, step  # noqa: E402 - the same
from bench_troubles import crashes, faults, stalls, standbys  # noqa: E402 - the same
from clocked import sweep  # noqa: E402 - the same
from figure_table import Figure, table  # noqa: E402 - the same

from supervisor import __version__  # noqa: E402 - the same

MEASURES: dict[str, Callable[[Peers], Sequence[Figure]]] = {
    "step": step,
    "load": load,
    "crash": crashes,
    "standby": standbys,
    "stall": stalls,
    "fault": faults,
    "death": deaths,
    "status": answers,
}


def measure(name: str, peers: Peers) -> Sequence[Figure]:
    """Return what one measure found; what went wrong with it is its figure."""
    began_ns = time.monotonic_ns()
    sys.stderr.write(f"{name} ...")
    sys.stderr.flush()
    try:
        return MEASURES[name](peers)
    except Exception as error:  # noqa: BLE001 - a figure that cannot be had must not cost the others
        sys.stderr.write(f" {error}\n")
        first = str(error).partition("\n")[0]
        return (Figure(name=name, unit="", why=f"not measured: {type(error).__name__}: {first}"),)
    finally:
        sys.stderr.write(f" {(time.monotonic_ns() - began_ns) / 1e9:.0f} s\n")


def machine(peers: Peers) -> str:
    """Return in two lines where this was measured, and against whom."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    load = ", ".join(f"{item:.1f}" for item in os.getloadavg())
    where = (f"{os.cpu_count()} cores ({cpu})", f"Linux {platform.release()}", f"load {load}")
    whom = [
        version_of(peers.train_python, "torch"),
        version_of(peers.train_python, "ultralytics"),
        version_of(peers.installed / "nvrx" / "bin" / "python", "nvidia-resiliency-ext"),
        version_of(peers.installed / "supervisor" / "bin" / "python", "supervisor"),
    ]
    own = f"rocm-supervisor {__version__}, Python {platform.python_version()}"
    return f"{own}; {', '.join(where)}\nbeside {', '.join(whom)}"


def version_of(python: Path, package: str) -> str:
    """Return a package of an interpreter with its version."""
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"no {package}"
    return f"{package} {done.stdout.strip()}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    python = os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON")
    parser.add_argument(
        "--train-python", type=Path, default=python, required=python is None, help="has torch, ultralytics"
    )
    parser.add_argument("--peers", type=Path, required=True, help="holds the environments supervisor/ and nvrx/")
    parser.add_argument("--only", action="append", choices=tuple(MEASURES), help="measure this alone; may be repeated")
    parser.add_argument("--json", type=Path, help="write every single value here")
    asked = parser.parse_args()
    # As for everybody who installed these programs: their byte code is there.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="figures-") as name:
        peers = Peers(folder=Path(name), installed=asked.peers.absolute(), train_python=asked.train_python.absolute())
        where = machine(peers)
        try:
            figures = [item for only in asked.only or MEASURES for item in measure(only, peers)]
        finally:
            sweep(peers.folder)
    sys.stdout.write(f"{where}\n\n{table(figures)}\n")
    if asked.json:
        reported = {"machine": where, "figures": [figure.json() for figure in figures]}
        asked.json.write_text(json.dumps(reported, indent=2) + "\n")


if __name__ == "__main__":
    main()
