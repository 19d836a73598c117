"""What an attack under systemd looks at: whose the processes of the units are."""

from __future__ import annotations

from sites import started_as

ROOT_UID, OWNER_UID = 0, 991


class Starting:
    """A unit's process as systemd starts it: it becomes its user and its command between two looks."""

    def __init__(self, user: int) -> None:
        self._states = [(["(python)"], ROOT_UID), (["/usr/bin/python", "shim.py"], user)]

    def cmdline(self) -> list[str]:
        return self._look()[0]

    def uids(self) -> tuple[int, int, int]:
        return (self._look()[1],) * 3

    def _look(self) -> tuple[list[str], int]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


def test_a_process_that_systemd_is_about_to_start_runs_as_nobody_yet() -> None:
    process = Starting(OWNER_UID)
    assert started_as(process)[1] == set()
    assert started_as(process) == (["/usr/bin/python", "shim.py"], {OWNER_UID})


def test_a_process_that_runs_as_root_once_it_is_started_is_seen() -> None:
    process = Starting(ROOT_UID)
    started_as(process)
    assert started_as(process)[1] == {ROOT_UID}
