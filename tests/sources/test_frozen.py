"""Processes that are frozen with their control group are found, by either version of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.sources.frozen import find_frozen


def lay_out(root: Path, groups: str, files: dict[str, str]) -> None:
    """Write the groups of process 7, and files of the mounted hierarchies."""
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(groups)
    for name, text in files.items():
        (root / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "groups" / name).write_text(text)


EVENTS = "populated 1\nfrozen {}\n"


@pytest.mark.parametrize(
    ("groups", "files", "frozen"),
    [
        ("0::/run/one", {"run/one/cgroup.events": EVENTS.format(1)}, True),
        ("0::/run/one", {"run/one/cgroup.events": EVENTS.format(0)}, False),
        ("0::/", {}, False),
        ("4:memory:/\n3:freezer:/one\n0::/", {"freezer/one/freezer.state": "FROZEN\n"}, True),
        ("3:freezer:/one\n0::/", {"freezer/one/freezer.state": "FREEZING\n"}, False),
        ("3:freezer:/\n0::/one", {"unified/one/cgroup.events": EVENTS.format(1)}, True),
        ("0::/../../one", {"one/cgroup.events": EVENTS.format(1)}, False),
    ],
)
def test_what_the_files_of_its_groups_show(tmp_path: Path, groups: str, files: dict[str, str], frozen: bool) -> None:
    lay_out(tmp_path, groups, files)
    found = find_frozen([7, 8], tmp_path / "proc", tmp_path / "groups")
    assert found == ((7,) if frozen else ())
