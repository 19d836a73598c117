"""`doctor` and the disk of the state directory: its space and its inodes, by the limits of the rule `disk_low`."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.children.path_looks import Found, PathLooks
from supervisor.cli.doctor import checks
from supervisor.config import Settings
from supervisor.config.settings import JobSettings, SupervisorSettings


@dataclass
class Disk(PathLooks):
    """A disk with much free space and so many inodes."""

    free: int
    total: int

    def look(self, path: str | os.PathLike[str]) -> Found:
        return Found(
            mode=stat.S_IFDIR,
            uid=0,
            gid=0,
            free_bytes=10**12,
            total_bytes=10**13,
            free_inodes=self.free,
            total_inodes=self.total,
        )


def list_levels(
    tmp_path: Path, free: int, total: int, jobs: Mapping[str, JobSettings] | None = None
) -> list[tuple[str, str]]:
    settings = Settings(supervisor=SupervisorSettings(state_dir=str(tmp_path)), jobs=dict(jobs or {}))
    return [(line.level, line.found) for line in checks.disk(settings, Disk(free, total))]


@pytest.mark.parametrize(("free", "level"), [(9999, "warn"), (100, "warn"), (99, "fail"), (0, "fail")])
def test_few_free_inodes_have_a_line_with_their_limit(tmp_path: Path, free: int, level: str) -> None:
    space, inodes = list_levels(tmp_path, free, 10**7)
    assert space[0] == "ok"
    assert inodes[0] == level
    assert inodes[1].startswith(f"{free} of 10000000 inodes free on the disk of {tmp_path} (limit ")


@pytest.mark.parametrize(("free", "total"), [(10_000, 10**7), (20, 1000), (0, 0)])
def test_enough_inodes_or_a_file_system_without_a_number_of_them_have_none(
    tmp_path: Path, free: int, total: int
) -> None:
    assert [level for level, _ in list_levels(tmp_path, free, total)] == ["ok"]


@pytest.mark.parametrize(
    ("keys", "levels"),
    [
        ({}, ["ok"]),
        ({"warn_bytes": 2 * 10**12}, ["warn"]),
        ({"limit_bytes": 2 * 10**12}, ["fail"]),
        ({"warn_fraction": 0.1}, ["ok"]),
        ({"warn_fraction": 0.11}, ["warn"]),
        ({"warn_inodes": 60_000}, ["ok", "warn"]),
        ({"limit_inodes": 60_000}, ["ok", "fail"]),
        ({"limit_bytes": 2 * 10**12, "enabled": False}, ["ok"]),
    ],
)
def test_the_limits_are_those_of_the_jobs(tmp_path: Path, keys: dict[str, object], levels: list[str]) -> None:
    jobs = {"one": JobSettings(command=["true"]), "two": JobSettings(command=["true"], rules={"disk_low": keys})}
    assert [level for level, _ in list_levels(tmp_path, 50_000, 10**7, jobs)] == levels
