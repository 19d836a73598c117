"""A command that starts its training, and fails after that has ended by itself: the training is not made again."""

from __future__ import annotations

import shlex
import sys

import pytest
from house import TRAINING, House

ASKS_TO_END = """
import runpy, sys
del sys.argv[0]
sys.exit(runpy.run_path(sys.argv[0], run_name="__main__").get("status"))
"""


@pytest.mark.parametrize("begins", [[], ["-c", ASKS_TO_END]], ids=["returns", "sys.exit"])
def test_a_script_whose_last_line_fails_after_its_training_is_finished_with_a_warning(
    home: House, begins: list[str]
) -> None:
    (home.folder / "night").mkdir(exist_ok=True)
    trains = [sys.executable, *begins, str(TRAINING), "--folder", str(home.folder / "night"), "--steps", "60"]
    home.write(home.job_of("night", ["sh", "-c", f"{shlex.join(trains)}; exit 3"]))
    home.start()
    job = home.phase("night", "finished", "failed")
    reason = "the training had finished with status 0 before its wrapper ended with status 3"
    assert (job["phase"], job["attempt"], job["reason"]) == ("finished", 1, reason)
    assert home.query("select kind from decisions order by rowid") == [("launch",), ("warn",), ("finish",)]
