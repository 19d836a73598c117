"""Finds the number by which this machine knows a process that reports from a container, whose numbers are its own.

A rule compares the processes that an agent names with those that the machine shows below the shim: `unshare --pid`,
podman, bubblewrap and Apptainer begin to count at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.runner.attempt_folder import living_shim
from supervisor.runner.process_table import read_inner_pid
from supervisor.sources.processes import pids_below

PIDS_KEPT = 10_000


class InnerPids:
    """The processes of an attempt that know themselves by another number than this machine does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outer: dict[int, int] = {}

    def look(self) -> None:
        """Look at what runs now; what has ended keeps its number, until another process has that."""
        shim = living_shim(self._folder)
        below = () if shim is None else pids_below(shim.pid) or ()
        self.add({pid: read_inner_pid(pid) for pid in below})

    def add(self, inner_by_pid: Mapping[int, int]) -> None:
        """Take in which processes run, and by which number each knows itself."""
        inside = [(inner, pid) for pid, inner in inner_by_pid.items() if inner != pid]
        outside = {pid for pid, inner in inner_by_pid.items() if inner == pid}
        seen: set[int] = set()
        for inner, pid in inside:
            if inner in seen or inner in outside:  # which of them reports is not known
                self._outer.pop(inner, None)
            elif inner in self._outer or len(self._outer) < PIDS_KEPT:
                self._outer[inner] = pid
            seen.add(inner)

    def find(self, pid: int | None) -> int | None:
        """Return the number of a process on this machine by the one that it reports, which is the same without one."""
        return pid if pid is None else self._outer.get(pid, pid)

    def replace_in(self, facts: dict[str, object]) -> dict[str, object]:
        """Return what an agent reports with the numbers of this machine."""
        if not self._outer:
            return facts
        changed = dict(facts)
        if isinstance(of := facts.get("of"), int):
            changed["of"] = self.find(of)
        if isinstance(pids := facts.get("pids"), list):
            changed["pids"] = [self.find(pid) if isinstance(pid, int) else pid for pid in pids]
        return changed
