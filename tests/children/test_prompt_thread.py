"""A thread that died before its first line is no reason to wait for ever, and does nothing later."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from supervisor.children.prompt_thread import PromptThread


class WithoutMemory(PromptThread):
    """As where the last memory went to the thread's stack: it ends before its first line."""

    BEGIN_LIMIT_S: ClassVar[float] = 0.05

    def _bootstrap(self) -> None:
        pass


class Late(PromptThread):
    """A thread that has its first turn long after it was started."""

    BEGIN_LIMIT_S: ClassVar[float] = 0.05
    turn = threading.Event()
    over = threading.Event()

    def _bootstrap(self) -> None:
        self.turn.wait()
        super()._bootstrap()  # type: ignore[misc]  # not declared, as all of a thread's own
        self.over.set()


def test_a_thread_does_its_work() -> None:
    done = threading.Event()
    thread = PromptThread(done.set, "work")
    thread.start()
    thread.join()
    assert (done.is_set(), thread.name, thread.daemon, thread.is_alive()) == (True, "work", True, False)


def test_a_thread_that_died_before_its_first_line_is_an_error_of_memory() -> None:
    thread = WithoutMemory(lambda: pytest.fail("it ended before"), "work")
    with pytest.raises(MemoryError, match="no memory left"):
        thread.start()
    assert not thread.is_alive()


def test_a_thread_that_was_given_up_does_nothing_when_it_begins_after_all() -> None:
    done = threading.Event()
    thread = Late(done.set, "work")
    with pytest.raises(MemoryError):
        thread.start()
    Late.turn.set()
    assert Late.over.wait(60)
    assert not done.is_set()
