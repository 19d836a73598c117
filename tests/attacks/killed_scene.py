"""What is common to the acts over which a daemon is killed (`killed_acts.py`), and what all of them look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from supervisor.control.client import ControlError
from tests.e2e.house import House
from tests.rigs.killing_disk import KillingDisk


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One act of a daemon."""

    prepare: Callable[[House, KillingDisk], None]
    """Bring an installation to where the act begins; without a daemon where its start is the act."""
    act: Callable[[House], None]
    """Ask for the act, of a daemon that may be killed over it."""
    is_over: Callable[[House], bool]
    """Whether the act came to its end, with a daemon that was not killed."""
    look: Callable[[House, KillingDisk], None]
    """Assert, with the next daemon, that it is whole."""


def lay_out(home: House, disk: KillingDisk, text: str) -> None:
    """Write a configuration of a state that lies on that disk; the socket and the trainings' own folders do not."""
    home.state = disk.at / "state"
    home.client.path = str(home.folder / "control.sock")
    home.write(text, head=f'socket = "{home.client.path}"')


ANSWERED = "answered"
"""A file that is there once the daemon has answered that it does what was asked."""


def ask(home: House, path: str) -> None:
    """Ask it of a daemon that may be killed over it."""
    try:
        home.client.post(path)
    except ControlError:
        return
    (home.folder / ANSWERED).touch()


def goes_on(home: House, name: str) -> None:
    """Assert that one training of a job runs, made each step once, and that all of them are in the record."""
    last = len(home.steps_made(name))
    home.until(lambda: len(home.steps_made(name)) > last + 20, 60, f"{name} to go on")
    made = home.steps_made(name)
    assert made == list(range(1, len(made) + 1)), f"{name} made {made}"
    home.until(lambda: home.steps_recorded(name) >= len(made), 60, f"{len(made)} steps of {name} to be recorded")
    assert home.steps_recorded(name) <= len(home.steps_made(name))


def decisions(home: House, name: str) -> list[str]:
    """Return the decisions about a job, the first first."""
    return [kind for (kind,) in home.query("SELECT kind FROM decisions WHERE job = ? ORDER BY id", name)]


def processes_with(folder: str) -> list[int]:
    """Return the processes with a path below that folder among their arguments."""
    return [
        found.pid
        for found in psutil.process_iter(["cmdline"])
        if any(folder in word for word in found.info["cmdline"] or ())
    ]
