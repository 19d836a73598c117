"""The kernel's table, held against collected logs: every known failure, and none where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.findings import FaultClass as F
from supervisor.core.findings import FaultSeverity as Sev
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in
from tests.rigs.row_examples import unproven

TABLE = kernel_grammar()
AMD = "amdgpu 0000:0a:00.0: amdgpu: "


def test_every_row_fits_its_examples_and_no_row_before_it_does() -> None:
    assert unproven(TABLE) == []


def test_every_class_of_the_kernel_log_is_known() -> None:
    assert {row.fault for row in TABLE.rows} == {
        F.GPU_HANG, F.GPU_RESET, F.GPU_RESET_FAILED, F.GPU_INIT_FAILED, F.PAGE_FAULT, F.ECC_UNCORRECTABLE,
        F.ECC_CORRECTABLE, F.THERMAL, F.PCIE, F.SMU, F.QUEUE_EVICTION, F.XID, F.OOM_KILL, F.IO_ERROR, F.HUNG_TASK,
        F.KERNEL_PANIC, F.KERNEL_OOPS,
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        AMD + "SMU driver if version not matched",
        AMD + "SMU is initialized successfully!",
        AMD + "smu driver if version = 0x0000000e, smu fw if version = 0x00000012, smu fw program = 0",
        AMD + "RAS: optional ras ta ucode is not available",
        AMD + "RAS INFO: ras initialized successfully, hardware ability[7fff] ras_mask[7fff]",
        AMD + "Freeing queue vital buffer 0x7f00, queue evicted",
        AMD + "ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        AMD + "MODE1 reset",
        AMD + "  in page starting at address 0x00007f6b11a00000 from client 0x1b (UTCL2)",
        AMD + "0 uncorrectable hardware errors detected in umc block",
        AMD + "0 correctable hardware errors detected in umc block",
        AMD + "HBM ECC is active.",
        AMD + "SRAM ECC is not presented.",
        AMD + "MEM ECC is not presented.",
        AMD + "amdgpu: ras enabled",
        AMD + "Using BACO for runtime pm",
        AMD + "Runtime PM not available",
        AMD + "finishing device.",
        "amdgpu 0000:0a:00.0: [drm] *ERROR* [CRTC:95:crtc-1] flip_done timed out",
        "[drm] amdgpu kernel modesetting enabled.",
        "kfd kfd: amdgpu: added device 1002:73df",
        "amdgpu: Topology: Add dGPU node [0x73df:0x1002]",
        "i915 0000:00:02.0: [drm] GPU HANG: ecode 9:1:85dffffb, in gnome-shell [1234]",
        "i915 0000:00:02.0: [drm] Resetting chip for stopped heartbeat on rcs0",
        "nouveau 0000:01:00.0: fifo: fault 00 [READ] at 0000000000000000",
        "OOM killer disabled.",
        "OOM killer enabled.",
        "[drm:vmw_msg_ioctl [vmwgfx]] *ERROR* Failed to open channel.",
        "radeon 0000:0a:00.0: failed VCE resume (-110).",
        "radeon 0000:0a:00.0: fence driver on ring 0 use gpu addr 0x0000000080000c00",
        "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro",
        "EXT4-fs (sda1): recovery complete",
        "EXT4-fs (sda1): warning: mounting fs with errors, running e2fsck is recommended",
        "XFS (sda1): Ending clean mount",
        "XFS (dm-1): Mounting V5 Filesystem 3f2a",
        "XFS (dm-1): Starting recovery (logdev: internal)",
        "BTRFS info (device dm-0): bdev /dev/mapper/luks errs: wr 0, rd 0, flush 0, corrupt 2, gen 0",
        "BTRFS info (device sda1): disk space caching is enabled",
        "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
        "blk_update_request: operation not supported error, dev loop0, sector 2 op 0x9:(WRITE_ZEROES)",
        "sr 1:0:0:0: [sr0] tag#0 Sense Key : Not Ready [current]",
        "sd 2:0:0:0: [sdb] Assuming drive cache: write through",
        "sd 2:0:0:0: [sdb] Asking for cache data failed",
        "nvme nvme0: 16/0/0 default/read/poll queues",
        "nvme nvme0: Shutdown timeout set to 8 seconds",
        "nvme nvme0: missing or invalid SUBNQN field.",
        "ata1: SATA link down (SStatus 0 SControl 300)",
        "ata1.00: configured for UDMA/133",
        "pcieport 0000:00:07.1: AER: enabled with IRQ 29",
        "pcieport 0000:00:01.1: DPC: enabled with IRQ 30",
        "pcieport 0000:00:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
        "pcieport 0000:00:01.1: pciehp: Slot #0 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+",
        "pcieport 0000:00:01.1: pciehp: Slot(0): Card present",
        "pcieport 0000:00:01.1: pciehp: Slot(0): Link Up",
        "acpi PNP0A08:00: _OSC: platform does not support [AER LTR DPC]",
        "amdgpu 0000:03:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link",
        "MCE: In-kernel MCE decoding enabled.",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "EDAC amd64: F19h_M21h detected (node 0).",
        "RAS: Correctable Errors collector initialized.",
        "thermal LNXTHERM:00: registered as thermal_zone0",
        "ACPI: thermal: Thermal Zone [THM0] (50 C)",
        "thermal_sys: Registered thermal governor 'step_wise'",
        "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
        "rcu: Hierarchical RCU implementation.",
        "rcu: RCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=16.",
        "perf: interrupt took too long (2509 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
        "workqueue: drm_fb_helper_damage_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01",
        "NVRM: GPU at PCI:0000:9b:00: GPU-8f4c1d0e-0000-0000-0000-000000000000",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        "GPU reset begin![812]: segfault at 0 ip 00007f89edf85ad8 sp 00007ffc2f3b04e8 error 4 in libc.so.6",
        'audit: type=1400 comm="amdgpu: GPU reset begin!"',
        "audit: type=1100 msg='op=NVRM: Xid (PCI:0000:9b:00): 79, pid=1'",
        "python3[12409]: segfault at 0 ip 00007f89edf85ad8 sp 00007ffc2f3b04e8 error 4 in libc.so.6[167ad8]",
        AMD + "PSP runtime database doesn't exist",
        AMD + "psp gfx command LOAD_TA(0x1) failed and response status is (0x7)",
        "amdgpu: [powerplay] Failed to retrieve minimum clocks.",
        "amdgpu: [powerplay] Error in phm_get_clock_info",
        "amdgpu 0000:0a:00.0: BAR 6: can't assign [??? 0x00000000 flags 0x20000000] (bogus alignment)",
        "amdgpu 0000:0a:00.0: can't derive routing for PCI INT A",
        "[drm:dc_dmub_srv_wait_idle [amdgpu]] *ERROR* Error waiting for DMUB idle: status=3",
        "I/O error, dev loop3, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        "Dev loop3: unable to read RDB block 8",
        'radeon 0000:0a:00.0: radeon_uvd: Can\'t load firmware "radeon/CYPRESS_uvd.bin"',
        "[drm:radeon_cp_init] *ERROR* radeon_cp_init called without lock held, held  0 owner 0 1",
        "dm_mod: module verification failed: signature and/or required key missing - tainting kernel",
        "zfs: module verification failed: signature and/or required key missing - tainting kernel",
        "EXT4-fs (sda1): error: can't find an ext3 filesystem on dev sda1.",
        "lpfc 0000:04:00.0: 0:(0):0273 FDMI cmd failed FS_RJT Data: x200",
        "loop3: unable to read partition table",
        "lpfc 0000:04:00.0: 0:(0):9024 FCP command xa0 failed: x0 SNS x0 x0 Data: x8 x1000 x0 x0 x0",
        "critical target error, dev nvme0n1, sector 0 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
    ],
)
def test_harmless_lines_and_words_of_processes_are_no_finding(line: str) -> None:
    assert list(findings_in([line], TABLE)) == []


def test_a_line_names_the_gpu_and_the_process() -> None:
    fault = TABLE.match(AMD + "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32770, for process python pid 812 th")
    assert fault is not None
    assert (fault.pid, fault.process) == (812, "python")
    xid = TABLE.match("NVRM: Xid (PCI:0000:9B:00): 119, pid=2024380, name=python, Timeout after 6s")
    assert xid is not None
    assert (xid.pci, xid.pid, xid.process) == ("0000:9b:00.0", 2024380, "python")
    assert (xid.what, xid.severity) == ("Xid 119: GSP RPC timeout", Sev.FATAL)
    killed = TABLE.match("Memory cgroup out of memory: Killed process 12402 (python3) total-vm:630968kB")
    assert killed is not None
    assert (killed.pci, killed.pid, killed.process) == (None, 12402, "python3")


HANG = [
    "[  100.0] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "[  100.0] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process python pid 812 thread p pid 813",
    "[  100.1] amdgpu 0000:0b:00.0: amdgpu: GPU reset begin!",
    "[  100.2] amdgpu 0000:0b:00.0: amdgpu: MODE1 reset",
]


def test_a_hang_and_its_reset_are_one_event_called_by_its_outcome() -> None:
    (begun,) = findings_in(HANG, TABLE)
    assert (begun.fault, begun.severity, begun.device) == (F.GPU_HANG, Sev.FATAL, "0000:0b:00.0")
    assert (begun.pid, begun.process, begun.lines, begun.line_number) == (812, "python", 4, 1)
    (done,) = findings_in([*HANG, "[  101.0] amdgpu 0000:0b:00.0: amdgpu: GPU reset(2) succeeded!"], TABLE)
    assert (done.fault, done.severity) == (F.GPU_RESET, Sev.FATAL)
    (failed,) = findings_in([*HANG, "[  101.0] amdgpu 0000:0b:00.0: amdgpu: GPU reset(2) failed"], TABLE)
    assert (failed.fault, failed.severity) == (F.GPU_RESET_FAILED, Sev.FATAL)
    assert "reboot the machine" in failed.remedy


def test_a_page_fault_keeps_its_continuation_lines() -> None:
    (fault,) = findings_in(
        [
            f"[ 5.1] {AMD}[gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32770)",
            f"[ 5.1] {AMD} Process python3 pid 4321 thread python3 pid 4321",
            f"[ 5.1] {AMD}  in page starting at address 0x00007f6b11a00000 from client 10",
            f"[ 5.1] {AMD}GCVM_L2_PROTECTION_FAULT_STATUS:0x00801A30",
            f"[ 5.1] {AMD}\t Faulty UTCL2 client ID: SDMA0 (0xd)",
        ],
        TABLE,
    )
    assert (fault.fault, fault.lines, fault.pid, fault.process) == (F.PAGE_FAULT, 5, 4321, "python3")


@pytest.mark.parametrize(
    ("lines", "of_process"),
    [
        ([AMD + "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32770, for process x pid 8 thread x pid 8)"], True),
        (["NVRM: Xid (PCI:0000:38:00): 43, pid=8, name=x, Ch 00000008"], True),
        (["NVRM: Xid (PCI:0000:38:00): 119, pid=8, name=x, Timeout after 6s"], False),
        (["NVRM: Xid (PCI:0000:38:00): 43, pid=8, name=x, Ch 00000008", "NVRM: Xid (PCI:0000:38:00): 79, lost"], False),
        ([AMD + "ring gfx_0.0.0 timeout, signaled seq=1", AMD + " Process x pid 8 thread x pid 8"], False),
    ],
)
def test_what_takes_one_process_only_is_distinguished_from_what_takes_all(lines: list[str], of_process: bool) -> None:
    (finding,) = findings_in(lines, TABLE)
    assert finding.of_process is of_process


def test_the_third_line_of_a_fallen_nvidia_gpu_has_the_firsts_address() -> None:
    (lost,) = findings_in(
        [
            "NVRM: The NVIDIA GPU 0000:18:00.0",
            "NVRM: (PCI ID: 10de:2901) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
        TABLE,
    )
    assert (lost.fault, lost.device) == (F.XID, "0000:18:00.0")


def test_the_collected_logs_are_understood_and_nothing_benign_is_flagged(corpus: Path) -> None:
    right = severe = total = 0
    for line in (corpus / "kernel/excerpts.jsonl").read_text().splitlines():
        excerpt = json.loads(line)
        findings = list(findings_in(excerpt["lines"], TABLE))
        found = {finding.fault.value for finding in findings}
        if excerpt["label"] == "benign":
            assert not found, excerpt["id"]
            continue
        total += 1
        label, allowed = excerpt["label"], {excerpt["label"], *excerpt["also"]}
        right += label in found and found <= allowed
        severity = max((finding.severity for finding in findings if finding.fault.value == label), default=Sev.INFO)
        severe += severity.label == excerpt["severity"]
    assert total >= 30
    assert right / total >= 0.97, f"{right} of {total} classes"
    assert severe / total >= 0.97, f"{severe} of {total} severities"


@pytest.mark.parametrize("kind", ["dmesg.txt", "dmesg-x.txt", "dmesg-T.txt", "dmesg-iso.txt", "dmesg-J.json"])
def test_one_oom_kill_is_one_event_in_every_format(outputs: Path, kind: str) -> None:
    text = (outputs / "kernel" / f"memcg-oom.{kind}").read_text()
    (kill,) = findings_in(text.splitlines(), TABLE)
    assert (kill.fault, kill.pid, kill.process) == (F.OOM_KILL, 8609, "python3")


def test_each_process_that_the_kernel_kills_for_memory_is_an_event_of_its_own() -> None:
    log = (
        "loader invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,task=loader,pid=811,uid=0",
        "Out of memory: Killed process 811 (loader) total-vm:630968kB, anon-rss:204288kB",
        "python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid=812,uid=0",
        "Out of memory: Killed process 812 (python) total-vm:830968kB, anon-rss:404288kB",
    )
    assert [(item.fault, item.pid) for item in findings_in(log, TABLE)] == [(F.OOM_KILL, 811), (F.OOM_KILL, 812)]


@given(st.lists(st.text(max_size=120) | st.builds(lambda text: AMD + text, st.text(max_size=80)), max_size=6))
def test_no_text_makes_it_raise_or_name_a_gpu_that_is_not_in_it(lines: list[str]) -> None:
    for finding in findings_in(lines, TABLE):
        assert finding.device is None or finding.device in "\n".join(lines).lower()


# --- what others' machines print: written from the drivers' format strings ------------------------------------------


def found(*lines: str) -> list[tuple[F, Sev, str | None]]:
    return [(item.fault, item.severity, item.device) for item in findings_in(lines, TABLE)]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 9 heartbeat 1 diff 6070 timeout 5200",
        "NVRM: GPU6 _kgspLogRpcTimeout: ******** GSP Timeout ********",
    ],
)
def test_a_processor_of_nvidias_that_does_not_answer_is_fatal_before_any_xid(line: str) -> None:
    assert found(line) == [(F.XID, Sev.FATAL, None)]


@pytest.mark.parametrize(
    "words", ["[DMA Read] Request device [0a:00.0] PASID ffffffff", "[DMA Write NO_PASID] Request device [0a:00.0]"]
)
def test_a_fault_that_intels_iommu_names_by_a_devices_number_is_a_warning_for_that_device(words: str) -> None:
    assert found(f"DMAR: {words} fault addr 0xfd000000 [fault reason 0x06] PTE") == [(F.PAGE_FAULT, Sev.WARN, CARD)]


def test_a_panic_in_a_pasted_log_is_fatal_whatever_it_names() -> None:
    assert found("Kernel panic - not syncing: Fatal hardware error!") == [(F.KERNEL_PANIC, Sev.FATAL, None)]


def test_an_assertion_of_nvidias_that_only_names_a_reset_is_no_fault_and_joins_the_one_before_it() -> None:
    states = "(status == NV_OK) || (status == NV_ERR_GPU_IN_FULLCHIP_RESET)"
    assertion = f"NVRM: nvAssertFailedNoLog: Assertion failed: {states} @ m.c:1"
    lost = "NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus."
    assert found(assertion) == found(f"NVRM: GPU0 nvCheckFailedNoLog: Check failed: {states} @ g.c:1") == []
    assert found(lost, assertion) == [(F.XID, Sev.FATAL, CARD)]


def test_powerplay_that_cannot_reach_its_firmware_is_a_warning() -> None:
    assert found("amdgpu: [powerplay] Failed to notify smc display settings!") == [(F.SMU, Sev.WARN, None)]


CARD = "0000:0a:00.0"
FAILED = AMD + "GPU reset(2) failed"


@pytest.mark.parametrize(
    "prefix",
    [
        "10.1.10.21: kern:     err: [2026-01-28T17:04:58.032559804Z]: ",
        "worker-1: kern: warning: [2026-01-28T17:04:58.032559804Z]: ",
        "Nov 14 10:46:51 kernelbox kernel: ",
        "Nov 14 10:46:51 my+host~1 kernel: ",
        "Nov 14 10:46:51 user@host kernel: [213201.718230] ",
        "Nov 14 10:46:51 <redacted> kernel: ",
        "Nov 14 10:46:51 [kern.warning] [  377.489619] ",
        "2026-01-02T10:46:51.123456+01:00 büro#3 kernel: [ 12.5] ",
        "[ 12.500000] (none) kernel: ",
        "/var/log/syslog:Apr  9 12:59:18 konqi kernel: [213201.718230] ",
        "syslog.1:Apr  9 12:59:18 konqi kernel: [213201.718230] ",
        "kern.log:812:2026-04-09T12:59:18.123456+02:00 konqi kernel: ",
        "./messages-20260405-Apr  9 12:59:18 konqi kernel: ",
        "dmesg.txt:[213201.718230] ",
        " archlinux kernel: ",
        "Jan  1 00:00:00 node-7 kernel [   12.300000] ",
        "kernel[0]: ",
        "201.718230] ",
        "# 2026-04-09 12:59:18 [213201.718230] ",
        "dmesg: [   12.345678] ",
        "[node-7] [   12.345678] ",
        "[   12.345678@0] ",
        "[...] ",
        ":#>:#> [   12.345678] ",
        "[   12.345678] c3 ",
        "[2026-04-09T12:59:18Z] ",
        "2026/04/09 12:59:18 ",
        'time="2026-04-09T12:59:18Z" level=warn msg="[   12.345678] ',
        "2026-09-11T10:00:00.123Z node-7 kernel[-]: ",
        "04 Aug, 14:03:26 fd183fd0-4585-374f-986e-a8595f986d1d kernel: ",
        "2016-07-31 16:26:53 +0000 UTC kern.alert kernel: ",
        "180527   │ Mar 14 11:14:01 CND207067Z kernel: [ 8334.966806] ",
        "/ # [90216.140000] ",
        "[root@gpu01 ~]# [90216.140000] ",
        "&lt;6&gt;[   12.345000] ",
        "    MESSAGE=",
        "2026-03-01T10:00:00.123456789Z stdout F [   12.300000] ",
        "gpu-1  | [   12.300000] ",
        "I0301 10:00:00.000000       1 kmsg.go:12] ",
        "1709287200.123456 node-7 kernel: ",
        "+> [Fri Mar  1 10:00:00 2026] ",
        "_[   12.300000] ",
        "``` [   12.300000] ",
        "12-Mar  1 10:00:00 node-7 kernel: ",
        "Mar  1 10:00:00 node-7 kern.err kernel: ",
        "01/03/2026 10:00:00 node-7 kernel: ",
        "Mar 1 2026 10:00:00 node-7 kernel: ",
        "03-01 10:00:00.123     0     0 E         : ",
        "[10:00:00] ",
    ],
)
def test_a_prefix_of_talos_of_grep_or_of_a_host_with_an_odd_name_hides_no_fault(prefix: str) -> None:
    assert found(prefix + FAILED) == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_a_kernels_line_within_json_is_found_under_any_of_its_usual_keys() -> None:
    for key in ("MESSAGE", "msg", "message", "log"):
        line = json.dumps({key: FAILED + "\\n", "stream": "stdout"})
        assert found(line) == found(f'    "{key}": "{FAILED}",') == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_what_a_program_of_talos_says_is_no_word_of_the_kernel() -> None:
    assert found("node: user: warning: [2025-09-13T20:46:41.395599849Z]: " + FAILED) == []


def ring(*after: str) -> list[tuple[F, Sev, str | None]]:
    lines = ("ring comp_1.1.0 timeout, signaled seq=125, emitted seq=129", "Starting comp_1.1.0 ring reset", *after)
    return found(*(f"[   34.{number:06d}] {AMD}{line}" for number, line in enumerate(lines)))


def test_a_ring_reset_that_succeeded_is_not_fatal() -> None:
    wedged = "[drm] device wedged, but recovered through reset"
    assert ring("Ring comp_1.1.0 reset succeeded", wedged) == [(F.GPU_RESET, Sev.WARN, CARD)]


def test_a_ring_that_times_out_again_after_its_reset_is_fatal() -> None:
    again = "ring comp_1.1.0 timeout, signaled seq=130, emitted seq=131"
    assert ring("Ring comp_1.1.0 reset succeeded", again) == [(F.GPU_HANG, Sev.FATAL, CARD)]


def test_a_ring_that_is_reset_again_and_again_is_not_fatal() -> None:
    again = ("ring comp_1.1.0 timeout, signaled seq=130, emitted seq=131", "Ring comp_1.1.0 reset succeeded")
    assert ring("Ring comp_1.1.0 reset succeeded", *again, *again) == [(F.GPU_RESET, Sev.WARN, CARD)]
    reset = ("Ring comp_1.1.0 reset failed", "GPU reset begin!. Source:  1", "GPU reset(2) failed")
    assert ring("Ring comp_1.1.0 reset succeeded", *again[:1], *reset) == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_a_ring_reset_that_failed_is_followed_by_a_fatal_one() -> None:
    after = ("Ring comp_1.1.0 reset failed", "GPU reset begin!. Source:  1", "GPU reset succeeded, trying to resume")
    assert ring(*after) == [(F.GPU_RESET, Sev.FATAL, CARD)]


def test_a_power_controller_that_is_not_ready_at_resume_is_no_failed_reset() -> None:
    lines = (
        "SMU is resuming...",
        "SMC is not ready",
        "SMC engine is not correctly up!",
        "resume of IP block <smu> failed -5",
        "amdgpu_device_ip_resume failed (-5).",
    )
    assert found(*(AMD + line for line in lines)) == [(F.SMU, Sev.FATAL, CARD)]
    assert found(AMD + "amdgpu_device_ip_resume failed (-110).") == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


INIT = ("PSP firmware loading failed", "hw_init of IP block <psp> failed -22", "amdgpu_device_ip_init failed")


@pytest.mark.parametrize("phase", ["early_init", "sw_init", "hw_init", "late_init"])
@pytest.mark.parametrize("block", ["psp", "gfx_v11_0", "vcn_v4_0_3(1)", "dm"])
def test_a_block_that_does_not_start_is_a_gpu_that_the_driver_could_not_start(phase: str, block: str) -> None:
    assert found(AMD + f"{phase} of IP block <{block}> failed -22") == [(F.GPU_INIT_FAILED, Sev.FATAL, CARD)]


def test_a_start_that_failed_is_one_event_from_the_first_block_to_the_probe() -> None:
    probe = "amdgpu: probe of 0000:0a:00.0 failed with error -22"
    lines = [*(AMD + line for line in INIT), AMD + "Fatal error during GPU init", AMD + "finishing device.", probe]
    assert found(*lines) == [(F.GPU_INIT_FAILED, Sev.FATAL, CARD)]
    assert found(probe) == [(F.GPU_INIT_FAILED, Sev.FATAL, CARD)]


def test_engines_that_do_not_answer_while_the_gpu_starts_are_called_by_the_outcome() -> None:
    lines = ("ring kiq_2.1.0 test failed (-110)", "hw_init of IP block <gfx_v10_0> failed -110", *INIT[2:])
    assert found(*(AMD + line for line in lines)) == [(F.GPU_INIT_FAILED, Sev.FATAL, CARD)]


def test_a_block_that_does_not_start_within_a_reset_is_a_failed_reset() -> None:
    lines = ("GPU reset begin!", "PSP create ring failed!", "PSP resume failed", "resume of IP block <psp> failed -62")
    assert found(*(AMD + line for line in lines)) == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_a_power_controller_that_does_not_start_keeps_its_class_and_stays_one_event() -> None:
    lines = ("hw_init of IP block <smu> failed -62", "amdgpu_device_ip_init failed", "Fatal error during GPU init")
    assert found(*(AMD + line for line in lines)) == [(F.SMU, Sev.FATAL, CARD)]


def test_a_block_that_does_not_obey_on_the_way_down_is_reported_and_fatal_to_nobody() -> None:
    assert found(AMD + "suspend of IP block <vcn_v3_0> failed -110") == [(F.GPU_HANG, Sev.WARN, CARD)]
    assert found(AMD + "soft reset failed, will fallback to full reset!") == [(F.GPU_HANG, Sev.WARN, CARD)]


@pytest.mark.parametrize(
    "line",
    [
        AMD + "detected ip block number 3 <psp_v13_0_0> (psp)",
        "[drm] add ip block number 4 <smu>",
        AMD + "Direct firmware load for amdgpu/isp_4_1_1.bin failed with error -2",
        "iwlwifi 0000:0a:00.0: probe with driver iwlwifi failed with error -110",
        "ucsi_ccg: probe of 0-0008 failed with error -110",
        "[drm] GPU posting now...",
        "kfd kfd: added device 1002:15dd",
    ],
)
def test_what_a_driver_says_on_the_way_up_is_no_failure_of_a_gpu(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "[Dez26 08:58] ",
        "[Dec 6 08:58] ",
        "[  +0,000007] ",
        "[  +0.000007] ",
        "[Mo, 11. Aug 2025, 23:29:08] ",
        "ttyS0 [  764.649502] ",
    ],
)
def test_the_stamps_of_dmesg_in_any_language_hide_no_fault(prefix: str) -> None:
    assert found(prefix + FAILED) == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_the_power_controller_of_a_virtual_machines_gpu_is_reported_and_fatal_to_nobody() -> None:
    vfio = "vfio-pci 0000:45:00.0: "
    lines = (vfio + "SMU error 0x0", vfio + "AMD_VEGA10: failed to reset device")
    assert found(*lines) == [(F.SMU, Sev.WARN, "0000:45:00.0")]


@pytest.mark.parametrize(
    ("action", "severity", "remedy"),
    [
        ("0x1 (GPU Reset Required)", Sev.FATAL, "nvidia-smi -r"),
        ("0x2 (Node Reboot Required)", Sev.FATAL, "reboot the machine"),
        ("0x3 (Drain P2P)", Sev.FATAL, "start no new work"),
        ("0x4 (Drain and Reset)", Sev.FATAL, "start no new work"),
        ("0x0 (None)", Sev.WARN, "no action"),
    ],
)
def test_xid_154_names_its_own_remedy(action: str, severity: Sev, remedy: str) -> None:
    line = f"NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to {action}"
    (item,) = findings_in([line], TABLE)
    assert item.severity is severity
    assert remedy in item.remedy


def test_the_remedy_that_xid_154_names_outranks_that_of_the_xid_before_it() -> None:
    lines = (
        "NVRM: Xid (PCI:0000:1a:00): 94, pid=12, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    (item,) = findings_in(lines, TABLE)
    assert item.what == "Xid 94: Contained memory error"
    assert "reboot the machine" in item.remedy


@pytest.mark.parametrize("code", [31, 94])
def test_an_xid_that_ends_the_program_is_fatal_to_that_program_alone(code: int) -> None:
    (item,) = findings_in([f"NVRM: Xid (PCI:0000:1a:00): {code}, pid=12, name=python, Ch 00000008"], TABLE)
    assert (item.severity, item.of_process, item.pid) == (Sev.FATAL, True, 12)


@pytest.mark.parametrize(
    "line", ["NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", AMD + "GPU reset begin!"]
)
def test_a_line_whose_host_and_program_were_cut_out_is_still_the_kernel_s(line: str) -> None:
    assert found("Sep 18 20:07:01 " + line) == found(line) != []


def test_the_iommu_names_a_device_by_its_number_alone() -> None:
    line = "AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x0003 address=0x000000f4001eef80 flags=0x0010]"
    assert found(line, line) == [(F.PAGE_FAULT, Sev.WARN, "0000:0a:00.0")]


def test_a_log_that_begins_with_a_reset_that_succeeded_and_holds_another_has_no_fatal_fault() -> None:
    reset = ("Starting {0} ring reset", "Ring {0} reset succeeded")
    lines = [AMD + line.format("gfx_0.0.0") for line in reset]
    lines.append(AMD + "ring comp_1.0.1 timeout, signaled seq=45, emitted seq=47")
    lines += [AMD + line.format("comp_1.0.1") for line in reset]
    assert found(*lines) == [(F.GPU_RESET, Sev.WARN, CARD)]


def test_a_flood_of_faults_of_the_iommu_is_one_fault() -> None:
    line = "amdgpu 0000:0a:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000f address=0x5bbb5000 flags=0x0020]"
    flood = ["[  262.094619] " + AMD + "[gfxhub] page fault (src_id:0 ring:158 vmid:0 pasid:0)"]
    flood += [f"[{second}.098161] {line}" for second in range(262, 400, 15)]
    assert found(*flood) == [(F.PAGE_FAULT, Sev.FATAL, CARD)]


def test_an_error_of_the_bus_whose_source_is_not_known_is_that_of_the_port_that_reported_it() -> None:
    lines = (
        "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
        "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    )
    assert found(*lines) == [(F.PCIE, Sev.WARN, "0000:00:03.1")]


# --- shapes: a driver, an object, a word of trouble; wordings of the drivers' sources that no row lists -------------


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (AMD + "VCN[1] is not responding, trying to reset the VCPU!!!", F.GPU_HANG),  # vcn_v5_0_0.c
        ("[drm:gfx_v10_0_hw_fini [amdgpu]] *ERROR* KCQ disable failed", F.GPU_HANG),  # gfx_v10_0.c
        (AMD + "Error flushing GPU TLB using the SDMA (-22)!", F.GPU_HANG),  # amdgpu_gmc.c
        (AMD + "IH soft ring buffer overflow 0x40, 0x80", F.GPU_HANG),  # amdgpu_ih.c
        (AMD + "failed to suspend gangs of queue 4", F.QUEUE_EVICTION),  # amdgpu_mes.c
        (AMD + "UMSCH REMOVE_QUEUE: Failed", F.QUEUE_EVICTION),  # umsch_mm_v4_0.c
        (AMD + "[SetDfCstate] failed!", F.SMU),  # vega20_hwmgr.c
        (AMD + "Failed to get current clock freq!", F.SMU),  # smu_v13_0_0_ppt.c
        ("[drm] failed to load ucode SMC(0x11)", F.GPU_INIT_FAILED),  # amdgpu_psp.c
        (AMD + "Bootloader wait timed out", F.GPU_INIT_FAILED),  # psp_v13_0.c
        (AMD + "invalid ip discovery data table checksum", F.GPU_INIT_FAILED),  # amdgpu_discovery.c
        (AMD + "Failed to get response from firmware after reset", F.GPU_RESET_FAILED),  # aldebaran.c
        (AMD + "CP EDC/ECC error detected.", F.ECC_UNCORRECTABLE),  # gfx_v8_0.c
        (AMD + "PCIe error recovery failed, err:-5", F.GPU_RESET_FAILED),  # amdgpu_device.c
        ("NVRM: kfspPollForResponse_IMPL: FSP command timed out", F.XID),  # kern_fsp.c
        ("NVRM: GPU 0000:0a:00.0: Failed to copy vbios to system memory.", F.GPU_INIT_FAILED),  # osinit.c
    ],
)
def test_a_wording_of_a_gpus_driver_that_no_row_lists_is_a_warning_of_its_objects_class(line: str, fault: F) -> None:
    ((found_fault, severity, _),) = found(line)
    assert (found_fault, severity) == (fault, Sev.WARN)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("mpt3sas_cm0: _config_request: waiting for operational state(count=1) failed", F.IO_ERROR),  # mpt3sas_config.c
        ("sd 2:2:0:0: [sda] megasas: RESET cmd=28 retries=0", F.IO_ERROR),  # megaraid_sas_base.c
        ("libceph: mon0 (1)10.0.0.1:6789 session lost, hunting for new mon", F.IO_ERROR),  # mon_client.c
        ("BTRFS warning (device dm-0): direct IO failed ino 4 rw 0,0 sector 0x1 len 4096 err no 10", F.IO_ERROR),
        ("XFS (dm-7): log mount/recovery failed: error -5", F.IO_ERROR),  # xfs_log.c
        ("pcieport 0000:00:01.0: broken device, retraining non-functional downstream link at 2.5GT/s", F.PCIE),
        ("watchdog: CPU4: Watchdog detected lockup on CPU 3", F.HUNG_TASK),  # kernel/watchdog.c
        ("BUG: kernel NULL pointer dereference, address: 0000000000000018", F.KERNEL_OOPS),  # fault.c
    ],
)
def test_a_wording_of_a_disk_a_bus_or_the_kernel_that_no_row_lists_is_a_warning(line: str, fault: F) -> None:
    ((found_fault, severity, _),) = found(line)
    assert (found_fault, severity) == (fault, Sev.WARN)


@pytest.mark.parametrize(
    "line",
    [
        AMD + "[drm] *ERROR* dc_dmub_srv_log_diagnostic_data: DMCUB error - collecting diagnostic data",
        AMD + "[drm] *ERROR* [CRTC:95:crtc-1] flip_done timed out",
        AMD + "Failed to create device file mem_info_vram_total",
        AMD + "RAP: optional rap ta ucode is not available",
        AMD + "Direct firmware load for amdgpu/navi10_rlc.bin failed with error -2",
        AMD + "0 correctable hardware errors detected in gfx block, no user action is needed.",
        AMD + "lockup timeout disabled",
        "amdgpu 0000:0a:00.0: Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff",
        "amdgpu: sched_policy has invalid value",
        "amdgpu: init_user_pages: Failed to get user pages: -1",
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) @ mem.c:1",
        "[drm:nv_drm_master_set [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x100] Failed to grab modeset ownership",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "[drm:intel_cpu_fifo_underrun_irq_handler [i915]] *ERROR* CPU pipe A FIFO underrun",
        "nouveau 0000:01:00.0: gr: TRAP ch 5 failed",
        "{3}[Hardware Error]: It has been corrected by h/w and requires no further action",
        "mpt2sas_cm0: CurrentHostPageSize is 0: Setting default host page size to 4k",
        "sd 6:0:3:0: Power-on or device reset occurred",
        "EXT4-fs (sda1): VFS: Can't find ext4 filesystem",
        "pci 0000:e1:00.0: DOE: [2c8] failed to reset mailbox with abort command : -5",
        "pci 0000:02:00.0: BAR 13: failed to assign [io  size 0x1000]",
        "DMAR: IOMMU feature fl1gp_support inconsistent",
        "traps: python3[812] general protection fault ip:7f0 sp:7ff error:0 in libtorch.so[7f0000]",
    ],
)
def test_what_no_training_depends_on_is_no_shape_of_trouble(line: str) -> None:
    assert found(line) == []


def test_further_wordings_belong_to_the_hang_that_they_follow() -> None:
    lines = (
        "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
        "reset via MES failed and try pipe reset -110",
        "VCN[0] is not responding, giving up!!!",
        "[PrepareMp1] Failed! dpm",
    )
    assert found(*(AMD + line for line in lines)) == [(F.GPU_HANG, Sev.FATAL, CARD)]


def test_a_warning_without_a_row_is_named_by_the_row_that_follows_it() -> None:
    lines = ("Failed to get current clock freq!", "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3")
    assert found(*(AMD + line for line in lines)) == [(F.GPU_HANG, Sev.FATAL, CARD)]


def test_a_completion_that_was_found_by_polling_is_no_lost_io() -> None:
    (found_late,) = findings_in(["nvme nvme0: I/O 12 QID 4 timeout, completion polled"], TABLE)
    assert found_late.severity is Sev.WARN


# --- a driver of NVIDIA's that does not start its GPU; times of lines that have none --------------------------------

NO_START = (
    "NVRM: gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
    "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x62:0x65:1859)",
)


@pytest.mark.parametrize("line", NO_START)
def test_a_gpu_that_nvidias_driver_could_not_start_is_named_as_one_of_amds(line: str) -> None:
    ((fault, severity, _),) = found(line)
    assert (fault, severity) == (F.GPU_INIT_FAILED, Sev.FATAL)


def test_a_start_that_failed_after_an_xid_is_that_xid() -> None:
    assert found(*NO_START) == [(F.GPU_INIT_FAILED, Sev.FATAL, CARD)]
    assert found("NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.", *NO_START) == [(F.XID, Sev.FATAL, CARD)]


def test_lines_of_one_message_without_a_stamp_have_the_time_of_the_line_before_them() -> None:
    lines = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:0a:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).",
    )
    assert found(*lines) == [(F.XID, Sev.FATAL, CARD)]


def test_memory_lost_by_a_reset_is_fatal_in_the_older_wording_too() -> None:
    lost = "[drm:amdgpu_device_gpu_recover [amdgpu]] *ERROR* VRAM is lost!"  # amdgpu_device.c, Linux 4.17 to 5.0
    assert found(AMD + "GPU reset succeeded, trying to resume", lost) == [(F.GPU_RESET, Sev.FATAL, CARD)]


def test_a_file_system_that_was_shut_down_goes_on_saying_so() -> None:
    assert found("XFS (dm-0): xfs_log_force: error -5 returned.") == [(F.IO_ERROR, Sev.FATAL, "dm-0")]


# --- what is repaired, what is only counted, what is lost ------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 9: 0000000000000000",  # bit 63: the record is valid
        "mmc0: host does not support reading read-only switch, assuming write-enable",  # drivers/mmc/core/sd.c
        "libceph (fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 e859): osd2 up",
        "libceph: osd2 (1)10.0.0.249:6801 socket closed (con state OPEN)",  # also of a connection that was idle
    ],
)
def test_a_record_that_is_not_valid_and_what_a_controller_lacks_are_no_fault(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    ("line", "severity", "device"),
    [
        ("BTRFS error (device dm-1): fixed up error at logical 83050496 on dev /dev/dm-1 physical 1", Sev.WARN, "dm-1"),
        ("BTRFS error (device dm-1): bdev /dev/dm-1 errs: wr 0, rd 0, flush 0, corrupt 1, gen 0", Sev.WARN, "dm-1"),
        ("BTRFS error (device dm-1): bdev /dev/dm-1 errs: wr 0, rd 1, flush 0, corrupt 0, gen 0", Sev.FATAL, "dm-1"),
        ("BTRFS error (device dm-1): unable to fixup (regular) error at logical 83050496", Sev.FATAL, "dm-1"),
        ("ceph: mds0 closed our session", Sev.WARN, None),
        ("ceph:  dropping dirty+flushing Fw state for 000000007a0c4d31 1099511627777", Sev.FATAL, None),
        ("libceph: osd2 down", Sev.WARN, None),
        ("ahci 0000:01:00.0: AHCI controller unavailable!", Sev.FATAL, None),
        ("md: could not open device unknown-block(8,128).", Sev.WARN, None),
        ("sd 0:0:0:0: [sda] tag#3 uas_eh_abort_handler 0 uas-tag 21 inflight: CMD OUT", Sev.WARN, "sda"),
        ("connection3:0: detected conn error (1020)", Sev.WARN, None),
        ("CIFS VFS: Server 10.0.0.9 has not responded in 120 seconds. Reconnecting...", Sev.WARN, None),
    ],
)
def test_what_was_repaired_is_a_warning_and_what_was_lost_is_fatal(
    line: str, severity: Sev, device: str | None
) -> None:
    assert found(line) == [(F.IO_ERROR, severity, device)]


@pytest.mark.parametrize(
    ("line", "severity", "device"),
    [
        ("ata5.00: disable device", Sev.FATAL, "ata5.00"),
        ("ata5: COMRESET failed (errno=-16)", Sev.WARN, "ata5"),
        ("sd 0:0:0:0: Device offlined - not ready after error recovery", Sev.FATAL, None),
        ("mpt3sas_cm0: fault_state(0x5854)!", Sev.FATAL, None),
        ("megaraid_sas 0000:18:00.0: 8940 (7s/0x0001/CRIT) - VD 00/0 is now DEGRADED", Sev.WARN, None),
        ("nvme nvme1: starting error recovery", Sev.WARN, "nvme1"),
        ("nvme1n1: Read(0x2) @ LBA 121, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) ", Sev.FATAL, "nvme1n1"),
        ("md/raid1:md0: Disk failure on sdb1, disabling device.", Sev.WARN, "sdb1"),  # the other mirror goes on
        ("md/raid:md0: Cannot continue operation (2/4 failed).", Sev.FATAL, None),
        ("device-mapper: thin: 253:4: switching pool to read-only mode", Sev.FATAL, None),
        ("lockd: server filer not responding, still trying", Sev.WARN, "filer"),
        ("LustreError: 167-0: home-OST0001-osc: This client was evicted by home-OST0001; in", Sev.FATAL, None),
        ("rbd: rbd0: write at objno 12 0~4096 result -108", Sev.FATAL, "rbd0"),
        ("block nbd0: Connection timed out", Sev.WARN, None),
    ],
)
def test_storage_is_read_by_driver_object_and_outcome(line: str, severity: Sev, device: str | None) -> None:
    assert found(line) == [(F.IO_ERROR, severity, device)]


@pytest.mark.parametrize(
    "line",
    [
        "mpt3sas_cm0: sending message unit reset !!",
        "mpt3sas_cm0: performance mode: iops with coalescing timeout: 0xa",
        "megaraid_sas 0000:18:00.0: FW provided TM TaskAbort/Reset timeout\t: 6 secs/60 secs",
        "ahci 0000:00:17.0: controller can't do DEVSLP, turning off",
        "EXT4-fs (sda1): mballoc: 12 blocks 3 reqs (0 success), 5 generated, 0 preallocated, 4 lost",
        "device-mapper: ioctl: error adding target to table",
        "nvme0: Admin Cmd(0x6), I/O Error (sct 0x0 / sc 0x2) DNR ",
        "BTRFS info (device sdb1): bdev /dev/sdb1 errs: wr 3, rd 0, flush 0, corrupt 0, gen 0",
        "FAT-fs (mmcblk0p1): Volume was not properly unmounted. Some data may be corrupt. Please run fsck.",
        "hfsplus: Filesystem was not cleanly unmounted, running fsck.hfsplus is recommended.  mounting read-only.",
    ],
)
def test_what_a_driver_of_disks_says_on_the_way_up_is_no_fault(line: str) -> None:
    assert found(line) == []


def test_a_checksum_that_no_copy_could_repair_stays_fatal_with_its_count() -> None:
    lines = (
        "BTRFS warning (device sda2): csum failed root 5 ino 257 off 0 csum 0x1 expected csum 0x2 mirror 1",
        "BTRFS error (device sda2): bdev /dev/sda2 errs: wr 0, rd 0, flush 0, corrupt 1, gen 0",
    )
    assert found(*lines) == [(F.IO_ERROR, Sev.FATAL, "sda2")]


def test_a_register_that_the_command_processor_did_not_write_is_a_warning_before_any_timeout() -> None:
    assert found(AMD + "failed to write reg 28b4 wait reg 28c6") == [(F.GPU_HANG, Sev.WARN, CARD)]


def test_a_fault_of_the_iommu_whose_device_was_cut_out_is_a_warning() -> None:
    line = "AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001a address=0xfd000000 flags=0x0050]"
    assert found(line) == [(F.PAGE_FAULT, Sev.WARN, None)]


def test_a_process_that_an_older_kernel_killed_is_named() -> None:
    (kill,) = findings_in(["Killed process 11726, UID 498, (mysqld) total-vm:7823732kB, anon-rss:2539268kB"], TABLE)
    assert (kill.fault, kill.severity, kill.pid, kill.process) == (F.OOM_KILL, Sev.FATAL, 11726, "mysqld")


def test_the_last_line_of_a_panic_is_that_panic() -> None:
    assert found("---[ end Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)") == [
        (F.KERNEL_PANIC, Sev.FATAL, None)
    ]


# --- what a reset that has not ended belongs to; which device a line without one is about ----------------------------


def amd(*lines: str) -> list[tuple[F, Sev, str | None]]:
    return found(*(f"[   34.{number:06d}] {AMD}{line}" for number, line in enumerate(lines)))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32770)", F.PAGE_FAULT),
        ("MES failed to respond to msg=REMOVE_QUEUE", F.QUEUE_EVICTION),
        ("SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000006", F.SMU),
        ("2 uncorrectable hardware errors detected in umc block", F.ECC_UNCORRECTABLE),
    ],
)
def test_a_reset_whose_end_is_not_in_the_log_is_no_second_fault_beside_what_it_followed(line: str, fault: F) -> None:
    begun = ("GPU reset begin!", "suspend of IP block <vcn_v3_0> failed -110", "MODE1 reset")
    assert amd(line, *begun) == [(fault, Sev.FATAL, CARD)]
    assert amd(line, *begun, "GPU reset(2) succeeded!") == [(fault, Sev.FATAL, CARD), (F.GPU_RESET, Sev.FATAL, CARD)]
    assert amd(line, *begun, "GPU reset(2) failed")[1:] == [(F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


def test_a_reset_that_follows_corrected_errors_is_a_fault_of_its_own() -> None:
    lines = ("3 correctable hardware errors detected in umc block", "GPU reset begin!")
    assert amd(*lines) == [(F.ECC_CORRECTABLE, Sev.WARN, CARD), (F.GPU_RESET, Sev.FATAL, CARD)]


TIMEOUT = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3"


def test_a_line_without_an_address_is_about_the_only_gpu_that_its_driver_names() -> None:
    resumed = f"[ 500.0] {AMD}SMU is resumed successfully!"
    other = "[ 501.0] amdgpu 0000:0b:00.0: amdgpu: SMU is resumed successfully!"
    assert found(f"[ 100.0] {TIMEOUT}", resumed) == [(F.GPU_HANG, Sev.FATAL, CARD)]
    assert found(f"[ 100.0] {TIMEOUT}", resumed, other) == [(F.GPU_HANG, Sev.FATAL, None)]


def test_a_line_of_one_driver_is_not_about_the_gpu_of_another() -> None:
    assert found(f"[ 100.0] {TIMEOUT}", "[ 100.1] nvidia 0000:0b:00.0: enabling device") == [
        (F.GPU_HANG, Sev.FATAL, None)
    ]


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("nvme nvme0: Identify Controller failed (-4)", "nvme0"),  # drivers/nvme/host/core.c
        ("sd 0:0:0:0: [sdb] Read Capacity(16) failed: Result: hostbyte=DID_OK", "sdb"),  # drivers/scsi/sd.c
        ("EXT4-fs warning (device sda1): dx_probe:823: error 5 on journal start", "sda1"),
        ("md/raid10:md0: recovery aborted due to read error", "md0"),  # drivers/md/raid10.c
        ("ata5: failed to reset engine (errno=-5)", "ata5"),  # drivers/ata/libahci.c
        ("md/raid1:md1: sdb3: rescheduling sector 1849", "sdb3"),  # drivers/md/raid1.c
    ],
)
def test_a_wording_of_a_disk_that_no_row_lists_names_its_disk(line: str, device: str) -> None:
    assert found(line) == [(F.IO_ERROR, Sev.WARN, device)]


# --- old kernels, other architectures, programs that kill for memory -------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("Watchdog CPU:59 Hard LOCKUP", F.HUNG_TASK, Sev.FATAL),  # arch/powerpc/kernel/watchdog.c, Linux 4.13
        ("watchdog: CPU 4 self-detected hard LOCKUP @ plpar_hcall_norets+0x1c/0x28", F.HUNG_TASK, Sev.FATAL),
        ("BUG: soft lockup detected on CPU#1!", F.HUNG_TASK, Sev.WARN),  # kernel/softlockup.c, Linux 2.6.16
        ("INFO: RCU detected CPU 1 stall (t=4295117344/1000 jiffies)", F.HUNG_TASK, Sev.WARN),  # Linux 2.6.28
        ('Filesystem "sdb1": XFS internal error xfs_trans_cancel at line 1138', F.IO_ERROR, Sev.FATAL),
        ("xfs_force_shutdown(sdb1,0x8) called from line 1139 of file fs/xfs/xfs_trans.c.", F.IO_ERROR, Sev.FATAL),
        ('I/O error in filesystem ("sdb1") meta-data dev sdb1 block 0x3a2f60       ("xlog")', F.IO_ERROR, Sev.FATAL),
        ("Out of memory: kill process 812 (python) score 46123 or a child", F.OOM_KILL, Sev.FATAL),
        ("MCE: Killing python3:812 due to hardware memory corruption fault at 7f1d", F.ECC_UNCORRECTABLE, Sev.FATAL),
        ("CPU 0: Machine Check Exception: 4 Bank 0: b200000410000800", F.ECC_UNCORRECTABLE, Sev.FATAL),
        ('EDAC MC0: CE page 0x3f1d4, offset 0x880, grain 8, row 1, label "": amd64', F.ECC_CORRECTABLE, Sev.WARN),
        ("EEH: Frozen PE#1fb on PHB#0 detected", F.PCIE, Sev.WARN),  # arch/powerpc/kernel/eeh.c
        ("EEH: Unrecoverable slot failure on PHB#0-PE#1", F.PCIE, Sev.FATAL),
        ("modprobe[812]: NaT consumption 17179869216 [1]", F.KERNEL_OOPS, Sev.WARN),  # arch/ia64/kernel/traps.c
        ("systemd-udevd[115]: NaT consumption 2216203124768 [1]", F.KERNEL_OOPS, Sev.WARN),  # no word of a program
        ("Entered OS MCA handler. PSP=20010000fff21320 cpu=2 monarch=1", F.ECC_UNCORRECTABLE, Sev.FATAL),
        ("mpt3sas_cm0: failure at drivers/scsi/mpt3sas/mpt3sas_scsih.c:10626/_scsih_probe()!", F.IO_ERROR, Sev.WARN),
        ("Illegal instruction in kernel: sig: 9 [#1]", F.KERNEL_OOPS, Sev.WARN),  # arch/xtensa/kernel/traps.c
        ("Kernel attempted to read user page (0) - exploit attempt? (uid: 0)", F.KERNEL_OOPS, Sev.WARN),  # powerpc
        ("---[ end Kernel panic - not syncing: Hard LOCKUP ]---", F.HUNG_TASK, Sev.FATAL),
        ("---[ end Kernel panic - not syncing: Out of memory and no killable processes... ]---", F.OOM_KILL, Sev.FATAL),
        ("exFAT-fs (sda1): broken FAT chain.", F.IO_ERROR, Sev.FATAL),
        ("EXT4-fs (sda1): ext4_check_descriptors: Inode table for group 3 overlaps superblock", F.IO_ERROR, Sev.FATAL),
        ("erofs: (device sda1): erofs_readdir: bogus dirent @ nid 36", F.IO_ERROR, Sev.FATAL),
        ("sda1: writeback error on inode 123, offset 0, sector 456", F.IO_ERROR, Sev.FATAL),  # fs/iomap
        ("nvme nvme0: queue 3 tag 0x1f short data-in: got 3 of 4", F.IO_ERROR, Sev.WARN),  # drivers/nvme/host/tcp.c
        ("Internal error: synchronous external abort: 0000000096000410 [#1] SMP", F.KERNEL_OOPS, Sev.WARN),
        ("traps: PANIC: double fault, error_code: 0x0", F.KERNEL_OOPS, Sev.WARN),
        ("BUG: Unable to handle kernel data access at 0x5deadbeef0000122", F.KERNEL_OOPS, Sev.WARN),  # powerpc
        ("XFS (dm-3): log recovery read I/O error at daddr 0x3972 len 1 error -5", F.IO_ERROR, Sev.FATAL),
        ("NFS: server filer error: fileid changed", F.IO_ERROR, Sev.WARN),
        ("CIFS: VFS: \\\\192.0.2.20 Error -512 sending data on socket to server", F.IO_ERROR, Sev.WARN),
        ("sd 5:0:1:0: [sdb] Read Capacity(16) failed: Result: hostbyte=DID_NO_CONNECT", F.IO_ERROR, Sev.FATAL),
        ("sd 7:0:0:0: [sdd]  Result: hostbyte=DID_NO_CONNECT driverbyte=DRIVER_OK", F.IO_ERROR, Sev.FATAL),
        ("mmcblk0: error 1 sending read/write command", F.IO_ERROR, Sev.FATAL),  # drivers/mmc/card/block.c, 2.6.20
        ("Bad mode in Error handler detected on CPU2, code 0xbf000002 -- SError", F.KERNEL_OOPS, Sev.WARN),
        ("ata1: command timeout", F.IO_ERROR, Sev.FATAL),  # drivers/scsi/libata-scsi.c, Linux 2.6.15
        ("sd 0:0:0:0: SCSI error: return code = 0x08000002", F.IO_ERROR, Sev.FATAL),  # scsi_lib.c, Linux 2.6.18
        ("sda: Current: sense key: Medium Error", F.IO_ERROR, Sev.FATAL),
        ("lost page write due to I/O error on sda1", F.IO_ERROR, Sev.FATAL),  # fs/buffer.c before Linux 4.2
        ("REISERFS error (device sda1): vs-5150 search_by_key: invalid format", F.IO_ERROR, Sev.FATAL),
        ("BTRFS: error (device sdb1: state A) in btrfs_run_delayed_refs:2159: errno=-28", F.IO_ERROR, Sev.FATAL),
        ("XFS (sdb1): Please umount the filesystem and rectify the problem(s)", F.IO_ERROR, Sev.FATAL),
        ("FAT-fs (sdb1): error, fat_get_cluster: invalid cluster chain (i_pos 0)", F.IO_ERROR, Sev.FATAL),
        ("radeon 0000:01:00.0: GPU lockup CP stall for more than 10019msec", F.GPU_HANG, Sev.FATAL),
        ("NVRM: rm_init_adapter(0) failed", F.GPU_INIT_FAILED, Sev.FATAL),
        ("NVRM: GPU 0000:3b:00.0: request_irq() failed (-22)", F.GPU_INIT_FAILED, Sev.WARN),
        ("[Hardware Error]: CPU:2\tMC4_STATUS[Over|CE|MiscV|-|AddrV|CECC]: 0xdc3b", F.ECC_CORRECTABLE, Sev.WARN),
        ("mce: CMCI storm detected: switching to poll mode", F.ECC_CORRECTABLE, Sev.WARN),
    ],
)
def test_the_words_of_older_kernels_and_of_other_architectures_are_known(line: str, fault: F, severity: Sev) -> None:
    ((found_fault, found_severity, _),) = found(line)
    assert (found_fault, found_severity) == (fault, severity)


@pytest.mark.parametrize(
    "line",
    [
        "Killed /a.slice/b.scope due to memory pressure for /a.slice being 78.12% > 50.00%",
        "Marked /a.slice/b.scope for killing due to memory used (1) / total (2) and swap used (3)",
        "b.scope: systemd-oomd killed 12 process(es) in this unit.",
        'sending SIGTERM to process 812 uid 1000 "python3": badness 1205, VmRSS 14123 MiB',
    ],
)
def test_a_kill_by_a_program_that_watches_memory_is_one_of_its_own(line: str) -> None:
    ((fault, severity, _),) = found(f"Sep 10 14:59:49 node-7 some-program[34]: {line}")
    assert (fault, severity) == (F.OOM_KILL, Sev.FATAL)


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu: Failed to map VA 0x7f1d4c710000 in vm. ret -12",  # amdgpu_amdkfd_gpuvm.c
        "amdgpu: Failed to add BO object to VM. ret == -12",
        AMD + "(-12) failed to allocate UVD bo",
        AMD + "(-12) failed to create ce fw bo",
        AMD + "Failed to register gfx ras block!",
        AMD + "Disabling VM faults because of PRT request!",
        "[drm] psp command failed and response status is (0x7)",
        AMD + "VFCT bus number mismatch: table 3 != runtime 4, matching by device identity",
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Failed to initialize parser -12!",
        "[drm:amdgpu_uvd_cs_msg [amdgpu]] *ERROR* Invalid UVD handle 0x1!",
        "hpsa 0000:05:00.0:    [12] Timeout               ",  # drivers/pci/pcie/aer.c: the bits of an error
        "nvme nvme0: using unchecked data buffer, use of /dev/disk/by-id/ may cause data corruption",
        "ata5.00: Read log 0x00 page 0x00 failed, Emask 0x1",
        "EXT4-fs (sda1): can't mount with journal_checksum, fs mounted w/o journal",
        "BTRFS error (device sda1): cannot mount because of unknown incompat features (0x40)",
        "pcieport 0000:00:1c.0: DPC: RP PIO log size 0 is invalid",
        "watchdog: Delayed init of the lockup detector failed: -19",
        "EXT4-fs (sda1): shut down requested (2)",
        "pcieport 0001:00:01.0: AER: request AER IRQ -22 failed",
        "blk_update_request: I/O error, dev loop0, sector 0 op 0x1:(WRITE) flags 0x800 phys_seg 0 prio class 0",
        "FAT-fs (sda1): bogus number of reserved sectors",
        "XFS (sda1): Invalid superblock magic number",
        "overlayfs: missing 'lowerdir'",
        "BUG kmalloc-64 (Tainted: G W): Poison overwritten",
    ],
)
def test_what_a_program_asked_for_in_vain_and_what_a_device_lacks_is_no_fault(line: str) -> None:
    assert found(line) == []


def test_the_bits_of_an_error_of_the_bus_belong_to_it() -> None:
    lines = (
        "hpsa 0000:05:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "hpsa 0000:05:00.0:   device [103c:3239] error status/mask=00001000/00002000",
        "hpsa 0000:05:00.0:    [12] Timeout               ",
    )
    assert found(*lines) == [(F.PCIE, Sev.WARN, "0000:05:00.0")]


# --- what a mail program wrapped --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("amdgpu 0000:0a:00.0: AMD-Vi: Event logged", "[IO_PAGE_FAULT domain=0x000c address=0xffffffc0c0]"),
            (F.PAGE_FAULT, Sev.FATAL, CARD),
        ),
        (
            ("DMAR: [DMA Read]", "Request device [0a:00.0] PASID ffffffff fault addr 9cdff000 [fault", "reason 02]"),
            (F.PAGE_FAULT, Sev.WARN, CARD),
        ),
        (
            ("BTRFS critical (device", "dm-0): corrupt leaf: root=1 block=35799040 slot=32"),
            (F.IO_ERROR, Sev.FATAL, "dm-0"),
        ),
        (("print_req_error: I/O error, dev nvme0n1,", "sector 1141976 flags 803"), (F.IO_ERROR, Sev.FATAL, "nvme0n1")),
        (
            ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR*", "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"),
            (F.GPU_HANG, Sev.FATAL, None),
        ),
    ],
)
@pytest.mark.parametrize("quoted", ["", "> > "])
def test_a_message_that_was_wrapped_is_read_as_one(
    lines: tuple[str, ...], expected: tuple[F, Sev, str | None], quoted: str
) -> None:
    first, *rest = lines
    assert found(f"{quoted}[   12.345678] {first}", *(quoted + line for line in rest)) == [expected]


def test_a_person_s_words_below_a_log_are_no_part_of_it() -> None:
    below = "and then it failed with an error and the disk was read-only, any idea?"
    assert found("[   12.345678] EXT4-fs (sda1): mounted filesystem with ordered data mode", below) == []


def test_a_program_that_writes_to_the_kernels_log_is_no_kernel() -> None:
    kill = "Marked /a.slice/b.scope for killing due to memory pressure for /a.slice being 85.03% > 80.00%"
    assert found(f"[   77.749670] systemd-oomd[659]: {kill}") == [(F.OOM_KILL, Sev.FATAL, None)]
    assert found(f"[   77.749670] systemd[1]: {FAILED}") == []


def test_what_a_disk_loses_by_a_shutdown_that_was_asked_for_is_no_fault_of_it() -> None:
    lost = "sda3: writeback error on inode 60042, offset 63640576, sector 2306320"
    assert found("XFS (sda3): User initiated shutdown received.", lost) == []
    assert found("XFS (sdb1): User initiated shutdown received.", lost) == [(F.IO_ERROR, Sev.FATAL, "sda3")]
