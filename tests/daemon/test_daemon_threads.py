"""A thread that died is begun again, one that does not come round is named with its age, and nobody waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from clocks_by_hand import HandClock, until

from supervisor.core import events as ev
from supervisor.daemon.threads import LIMIT_S, Threads


@pytest.fixture
def events() -> list[ev.SupervisionChanged]:
    return []


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def threads(clock: HandClock, events: list[ev.SupervisionChanged]) -> Iterator[Threads]:
    made = Threads(clock, events.append)  # type: ignore[arg-type]  # it puts nothing else
    yield made
    made.end()


def test_work_that_raises_or_returns_is_begun_again_and_counted(threads: Threads) -> None:
    begun, go = [], threading.Event()

    def work() -> None:
        begun.append(1)
        if len(begun) == 1:
            raise ValueError("what nobody expects")
        if len(begun) == 3:
            go.wait(120)

    post = threads.keep("kmsg-watch", work)
    until(lambda: len(begun) == 3, "the third beginning")
    assert post.restarts == 2
    assert post.error == "its work ended unexpectedly"
    threads.end()
    go.set()
    assert post.thread is not None
    post.thread.join(120)
    assert len(begun) == 3


def test_a_piece_of_work_that_does_not_end_is_reported_once_with_its_age_and_its_end_too(
    threads: Threads, clock: HandClock, events: list[ev.SupervisionChanged]
) -> None:
    post = threads.post("checkpoints one", job="one")
    with threads.working(post, "stat of /mnt/far/last.pt"):
        clock.sleep(LIMIT_S)
        threads.check(clock.now())
        assert events == []
        clock.sleep(2)
        threads.check(clock.now())
        threads.check(clock.now())
        assert [(event.job, event.place, event.recovered, event.persistent) for event in events] == [
            ("one", "checkpoints", False, True)
        ]
        assert events[0].error == "stat of /mnt/far/last.pt has not answered for 12 s"
        assert threads.problem(clock.now()) is None, "it is the job's, not the daemon's"
    threads.check(clock.now())
    assert [event.recovered for event in events] == [False, True]


def test_work_that_has_found_more_to_do_is_not_reported_until_that_should_be_done(
    threads: Threads, clock: HandClock, events: list[ev.SupervisionChanged]
) -> None:
    """A checkpoint of many gigabytes takes minutes to read."""
    post = threads.post("checkpoint proofs one", job="one")
    with threads.working(post, "proving /data/big.pt"):
        threads.allow_more("proving /data/small.pt", "one", 1000.0)
        threads.allow_more("proving /data/big.pt", "two", 1000.0)
        threads.allow_more("proving /data/big.pt", "one", 100.0)
        clock.sleep(LIMIT_S + 99)
        threads.check(clock.now())
        assert events == []
        clock.sleep(2)
        threads.check(clock.now())
        assert [event.error for event in events] == ["proving /data/big.pt has not answered for 111 s"]


def test_a_thread_of_no_job_that_hangs_is_a_problem_of_the_daemon(threads: Threads, clock: HandClock) -> None:
    post = threads.post("read gpus")
    with threads.working(post, "asking rocm-smi"):
        clock.sleep(LIMIT_S + 5)
        assert threads.problem(clock.now()) == "read gpus: asking rocm-smi has not ended for 15 s"
    assert threads.problem(clock.now()) is None


def test_work_begun_for_a_job_that_raises_is_reported_for_that_job(
    threads: Threads, events: list[ev.SupervisionChanged]
) -> None:
    def fails() -> None:
        raise ValueError("what nobody expects")

    threads.begin("stop", "one", fails)
    until(lambda: bool(events), "word of it")
    assert (events[0].job, events[0].place) == ("one", "stop")
    assert "ValueError: what nobody expects" in events[0].error
    until(lambda: threads.posts() == (), "its post to be left")


NO_ROOM = """
import resource, sys, time
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.threads import Threads
clock, done = SystemClock(), []
threads = Threads(clock, print)
lane = threads.lane("checkpoints", "one")
mapped = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (mapped, hard))
for number in range(2):
    lane.do("work", lambda number=number: done.append(number))
try:
    threads.begin("stop", "one", print)
except RuntimeError as error:
    print("raised", error)
print(threads.problem(clock.now()), done, [post.name for post in threads.posts()])
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
threads.check(clock.now())
end = time.monotonic() + 60
while len(done) < 2 and time.monotonic() < end:
    time.sleep(0.01)
print(threads.problem(clock.now()), done)
"""


def test_work_for_which_no_thread_can_be_started_waits_for_room_and_is_reported() -> None:
    ran = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, check=True, timeout=120)
    raised, short, after = ran.stdout.splitlines()
    assert raised == "raised can't start new thread"
    assert short.startswith("checkpoints one: its work waits, no thread can be started: RuntimeError: can't start")
    assert short.endswith("[] ['checkpoints one']"), "nothing is left of what was not begun"
    assert after == "None [0, 1]"


def test_lanes_that_have_nothing_to_do_keep_no_thread(threads: Threads) -> None:
    """Five lanes for each job kept theirs for half a minute: a daemon of six jobs had 80 threads, most of them idle."""
    before, done = threading.active_count(), threading.Semaphore(0)
    for number in range(40):
        threads.lane("processes", f"job{number}").do("reading", done.release)
        assert done.acquire(timeout=120)
    assert threading.active_count() - before < 10
