"""Work that hangs keeps its thread and gets no other; threads without work are shared."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from supervisor.children.worker_threads import WorkerThreads

LIMIT_S = 120


def test_never_more_work_than_was_allowed_is_under_way_and_the_rest_waits_for_its_turn() -> None:
    workers, go, begun = WorkerThreads("answer", 3), threading.Event(), threading.Semaphore(0)

    def hang() -> int:
        begun.release()
        assert go.wait(LIMIT_S)
        return threading.get_ident()

    asked = [workers.do(hang) for _ in range(20)]
    for _ in range(3):
        assert begun.acquire(timeout=LIMIT_S)
    assert sum(future.running() for future in asked) == 3
    assert not begun.acquire(blocking=False)
    left = asked.pop()
    assert left.cancel(), "whoever asked has gone"
    go.set()
    assert len({future.result(LIMIT_S) for future in asked}) <= 3
    assert begun._value == len(asked) - 3, "what was cancelled before it began is left out"


def test_what_hangs_without_a_most_delays_nothing() -> None:
    workers, go = WorkerThreads("worker"), threading.Event()
    hung = workers.do(lambda: go.wait(LIMIT_S))
    assert workers.do(lambda: 7).result(LIMIT_S) == 7
    assert not hung.done()
    go.set()
    assert hung.result(LIMIT_S)


def test_one_thread_takes_what_comes_one_after_the_other_under_the_name_of_its_work() -> None:
    workers, seen = WorkerThreads("worker"), []
    for number in range(5):
        asked = workers.do(lambda: seen.append(threading.current_thread()), f"lane {number}")
        wait([asked], LIMIT_S)
    assert len(set(seen)) <= 2, "the first may be on its way back to the queue when the second comes"
    assert workers.do(lambda: threading.current_thread().name, "clear one").result(LIMIT_S) == "clear one"


def test_an_error_belongs_to_whoever_asked_and_ends_no_thread() -> None:
    workers = WorkerThreads("worker", 1)
    failed = workers.do(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(LIMIT_S)
    assert workers.do(lambda: 7).result(LIMIT_S) == 7
