"""SIGTERM ends the daemon though it cannot be determined whether systemd starts it again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest

from supervisor.daemon import service as service_module
from supervisor.daemon.service import Service


def begin_stop(monkeypatch: pytest.MonkeyPatch, begin: Callable[[str, str, Callable[[], None]], None]) -> list[bool]:
    """Have a daemon begin its stop, whose threads are begun by `begin`; return whether it left its trainings."""
    left: list[bool] = []
    service = Service.__new__(Service)
    parts = SimpleNamespace(inbox=SimpleNamespace(later=lambda work: work()), threads=SimpleNamespace(begin=begin))
    service.__dict__.update(_parts=parts, _stopping="SIGTERM")
    monkeypatch.setattr(Service, "_stop_or_leave", lambda _, *, leave: left.append(leave))
    service._begin_stop()
    return left


def test_without_room_for_the_thread_that_asks_systemd_the_daemon_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(what: str, job: str, work: Callable[[], None]) -> None:
        raise MemoryError(what)

    assert begin_stop(monkeypatch, begin) == [False]


def test_an_answer_of_systemd_that_cannot_be_read_keeps_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> bool:
        raise ValueError("unreadable")

    def begin(what: str, job: str, work: Callable[[], None]) -> None:
        with suppress(ValueError):
            work()

    monkeypatch.setattr(service_module, "stop_is_restart", ask)
    assert begin_stop(monkeypatch, begin) == [False]
