"""The most threads of the daemon are a sum over their kinds, and what starts them is all of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clocks_by_hand import HandClock, until

import supervisor.daemon
from supervisor.core import events as ev
from supervisor.daemon import thread_kinds
from supervisor.daemon.fence import SEARCH
from supervisor.daemon.periodic import PERIODIC_AT_ONCE
from supervisor.daemon.threads import ACTS_AT_ONCE, Threads

LIMIT_S = 120


@pytest.fixture
def threads() -> Iterator[Threads]:
    events: list[ev.Event] = []
    made = Threads(HandClock(), events.append)
    yield made
    made.end()


def find_in_source(pattern: str) -> set[str]:
    texts = (path.read_text() for path in Path(supervisor.daemon.__path__[0]).rglob("*.py"))
    return {found for text in texts for found in re.findall(pattern, text)}


def test_of_one_kind_no_more_are_under_way_for_a_job_than_it_may_have(threads: Threads) -> None:
    begun, go, done = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        assert go.wait(LIMIT_S)
        done.release()

    for _ in range(5 * ACTS_AT_ONCE):
        threads.begin("stop", "one", hang)
    for _ in range(ACTS_AT_ONCE):
        assert begun.acquire(timeout=LIMIT_S)
    others: list[str] = []
    threads.begin("kill", "one", lambda: others.append("kill"))
    threads.begin("stop", "two", lambda: others.append("stop"))
    until(lambda: sorted(others) == ["kill", "stop"], "the other kind, and the other job")
    assert sum(thread.name == "stop-one" for thread in threading.enumerate()) == ACTS_AT_ONCE
    assert not begun.acquire(blocking=False)
    go.set()
    for _ in range(5 * ACTS_AT_ONCE):
        assert done.acquire(timeout=LIMIT_S)
    until(lambda: not threads.posts(), "all to be over")


def test_an_act_that_raises_gives_its_place_to_the_next(threads: Threads) -> None:
    done: list[int] = []

    def fail() -> None:
        raise ValueError("a defect")

    for _ in range(2 * ACTS_AT_ONCE):
        threads.begin("clear", "one", fail)
    threads.begin("clear", "one", lambda: done.append(1))
    until(lambda: done == [1], "the last of them")


def test_every_lane_and_every_act_of_the_source_is_counted() -> None:
    lanes = find_in_source(r'\.lane\(\s*"([^"]+)", [^"]')
    assert lanes - {"space of"} == set(thread_kinds.JOBS_LANES)
    named = find_in_source(r'\.lane\(\s*("[^"]+", "[^"]+")')
    assert {" ".join(text.strip('"') for text in found.split('", "')) for found in named} == set(
        thread_kinds.DAEMONS_LANES
    )
    acts = find_in_source(r'\bbegin\(\s*"([a-z ]+)",') | {SEARCH}
    assert acts - {"info"} == {*thread_kinds.JOBS_ACTS, *thread_kinds.DAEMONS_ACTS}


def test_no_periodic_work_waits_for_another() -> None:
    assert len(find_in_source(r"_periodic\.every\((.*)")) < PERIODIC_AT_ONCE


def test_the_most_is_the_sum_of_the_kinds() -> None:
    fixed, of_a_job = thread_kinds.count_most(0, 0), thread_kinds.count_most(1, 0) - thread_kinds.count_most(0, 0)
    assert fixed == sum(thread_kinds.OF_THE_DAEMON.values())
    assert of_a_job == sum(thread_kinds.OF_A_JOB.values())
    assert thread_kinds.count_most(5, 2) == fixed + 5 * of_a_job + 2 * thread_kinds.OF_A_RECEIVER
