"""What lines of the kernel log mean for a training: a table, each row with its source; it reads no file.

Messages are given as the kernel stores them, without time stamps or journal prefixes. The first row that fits wins.
Patterns are anchored at the driver's own prefix, because a process can put any words into lines about itself.
`fatal` says whether the training on that card cannot go on; a line that only tells how a fatal one came out is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.core.readings import FaultClass


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of kernel message."""

    fault: FaultClass
    fatal: bool
    pattern: re.Pattern[str]
    source: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What one message means."""

    row: Row
    fatal: bool
    gpu: str | None
    """PCI address in the message itself, lower case, or None."""
    pid: int | None


_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_AMD = rf"^(?:amdgpu(?: {_ADDRESS})?: |kfd(?: kfd)?: |\[drm[^\]]*(?:\[amdgpu\])?\] )(?:.*?[:\] ] ?)?"
"""Prefixes of amdgpu and amdkfd: with address or without, `amdgpu:` twice, `[drm:function [amdgpu]] *ERROR*`."""
_DRIVER_GPU = re.compile(rf"^(?:amdgpu|nvidia|NVRM: GPU) (?P<gpu>{_ADDRESS}): ")
_PID = re.compile(r"\bpid[ =](?P<pid>\d{1,10})\b")


def _row(fault: FaultClass, pattern: str, source: str, remedy: str, *, fatal: bool) -> Row:
    return Row(fault, fatal, re.compile(pattern), source, remedy)


_F = FaultClass
_RESTART_AFTER_RESET = "wait for the end of the reset, then start again from a checkpoint"
_REBOOT = "restart the machine; start nothing on this card before"
ROWS: tuple[Row, ...] = (
    # --- the reset did not come off: before the rows that know its beginning
    _row(_F.GPU_RESET_FAILED, _AMD + r"GPU reset\(\d+\) failed", "amdgpu_device.c", _REBOOT, fatal=True),
    _row(_F.GPU_RESET_FAILED, _AMD + r"GPU reset end with ret = -\d+", "amdgpu_device.c", _REBOOT, fatal=True),
    _row(_F.GPU_RESET_FAILED, _AMD + r"(?:GPU Recovery Failed|ASIC reset failed with error)",
         "amdgpu_device.c", _REBOOT, fatal=True),
    _row(_F.GPU_RESET_FAILED, _AMD + r"GPU (?:mode[12]|smu mode[12]) reset failed", "soc15.c, nv.c, soc21.c",
         _REBOOT, fatal=True),
    _row(_F.GPU_RESET_FAILED, _AMD + r"amdgpu_device_ip_resume failed \(-\d+\)",
         "amdgpu_device.c", _REBOOT, fatal=True),
    _row(_F.GPU_RESET_FAILED, _AMD + r"resume of IP block <\w+> failed -\d+", "amdgpu_device.c", _REBOOT, fatal=True),
    # --- the card is gone
    _row(_F.GPU_LOST, _AMD + r"[Dd]evice lost from bus", "amdgpu_device.c", _REBOOT, fatal=True),
    _row(_F.GPU_LOST, rf"^amdgpu {_ADDRESS}: Unable to change power state from \w+ to D0, device inaccessible",
         "drivers/pci/pci.c", _REBOOT, fatal=True),
    _row(_F.GPU_LOST, r"^NVRM: .*?[Ff]allen off the bus", "NVIDIA driver; comes with and without an Xid",
         _REBOOT, fatal=True),
    _row(_F.GPU_LOST, r"^fallen off the bus and is not responding to commands", "NVIDIA driver, third line of three",
         _REBOOT, fatal=True),
    _row(_F.GPU_LOST, r"^NVRM: .*NV_ERR_GPU_IN_FULLCHIP_RESET", "NVIDIA open kernel module", _REBOOT, fatal=True),
    # --- resets; every process that holds memory on the card is dead once one has begun
    _row(_F.GPU_RESET, _AMD + r"GPU reset begin!", "amdgpu_device.c", _RESTART_AFTER_RESET, fatal=True),
    _row(_F.GPU_RESET, _AMD + r"VRAM is lost due to GPU reset", "amdgpu_device.c", _RESTART_AFTER_RESET, fatal=True),
    _row(_F.GPU_RESET, _AMD + r"GPU reset(?:\(\d+\))? succeeded", "amdgpu_device.c", "start again", fatal=False),
    _row(_F.GPU_RESET, _AMD + r"device wedged, but recovered through reset", "drm_drv.c, >= 6.15",
         "start again", fatal=False),
    _row(_F.GPU_RESET, _AMD + r"Ring \S+ reset succeeded", "amdgpu_job.c, >= 6.11: only that job failed",
         "none, unless the training reports it", fatal=False),
    # --- hangs
    _row(_F.GPU_HANG, _AMD + r"ring \S+ timeout, but soft recovered", "amdgpu_job.c", "none", fatal=False),
    _row(_F.GPU_HANG, _AMD + r"ring \S+ timeout", "amdgpu_job.c", _RESTART_AFTER_RESET, fatal=True),
    _row(_F.GPU_HANG, _AMD + r"IP block:\S+ is hung", "amdgpu_device.c", _RESTART_AFTER_RESET, fatal=True),
    _row(_F.GPU_HANG, _AMD + r"Fence fallback timer expired on ring", "amdgpu_fence.c",
         "one is a stutter; many are lost interrupts: BIOS, slot, riser", fatal=False),
    # --- the compute scheduler lost a process's queues
    _row(_F.QUEUE_EVICTION, _AMD + r"qcm fence wait loop timeout", "kfd_device_queue_manager.c",
         "a reset follows; amdgpu.cwsr_enable=0 helps some cards", fatal=True),
    _row(_F.QUEUE_EVICTION, _AMD + r"The cp might be in an unrecoverable state", "kfd_device_queue_manager.c",
         _RESTART_AFTER_RESET, fatal=True),
    _row(_F.QUEUE_EVICTION, _AMD + r"(?:Failed to evict (?:process )?queues|Failed to suspend process)",
         "kfd_device_queue_manager.c, kfd_process.c", _RESTART_AFTER_RESET, fatal=True),
    _row(_F.QUEUE_EVICTION, _AMD + r"MES (?:\S+ )?(?:failed to respond to|might be in unrecoverable state)",
         "mes_v11_0.c, kfd_device_queue_manager.c", "a reset follows; newer MES firmware", fatal=True),
    # --- memory
    _row(_F.PAGE_FAULT, _AMD + r"\[(?:gfxhub|mmhub|UTCL2)\d*\] ?(?:no-retry |retry )?page fault", "gmc_v9_0.c to v12",
         "start again from a checkpoint; the same one three times is a bug", fatal=True),
    _row(_F.PAGE_FAULT, _AMD + r"GPU fault detected: \d+ 0x", "gmc_v8_0.c",
         "start again from a checkpoint", fatal=True),
    _row(_F.ECC_UNCORRECTABLE, _AMD + r"uncorrectable hardware error\(ERREVENT_ATHUB_INTERRUPT\)", "amdgpu_ras.c",
         "the driver resets the card; reseat or cool it when it comes back", fatal=True),
    _row(_F.ECC_UNCORRECTABLE, _AMD + r"[1-9]\d* (?:new )?uncorrectable hardware errors", "amdgpu_ras.c",
         "the driver resets the card", fatal=True),
    _row(_F.ECC_UNCORRECTABLE, _AMD + r"(?:RAS )?[Pp]oison (?:is )?(?:consum|creat)\w+",
         "amdgpu_umc.c, kfd_int_process_v9.c", "the driver ends the process or resets the card", fatal=True),
    _row(_F.ECC_UNCORRECTABLE, r"^(?:mce: )?\[Hardware Error\]: (?:Uncorrected|Deferred) error",
         "drivers/edac/mce_amd.c", "host memory: look at the machine", fatal=False),
    # --- NVIDIA; which numbers are fatal: `_xid_is_fatal`
    _row(_F.XID, r"^NVRM: Xid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+)", "NVIDIA's Xid catalogue",
         "as the catalogue says for the number", fatal=True),
    # --- the machine's memory; whether the training is the victim, the pid says
    _row(_F.OOM_KILL, r"^oom-kill:constraint=.*\bpid=(?P<pid>\d{1,10})", "mm/oom_kill.c", "fewer workers", fatal=False),
    _row(_F.OOM_KILL, r"^(?:Memory cgroup out of memory|Out of memory[^:]*): Killed process (?P<pid>\d{1,10}) ",
         "mm/oom_kill.c", "fewer workers", fatal=False),
    _row(_F.OOM_KILL, r"^.{1,16} invoked oom-killer: gfp_mask=", "mm/oom_kill.c", "fewer workers", fatal=False),
)  # fmt: skip

_XID_FATAL = frozenset({48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 154})
"""The card must be reset. After 13, 31, 43, 45, 68, 69, 94 only the application ends that did it, and says so."""
_XID_BY_WORD = frozenset(range(144, 151))
"""NVLink 5: the same number is fatal or not, by the word in the line."""


def match(message: str) -> Match | None:
    """Return what a kernel message means for a training, None for the thousands that mean nothing."""
    for row in ROWS:
        if found := row.pattern.search(message):
            groups = found.groupdict()
            pid = groups.get("pid") or ((said := _PID.search(message)) and said["pid"])
            xid = groups.get("xid")
            return Match(
                row=row,
                fatal=row.fatal if xid is None else _xid_is_fatal(int(xid), message),
                gpu=_address(groups["gpu"]) if groups.get("gpu") else gpu_of(message),
                pid=int(pid) if pid else None,
            )
    return None


def gpu_of(message: str) -> str | None:
    """Return the PCI address of the card that a driver's message begins with, lower case."""
    found = _DRIVER_GPU.match(message)
    return found["gpu"].lower() if found else None


def speaks_of_a_card(message: str) -> bool:
    """Whether a message without an address comes from the driver of some AMD card."""
    return message.startswith(("amdgpu", "[drm", "kfd"))


def _xid_is_fatal(xid: int, message: str) -> bool:
    if xid in _XID_BY_WORD:
        return "Nonfatal" not in message and "Fatal" in message
    return xid in _XID_FATAL


def _address(text: str) -> str:
    """NVIDIA leaves the function out: 0000:9b:00 is 0000:9b:00.0."""
    return text.lower() if "." in text else f"{text.lower()}.0"
