"""Measures what a snapshot costs the training.

    python tests/bench/snapshots.py --train-python PYTHON [--device cuda] [--models yolov8n adamw]

Prints each figure beside its limit: how long one snapshot holds the training up (told by the agent: the host's time at
the step boundary and the GPU's for the copy), what the steps themselves show of it, and the share of a training's time
at the default interval.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).with_name("snapshot_training.py")
DEFAULT_EVERY_S = 300.0
SHARE_LIMIT = 0.005


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One that was taken, as the agent tells of it; seconds of the monotonic clock."""

    begun_s: float
    reported_s: float
    stall_s: float
    write_s: float
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What snapshots did to the steps of one training."""

    step_s: float
    """Median of the steps that no snapshot touched."""
    set_up_s: float
    """Once, for making the buffers: what steps before the first snapshot took longer."""
    each_s: float
    """What the steps under one snapshot took longer, from its copy to its last byte; the mean."""


def run(python: str, folder: Path, every_s: float, *options: str) -> tuple[list[Snapshot], list[tuple[float, float]]]:
    """Return the snapshots of one training, and of each step when it ended and the seconds it took."""
    (folder / "snapshots").mkdir(parents=True)
    (folder / "run").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM_SUPER")}
    path = [str(ROOT / "supervisor" / "agent" / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "ROCM_SUPERVISOR_ATTEMPT_DIR": str(folder / "run"),
        "ROCM_SUPERVISOR_SNAPSHOTS": str(folder / "snapshots"),
        "ROCM_SUPERVISOR_SNAPSHOT_EVERY_S": str(every_s),
        "YOLO_CONFIG_DIR": str(folder),
    }
    command = [python, str(TRAINING), *options]
    finished = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    line = next((item for item in finished.stdout.splitlines() if item.startswith("STEPS")), None)
    if line is None:
        sys.exit(finished.stdout + finished.stderr)
    output = [json.loads(item) for item in (folder / "run/agent.jsonl").read_text().splitlines()]
    failed = [report for report in output if report["event"] in ("save_failed", "hook_failed")]
    if failed:
        sys.exit(json.dumps(failed))
    steps = [(float(end_s), float(took_s)) for end_s, took_s in json.loads(line[len("STEPS") :])]
    reported = [_snapshot(report) for report in output if report["event"] == "checkpoint_saved"]
    return [report for report in reported if report.reported_s < steps[-1][0]], steps


def _snapshot(output: dict[str, Any]) -> Snapshot:
    reported_s, stall_s, write_s = output["monotonic_ns"] / 1e9, output["stall_s"], output["write_s"]
    begun_s = reported_s - stall_s - write_s
    return Snapshot(
        begun_s=begun_s, reported_s=reported_s, stall_s=stall_s, write_s=write_s, size_bytes=output["size_bytes"]
    )


def cost_of(snapshots: list[Snapshot], steps: list[tuple[float, float]]) -> Cost:
    """Compare the steps under snapshots with those between them; a step's first ten are warming up."""

    def under(snapshot: Snapshot, end_s: float, took_s: float) -> bool:
        return end_s > snapshot.begun_s and end_s - took_s < snapshot.reported_s

    touched = {index for index, step in enumerate(steps) if any(under(snapshot, *step) for snapshot in snapshots)}
    first = snapshots[0].begun_s
    calm = [took for index, (end, took) in enumerate(steps) if index not in touched and end > first]
    step_s = statistics.median(calm)
    longer = [took - step_s for index, (_, took) in enumerate(steps) if index in touched]
    before = [took - step_s for _, took in steps[10:] if _ < first]
    return Cost(step_s=step_s, set_up_s=max(0.0, sum(before)), each_s=max(0.0, sum(longer) / len(snapshots)))


def measure(name: str, python: str, limit_s: float, every_s: float, *options: str) -> bool:
    """Print the figures of one model; return whether all keep their limits."""
    with tempfile.TemporaryDirectory() as place:
        snapshots, steps = run(python, Path(place) / "with", every_s, *options)
    if not snapshots:
        sys.exit(f"{name}: no snapshot was written in the time given")
    cost, stalls = cost_of(snapshots, steps), [snapshot.stall_s for snapshot in snapshots]
    writes = statistics.median(snapshot.write_s for snapshot in snapshots)
    size, worst = snapshots[-1].size_bytes / 1e6, max(stalls)
    share, share_all = worst / DEFAULT_EVERY_S, cost.each_s / DEFAULT_EVERY_S
    print(f"{name}: {len(snapshots)} snapshots of {size:.0f} MB, written in {writes:.2f} s beside the training")
    print(f"  one step between snapshots, median    {cost.step_s * 1e3:10.2f} ms")
    print(f"  training stalled by one, median       {statistics.median(stalls) * 1e3:10.2f} ms")
    print(f"  training stalled by one, worst        {worst * 1e3:10.2f} ms   limit {limit_s * 1e3:.0f} ms")
    print(f"  steps under one took longer, in all   {cost.each_s * 1e3:10.2f} ms   (stall, and the writer's traffic)")
    print(f"  set-up, once                          {cost.set_up_s * 1e3:10.2f} ms   (buffers made beside it)")
    print(f"  share of the run, every {DEFAULT_EVERY_S:.0f} s: stall   {share * 100:10.4f} %    limit 0.5 %")
    print(f"  share of the run, every {DEFAULT_EVERY_S:.0f} s: in all  {share_all * 100:10.4f} %    limit 0.5 %")
    return worst <= limit_s and share_all <= SHARE_LIMIT


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parameters", default="0.6e9")
    parser.add_argument("--seconds", default="20")
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("--models", nargs="+", default=["yolov8n", "adamw"])
    asked = parser.parse_args()
    options = ("--device", asked.device, "--seconds", asked.seconds)
    kept = True
    if "yolov8n" in asked.models:
        kept &= measure("YOLOv8n", asked.train_python, 0.020, asked.every_s, "yolov8n", *options)
    if "adamw" in asked.models:
        size = ("adamw", "--parameters", asked.parameters)
        kept &= measure(
            f"AdamW, {asked.parameters} parameters", asked.train_python, 1.0, asked.every_s, *size, *options
        )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
