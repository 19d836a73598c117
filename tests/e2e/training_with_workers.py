"""A training that starts loader workers again and again, and imports a part of the agent only late."""

import argparse
import importlib
import multiprocessing
import sys
import time
from pathlib import Path

import rocm_agent

LATE = ["script", "save_request", "scalars", "origin", "standby", "workers", "shapes", "stacks"]
EVERY = 60
"""Steps between two workers."""


def note(folder: str, who: str) -> None:
    """Write down from where this process has imported the agent so far."""
    found = [module.__file__ for name, module in sorted(sys.modules.items()) if name.startswith("rocm_agent")]
    with Path(folder, "imports.log").open("a") as file:
        file.writelines(f"{who} {path}\n" for path in found)


def work(folder: str, number: int) -> None:
    """Be a loader worker, which imports what nobody has imported before."""
    importlib.import_module("rocm_agent.snapshots.files")
    note(folder, f"worker-{number}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=100000)
    asked = parser.parse_args()
    place = Path(asked.folder)
    place.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    workers = []
    for step in range(1, asked.steps + 1):
        time.sleep(0.02)
        with (place / "steps.log").open("a") as log:
            log.write(f"{step}\n")
        rocm_agent.step(loss=1.0 / step, step=step)
        if step % EVERY == 0:
            importlib.import_module("rocm_agent." + LATE[step // EVERY % len(LATE)])
            note(asked.folder, "training")
            workers.append(context.Process(target=work, args=(asked.folder, step)))
            workers[-1].start()
    for worker in workers:
        worker.join()
