"""A node dies under Slurm: how long until the ranks of the requeued job have begun, and where the seconds go.

python tests/bench/fleet_requeue.py --times 5       # root; Debian's Slurm; three nodes of this machine; 30 s each

The ranks import nothing. What `import torch` takes is printed beside it, for ROCM_SUPERVISOR_TRAIN_PYTHON's torch.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cluster")]
os.environ["PYTHONPATH"] = str(ROOT)

from test_cluster_slurm import Submitted  # type: ignore[import-not-found]  # noqa: E402 (after the path is set)

from tests.rigs.slurm import missing, slurm  # noqa: E402

PARTS = (
    ("lost", r"leader\.incident closed=false"),
    ("ranks ended by their lease", r"slurm\.requeue"),
    ("Slurm, and daemons have joined", r"leader\.joined"),
    ("what to resume from", r'cluster\.launch epoch="run\.1\.1"'),
)


def measure(folder: Path) -> tuple[dict[str, float], bool]:
    """Kill a node; return when each part was over, in seconds from there, and whether the nodes were kept."""
    rig, training = folder / "rig", folder / "training"
    rig.mkdir()
    training.mkdir()
    with slurm(rig, 3) as cluster:
        submitted = Submitted(cluster, training)
        submitted.submit()
        nodes = submitted.await_launch("run.0.1")
        time.sleep(2.0)
        killed_s, after = time.time_ns() / 1e9, len(submitted.log(whole=True))
        cluster.kill_node(nodes[3])
        submitted.await_launch("run.1.1")
        began_s = time.time_ns() / 1e9
        log = submitted.log(whole=True)[after:]
        (training / "finish").touch()
        over = {}
        for name, pattern in PARTS:
            found = re.findall(rf"^(\S+ \S+) \w+ {pattern}", log, re.M)
            over[name] = datetime.fromisoformat(max(found).replace(",", ".")).timestamp() - killed_s
        return {**over, "ranks began": began_s - killed_s}, "slurm.nodes_kept" in log


def main() -> None:
    """Print each run and the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    if (why := missing()) is not None:
        raise SystemExit(why)
    whole = []
    for _ in range(asked.times):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # paths of sockets are short
            parts, kept = measure(Path(folder))
        whole.append(parts["ranks began"])
        shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        print(f"{shown} s; load {os.getloadavg()[0]:.1f}{'; the dead node was not given back' * kept}", flush=True)
    print(f"n={len(whole)}: {statistics.median(whole):.1f} s ({min(whole):.1f}-{max(whole):.1f})")
    if python := os.environ.get("ROCM_SUPERVISOR_TRAIN_PYTHON"):
        for _ in range(2):
            began_s = time.perf_counter()
            subprocess.run((python, "-c", "import torch"), check=True)
            print(f"import torch: {time.perf_counter() - began_s:.1f} s")


if __name__ == "__main__":
    main()
