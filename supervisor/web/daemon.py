"""What the daemon is asked, by GET alone: the live state, the metrics, and the record where it is reached.

Answers are kept for a moment, so that five viewers cost the daemon no more than one; a failure is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar

from supervisor.control.client import Client

T = TypeVar("T")
KEPT_S = 2.0
"""As long as the page waits between two questions: five viewers, who ask at different times, cost what one costs."""
ANSWER_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    answer: Callable[[], T]
    """Returns it, or raises what was raised."""
    until_s: float


class Kept(Generic[T]):
    """Answers by question, each asked for again after `life_s`, by one thread at a time."""

    def __init__(self, life_s: float, limit: int = 64) -> None:
        self._life_s, self._limit = life_s, limit
        self._answers: dict[str, _Kept[T]] = {}
        self._asking: dict[str, threading.Lock] = {}

    def get(self, question: str, ask: Callable[[], T]) -> T:
        """Return the answer that is kept, or that of `ask`; what that raises is for who waited meanwhile."""
        came_s = time.perf_counter()
        with self._asking.setdefault(question, threading.Lock()):
            kept = self._answers.get(question)
            if kept is None or kept.until_s < came_s:
                if len(self._answers) >= self._limit:
                    self._answers.clear()
                kept = self._answers[question] = self._ask(ask)
            return kept.answer()

    def _ask(self, ask: Callable[[], T]) -> _Kept[T]:
        try:
            answer = ask()
        except Exception as error:  # noqa: BLE001 - raised again for each who waited for it
            return _Kept(partial(_fail, error), time.perf_counter())
        return _Kept(lambda: answer, time.perf_counter() + self._life_s)


def _fail(error: Exception) -> NoReturn:
    raise error


class Daemon:
    """The daemon behind one control socket. Every method raises ControlError."""

    def __init__(self, socket: str) -> None:
        self._client = Client(socket, ANSWER_LIMIT_S)
        self._kept: Kept[dict[str, object]] = Kept(KEPT_S)

    def get(self, route: str, **query: str | int | None) -> dict[str, object]:
        """Return the answer to GET `route`, at most two seconds old."""
        return self._kept.get(f"{route} {query}", lambda: self._client.get(route, **query))

    def metrics(self, accept: str) -> str:
        """Return the metrics as text."""
        return self._client.get_text("/metrics", accept)
