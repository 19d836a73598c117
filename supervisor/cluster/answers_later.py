"""Asks what may wait for a file system in a thread of its own, and gives the answer back to the thread that asked."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from supervisor.children.prompt_thread import PromptThread

log = logging.getLogger(__name__)

T = TypeVar("T")


class AnswersLater(Generic[T]):
    """One question at a time; while it has no answer no other is asked."""

    def __init__(self, name: str, give_back: Callable[[Callable[[], None]], None]) -> None:
        """`name` is that of the thread; `give_back` has work done in the thread that asks."""
        self._name, self._give_back = name, give_back
        self._questions: queue.SimpleQueue[tuple[Callable[[], T], Callable[[T], None]] | None] = queue.SimpleQueue()
        self._begun = False
        self._under_way = False

    def ask(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Have `take` called with what `work` returns; nothing where an earlier question has no answer yet."""
        if self._under_way:
            return
        if not self._begun:
            PromptThread(self._run, self._name).start()
            self._begun = True
        self._under_way = True
        self._questions.put((work, take))

    def end(self) -> None:
        """End the thread, once what it is asked has come back."""
        self._questions.put(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            work, take = question
            try:
                answer = work()
            except Exception:
                log.exception("cluster.answer_failed", extra={"fields": {"asked": self._name}})
                self._give_back(self._finish)
            else:
                self._give_back(partial(self._take, take, answer))

    def _finish(self) -> None:
        self._under_way = False

    def _take(self, take: Callable[[T], None], answer: T) -> None:
        self._under_way = False
        take(answer)
