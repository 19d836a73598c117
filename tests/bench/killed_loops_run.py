"""Kills loops of every optimizer time and again and counts what is told of them that is not so.

python tests/bench/killed_loops_run.py --python TRAIN_PYTHON [--kills 20] [--kinds sgd adam ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from house import house
from killed_loops import KINDS, differences, job, lives


def main() -> int:
    """Run every kind beside the others, by its own file and by a resume command, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    asked = parser.parse_args()
    wrong = 0
    for by_command in (False, True):
        with tempfile.TemporaryDirectory() as folder, house(Path(folder)) as home:
            home.write(
                "\n".join(job(home, asked.python, item, asked.kills, by_command=by_command) for item in asked.kinds)
            )
            began = time.monotonic()  # noqa: TID251 - a measurement
            home.start()
            for kind in asked.kinds:
                home.phase(kind, "finished", "failed", limit_s=asked.limit_s)
            for kind in asked.kinds:
                found, ended = differences(home, kind), home.job(kind)["phase"]
                kills = len(lives(home.folder / kind)) - 1
                wrong += len(found) + (ended != "finished")
                how = "resume command" if by_command else "own file"
                output = f"{kind:10} {how:15} {kills:3} kills, {ended}, {len(found)} told wrong"
                sys.stdout.write("\n  ".join([output, *found]) + "\n")
            sys.stdout.write(f"{time.monotonic() - began:.0f} s\n")  # noqa: TID251 - a measurement
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
