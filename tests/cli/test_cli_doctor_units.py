"""`doctor` names a unit of trainings that an earlier version has installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.doctor.checks import training_units

SHIPPED = Path(__file__).parents[2] / "systemd"


@pytest.mark.parametrize("shipped", [SHIPPED / "rocm-run@.service", SHIPPED / "user" / "rocm-run@.service"])
def test_a_unit_without_the_note_of_a_stop_is_named_and_the_present_one_is_not(tmp_path: Path, shipped: Path) -> None:
    assert list(training_units((tmp_path,))) == []
    unit = tmp_path / "rocm-run@.service"
    unit.write_text(shipped.read_text())
    assert list(training_units((tmp_path,))) == []
    without = [line for line in shipped.read_text().splitlines() if "stop_asked" not in line]
    unit.write_text("\n".join(without))
    (line,) = training_units((tmp_path,))
    assert (line.level, line.remedy) == ("warn", "run `supervisorctl setup` again")
    assert str(unit) in line.found
