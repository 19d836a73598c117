"""With a commit thread no turn waits for the file: rows queue up behind a commit, in their order, and none is lost."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from record_by_hand import alert, at, checkpoint, gpu, job, open_store, stop

from supervisor.store.statements import GPU_SAMPLE
from supervisor.store.store import Store
from supervisor.store.writer import SILENT_COMMIT_S, SLOW_COMMIT_S


class Thread:
    """One work after the other, each once `let` allows it."""

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def let(self) -> None:
        """Run the oldest work in a thread, to its end."""
        thread = threading.Thread(target=self.works.get_nowait())
        thread.start()
        thread.join()


@pytest.fixture
def thread() -> Thread:
    return Thread()


@pytest.fixture
def store(tmp_path: Path, thread: Thread) -> Iterator[Store]:
    made = open_store(tmp_path)
    made.commit_beside(thread.works.put)
    yield made
    while not thread.works.empty():
        thread.let()
    made.close(at(10_000))


def count(store: Store, table: str) -> int:
    with closing(sqlite3.connect(store.path)) as connection:
        (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(found)


def problem(store: Store) -> str:
    """Why it cannot write now, empty where it can."""
    return store.problem or ""


def waits(store: Store) -> bool:
    """Whether the end of the commit in progress is to begin the next."""
    return store.awaits_commit


def decide(store: Store, second: float) -> int:
    """One turn with a decision; return its number."""
    with store.turn(at(second)):
        store.save_job(job())
        store.record_decision(stop())
    turn = store.unsettled_turn
    assert turn is not None
    return turn


def test_a_turn_ends_before_its_commit_and_is_settled_by_it(store: Store, thread: Thread) -> None:
    turn = decide(store, 1)
    assert not store.is_settled(turn, at(1))
    assert count(store, "decisions") == 0
    thread.let()
    assert store.is_settled(turn, at(1))
    assert store.unsettled_turn is None
    assert count(store, "decisions") == 1


def test_what_comes_during_a_commit_is_one_later_commit(store: Store, thread: Thread) -> None:
    first = decide(store, 1)
    later = [decide(store, second) for second in range(2, 20)]
    assert thread.works.qsize() == 1, "one writer"
    thread.let()
    assert store.is_settled(first, at(20))
    assert not store.is_settled(later[0], at(20))
    thread.let()
    assert store.is_settled(later[-1], at(20))
    assert count(store, "decisions") == 19


def test_the_end_of_a_commit_begins_the_next_where_rows_wait_that_are_urgent(store: Store, thread: Thread) -> None:
    decide(store, 1)
    assert not waits(store), "all that is urgent is in the commit in progress"
    with store.turn(at(2)):
        store.add_gpu_samples([gpu(2)])
    assert not waits(store), "a sample waits for the next commit, whenever that is"
    decide(store, 2)
    assert waits(store)
    thread.let()
    assert thread.works.empty()
    store.settle(at(3))
    assert thread.works.qsize() == 1, "begun without a further turn"
    assert not waits(store)


def test_a_reader_waits_until_what_was_decided_is_in_the_file(store: Store, thread: Thread) -> None:
    assert store.await_urgent(0.0), "nothing is on its way"
    decide(store, 1)
    assert not store.await_urgent(0.01)
    found: list[tuple[bool, int]] = []
    reader = threading.Thread(target=lambda: found.append((store.await_urgent(60), count(store, "decisions"))))
    reader.start()
    decide(store, 2)  # it comes later: the reader may or may not have seen it
    thread.let()
    store.settle(at(3))
    thread.let()
    reader.join(60)
    assert found in ([(True, 1)], [(True, 2)])
    with store.turn(at(4)):
        store.add_gpu_samples([gpu(4)])
    store.settle(at(4))
    assert store.await_urgent(0.0), "samples are no reason to wait"


def test_a_reader_does_not_wait_for_a_file_that_cannot_be_written(store: Store, thread: Thread) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        decide(store, 1)
        thread.let()
        began = time.perf_counter()
        assert not store.await_urgent(60)
        assert time.perf_counter() - began < 30
        other.execute("ROLLBACK")


def test_what_is_on_its_way_is_known_meanwhile(store: Store, thread: Thread) -> None:
    with store.turn(at(1)):
        store.save_checkpoint("night", 1, checkpoint(3), at(1))
        assert store.queue_alert(alert(), at(1))
    with store.turn(at(2)):
        assert not store.queue_alert(alert(), at(2)), "it was queued before"
        store.save_checkpoint("night", 1, checkpoint(4), at(2))
    assert store.checkpoints("night") == (checkpoint(3), checkpoint(4))
    thread.let()
    assert store.checkpoints("night") == (checkpoint(3), checkpoint(4)), "written, and not taken note of yet"
    store.flush(at(3))
    thread.let()
    assert store.checkpoints("night") == (checkpoint(3), checkpoint(4))


def test_rows_of_a_commit_that_failed_are_written_before_those_that_came_since(store: Store, thread: Thread) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        turn = decide(store, 1)
        with store.turn(at(1.1)):
            store.queue_alert(alert("later"), at(1.1))
        thread.let()
        assert store.is_settled(turn, at(1.2)), "it cannot be written: nothing waits for it"
        assert "locked" in problem(store)
        other.execute("ROLLBACK")
    decide(store, 60)
    thread.let()
    store.flush(at(61))
    assert store.problem is None
    assert (count(store, "decisions"), count(store, "alerts")) == (2, 1)


def test_a_commit_that_takes_long_is_reported_with_what_waits_behind_it(store: Store, thread: Thread) -> None:
    decide(store, 1)
    for second in range(GPU_SAMPLE.keep + 5):
        with store.turn(at(1 + second / 1000)):
            store.add_gpu_samples([gpu(second)])
    assert not problem(store)
    with store.turn(at(2 + SLOW_COMMIT_S)):
        pass
    assert "a commit has not ended for 4 s" in problem(store)
    assert "5 given up" in problem(store), "what waits is bounded"
    assert "the disk is slow" in problem(store)
    with store.turn(at(2 + SILENT_COMMIT_S)):
        pass
    assert "the disk does not answer" in problem(store)
    thread.let()
    assert not problem(store)


def test_rows_wait_where_no_thread_can_be_started(tmp_path: Path) -> None:
    def fail(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    store = open_store(tmp_path)
    store.commit_beside(fail)
    with pytest.raises(RuntimeError), store.turn(at(1)):
        store.record_decision(stop())
    thread = Thread()
    store.commit_beside(thread.works.put)
    decide(store, 2)
    thread.let()
    assert count(store, "decisions") == 2
    store.close(at(3))


def test_a_job_that_is_forgotten_leaves_no_row_that_was_queued(store: Store, thread: Thread) -> None:
    decide(store, 1)
    with store.turn(at(2)):
        store.save_job(job())
        store.set_note("learned limits of night: a", "{}")
        store.queue_alert(alert(), at(2))
    thread.let()
    store.drop_job("night", "learned limits of night:")
    assert store.delete_job("night", "learned limits of night:") == 2
    store.flush(at(3))
    thread.let()
    assert (count(store, "jobs"), count(store, "notes"), count(store, "alerts")) == (0, 0, 1)
