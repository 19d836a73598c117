"""What the daemon is asked, by GET alone: the live state, the metrics, and the record where it is reached.

Answers are kept for a moment, so that five viewers cost the daemon no more than one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from supervisor.control.client import Client, ControlError

T = TypeVar("T")
KEPT_S = 2.0
"""As long as the page waits between two questions: five viewers, who ask at different times, cost what one costs."""
ANSWER_LIMIT_S = 5.0


@dataclass(slots=True)
class _Kept(Generic[T]):
    value: T
    until_s: float


class Kept(Generic[T]):
    """Answers by question, each asked for again after `life_s`, by one thread at a time."""

    def __init__(self, life_s: float, limit: int = 64) -> None:
        self._life_s, self._limit = life_s, limit
        self._answers: dict[str, _Kept[T]] = {}
        self._asking: dict[str, threading.Lock] = {}

    def get(self, question: str, ask: Callable[[], T]) -> T:
        """Return the answer that is kept, or that of `ask`, whose exceptions are not kept."""
        with self._asking.setdefault(question, threading.Lock()):
            kept = self._answers.get(question)
            if kept is None or kept.until_s < time.perf_counter():
                if len(self._answers) >= self._limit:
                    self._answers.clear()
                kept = self._answers[question] = _Kept(ask(), time.perf_counter() + self._life_s)
            return kept.value


class Daemon:
    """The daemon behind one control socket. Every method raises ControlError."""

    def __init__(self, socket: str) -> None:
        self._client = Client(socket, ANSWER_LIMIT_S)
        self._kept: Kept[dict[str, object] | ControlError] = Kept(KEPT_S)

    def get(self, route: str, **query: str | int | None) -> dict[str, object]:
        """Return the answer to GET `route`, at most two seconds old."""

        def ask() -> dict[str, object] | ControlError:
            try:
                return self._client.get(route, **query)
            except ControlError as error:
                return error

        answer = self._kept.get(f"{route} {query}", ask)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    def metrics(self, accept: str) -> str:
        """Return the metrics as text."""
        return self._client.get_text("/metrics", accept)
