"""The daemon's end: systemd hears before each part that it goes on, and one that fails keeps none from ending."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from supervisor.core.moments import Moment
from supervisor.daemon.process.ending import PART_EXTENSION_S, end_in_turn
from supervisor.daemon.service import CLOSE_LIMIT_S, PART_LIMIT_S, STOP_MARGIN_S, Service


class Manager:
    """The service manager, in one list with what ends."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def extend_timeout(self, seconds: float, *, again: bool = False) -> None:
        self.seen.append(f"{seconds:.0f} s more")


def test_each_part_has_the_whole_time_that_no_part_takes() -> None:
    manager = Manager()
    names = ("tunes", "alerts", "record")
    end_in_turn(manager, [(name, lambda name=name: manager.seen.append(name)) for name in names])  # type: ignore[misc] # bound for each
    more = f"{PART_EXTENSION_S:.0f} s more"
    assert manager.seen == [more, "tunes", more, "alerts", more, "record", more]
    assert 2 * max(PART_LIMIT_S, CLOSE_LIMIT_S) < PART_EXTENSION_S


def test_a_part_that_cannot_be_ended_keeps_the_record_from_nothing(caplog: pytest.LogCaptureFixture) -> None:
    manager = Manager()

    def no_room() -> None:
        raise MemoryError("no thread can be started")

    end_in_turn(manager, [("tunes", no_room), ("record", lambda: manager.seen.append("record"))])
    assert "record" in manager.seen
    assert [record.fields["part"] for record in caplog.records if record.message == "daemon.part_failed"] == ["tunes"]  # type: ignore[attr-defined] # of our log


def stopping(manager: Manager, clock: SimpleNamespace, save_s: float) -> Service:
    """Return a daemon that has begun to stop its one training."""
    service = Service.__new__(Service)
    job = SimpleNamespace(save_s=save_s, grace_s=0.0, kill_wait_s=0.0)
    parts = SimpleNamespace(
        clock=clock,
        settings=SimpleNamespace(jobs={"night": job}),
        loop=SimpleNamespace(job_states={}),
        telemetry=SimpleNamespace(live=lambda: (("night", 1, 7),)),
        inbox=SimpleNamespace(empty=lambda: False),
    )
    notifier = SimpleNamespace(stopping=lambda: None, extend_timeout=manager.extend_timeout)
    known = {"_stopping": "SIGTERM", "_cause_known": False, "_leave_running": False, "_stop_limit": None}
    service.__dict__.update(known, _parts=parts, _notifier=notifier, _done_at={})
    service._stop_or_leave(leave=False)
    return service


def test_while_a_training_is_stopped_systemd_is_asked_again_and_at_the_limit_the_daemon_ends_by_itself() -> None:
    at_s, manager = 0.0, Manager()
    clock = SimpleNamespace(now=lambda: Moment(at_s, at_s))
    service = stopping(manager, clock, save_s=100.0)
    while not service._is_finished():
        at_s += 1.0
        service._extend_stop(clock.now())
    assert at_s == 100.0 + STOP_MARGIN_S
    asked = [float(text.split()[0]) for text in manager.seen]
    assert asked[0] == 100.0 + 2 * STOP_MARGIN_S
    assert len(asked) == 27, "each five seconds: one that is lost matters to nobody"
    assert min(asked) == STOP_MARGIN_S
