"""Ranks without torch that only count steps, and their launcher: what is left of a fault's length is the supervisor's.

The kernel frees the memory of a rank that has imported torch for tens of milliseconds after SIGKILL; of these it has
next to nothing to free. Called as torchrun is, and slower than it to end ranks by itself.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

STEP_S, LONG_S = 0.02, 86400.0


def launch(size: int, words: list[str]) -> int:
    """Start the ranks of this node and wait; return 1 once one has failed."""
    node, ranks = int(os.environ["PET_NODE_RANK"]), []
    for local in range(size):
        place = {"RANK": str(node * size + local), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(size)}
        ranks.append(subprocess.Popen([sys.executable, "-S", *words], env={**os.environ, **place}))
    while not any(rank.poll() for rank in ranks):
        time.sleep(2)
    for rank in ranks:
        rank.kill()
    return 1


def train(folder: Path) -> None:
    """Count steps; rank 0 writes them down as fleet_training does."""
    epoch, steps, new = os.environ["ROCM_SUPERVISOR_EPOCH"], folder / "steps", folder / "steps.new"
    if os.environ["RANK"] != "0":
        time.sleep(LONG_S)
    step = int(steps.read_text().split()[1]) + 1 if steps.exists() else 0
    with (folder / "begins").open("a") as file:
        file.write(f"{epoch} {step}\n")
    while True:
        new.write_text(f"{epoch} {step}")
        new.replace(steps)
        step += 1
        time.sleep(STEP_S)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:
        sys.exit(launch(int(sys.argv[2]), sys.argv[3:]))
