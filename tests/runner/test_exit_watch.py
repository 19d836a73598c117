"""The moment a shim is gone reaches the inbox by itself."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Iterator

import pytest
from attempts_by_hand import LIMIT_S

from supervisor.runner import process_table
from supervisor.runner.exit_watch import ExitWatch, ShimGone


@pytest.fixture
def inbox() -> queue.Queue[ShimGone]:
    return queue.Queue()


@pytest.fixture
def watch(inbox: queue.Queue[ShimGone]) -> Iterator[ExitWatch]:
    made = ExitWatch(inbox.put)
    yield made
    made.close()


def start_ticks(pid: int) -> int:
    process = process_table.read_process(pid)
    assert process is not None
    return process.start_ticks


def test_each_end_is_reported_once_and_of_its_own_job(watch: ExitWatch, inbox: queue.Queue[ShimGone]) -> None:
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        watch.add("a", 1, first.pid, start_ticks(first.pid))
        watch.add("b", 7, second.pid, start_ticks(second.pid))
        second.kill()
        assert inbox.get(timeout=LIMIT_S) == ShimGone(job="b", attempt=7)
        first.kill()
        assert inbox.get(timeout=LIMIT_S) == ShimGone(job="a", attempt=1)
    assert inbox.empty()


def test_one_that_was_gone_before_is_reported_at_once(watch: ExitWatch, inbox: queue.Queue[ShimGone]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        ticks = start_ticks(process.pid)
        process.kill()
    watch.add("a", 1, process.pid, ticks)
    assert inbox.get(timeout=LIMIT_S) == ShimGone(job="a", attempt=1)


def test_a_reused_process_number_is_another_process(watch: ExitWatch, inbox: queue.Queue[ShimGone]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        watch.add("a", 1, process.pid, start_ticks(process.pid) - 1)
        assert inbox.get(timeout=LIMIT_S) == ShimGone(job="a", attempt=1)
        assert process.poll() is None
        process.kill()


def test_many_ends_at_once_are_all_reported(watch: ExitWatch, inbox: queue.Queue[ShimGone]) -> None:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(20)]
    for number, process in enumerate(processes):
        watch.add("a", number, process.pid, start_ticks(process.pid))
    for process in processes:
        process.kill()
    reported = {inbox.get(timeout=LIMIT_S).attempt for _ in processes}
    for process in processes:
        process.wait()
    assert reported == set(range(20))


def test_a_watch_that_is_closed_with_shims_alive_ends(inbox: queue.Queue[ShimGone]) -> None:
    watch = ExitWatch(inbox.put)
    with subprocess.Popen(["sleep", "60"]) as process:
        watch.add("a", 1, process.pid, start_ticks(process.pid))
        watch.close()
        watch.close()
        assert process.poll() is None
        process.kill()
