"""A command that starts its training, and fails after that has ended by itself: the training is not made again."""

from __future__ import annotations

import shlex
import sys

from house import TRAINING, House


def test_a_script_whose_last_line_fails_after_its_training_is_finished_with_a_warning(home: House) -> None:
    (home.folder / "night").mkdir(exist_ok=True)
    training = shlex.join([sys.executable, str(TRAINING), "--folder", str(home.folder / "night"), "--steps", "60"])
    home.write(home.job_of("night", ["sh", "-c", f"{training}; exit 3"]))
    home.start()
    job = home.phase("night", "finished", "failed")
    reason = "the training had finished with status 0 before its wrapper ended with status 3"
    assert (job["phase"], job["attempt"], job["reason"]) == ("finished", 1, reason)
    assert home.query("select kind from decisions order by rowid") == [("launch",), ("warn",), ("finish",)]
