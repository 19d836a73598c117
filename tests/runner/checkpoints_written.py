"""Has a training environment write checkpoints, those of `checkpoints_by_hand.py` and those that `poison.py` spoils."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPOILT = {"nan": 3, "truncated": 8, "optimizer": 5, "average": 8, "architecture": 4, "hostile": 6}
"""Every variety of each kind; the benchmark makes fifty of each."""
IN_TURN = """
import json, runpy, sys
for script, *words in json.loads(sys.argv[1]):
    sys.argv[:] = [script, *words]
    runpy.run_path(script, run_name="__main__")
"""
"""To import torch and ultralytics takes longer than what any of the scripts does with them."""


def write_checkpoints(python: Path, folder: Path) -> None:
    """Fill the folders `made` and `spoilt` below `folder`, in one process."""
    for name in ("made", "spoilt"):
        (folder / name).mkdir()
    wanted = [f"{kind}={count}" for kind, count in SPOILT.items()]
    scripts = [
        [str(HERE / "checkpoints_by_hand.py"), str(folder / "made")],
        [str(HERE.parent / "rigs" / "poison.py"), str(folder / "spoilt"), *wanted],
    ]
    command = [str(python), "-c", IN_TURN, json.dumps(scripts)]
    env = {**os.environ, "YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
