"""What the view shows and how keys change it; a key is one character or a name such as `up`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

OVERVIEW, DETAILS, HELP = "overview", "details", "help"
LOSSES_KEPT = 1200
_SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b[11~": "?",
    b"\x1bOP": "?",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x03": "q",
}
_TOKEN = re.compile(rb"\x1b(?:\[[0-9;?]*[@-~]|O[@-~])?|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]+")
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon said last, and when; `problem` is why the newest question had no answer."""

    status: dict[str, Any] | None = None
    incidents: tuple[dict[str, Any], ...] = ()
    output: tuple[str, ...] = ()
    """The last lines of the training that is selected."""
    output_of: str | None = None
    answered_unix_s: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TopState:
    """Everything that a frame is composed of, but its size and the time."""

    answer: Answer = field(default_factory=Answer)
    losses: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Of each training, one at each answer since the view began."""
    selected: str | None = None
    page: str = OVERVIEW
    filter: str = ""
    typing: bool = False
    """Whether keys write the filter."""

    @property
    def jobs(self) -> tuple[dict[str, Any], ...]:
        """The trainings that the filter leaves."""
        jobs = self.answer.status["jobs"] if self.answer.status else ()
        return tuple(job for job in jobs if self.filter.lower() in job["name"].lower())

    @property
    def job(self) -> dict[str, Any] | None:
        """The training that is selected, the first one where none or another is named."""
        return next((job for job in self.jobs if job["name"] == self.selected), next(iter(self.jobs), None))


def take(state: TopState, answer: Answer) -> TopState:
    """Return the state with a new answer; without one the last status stays, and losses go on with a gap."""
    if answer.status is None:
        answer = replace(state.answer, problem=answer.problem)
        return replace(state, answer=answer, losses={name: _add(seen, None) for name, seen in state.losses.items()})
    losses = {job["name"]: _add(state.losses.get(job["name"], ()), job["loss"]) for job in answer.status["jobs"]}
    return replace(state, answer=answer, losses=losses)


def _add(seen: tuple[float | None, ...], loss: float | None) -> tuple[float | None, ...]:
    return (*seen, loss)[-LOSSES_KEPT:]


def press(state: TopState, key: str) -> TopState | None:
    """Return the state after a key; None: the view ends."""
    if state.typing:
        return _type_key(state, key)
    if key == "q":
        return None
    if key in _MOVES:
        return _move_selection(state, _MOVES[key])
    if key == "/":
        return replace(state, typing=True, page=OVERVIEW)
    if key in ("?", "h"):
        return replace(state, page=OVERVIEW if state.page == HELP else HELP)
    if key in ("enter", "right") and state.job is not None and state.page == OVERVIEW:
        return replace(state, page=DETAILS, selected=state.job["name"])
    if key in ("escape", "left", "backspace", "enter"):
        return replace(state, page=OVERVIEW, filter="" if state.page == OVERVIEW and key == "escape" else state.filter)
    return state


def _type_key(state: TopState, key: str) -> TopState:
    if key == "enter":
        return replace(state, typing=False)
    if key == "escape":
        return replace(state, typing=False, filter="")
    if key == "backspace":
        return replace(state, filter=state.filter[:-1])
    return replace(state, filter=state.filter + key) if len(key) == 1 and key.isprintable() else state


def _move_selection(state: TopState, by: int) -> TopState:
    names = [job["name"] for job in state.jobs]
    if not names or state.job is None or state.page == HELP:
        return state
    index = min(max(names.index(state.job["name"]) + by, 0), len(names) - 1)
    return replace(state, selected=names[index])


def read_keys(typed: bytes) -> list[str]:
    """Return the keys of what a terminal sent; sequences that mean nothing here are left out."""
    keys: list[str] = []
    for token in _TOKEN.findall(typed):
        if token in _SEQUENCES:
            keys.append(_SEQUENCES[token])
        elif token == b"\x1b":
            keys.append("escape")
        elif token[0] > 0x1F:
            keys += [character for character in token.decode(errors="ignore") if character.isprintable()]
    return keys
