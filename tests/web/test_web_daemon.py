"""What the page keeps of the daemon's answers: those, for a moment, and no failure beyond who waited for it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.control.client import UnreachableError
from supervisor.web.daemon import Daemon, Kept


def test_a_daemon_that_is_back_is_asked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    daemon = Daemon(str(path))
    with pytest.raises(UnreachableError):
        daemon.get("/v1/status")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        served.listen()
        served.settimeout(10)
        with ThreadPoolExecutor(1) as workers:
            answer = workers.submit(daemon.get, "/v1/status")
            connection, _ = served.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"jobs": []}')
            assert answer.result(10) == {"jobs": []}
    assert daemon.get("/v1/status") == {"jobs": []}, "an answer is not kept"


def test_who_waits_while_it_is_asked_waits_once() -> None:
    """A daemon that hangs costs five viewers one wait, not one after the other."""
    kept: Kept[int] = Kept(60.0)
    asked: list[int] = []
    began, goes_on = threading.Event(), threading.Event()

    def fail() -> int:
        asked.append(1)
        began.set()
        goes_on.wait(10)
        raise OSError("no answer")

    waiting = [threading.Event() for _ in range(4)]

    def look(comes: threading.Event) -> int:
        comes.set()
        return kept.get("status", fail)

    with ThreadPoolExecutor(5) as viewers:
        found = [viewers.submit(kept.get, "status", fail)]
        assert began.wait(10)
        found += [viewers.submit(look, comes) for comes in waiting]
        assert all(comes.wait(10) for comes in waiting)
        threading.Timer(0.2, goes_on.set).start()
        assert all(isinstance(item.exception(10), OSError) for item in found)
    assert len(asked) == 1
    assert kept.get("status", lambda: 7) == 7
    assert kept.get("status", fail) == 7
