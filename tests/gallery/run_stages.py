"""Stops a row's training by SIGSTOP in each of its stages; prints when that is reported, and what came of it.

    run_stages.py ROW... [--stages import data first step validation save end] [--epochs 1]

A row is run for so few epochs that its last validation, its last save and its exit are the end of the training. The
daemon has its default settings: it reports the stop and sends SIGCONT, after which the training has to go on by itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

# ruff: noqa: E402 - the folders of the tests are put on the path first
from gallery_arguments import build_parser, load_known_rows
from gallery_night import Play
from gallery_rows import Row

from tests.e2e.house import house

STAGES = ("import", "data", "first", "step", "validation", "save", "end")
LIMIT_S = 300.0
TARGET_S = 35.0


def shortened(row: Row, epochs: int) -> Row:
    """Return the row with a command that trains for so many epochs."""
    words = list(row.command)
    for at, word in enumerate(words):
        if word in ("--epochs", "--num_train_epochs"):
            words[at + 1] = str(epochs)
        elif word.startswith("epochs="):
            words[at] = f"epochs={epochs}"
    return replace(row, command=tuple(words))


def stop_in(row: Row, stage: str, python: Path, sources: Path) -> dict[str, object]:
    """Return what came of a stop in one stage."""
    found: dict[str, object] = {"row": row.name, "stage": stage}
    with tempfile.TemporaryDirectory(prefix="stages-", ignore_cleanup_errors=True) as name, house(Path(name)) as home:
        play = Play(row, home, python, sources)
        play.configure(continue_first=True, GALLERY_STOP_AT=stage)
        mark = play.injections / "stopped"
        home.start()

        def over() -> bool:
            return home.job(row.name)["phase"] in ("finished", "failed")

        def acted() -> list[tuple[str, float, str]]:
            sql = "SELECT kind, at_unix_s, coalesce(rule, '') FROM decisions WHERE kind IN ('warn', 'continue', 'stop')"
            return home.query(f"{sql} AND rule IN ('stopped_process', 'stall') ORDER BY id")

        try:
            home.until(lambda: mark.exists() or over(), LIMIT_S, f"{stage} of {row.name}")
            if not mark.exists():
                return {**found, "problem": "it has no such stage"}
            at = float(mark.read_text().split()[1])
            home.until(lambda: bool(acted()), LIMIT_S, "the stop to be told")
            kind, warned_at, rule = acted()[0]
            found |= {"warned_s": round(warned_at - at, 1), "by": f"{rule} ({kind})"}
            home.until(over, LIMIT_S, "the training to end")
        except AssertionError as error:
            found["problem"] = str(error).split("\n", maxsplit=1)[0]
        job = home.job(row.name)
        return found | {"ended": job["phase"], "attempts": job["attempt"], "acts": [item[0] for item in acted()]}


def main() -> int:
    """Run the stages; the exit status is 1 where a stop was reported late or not at all."""
    parser = build_parser(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--epochs", type=int, default=1)
    asked, late = parser.parse_args(), 0
    rows = load_known_rows(asked.rows)
    for name in asked.rows:
        row = shortened(rows[name], asked.epochs)
        for stage in asked.stages:
            began = time.monotonic()  # noqa: TID251 - how long it took is told
            found = stop_in(row, stage, asked.python, asked.sources)
            took_s = round(time.monotonic() - began, 1)  # noqa: TID251 - the same
            after_s = found.get("warned_s")
            late += after_s is None or float(str(after_s)) > TARGET_S
            print(json.dumps({**found, "took_s": took_s}), flush=True)  # noqa: T201 - a report
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
