"""Every recorded fault is found by the rules as they are, in its time, and nothing that is well is killed before it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.flags import Severity
from supervisor.core.rules import RULES
from supervisor.replay.engine import Fired, replay
from supervisor.replay.folder import read
from tests.rigs.agreeing import Agreement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[1] / "recordings").glob("*/expected.toml"))
each_recording = pytest.mark.parametrize(
    "folder",
    [pytest.param(path, id=path.name, marks=pytest.mark.xdist_group(f"recording {path.name}")) for path in FOLDERS],
)
"""The tests of a recording share a process, in which it is judged once."""


def expected(folder: Path) -> list[dict[str, Any]]:
    flags: list[dict[str, Any]] = tomllib.loads((folder / "expected.toml").read_text())["flag"]
    return flags


@cache
def judged(folder: Path) -> list[Fired]:
    recording = read(folder)
    rules = [rule(**recording.rules.get(rule.name, {})) for rule in RULES]
    return list(replay(recording, [*rules, Agreement(rules, every=20)]))


def test_there_are_recordings() -> None:
    assert len(FOLDERS) >= 6


@each_recording
def test_a_recorded_fault_is_found_in_its_time(folder: Path) -> None:
    fired = judged(folder)
    for wanted in expected(folder):
        earliest, latest = wanted["after_s"]
        found = [
            flag
            for flag in fired
            if flag.flag.rule == wanted["rule"] and flag.flag.severity.label == wanted["severity"]
        ]
        assert found, wanted
        assert earliest <= found[0].after_s <= latest
        assert "step" not in wanted or found[0].step == wanted["step"]


@each_recording
def test_nothing_is_killed_before_its_fault(folder: Path) -> None:
    first = min(flag["after_s"][0] for flag in expected(folder))
    reports = any(flag["severity"] == "critical" for flag in expected(folder))
    early = [item for item in judged(folder) if item.flag.severity is Severity.CRITICAL and not item.flag.shadow]
    assert not [item for item in early if item.after_s < first or not reports]
