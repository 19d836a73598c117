"""What a snapshot costs the training: python tests/bench/snapshots.py --train-python PYTHON [--device cuda] [--quick]

Prints each figure beside its limit: how long one snapshot holds the training up (told by the agent: the host's time at
the step boundary and the GPU's for the copy), what the steps themselves show of it, and the share of a training's time
at the default interval.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).with_name("snapshot_training.py")
DEFAULT_EVERY_S = 300.0
SHARE_LIMIT = 0.005


def run(python: str, folder: Path, every_s: float, *options: str) -> tuple[list[dict[str, Any]], list[float]]:
    """Return what the agent told of each snapshot, and the seconds of each step."""
    (folder / "snapshots").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROCM_SUPER", "PYTHON"))}
    environment |= {
        "PYTHONPATH": str(ROOT / "supervisor" / "agent" / "path"),
        "ROCM_SUPERVISOR_ATTEMPT_DIR": str(folder),
        "ROCM_SUPERVISOR_SNAPSHOTS": str(folder / "snapshots"),
        "ROCM_SUPERVISOR_SNAPSHOT_EVERY_S": str(every_s),
        "YOLO_CONFIG_DIR": str(folder),
    }
    command = [python, str(TRAINING), *options]
    finished = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    line = next((one for one in finished.stdout.splitlines() if one.startswith("STEPS")), None)
    if line is None:
        sys.exit(finished.stdout + finished.stderr)
    said = [json.loads(one) for one in (folder / "agent.jsonl").read_text().splitlines()]
    failed = [one for one in said if one["event"] in ("save_failed", "hook_failed")]
    if failed:
        sys.exit(json.dumps(failed))
    return [one for one in said if one["event"] == "checkpoint_saved"], json.loads(line[len("STEPS") :])


def measure(name: str, python: str, limit_s: float, every_s: float, *options: str) -> bool:
    """Print the figures of one model; return whether all keep their limits."""
    with tempfile.TemporaryDirectory() as place:
        told, steps = run(python, Path(place) / "with", every_s, *options)
        _, plain = run(python, Path(place) / "without", 0, *options)
    if not told:
        sys.exit(f"{name}: no snapshot was taken in the time given")
    stalls, median = [one["stall_s"] for one in told], statistics.median(plain)
    worst, size = max(stalls), told[-1]["size_bytes"] / 1e6
    excess = max(0.0, sum(steps) - len(steps) * median) / len(told)
    noise = max(0.0, sum(plain) - len(plain) * median) / len(told)
    beside = max(0.0, excess - noise)
    share = worst / DEFAULT_EVERY_S
    writes = statistics.median(one["write_s"] for one in told)
    print(f"{name}: {len(told)} snapshots of {size:.0f} MB, written in {writes:.2f} s beside the training")
    print(f"  one step, median                     {median * 1e3:10.2f} ms")
    print(f"  training stalled by one, median      {statistics.median(stalls) * 1e3:10.2f} ms")
    print(f"  training stalled by one, worst       {worst * 1e3:10.2f} ms   limit {limit_s * 1e3:.0f} ms")
    print(f"  all that steps took longer, for each {beside * 1e3:10.2f} ms   (copy, writer and their traffic)")
    print(f"  share of the run at {DEFAULT_EVERY_S:.0f} s, stall     {share * 100:10.4f} %    limit 0.5 %")
    print(f"  share of the run at {DEFAULT_EVERY_S:.0f} s, all       {beside / DEFAULT_EVERY_S * 100:10.4f} %    limit 0.5 %")
    return worst <= limit_s and share <= SHARE_LIMIT and beside / DEFAULT_EVERY_S <= SHARE_LIMIT


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
        kept &= measure(f"AdamW, {asked.parameters} parameters", asked.train_python, 1.0, asked.every_s, *size, *options)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
