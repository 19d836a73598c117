"""Runs the gallery: other people's training scripts, unmodified, each hurt in every way; prints their table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

# ruff: noqa: E402 - the folders of the tests are put on the path first
from gallery_arguments import CACHE, build_parser, load_known_rows
from gallery_night import Night, Play
from gallery_rows import MissingSourceError, Row
from gallery_table import write_table

from tests.e2e.house import house


def count_gpus(python: Path) -> int:
    """Return how many GPUs trainings of an interpreter see."""
    command = [str(python), "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def run_row(row: Row, asked: argparse.Namespace) -> Night:
    """Return what one night of a row came to."""
    if row.gpus and (there := count_gpus(asked.python)) < row.gpus:
        return Night(row.name, row.title, problem=f"not run: it asks for GPUs, {row.gpus}; there are {there}")
    with (
        tempfile.TemporaryDirectory(prefix="gallery-", ignore_cleanup_errors=True) as name,
        house(Path(name)) as home,
    ):
        try:
            night = Play(row, home, asked.python, asked.sources, asked.rest_s).play(asked.hurt)
        except MissingSourceError as error:
            night = Night(row.name, row.title, problem=str(error))
        if asked.logs:
            asked.logs.mkdir(parents=True, exist_ok=True)
            (asked.logs / f"{row.name}.log").write_text(home.read_output())
    return night


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = build_parser(__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows (default: all)")
    parser.add_argument("--results", type=Path, default=CACHE / "gallery-results", help="a JSON file for each row")
    parser.add_argument("--logs", type=Path, help="keep the daemon's log and the trainings' output here")
    parser.add_argument(
        "--hurt", nargs="*", choices=["kill", "stop", "rank", "oom", "nan"], help="default: all that apply"
    )
    parser.add_argument("--rest-s", type=float, default=0.05, help="of each process after each step")
    parser.add_argument("--table", action="store_true", help="only write the table of the results that are there")
    return parser.parse_args(words)


def main() -> int:
    """Run the rows, write their results down, print the table."""
    asked = read_arguments()
    rows = load_known_rows(asked.rows)
    asked.results.mkdir(parents=True, exist_ok=True)
    for name in [] if asked.table else asked.rows or rows:
        night = run_row(rows[name], asked)
        night.save(asked.results / f"{name}.json")
        print(name, night.problem or f"{len(night.wounds)} wounds in {night.seconds} s", flush=True)  # noqa: T201 - a report
    results: list[dict[str, Any]] = []
    for name in rows:
        path = asked.results / f"{name}.json"
        results += [json.loads(path.read_text())] if path.exists() else []
    print(write_table(results))  # noqa: T201 - the report
    return 0


if __name__ == "__main__":
    sys.exit(main())
