"""What goes over NOTIFY_SOCKET, and how the daemon learns why it is stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.daemon.process.systemd import CommandFailedError, Notifier, own_unit, stop_is_restart

SERVICE = "0::/system.slice/rocm-supervisor.service\n"
INSIDE = {"INVOCATION_ID": "2f"}
FULL = (errno.EAGAIN, os.strerror(errno.EAGAIN))
"""What the kernel answers at once where a queue is full and nothing waits for room in it."""


def listening(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(60)
    manager.bind("\0" + address[1:] if address.startswith("@") else address)
    return manager


def fill(sender: socket.socket, address: str) -> None:
    """Send until the queue of the manager is full."""
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.sendto(b"STATUS=filler", address)


@pytest.mark.parametrize("abstract", [False, True])
def test_every_message_arrives_as_sd_notify_wants_it(tmp_path: Path, abstract: bool) -> None:
    address = f"@rocm-supervisor-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with listening(address) as manager:
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
        notifier.ready()
        notifier.status("2 jobs,\n1 red flag")
        notifier.watchdog()
        notifier.extend_timeout(1.5)
        notifier.reloading(17)
        notifier.stopping()
        got = [manager.recv(4096).decode() for _ in range(6)]
    assert got == [
        "READY=1",
        "STATUS=2 jobs, 1 red flag",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "RELOADING=1\nMONOTONIC_USEC=17",
        "STOPPING=1",
    ]


def test_a_manager_that_does_not_read_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = str(tmp_path / "notify")
    with listening(address) as manager, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        fill(filler, address)
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
        notifier.status("1 job")
        assert not notifier.watchdog()
        assert [vars(record)["fields"]["error"] for record in caplog.records] == [str(BlockingIOError(*FULL))] * 2
        manager.recv(4096)
        assert notifier.watchdog()


def test_without_systemd_nothing_is_reported() -> None:
    notifier = Notifier.from_environment({})
    notifier.ready()
    assert notifier.watchdog_interval_s is None


@pytest.mark.parametrize("address", ["relative/path", "/nowhere/at/all", "@" + "x" * 200])
def test_a_socket_that_cannot_be_reached_is_no_error_of_the_daemon(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier.from_environment({"NOTIFY_SOCKET": address}).ready()
    assert [record.message.startswith("notify.") for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("usec", "pid", "expected_s"),
    [
        ("30000000", "own", 15.0),
        ("30000000", "", 15.0),
        ("30000000", "1", None),
        ("0", "", None),
        ("often", "", None),
        ("", "", None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_systemd_waits(usec: str, pid: str, expected_s: float | None) -> None:
    pid = str(os.getpid()) if pid == "own" else pid
    assert Notifier.from_environment({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}).watchdog_interval_s == expected_s


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (SERVICE, ("rocm-supervisor.service", False)),
        ("12:cpu:/x\n" + SERVICE, ("rocm-supervisor.service", False)),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/rocm-supervisor.service\n",
         ("rocm-supervisor.service", True)),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/vte-1.scope\n", None),
        ("0::/user.slice/user-1.slice/session-2.scope\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_daemon_knows_which_unit_it_is(tmp_path: Path, cgroup: str, expected: tuple[str, bool] | None) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    assert own_unit(INSIDE, tmp_path / "cgroup") == expected
    assert own_unit({}, tmp_path / "cgroup") is None


class Manager:
    """Answers list-jobs as written; None: does not answer."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str]) -> str:
        self.asked.append(" ".join(command))
        answer = self.answers.pop(0)
        if answer is None:
            raise CommandFailedError(f"{command[0]} ended with status -15")
        return answer


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["38 rocm-supervisor.service restart running\n"], True),
        (["76 rocm-supervisor.service stop    running\n"], False),
        ([""], True),
        (["7 other.service stop running\n38 rocm-supervisor.service restart running\n"], True),
        ([None, "76 rocm-supervisor.service stop running\n"], False),
        ([None, "38 rocm-supervisor.service restart running\n"], True),
        ([None, None], False),
    ],
)
def test_the_job_of_the_unit_says_why(tmp_path: Path, answers: list[str | None], expected: bool) -> None:
    (tmp_path / "cgroup").write_text(SERVICE)
    manager = Manager(*answers)
    assert stop_is_restart(INSIDE, tmp_path / "cgroup", manager) is expected
    assert manager.asked[0] == "systemctl list-jobs --no-legend --plain --no-pager rocm-supervisor.service"


def test_the_daemon_of_a_person_asks_their_systemd(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/user.slice/user-1.slice/user@1.service/app.slice/rocm-supervisor.service\n")
    manager = Manager("")
    assert stop_is_restart(INSIDE, tmp_path / "cgroup", manager)
    assert manager.asked[0].startswith("systemctl --user list-jobs")


def test_in_a_terminal_every_end_is_a_stop(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/user.slice/user-1.slice/session-2.scope\n")
    manager = Manager()
    assert not stop_is_restart(INSIDE, tmp_path / "cgroup", manager)
    assert manager.asked == []
