"""A new remedy is one row in one file: configuration, choice, launch and wording follow from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import supervisor
from supervisor.core.remedies.causes import CAUSES
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.spec import Need
from supervisor.core.remedies.table import REMEDIES

ROW = """\
    RemedySpec(
        name="slower_clock",
        words="clock limited to 1 GHz",
        needs=Need.AGENT,
        condition=lambda situation: situation.ended.patched,
        changes=lambda _held, _amounts: (Env("CLOCK_LIMIT", "1"), Assign("clock_hz", 1e9)),
        ladder={GPU_HANG: 5, CRASH: 30},
    ),
"""
USE = """
from supervisor.config import check_text
from supervisor.control.present_remedies import in_words
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.remedies.choose import choose
from supervisor.core.remedies.context import Ended, RemedyContext
from supervisor.core.remedies.effects import changes_of
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.trials import Course, Trial

table, course, now = Remedies(), Course(), Moment(1.0, 1.0)
print(table.gpu_hang[:2], table.crash)
for patched, agent in ((False, True), (True, False), (True, True)):
    choice = choose(course, table, Ended(cause="gpu_hang", step=7, patched=patched), RemedyContext(agent=agent))
    print(choice.remedy, "|", choice.reason)
course = course.taken(Trial(attempt=2, at=now, cause="gpu_hang", remedy=choice.remedy, step=7), None)
changes = changes_of(course.in_force, table)
print(changes.env, [(name, setting.value, setting.remedies) for name, setting in changes.settings])
print(in_words(Job(name="one", since=now, course=course)))
config = '[jobs.one]\\ncommand = ["true"]\\ncwd = "/"\\nuser = "root"\\n[jobs.one.remedies]\\n'
for ladder in ('["slower_clock"]', '["slower_clocks"]'):
    problems = check_text(config + f"gpu_hang = {ladder}", "one.toml").problems
    print([problem.key for problem in problems if "remedies" in problem.key])
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one row more in the table."""
    folder = tmp_path_factory.mktemp("extended")
    package = Path(supervisor.__file__).parent
    shutil.copytree(package, folder / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "supervisor" / "core" / "remedies" / "table.py"
    head, begin, rows = path.read_text(encoding="utf-8").partition("REMEDIES: tuple[RemedySpec, ...] = (\n")
    path.write_text(head + begin + ROW + rows, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_one_row_adds_a_remedy(extended: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", USE], cwd=extended, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "('slower_clock', 'restart') ('restart', 'older_generation', 'other_environment', 'slower_clock')",
        "restart | restart without changes",
        "restart | restart without changes",
        "slower_clock | clock limited to 1 GHz",
        "(('CLOCK_LIMIT', '1'),) [('clock_hz', 1000000000.0, ('slower_clock',))]",
        "['slower_clock against gpu_hang: clock limited to 1 GHz']",
        "[]",
        "['jobs.one.remedies.gpu_hang[0]']",
    ]


def test_every_row_can_be_used() -> None:
    names = [spec.name for spec in REMEDIES]
    assert len(set(names)) == len(names)
    for spec in REMEDIES:
        assert set(spec.ladder) <= set(CAUSES), spec.name
        assert (spec.needs is Need.TRAINER) is bool(spec.setting), spec.name
    for cause in CAUSES:
        ladder = Remedies().ladder(cause)
        assert ladder, cause
        places = [place for spec in REMEDIES for place in spec.places(cause)]
        assert len(set(places)) == len(places), f"two remedies have one place against {cause}"
