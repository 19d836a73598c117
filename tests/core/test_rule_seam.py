"""A new rule is one file, one entry in the registry and its lines in config.toml: settings, flag and gauge follow."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.gauge import Gauge, Observation, event_gauge, flag_reached, not_applicable

from .stories import START

ROOT = Path(__file__).parents[2]
RULE = '''"""Slow step: the newest step took long. It only warns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from supervisor.core.gauge import Gauge, Group, not_applicable
from supervisor.core.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStep:
    """The newest step came `limit_s` or later after the one before."""

    name: ClassVar[str] = "slow_step"
    group: ClassVar[Group] = "pace"
    enabled: bool = True
    limit_s: float = 5.0

    def may_flag(self, history: History) -> bool:
        """Whether there are two steps."""
        return len(history.steps) > 1

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how long the newest step took."""
        if len(history.steps) < 2:
            return not_applicable("time of a step", "fewer than two steps were made")
        took_s = history.steps[-1].at.seconds_since(history.steps[-2].at)
        return (Gauge(what="time of a step", unit="s", now=took_s, limit=self.limit_s),)
'''
ENTRIES = {
    "supervisor/core/rules/__init__.py": (
        ("from supervisor.core.rules.advisory.snapshot_overdue import SnapshotOverdue\n",
         "from supervisor.core.rules.advisory.slow_step import SlowStep\n"),
        ("    SnapshotOverdue,\n", "    SlowStep,\n"),
    ),
    "config.toml": (
        ("#[jobs.yolo.rules.snapshot_overdue]",
         "#[jobs.yolo.rules.slow_step]              # a step takes long\n#enabled = true\n"
         "#limit_s = 5.0                            # from one step to the next\n\n"),
    ),
}  # fmt: skip
"""What is added in front of a line of the files that are there."""
USE = """
from supervisor.config import check_text
from supervisor.config.derive import rules_of
from supervisor.control.present import watched_status
from supervisor.core.judge import judge
from supervisor.core.rules import flag_of
from tests.core.long_stories import long_story

SETTINGS = "[jobs.a]\\ncommand = ['x']\\nrules.slow_step = { %s = 3 }"
rules = rules_of(check_text(SETTINGS % "limit_s", "some").settings.jobs["a"])
(rule,) = [rule for rule in rules if rule.name == "slow_step"]
told = long_story().pace(20, every_s=2.0)
assert flag_of(rule, told.history) is None
told.pace(4, every_s=4.0)
(flag,) = [flag for flag in judge(rules, told.history) if flag.rule == rule.name]
(status,) = [watched_status(rule, gauge) for gauge in rule.measure(told.history)]
print(flag.severity.label, flag.message, sep="; ")
print(status.rule, status.now, status.limit, status.share, status.reached, sep="; ")
print(check_text(SETTINGS % "limits", "some").problems[0].key)
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program to which a rule is added, and the tests that hold of every rule."""
    folder = tmp_path_factory.mktemp("extended")
    for part in ("supervisor", "tests/core", "tests/rigs", "tests/config"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "config.toml", folder)
    (folder / "supervisor/core/rules/advisory/slow_step.py").write_text(RULE)
    for name, entries in ENTRIES.items():
        text = (folder / name).read_text()
        for before, entry in entries:
            assert text.count(before) == 1, before
            text = text.replace(before, entry + before)
        (folder / name).write_text(text)
    return folder


def run_python(folder: Path, *arguments: str) -> str:
    """Run Python where the copy is found before the program that is installed; return what it printed."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_takes_three_files_and_its_settings_flag_and_gauge_follow(extended: Path) -> None:
    assert len(ENTRIES) + 1 <= 3
    flag, status, problem = run_python(extended, "-c", USE).splitlines()
    assert flag == "warning; time of a step: 4 s, limit 3 s"
    assert status == "slow_step; 4.0; 3.0; 1.0; True"
    assert problem == "jobs.a.rules.slow_step.limits"


@pytest.mark.slow
def test_what_holds_of_every_rule_and_setting_holds_of_it(extended: Path) -> None:
    tests = ("tests/core/test_rules.py", "tests/config/test_config_example.py")
    passed = run_python(extended, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)
    assert " passed" in passed


def test_of_several_reached_gauges_the_first_of_the_most_severe_is_the_flag() -> None:
    gauges = (
        Gauge(what="a", now=1, limit=2, severity=Severity.CRITICAL),
        Gauge(what="b", now=3, limit=2),
        Gauge(what="c", now=4, limit=2, unit="steps", severity=Severity.CRITICAL),
        Gauge(what="d", now=5, limit=2, severity=Severity.CRITICAL),
    )
    flag = flag_reached("r", gauges, START)
    assert flag == RedFlag(rule="r", severity=Severity.CRITICAL, at=START, message="c: 4 steps, limit 2 steps")
    assert flag_reached("r", gauges[:1], START) is None


def test_an_event_is_reached_where_it_was_observed() -> None:
    seen = Observation(message="it broke", subject="disk", can_save=True)
    flag = flag_reached("r", (event_gauge("a fault", seen),), START)
    assert flag is not None
    assert (flag.message, flag.subject, flag.can_save, flag.severity) == ("it broke", "disk", True, Severity.WARNING)
    assert flag_reached("r", (event_gauge("a fault", None), *not_applicable("x", "why")), START) is None
    assert flag_reached("r", (Gauge(what="a fault", met=True),), START) == RedFlag(
        rule="r", severity=Severity.WARNING, at=START, message="a fault"
    )
