"""Kills the daemon once at each point of a recovery and looks whether it is made once; by hand, some minutes long.

    python tests/bench/recovery_sweep.py [POINT...]

A line a point: the trainings that were started, the steps that were made out of order, and how often it was told. The
limit is two trainings one after the other, no such step, and one word for the opening and one for the resuming. Of a
recovery with a triage there are points of its own: one replay more, and one word more for the finding.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "e2e")]

from house import House, house  # noqa: E402 (after the path is set)
from test_e2e_recovery_dies import OF_A_TRIAGE, examined, kinds, lives, training  # noqa: E402

WELL = ([*range(51, 161)], 2, [1, 0, 1])
EXAMINED_WELL = ([*range(51, 61), *range(51, 161)], 2, [1, 1, 1])


def recovered(home: House) -> tuple[list[int], int, list[int]]:
    """Return the steps made since the trouble, the launches, and how often opening, finding and resuming were told."""
    reported = kinds(home, "SELECT type FROM alerts")
    launches = len(home.query("SELECT number FROM attempts"))
    made = home.steps_made("one")
    again = made.index(51, 51) if made.count(51) > 1 else len(made)
    return made[again:], launches, [reported[f"incident.{item}"] for item in ("opened", "triaged", "resumed")]


def once(folder: Path, point: str) -> bool:
    """Have the daemon die at one point; print and return how it went."""
    with house(folder) as home:
        home.write(examined(home) if point in OF_A_TRIAGE else training(home))
        well = EXAMINED_WELL if point in OF_A_TRIAGE else WELL
        os.environ["DIE_AT"] = point
        count = lives(home, 120)
        found = recovered(home)
        steps = "in order" if found[0] == well[0] else f"OUT OF ORDER: {found[0]}"
        reported = " + ".join(map(str, found[2]))
        line = f"{point:<36} {count} daemons, {found[1]} trainings, steps {steps}, told {reported}"
        sys.stdout.write(line + ("\n" if found == well else "  <-- NOT WELL\n"))
        sys.stdout.flush()
        return found == well


def main() -> int:
    """Sweep over the points that a whole run meets, or those that are named."""
    with tempfile.TemporaryDirectory() as folder:
        points = sys.argv[1:]
        if not points:
            os.environ.pop("DIE_AT", None)
            with house(Path(folder)) as home:
                home.write(training(home))
                lives(home, 300)
                points = [*(home.folder / "points").read_text().splitlines(), *OF_A_TRIAGE]
        results = []
        for number, point in enumerate(points):
            place = Path(folder) / str(number)
            place.mkdir()
            results.append(once(place, point))
    sys.stdout.write(f"{sum(results)} of {len(results)} points: one training at a time, told once\n")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
