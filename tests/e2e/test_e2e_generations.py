"""A generation outlives what is written over its file, and is rejected where the resumed training shows its worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from house import House


@pytest.mark.calm(reason="a copy must be made before the training's own rotation removes the file")
def test_a_resume_that_leaves_the_old_curve_condemns_its_generation_and_goes_back_one(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill:260", "--sour", "250", "--every-s", "0.01"))
    home.start()
    home.step("one", 240, attempt=3, limit_s=60)
    crashed, rejected = home.incidents("one")
    assert (crashed["rule"], crashed["resumed_from"]["step"]) == ("crash", 250)
    assert (rejected["rule"], rejected["resumed_from"]["step"]) == ("resumed_loss", 225)
    assert "do not continue the old curve" in rejected["message"]
    reported = json.loads(home.ctl("checkpoints", "one", "--json").stdout)["checkpoints"]
    (sour,) = [report for report in reported if report["step"] == 250 and report["verdict"] == "rejected"]
    assert sour["reason"].startswith("rejected: the first 30 losses after the resume")
    home.step("one", 330, attempt=3, limit_s=60)
    assert len(home.incidents("one")) == 2


@pytest.mark.calm(reason="a proof must be ready in time")
def test_a_file_that_is_destroyed_in_place_is_resumed_from_its_generation(home: House) -> None:
    """The kill comes in the middle of a save over the only file that there is."""
    home.write(home.by_hand("one", "--in-place", "--wound", "truncated:74,"))
    home.start()
    incident = home.resumed("one")
    assert incident["resumed_from"]["step"] == 50
    kept = Path(incident["resumed_from"]["path"])
    assert kept.is_relative_to(home.state / "jobs" / "one" / "generations")
    table = home.ctl("checkpoints", "one").stdout
    assert "newest" in table
    assert "checkpoint" in table
