"""A generation outlives what is written over its file, and is rejected where the resumed training shows its worth."""

from __future__ import annotations

import json
import re
from pathlib import Path

from house import House


def wait_for_copies(home: House, go: Path, *steps: int) -> None:
    """Let a training that waits for `go` go on once generations of these steps are captured."""

    def captured() -> bool:
        reported = home.checkpoints("one")
        return set(steps) <= {report["step"] for report in reported if "/generations/" in report["path"]}

    home.until(captured, 30, f"copies of steps {steps}")
    go.touch()


def test_a_resume_that_leaves_the_old_curve_condemns_its_generation_and_goes_back_one(
    home: House, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    options = ("--wound", "kill:260", "--sour", "250", "--every-s", "0.01", "--pause", f"260:{go}")
    home.write(home.by_hand("one", *options))
    home.start()
    wait_for_copies(home, go, 225, 250)
    home.step("one", 240, attempt=3, limit_s=60)
    crashed, rejected = home.incidents("one")
    assert (crashed["rule"], crashed["resumed_from"]["step"]) == ("crash", 250)
    assert (rejected["rule"], rejected["resumed_from"]["step"]) == ("resumed_loss", 225)
    assert "do not continue the old curve" in rejected["message"]
    reported = json.loads(home.ctl("checkpoints", "one", "--json").stdout)["checkpoints"]
    (sour,) = [report for report in reported if report["step"] == 250 and report["verdict"] == "rejected"]
    assert re.match("rejected: the first (30|60|90|120) losses after the resume", sour["reason"]), sour["reason"]
    home.step("one", 330, attempt=3, limit_s=60)
    assert len(home.incidents("one")) == 2


def test_a_file_that_is_destroyed_in_place_is_resumed_from_its_generation(home: House, tmp_path: Path) -> None:
    """The kill comes in the middle of a save over the only file that there is."""
    go = tmp_path / "go"
    home.write(home.by_hand("one", "--in-place", "--wound", "truncated:74,", "--pause", f"74:{go}"))
    home.start()
    wait_for_copies(home, go, 50)
    incident = home.resumed("one")
    assert incident["resumed_from"]["step"] == 50
    kept = Path(incident["resumed_from"]["path"])
    assert kept.is_relative_to(home.state / "jobs" / "one" / "generations")
    table = home.ctl("checkpoints", "one").stdout
    assert "newest" in table
    assert "checkpoint" in table
