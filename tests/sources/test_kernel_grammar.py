"""What kernel lines mean, held against collected logs: every known failure, and none where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.readings import FaultClass as F
from supervisor.sources.kernel_grammar import ROWS, match

PREFIX = re.compile(
    r"<\d+>|\d+,\d+,\d+,[^;]*;|kern\s*:\w+\s*: |\w{3} +\d+ [\d:]+ (?:\S+ )?kernel: |kernel: "
    r"|\[[\s+\d.]+\] *(?:\[ *[TC]\d+\] ?)?|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] |\d{4}-\d\d-\d\dT\S+ "
)
"""What dmesg and journalctl put in front of a message; /dev/kmsg has none of it."""
AMD = "amdgpu 0000:0a:00.0: amdgpu: "


def message(line: str) -> str:
    while found := PREFIX.match(line):
        line = line[found.end() :]
    return line


@pytest.mark.parametrize(
    ("line", "fault", "fatal"),
    [
        (AMD + "GPU reset begin!", F.GPU_RESET, True),
        (AMD + "GPU reset begin!. Source:  1", F.GPU_RESET, True),
        (AMD + "GPU reset succeeded, trying to resume", F.GPU_RESET, False),
        (AMD + "GPU reset(3) succeeded!", F.GPU_RESET, False),
        (AMD + "GPU reset(3) failed", F.GPU_RESET_FAILED, True),
        (AMD + "GPU reset end with ret = -110", F.GPU_RESET_FAILED, True),
        (AMD + "amdgpu_device_ip_resume failed (-110).", F.GPU_RESET_FAILED, True),
        (AMD + "resume of IP block <gfx_v10_0> failed -110", F.GPU_RESET_FAILED, True),
        ("[drm] VRAM is lost due to GPU reset!", F.GPU_RESET, True),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1",
         F.GPU_HANG, True),
        (AMD + "ring comp_1.0.0 timeout, signaled seq=1, emitted seq=3", F.GPU_HANG, True),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, but soft recovered", F.GPU_HANG, False),
        ("amdgpu 0000:0a:00.0: [drm] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1", F.GPU_HANG, True),
        ("[drm] Fence fallback timer expired on ring gfx", F.GPU_HANG, False),
        (AMD + "device lost from bus!", F.GPU_LOST, True),
        (AMD + "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32770, for process python pid 812 thread python)",
         F.PAGE_FAULT, True),
        (AMD + "[gfxhub0] no-retry page fault (src_id:0 ring:0 vmid:8 pasid:32769)", F.PAGE_FAULT, True),
        (AMD + "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", F.ECC_UNCORRECTABLE, True),
        (AMD + "1 uncorrectable hardware errors detected in umc block", F.ECC_UNCORRECTABLE, True),
        (AMD + "RAS poison consumption handling, client id: 27", F.ECC_UNCORRECTABLE, True),
        ("amdgpu: qcm fence wait loop timeout expired", F.QUEUE_EVICTION, True),
        ("amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
         F.QUEUE_EVICTION, True),
        ("kfd kfd: amdgpu: Failed to evict process queues", F.QUEUE_EVICTION, True),
        (AMD + "MES failed to respond to msg=REMOVE_QUEUE", F.QUEUE_EVICTION, True),
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=python, Timeout after 6s", F.XID, True),
        ("NVRM: Xid (PCI:0000:9b:00): 13, pid=77, name=python, Graphics Exception", F.XID, False),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03", F.XID, False),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1", F.XID, True),
        ("NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.", F.GPU_LOST, True),
        ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=812,uid=1000", F.OOM_KILL, False),
        ("Out of memory: Killed process 812 (python) total-vm:630968kB, anon-rss:204288kB", F.OOM_KILL, False),
    ],
)  # fmt: skip
def test_each_line_is_one_fault(line: str, fault: F, fatal: bool) -> None:
    found = match(line)
    assert found is not None
    assert (found.row.fault, found.fatal) == (fault, fatal)


@pytest.mark.parametrize(
    "line",
    [
        AMD + "SMU driver if version not matched",
        AMD + "RAS: optional ras ta ucode is not available",
        AMD + "Freeing queue vital buffer 0x7f00, queue evicted",
        AMD + "[gfxhub] in page starting at address 0x00007f",
        AMD + "0 uncorrectable hardware errors detected in umc block",
        AMD + "1 correctable hardware errors detected in umc block",
        "OOM killer disabled.",
        "OOM killer enabled.",
        "[drm:vmw_msg_ioctl [vmwgfx]] *ERROR* Failed to open channel.",
        "radeon 0000:0a:00.0: failed VCE resume (-110).",
        "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro",
        "GPU reset begin![812]: segfault at 0 ip 00007f89edf85ad8 sp 00007ffc2f3b04e8 error 4 in libc.so.6",
        'audit: type=1400 comm="amdgpu: GPU reset begin!"',
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    ],
)
def test_harmless_lines_and_words_of_processes_are_no_finding(line: str) -> None:
    assert match(line) is None


def test_the_card_and_the_process_are_read_from_the_line() -> None:
    fault = match(
        AMD + "[gfxhub] page fault (src_id:0 vmid:3 pasid:3, for process python pid 812 thread python pid 813)"
    )
    assert fault is not None
    assert (fault.gpu, fault.pid) == ("0000:0a:00.0", 812)
    xid = match("NVRM: Xid (PCI:0000:9B:00): 119, pid=2024380, name=python, Timeout")
    assert xid is not None
    assert (xid.gpu, xid.pid) == ("0000:9b:00.0", 2024380)
    killed = match("Memory cgroup out of memory: Killed process 12402 (python3) total-vm:630968kB")
    assert killed is not None
    assert (killed.gpu, killed.pid) == (None, 12402)


def test_every_row_names_its_source_and_a_remedy() -> None:
    assert all(row.source and row.remedy for row in ROWS)


KNOWN_TO_MISS = {
    "dorian-crash1-userspace",  # lines of a user's program, which the kernel log does not hold
    "nemo-modeset-spam",  # only the display half of NVIDIA's driver notices; no number, no card
}
LOST_IS = {"xid", "pcie", "gpu_reset_failed"}
"""The collection has no class for a card that left the bus; it files those under these."""


def test_the_collected_logs_are_understood_and_nothing_benign_is_flagged(corpus: Path) -> None:
    ours = {fault.value for fault in F}
    missed, total = set(), 0
    for line in (corpus / "kernel/excerpts.jsonl").read_text().splitlines():
        excerpt = json.loads(line)
        found = {hit.row.fault.value for text in excerpt["lines"] if (hit := match(message(text)))}
        if excerpt["label"] == "benign":
            assert not found, excerpt["id"]
            continue
        allowed = {excerpt["label"], *excerpt["also"]}
        if allowed & LOST_IS:
            allowed.add("gpu_lost")
        assert found <= allowed, excerpt["id"]
        if excerpt["label"] in ours:
            total += 1
            if not found & (allowed - set(excerpt["also"])):
                missed.add(excerpt["id"])
    assert missed == KNOWN_TO_MISS
    assert total >= 25


@given(st.text(max_size=200) | st.builds(lambda text: AMD + text, st.text(max_size=100)))
def test_no_text_makes_it_raise_or_name_a_card_that_is_not_in_it(text: str) -> None:
    found = match(text)
    assert found is None or found.gpu is None or found.gpu in text.lower()
