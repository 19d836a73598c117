"""The watch over what the kernel says: everything is passed on, silence and losses are told."""

from __future__ import annotations

import queue

from clocks_by_hand import START, HandClock

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.daemon.telemetry import KernelWatch

T = START


class ListSource:
    """A log that says what a test put in, once, and then cannot be read any more."""

    def __init__(self, output: list[ev.KernelReported]) -> None:
        self.output = output
        self.problem: str | None = None

    def fileno(self) -> int:
        return -1

    def read(self, now: Moment) -> ev.KernelReported | None:
        if self.output:
            return self.output.pop(0)
        self.problem = "/dev/kmsg: Operation not permitted"
        return None


def test_what_was_reported_and_lost_is_passed_on_and_a_log_that_falls_silent_is_reported() -> None:
    events: queue.Queue[ev.Event] = queue.Queue()
    output = [ev.KernelReported(at=T, findings=(), sequence=9, lost_lines=3)]
    watch = KernelWatch(HandClock(), events.put, "kmsg", ListSource(list(output)), retry_ms=200)
    watch.start()
    assert events.get(timeout=120) == output[0]
    changed = events.get(timeout=120)
    assert isinstance(changed, ev.SourceChanged)
    assert (changed.source, changed.answering, changed.detail) == ("kmsg", False, "/dev/kmsg: Operation not permitted")
    assert (watch.lost, watch.source, watch.problem) == (3, "kmsg", changed.detail)
