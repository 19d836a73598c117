"""How far a reader has to go to follow one event through `Loop.turn`: functions, files, and returns to a file left.

    python -m pytest tests/daemon/test_daemon_turn_walk.py -s

prints the walk. A reader reads each function once, in the order in which the event reaches it; a function that is first
reached from another file costs one return to the file that called it. Rules are counted as one place: they are
alternatives, and each is read for itself. Functions of fakes, of the standard library and generated ones do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

from test_daemon_loop import World

import supervisor
from supervisor.core import events as ev
from supervisor.core.readings import StepRecord

PRODUCT = str(Path(supervisor.__file__).parent)
RULES = f"{PRODUCT}/core/rules/"
RETURNS_LIMIT = 45
"""39 were measured, with 92 functions in 21 files."""


class Walk:
    """The functions that a call reaches, each with the file from which it is reached first."""

    def __init__(self) -> None:
        self.functions: dict[str, str] = {}

    def follow(self, call: Callable[[], object]) -> None:
        """Make the call and note its functions."""
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not _is_read(code) or code.co_filename.startswith(RULES):
            return
        caller = frame.f_back
        while caller is not None and not _is_read(caller.f_code):
            caller = caller.f_back
        name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
        self.functions.setdefault(f"{_file_of(code)}: {name}", "" if caller is None else _file_of(caller.f_code))

    @property
    def files(self) -> set[str]:
        """The files of the functions."""
        return {place.partition(": ")[0] for place in self.functions}

    @property
    def returns(self) -> list[str]:
        """The functions that are first reached from another file."""
        return [place for place, caller in self.functions.items() if caller and not place.startswith(f"{caller}: ")]


def _file_of(code: CodeType) -> str:
    return code.co_filename[len(PRODUCT) + 1 :]


def _is_read(code: CodeType) -> bool:
    return code.co_filename.startswith(PRODUCT) and not code.co_name.startswith("<")


def world_before_the_event() -> World:
    """Return a training that has made steps."""
    world = World()
    world.tick()
    at = world.clock.now()
    world.loop.turn(ev.Launched(at=at, job="one", attempt=1, shim_pid=1, training_pid=2))
    world.steps(*range(1, 50))
    return world


def test_one_event_is_followed_with_few_returns() -> None:
    """Three losses in a row that are NaN: the event after which the training is stopped."""
    world, walk = world_before_the_event(), Walk()
    at = world.clock.now()
    records = tuple(StepRecord(at=at, step=step, loss=float("nan")) for step in range(50, 60))
    walk.follow(lambda: world.loop.turn(ev.StepsMade(at=at, job="one", attempt=1, records=records)))
    assert world.reported.count("acted Stop") == 1
    summary = f"{len(walk.functions)} functions in {len(walk.files)} files, {len(walk.returns)} returns"
    print(summary, *(f"  {place}  from {caller}" for place, caller in walk.functions.items()), sep="\n")  # noqa: T201
    assert len(walk.returns) <= RETURNS_LIMIT, summary
