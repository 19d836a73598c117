"""Turns the kernel's uevents about GPUs into findings: wedged, removed, added, core dump available.

Wedged GPUs: Documentation/gpu/drm-uapi.rst, "Device Wedging", Linux 6.15 and later. Events that a program triggered
(`SYNTH_UUID`, for example by `udevadm trigger`) are ignored.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Protocol

from supervisor.core.events import KernelReported
from supervisor.core.findings import FaultClass, FaultSeverity, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.kernel.uevent_socket import PCI, KernelSocket, Uevent, parse_uevent

ORIGIN = "uevent"
MESSAGES_PER_READ = 1000
REOPEN_S = 60.0
_CARD = re.compile(r"/drm/card\d+$")
_LINE_LIMIT = 300

_METHODS = {
    "none": "no action for the GPU: the driver has reset it; restart the jobs that were using it",
    "rebind": "unbind the driver from the GPU and bind it again, or reboot the machine",
    "bus-reset": "unbind the driver, reset the GPU's bus and bind the driver again, or reboot the machine",
    "vendor-specific": "follow the vendor's recovery procedure, or reboot the machine",
    "unknown": "no recovery method reported: reboot the machine; if that does not help, power-cycle it",
}
_WEDGED_SOURCE = "Documentation/gpu/drm-uapi.rst: Device Wedging"


class Messages(Protocol):
    """A source of messages: the kernel's socket, or a test's list."""

    def fileno(self) -> int:
        """Return a descriptor that polls readable when a message is available."""

    def read(self) -> bytes | None:
        """Return one message, None if it is not from the kernel. Raises BlockingIOError if there is none."""

    def close(self) -> None:
        """Close the socket."""


class Uevents:
    """The GPUs' uevents from now on; the kernel does not keep earlier ones."""

    def __init__(self, sys_root: Path = Path("/sys"), messages: Messages | None = None) -> None:
        self._sys_root = sys_root
        self._messages = messages
        self._tried: Moment | None = None
        self._count = 0
        self.problem: str | None = None
        """Why uevents cannot be received; None while they can."""

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 if the socket is not open."""
        return self._messages.fileno() if self._messages is not None else -1

    def read(self, now: Moment) -> KernelReported | None:
        """Return the findings about GPUs since the last read; None if there are none."""
        if self._messages is None and (self._tried is None or now.seconds_since(self._tried) >= REOPEN_S):
            self._tried = now
            self._open_socket()
        findings: list[KernelFinding] = []
        lost = 0
        for _ in range(MESSAGES_PER_READ):
            try:
                raw = self._messages.read() if self._messages is not None else None
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    lost += 1
                    continue
                self.problem = f"uevents: {error.strerror}"
                self.close()
                break
            if self._messages is None:
                break
            if raw is not None and (event := parse_uevent(raw)) is not None and not event.synthetic:
                findings += self._build_findings(event, now)
        return KernelReported(at=now, findings=tuple(findings), lost_lines=lost) if findings or lost else None

    def close(self) -> None:
        """Close the socket."""
        if self._messages is not None:
            self._messages.close()
            self._messages = None

    def _open_socket(self) -> None:
        try:
            self._messages, self.problem = KernelSocket(), None
        except OSError as error:
            self.problem = f"uevents: {error.strerror}; the unit needs RestrictAddressFamilies=AF_NETLINK"

    def _build_findings(self, event: Uevent, now: Moment) -> list[KernelFinding]:
        subsystem = event.facts.get("SUBSYSTEM")
        if subsystem == "devcoredump" and event.action == "add":
            return [self._build_core_dump(event, now)]
        if subsystem != "drm" or not _CARD.search(event.devpath) or event.pci is None:
            return []
        if "WEDGED" in event.facts:
            return [self._build_wedged(event, now)]
        if event.action in ("add", "remove"):
            return [self._build_presence_change(event, now)]
        return []

    def _build_wedged(self, event: Uevent, now: Moment) -> KernelFinding:
        methods = [part for part in event.facts["WEDGED"].split(",") if part]
        over = methods == ["none"]
        pid = event.facts.get("PID", "")
        return self._build_finding(
            event,
            now,
            fault=FaultClass.GPU_RESET if over else FaultClass.GPU_HANG,
            severity=FaultSeverity.WARN if over else FaultSeverity.FATAL,
            remedy=_METHODS.get(methods[0] if methods else "unknown", _METHODS["unknown"]),
            source=_WEDGED_SOURCE,
            what="the driver lost the GPU and reset it" if over else "the driver declared the GPU wedged",
            pid=int(pid) if pid.isascii() and pid.isdigit() and 0 < len(pid) < 11 else None,
            process=event.facts.get("TASK") or None,
        )

    def _build_presence_change(self, event: Uevent, now: Moment) -> KernelFinding:
        gone = event.action == "remove"
        return self._build_finding(
            event,
            now,
            fault=FaultClass.GPU_LOST,
            severity=FaultSeverity.FATAL if gone else FaultSeverity.INFO,
            remedy="resume when the GPU is back; if it was not removed on purpose, power-cycle the machine"
            if gone
            else "no action",
            source="uevent of subsystem drm",
            what="GPU removed" if gone else "GPU added",
        )

    def _build_core_dump(self, event: Uevent, now: Moment) -> KernelFinding:
        link = self._sys_root / "class/devcoredump" / event.devpath.rpartition("/")[2] / "failing_device"
        try:
            device = link.readlink().name
        except OSError:
            device = ""
        return self._build_finding(
            event,
            now,
            fault=FaultClass.GPU_HANG,
            severity=FaultSeverity.INFO,
            remedy="no action: the evidence of the incident contains a copy",
            source="drivers/base/devcoredump.c",
            what="the driver left a core dump",
            gpu=device if PCI.fullmatch(device) else None,
        )

    def _build_finding(  # noqa: PLR0913 - a finding's own fields, by name
        self,
        event: Uevent,
        now: Moment,
        *,
        fault: FaultClass,
        severity: FaultSeverity,
        remedy: str,
        source: str,
        what: str,
        pid: int | None = None,
        process: str | None = None,
        gpu: str | None = None,
    ) -> KernelFinding:
        self._count += 1
        parts = [f"{event.action}@{event.devpath}"]
        parts += [f"{name}={event.facts[name]}" for name in ("WEDGED", "PID", "TASK") if name in event.facts]
        return KernelFinding(
            at=now,
            sequence=self._count,
            origin=ORIGIN,
            fault=fault,
            severity=severity,
            gpu=gpu or event.pci,
            line=" ".join(parts)[:_LINE_LIMIT],
            remedy=remedy,
            source=source,
            what=what,
            pid=pid,
            process=process,
        )
