"""Runs check functions in a training environment, which has no pytest, and prints one JSON object a check.

`python checking.py FILE...` imports each file and calls every `check_*` of it in order. A check passes by returning,
is skipped by raising Skip with a reason, and fails by anything else it raises.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


class Skip(Exception):  # noqa: N818 - not an error
    """The environment lacks what the check needs; the message says what."""


def checks_of(path: Path) -> list[Callable[[], None]]:
    """Return the checks of the file at `path`, which lies beside this one, in the order in which they stand there."""
    module = importlib.import_module(path.stem)
    return [value for name, value in vars(module).items() if name.startswith("check_")]


def run(check: Callable[[], None]) -> dict[str, object]:
    """Run one check and return its name, outcome ("passed", "skipped", "failed"), detail and seconds."""
    began = time.perf_counter()
    outcome, detail = "passed", ""
    try:
        check()
    except Skip as reason:
        outcome, detail = "skipped", str(reason)
    except Exception:  # noqa: BLE001 - whatever a check raises is its failure
        outcome, detail = "failed", traceback.format_exc()
    seconds = round(time.perf_counter() - began, 3)
    return {"check": check.__name__, "outcome": outcome, "detail": detail, "seconds": seconds}


if __name__ == "__main__":
    sys.modules["checking"] = sys.modules["__main__"]
    warnings.simplefilter("ignore")
    for argument in sys.argv[1:]:
        for check in checks_of(Path(argument)):
            sys.stdout.write(json.dumps(run(check)) + "\n")
            sys.stdout.flush()
