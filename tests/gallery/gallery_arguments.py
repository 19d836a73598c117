"""What the programs that run rows of the gallery are given on the command line alike."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery_rows import Row, load_rows

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rocm-supervisor"


def build_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows of the trainings' interpreter and sources."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--python", type=Path, default=CACHE / "gallery" / "bin" / "python", help="of the trainings")
    parser.add_argument(
        "--sources", type=Path, default=CACHE / "gallery-sources", help="OWNER/NAME below it, or cloned"
    )
    return parser


def load_known_rows(names: Sequence[str]) -> dict[str, Row]:
    """Return all rows by name; end the program where one of `names` is not among them."""
    rows = load_rows()
    unknown = set(names) - set(rows)
    if unknown:
        sys.exit(f"no such row: {', '.join(sorted(unknown))}")
    return rows
