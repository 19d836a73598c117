"""Uevents: recorded messages of every kind from a list, and real ones from the kernel's socket."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_by_hand import ListFeed
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.findings import FaultClass as F
from supervisor.core.findings import FaultSeverity as Sev
from supervisor.core.findings import KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.kernel.uevent_socket import KernelSocket, parse_uevent
from supervisor.sources.kernel.uevents import Uevents

NOW = Moment(1000.0, 1_700_000_000.0)
CARD = "/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0/drm/card1"
NULL = Path("/sys/devices/virtual/mem/null/uevent")


def message(action: str, devpath: str = CARD, **facts: str) -> bytes:
    given = {"ACTION": action, "DEVPATH": devpath, "SUBSYSTEM": "drm", **facts}
    return "\0".join([f"{action}@{devpath}", *(f"{name}={value}" for name, value in given.items()), ""]).encode()


def received_events(*items: bytes | OSError | None, sys_root: Path = Path("/sys")) -> tuple[KernelFinding, ...]:
    output = Uevents(sys_root, ListFeed(list(items))).read(NOW)
    return output.findings if output else ()


@pytest.mark.parametrize(
    ("wedged", "fault", "severity", "remedy"),
    [
        ("none", F.GPU_RESET, Sev.WARN, "the driver has reset it"),
        ("rebind", F.GPU_HANG, Sev.FATAL, "unbind the driver"),
        ("bus-reset", F.GPU_HANG, Sev.FATAL, "reset the GPU's bus and bind"),
        ("rebind,bus-reset", F.GPU_HANG, Sev.FATAL, "unbind the driver"),
        ("vendor-specific", F.GPU_HANG, Sev.FATAL, "vendor"),
        ("unknown", F.GPU_HANG, Sev.FATAL, "reboot the machine"),
        ("magic", F.GPU_HANG, Sev.FATAL, "reboot the machine"),
        ("", F.GPU_HANG, Sev.FATAL, "reboot the machine"),
    ],
)
def test_a_wedged_gpu_is_reported_with_the_cure_that_the_driver_names(
    wedged: str, fault: F, severity: Sev, remedy: str
) -> None:
    (finding,) = received_events(message("change", WEDGED=wedged, PID="812", TASK="python"))
    assert (finding.fault, finding.severity, finding.gpu) == (fault, severity, "0000:03:00.0")
    assert (finding.pid, finding.process) == (812, "python")
    assert remedy in (finding.remedy or "")
    assert f"WEDGED={wedged}" in finding.line


def test_a_gpu_that_goes_is_lost_and_one_that_comes_is_news_only() -> None:
    gone, back = received_events(message("remove"), message("add"))
    assert (gone.fault, gone.severity, gone.gpu) == (F.GPU_LOST, Sev.FATAL, "0000:03:00.0")
    assert (back.fault, back.severity, back.gpu) == (F.GPU_LOST, Sev.INFO, "0000:03:00.0")
    assert gone.key != back.key


def test_a_core_dump_names_the_gpu_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "class/devcoredump/devcd1"
    folder.mkdir(parents=True)
    (folder / "failing_device").symlink_to("../../../pci0000:00/0000:00:01.1/0000:03:00.0")
    dump = message("add", "/devices/virtual/devcoredump/devcd1", SUBSYSTEM="devcoredump")
    (finding,) = received_events(dump, sys_root=tmp_path)
    assert (finding.severity, finding.gpu, finding.what) == (Sev.INFO, "0000:03:00.0", "the driver left a core dump")
    (nameless,) = received_events(dump, sys_root=tmp_path / "absent")
    assert nameless.gpu is None


@pytest.mark.parametrize(
    "raw",
    [
        message("change"),
        message("change", HOTPLUG="1"),
        message("add", CARD.replace("card1", "renderD128")),
        message("remove", CARD + "/card1-DP-1"),
        message("add", "/devices/virtual/mem/null", SUBSYSTEM="mem"),
        message("remove", "/devices/virtual/drm/card7"),
        message("remove", SYNTH_UUID="0"),
        message("change", WEDGED="rebind", SYNTH_UUID="0"),
        b"libudev\0\xfe\xed\xca\xfe" + b"\0" * 32 + message("remove")[40:],
        message("remove").replace(b"ACTION=remove", b"ACTION=change"),
        b"remove@" + CARD.encode() + b"\0",
        None,
    ],
)
def test_what_is_no_news_of_a_gpu_or_not_the_kernels_is_no_finding(raw: bytes | None) -> None:
    assert received_events(raw) == ()


def test_messages_that_were_lost_are_reported() -> None:
    output = Uevents(messages=ListFeed([OSError(errno.ENOBUFS, "no space"), message("remove")])).read(NOW)
    assert output is not None
    assert (output.lost_lines, len(output.findings), output.sequence, output.cursor) == (1, 1, None, None)


def test_a_socket_that_breaks_is_closed_and_reported() -> None:
    broken = ListFeed[bytes | None]([OSError(errno.EIO, "Input/output error")])
    uevents = Uevents(messages=broken)
    assert uevents.read(NOW) is None
    assert broken.closed
    assert "Input/output error" in (uevents.problem or "")
    assert uevents.fileno() == -1


@given(st.binary(max_size=300) | st.text(max_size=60).map(lambda text: message("change", WEDGED=text, PID=text)))
def test_no_message_makes_it_raise(raw: bytes) -> None:
    parse_uevent(raw)
    received_events(raw)


# --- the real socket ----------------------------------------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[KernelSocket]:
    if os.geteuid() != 0 or not os.access(NULL, os.W_OK):
        pytest.skip("raising uevents needs root and a writable /sys")
    listening = KernelSocket()
    yield listening
    listening.close()


def received(listening: KernelSocket, mark: str) -> list[bytes]:
    """Read until a message with the mark is there; return every one that was believed."""
    believed: list[bytes] = []
    end = time.perf_counter() + 60
    while time.perf_counter() < end:
        select.select([listening.fileno()], [], [], 0.5)
        try:
            raw = listening.read()
        except BlockingIOError:
            continue
        believed += [raw] if raw is not None else []
        if raw is not None and mark.encode() in raw:
            return believed
    raise AssertionError(f"{mark} did not come")


@pytest.mark.kernel
def test_a_real_uevent_is_received_and_known_for_one_that_a_program_asked_for(listening: KernelSocket) -> None:
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    NULL.write_text(f"change {uuid} MARK=heard")
    raw = received(listening, "SYNTH_ARG_MARK=heard")[-1]
    event = parse_uevent(raw)
    assert event is not None
    assert (event.action, event.devpath, event.facts["SUBSYSTEM"]) == ("change", "/devices/virtual/mem/null", "mem")
    assert event.synthetic


@pytest.mark.kernel
def test_what_another_process_sends_to_the_group_is_dropped(listening: KernelSocket) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as forger:
        forger.bind((0, 0))
        forger.sendto(message("remove", FORGED="1"), (0, 1))
    NULL.write_text("change 01234567-89ab-cdef-0123-456789abcdef MARK=after")
    believed = received(listening, "SYNTH_ARG_MARK=after")
    assert not any(b"FORGED" in raw for raw in believed)
