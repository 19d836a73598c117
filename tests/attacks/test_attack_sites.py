"""What an attack under systemd looks at: whose the processes of the units are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress

import psutil
import pytest
from attack_plan import Action
from campaign import jobs
from sites import HERE, Installed, installed, started_as

from tests.rigs.installed_box import may_boot

ROOT_UID, OWNER_UID = 0, 991


class Starting:
    """A unit's process as systemd starts it: it becomes its user and its command between two looks."""

    def __init__(self, user: int, *, first: Sequence[str] = ("(python)",)) -> None:
        self._states = [(list(first), ROOT_UID), (["/usr/bin/python", "shim.py"], user)]

    def cmdline(self) -> list[str]:
        return self._look()[0]

    def uids(self) -> tuple[int, int, int]:
        return (self._look()[1],) * 3

    def _look(self) -> tuple[list[str], int]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


MANAGER = ("/usr/lib/systemd/systemd", "--system", "--unit=box.target")


@pytest.mark.parametrize("first", [("(python)",), MANAGER])
def test_a_process_that_systemd_is_about_to_start_runs_as_nobody_yet(first: Sequence[str]) -> None:
    process = Starting(OWNER_UID, first=first)
    assert started_as(process)[1] == set()
    assert started_as(process) == (["/usr/bin/python", "shim.py"], {OWNER_UID})


def test_a_process_that_runs_as_root_once_it_is_started_is_seen() -> None:
    process = Starting(ROOT_UID)
    started_as(process)
    assert started_as(process)[1] == {ROOT_UID}


@pytest.mark.slow
@pytest.mark.systemd
def test_nothing_of_an_attack_runs_when_the_installed_units_are_left() -> None:
    reason = may_boot()
    if reason:
        pytest.skip(reason)
    with installed(1) as site:
        site.plant([Action("lease", number) for number in range(20)], per_s=20.0)
        site.write(jobs(site, wound_every=250))
        site.begin()
        # A lease of a training that still runs would stop whoever looks into the file for 45 s.
        site.until((site.folder / "hostile.said").exists, 60, "an action")
        site.until(lambda: all(site.intrusions().values()), 60, "an action of both other users")
        site.leave()
        assert [command for command in commands_of(site) if str(HERE) in command or "rocm-supervisord" in command] == []


def commands_of(site: Installed) -> list[str]:
    """Return the commands of the box's processes."""
    found = []
    for process, _ in site._processes():
        with suppress(psutil.Error):
            found.append(shlex.join(process.cmdline()))
    return found
