"""Logs as people paste them: newest line first, joined or broken lines, stamps cut out; drives that are no disks."""

from __future__ import annotations

import pytest

from supervisor.core.findings import FaultClass as F
from supervisor.core.findings import FaultSeverity as Sev
from supervisor.sources.faults.events import SPEAKERS_KEPT, Event, Events
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in

TABLE = kernel_grammar()
CARD = "0000:0b:00.0"
NVME = "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"


def found(*lines: str) -> list[tuple[F, Sev, str | None]]:
    return [(item.fault, item.severity, item.device) for item in findings_in(lines, TABLE)]


EVICTION = (
    "Mar 03 21:14:06 box kernel: amdgpu: qcm fence wait loop timeout expired",
    "Mar 03 21:14:07 box kernel: amdgpu 0000:0b:00.0: amdgpu: GPU reset begin!",
    "Mar 03 21:14:09 box kernel: [drm:gfx_v9_0_hw_fini [amdgpu]] *ERROR* KCQ disable failed",
)


def test_a_log_with_its_newest_line_first_is_read_from_its_end() -> None:
    oldest_first = found(*EVICTION)
    assert oldest_first == [(F.QUEUE_EVICTION, Sev.FATAL, CARD)]
    assert found(*reversed(EVICTION)) == oldest_first
    assert [item.line_number for item in findings_in(reversed(EVICTION), TABLE)] == [3]


def test_a_message_of_several_lines_keeps_their_order_in_a_log_with_the_newest_first() -> None:
    fallen = (
        "Mar 03 21:14:09 box kernel: usb 1-1: USB disconnect, device number 5",
        "Mar 03 21:14:08 box kernel: NVRM: The NVIDIA GPU 0000:0b:00.0",
        "                            NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "                            NVRM: fallen off the bus and is not responding to commands.",
    )
    assert found(*fallen) == [(F.XID, Sev.FATAL, CARD)]


@pytest.mark.parametrize(
    "stamps",
    [
        (12.345678, 12.345671),  # two processors
        (86399.0, 3.0),  # the next boot, or the next day
    ],
)
def test_a_step_back_of_processors_or_boots_is_no_log_in_reverse(stamps: tuple[float, float]) -> None:
    first, second = (f"[{stamp:12.6f}] {NVME}" for stamp in stamps)
    assert next(findings_in((first, second), TABLE)).line_number == 1


@pytest.mark.parametrize(
    ("before", "between"),
    [
        ("[   12.345678] usb 1-1: new device", " [   12.345680] "),
        ("Mar  3 21:14:06 box kernel: usb 1-1: new device", " Mar  3 21:14:07 box kernel: "),
        ("2026-03-03T21:14:06+00:00 box kernel: usb 1-1: new device", " 2026-03-03T21:14:07+00:00 box kernel: "),
    ],
)
def test_messages_that_share_a_line_are_read_each(before: str, between: str) -> None:
    killed = "Out of memory: Killed process 812 (python) total-vm:9kB"
    expected = [(F.IO_ERROR, Sev.FATAL, "nvme0"), (F.OOM_KILL, Sev.FATAL, None)]
    assert found(before + between + NVME + between + killed) == expected


@pytest.mark.parametrize(
    "prefix", ["./box/dmesg.log:kern  :info  : [Sun Jul 30 18:26:36 2023] ", "12:01:02 0 4 box kernel:[   9.5] "]
)
@pytest.mark.parametrize(
    "message",
    [
        "connection3:0: detected conn error (1020)",
        "session2: session recovery timed out after 120 secs",
        "qla2xxx [0000:06:00.0]-801c:1: Abort command issued nexus=1:0:5 --  1 2002.",
    ],
)
def test_a_fault_of_storage_on_a_network_is_found_behind_an_unknown_prefix(prefix: str, message: str) -> None:
    assert [fault for fault, _, _ in found(prefix + message)] == [F.IO_ERROR]


@pytest.mark.parametrize(
    "prefix",
    [
        "[...] ", "[.....] ", "[snip] ", "(...) ", "... ", "[XXXX.XXXXXX] ", "[TIMESTAMP] host kernel: ",
        "<timestamp> host kernel: ", "root@pve:~# [  123.456789] ", "(initramfs) [  123.456789] ",
        "pve login: [  123.456789] ", "Oct 10 10:10:10 ", "Thu Oct 10 10:10:10 2026 ", "12345.678901: ", "[12345] ",
        "[code][12345.678901] ", "Jul 10 09:08:07 [hostname] kernel: ", "Jul 10, 2026 @ 09:08:07.123 ",
        "7/10/26 9:08:07 AM kernel: ",
        "Aug 12 00:10:09 host vmunix: [22056.879920] ", "Aug 12 00:10:09 host klogd: ",
        "[12345.678901] (4)[123:kworker/4:1]", "Jul 10 09:08:07 host kernel ",
    ],
)  # fmt: skip
def test_whatever_stands_in_the_place_of_a_stamp_hides_no_fault(prefix: str) -> None:
    assert found(prefix + NVME) == [(F.IO_ERROR, Sev.FATAL, "nvme0")]


STAMP = "[   12.345678] "


@pytest.mark.parametrize(
    "line",
    [
        f"<pre><code>{STAMP}{NVME}",
        f"<p>{STAMP}{NVME}</p>",
        f'<div class="log">{STAMP}{NVME}<br />',
        f"[code]{STAMP}{NVME}[/code]",
        f"[quote=somebody]{STAMP}{NVME}[/quote]",
        f"{{noformat}}{STAMP}{NVME}{{noformat}}",
        f"{STAMP}{NVME}".replace(" ", "\u00a0"),
        f"{STAMP}{NVME}".replace("  ", "&nbsp; "),
        f"\ufeff{STAMP}{NVME}",
        f"\u200b{STAMP}{NVME}",
        f"{STAMP}{NVME}".replace("[", "\\[").replace("_", "\\_"),
        f"[32m{STAMP}[0m[33mnvme nvme0: [0m[1m{NVME[12:]}[0m",
        f"^[[32m{STAMP}^[[0m^[[31m{NVME}^[[0m",
        f"#033[32m{STAMP}#033[0m{NVME}",
        f"[32m{STAMP}[m{NVME}[m",
        f'        "{STAMP}{NVME}",',
        f"**{STAMP}{NVME}**",
        f"`{STAMP}{NVME}`",
    ],
)
def test_what_a_page_puts_around_and_into_a_line_hides_no_fault(line: str) -> None:
    assert found(line) == [(F.IO_ERROR, Sev.FATAL, "nvme0")]


def test_a_tag_that_begins_as_the_end_of_a_colour_does_is_read() -> None:
    fault = "amdgpu 0000:03:00.0: amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:0 vmid:3 pasid:32769)"
    assert found(f"{STAMP}{fault}") == [(F.PAGE_FAULT, Sev.FATAL, "0000:03:00.0")]


def test_lines_that_a_page_joined_by_their_spelled_end_are_read_each() -> None:
    killed = "[   13.345678] Out of memory: Killed process 812 (python) total-vm:9kB"
    expected = [(F.IO_ERROR, Sev.FATAL, "nvme0"), (F.OOM_KILL, Sev.FATAL, None)]
    assert found(f"{STAMP}{NVME}\\n{killed}") == expected
    assert found(f"<p>{STAMP}{NVME}<br />{killed}</p>") == expected


@pytest.mark.parametrize(
    "line",
    [
        'audit: type=1400 comm="nvme nvme0: controller is down"',
        f"Jul 10 09:08:07 host monitor[812]: saw {NVME}",
        f"# dmesg | grep -c '{NVME[:12]}'",
    ],
)
def test_a_program_that_quotes_the_kernel_is_no_kernel(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "[12345.678901 <    0.000731>] ", "[<    0.000731>] ", "[ XX.XXXXXX] ", "123456] ", "12345.678901 ",
        "Jul 10 09:08:07 host kern:err kernel: ", "Jul 10 09:08:07 (none) kern.err kernel: [12345.678901] ",
        "Fri 2026-07-10 09:08:07 +03 host kernel: ", "6.8.0,3,901,3723123456,-;", "7月10日 09:08:07 host kernel: ",
        "heinä 10 09:08:07 host kernel: ", "7/10/26 9:08:07 PM\tkernel\t", "10.07.26 09:08:07:123\tkernel\t",
        "Jul 10, 2026 @ 09:08:07.123 kernel: ", "2026-07-10T09:08:07.123Z\t[12345.678901] ",
        "node017: [Fri Jul 10 09:08:07 2026] ", "[1,3]<stderr>:[12345.678901] ", "   812\t[12345.678901] ",
        "812| [12345.678901] ", "09:08\t", "<3>[12345.678901]  [3:  kworker/3:1:  812] ", "<3>[12345.678901]c3 ",
    ],
)  # fmt: skip
def test_stamps_of_further_tools_are_removed(prefix: str) -> None:
    # The message begins with no words by which it would be found behind an unknown prefix.
    assert found(prefix + "vfio-pci 0000:45:00.0: SMU error 0x0") == [(F.SMU, Sev.WARN, "0000:45:00.0")]


def test_a_line_that_a_terminal_broke_within_a_word_is_read() -> None:
    assert found(f"[   12.345678] {NVME[:30]}", NVME[30:]) == [(F.IO_ERROR, Sev.FATAL, "nvme0")]


# --- optical drives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        (
            "ata5.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen",
            "ata5.00: cmd a0/00:00:00:08:00/00:00:00:00:00/a0 tag 0 pio 16392 in",
            "ata5.00: status: { DRDY }",
            "ata5: hard resetting link",
            "ata5: limiting SATA link speed to 1.5 Gbps",
        ),
        ("ata5.00: ATAPI: DVD-RAM, 1.00, max UDMA/100", "ata5.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6"),
        ("ata5.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6", "ata5.00: failed command: PACKET"),
        ("ata5.00: qc timeout (cmd 0xa0)",),
        ("ata5.00: unsupported device, disabling", "ata5.00: disable device"),
        (
            "hdc: packet command error: status=0x51 { DriveReady SeekComplete Error }",
            "end_request: I/O error, dev hdc, sector 4",
        ),
    ],
)
def test_a_command_of_an_optical_drive_is_no_fault_of_a_disk(lines: tuple[str, ...]) -> None:
    assert found(*lines) == []


def test_a_disk_at_the_port_of_an_optical_drive_is_still_a_disk() -> None:
    assert found(
        "ata5.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6",
        "ata5.00: failed command: PACKET",
        "ata5.01: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6",
        "ata5.01: failed command: READ DMA EXT",
        "ata5: reset failed, giving up",
    ) == [(F.IO_ERROR, Sev.FATAL, "ata5.01"), (F.IO_ERROR, Sev.FATAL, "ata5")]


# --- drivers by their format strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "severity", "device"),
    [
        ("EXT4-fs (md125): bad geometry: block count 61865984 exceeds size of device (9)", Sev.FATAL, "md125"),
        ("libceph: mon2 (2)10.0.0.3:3300 socket error on write", Sev.WARN, None),
        ("ufshcd-qcom 1d84000.ufshc: Controller enable failed", Sev.WARN, None),
        ("F2FS-fs (sda1): access invalid blkaddr:4294967295", Sev.FATAL, "sda1"),
        ("mpt2sas0: diag reset: FAILED", Sev.FATAL, None),
        ("megaraid_sas 0000:03:00.0: resetting fusion adapter scsi0.", Sev.WARN, None),
        ("smartpqi 0000:5c:00.0: resetting scsi 0:1:0:1 due to cmd 0x28", Sev.WARN, None),
        ("device-mapper: thin: 253:2: switching pool to out-of-data-space (queue IO) mode", Sev.WARN, None),
        ("CIFS: VFS: Number of request timeouts exceeded 10. Reconnecting", Sev.WARN, None),
        ("nvme 0000:01:00.0: Cancelling I/O 101 QID 5", Sev.FATAL, "0000:01:00.0"),
        ("qla2xxx [0000:06:00.0]-300d:1: Exchange starvation. Resetting RISC", Sev.WARN, None),
        ("lpfc 0000:04:00.0: 0:0347 Adapter is very hot, please take corrective action.", Sev.WARN, None),
        ("sd 0:0:0:0: [sda] Medium access timeout failure. Offlining disk!", Sev.FATAL, "sda"),
        ("JBD2: Invalid checksum recovering block 1084 in log", Sev.FATAL, None),
        ("XFS (sda1): Refcount BTree record corruption in AG 3 detected at xfs_check+0x1f!", Sev.FATAL, "sda1"),
        ("md: disabled device sdb1, could not read superblock.", Sev.WARN, "sdb1"),
        ("JBD2: journal checksum error", Sev.FATAL, None),
        ("buffer_io_error: 7 callbacks suppressed", Sev.FATAL, None),
        ("Add. Sense: Unrecovered read error", Sev.FATAL, None),
        ("tegra-ahci: probe of 70027000.sata failed with error -110", Sev.WARN, None),
        ("exynos-ufs 13100000.ufs: ufshcd_abort: Device abort task at tag 10", Sev.WARN, None),
        ("dev_loss_tmo expired for SRP port-18:1 / host18.", Sev.WARN, None),
        ("ublkb1: ref tag error at location 0 (rcvd 128)", Sev.FATAL, "ublkb1"),
        ("mmc2: cqhci: timeout for tag 2", Sev.FATAL, None),
        ("libceph: bad data crc, calculated 3, expected 4", Sev.WARN, None),
        ("XFS (sda1): xfs_do_force_shutdown(0x1) called from line 1 of file fs/xfs/xfs_trans_buf.c", Sev.FATAL, "sda1"),
    ],
)
def test_drivers_of_storage_are_read_by_their_format_strings(line: str, severity: Sev, device: str | None) -> None:
    assert found(line) == [(F.IO_ERROR, severity, device)]


@pytest.mark.parametrize(
    "line",
    [
        "md/raid1:md0: active with 1 out of 2 mirrors",
        "EXT4-fs (sda1): error count since last fsck: 5",
        "EXT4-fs error (device sda1) in ext4_setattr:5488: Out of memory",
        "ata1.00: failed to get NCQ Send/Recv Log Emask 0x1",
        "ata6: limiting SATA link speed to <unknown>",
        "mmc0: error -110 whilst initialising SD card",
        "sd 8:0:0:0: [sdk] tag#4 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE",  # its sense tells why
        "mmc1: mmc_select_hs400es failed, error -110",
        "mmc0: unspecified timeout for CMD6 - use generic",
        "mmc2: sdhci: ADMA Err:  0x00000000 | ADMA Ptr: 0x0000000ffffff218",
        "tegra_soctherm 700e2000.sensor: missing thermtrips, will use critical trips as shut down temp",
        "CIFS: VFS: \\\\srv Send error in SessSetup = -22",
        "nvmet: Unknown symbol nvme_find_pdev_from_bdev (err -2)",
        "lpfc 0000:04:00.0: 0:0400 lpfc_nodev_tmo attribute cannot be set to 3, allowed range is [1, 255]",
        "lpfc 0000:04:00.0: 0:0817 BLKGRD: Injecting guard error: write lba x1f",
        "XFS (sda1): Filesystem has duplicate UUID 1f2e3d4c - can't mount",
        "XFS (sda1): alignment check failed: sunit/swidth vs. agsize(3)",
    ],
)
def test_what_storage_lacks_or_repeats_is_no_fault(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("EDAC sbridge MC0: CPU 0: Machine Check Event: 0 Bank 7: 8c00004000010091", F.ECC_CORRECTABLE, Sev.WARN),
        (
            "Memory cgroup out of memory: OOM victim 812 (python) is already exiting. Skip killing",
            F.OOM_KILL,
            Sev.FATAL,
        ),
        ("+------ PCI-Express Device Error ------+", F.PCIE, Sev.WARN),
        ("[Hardware Error]: MC4_STATUS[-|CE|MiscV|-|AddrV|-|-|CECC]: 0x9c5a40f0a7080a13", F.ECC_CORRECTABLE, Sev.WARN),
        ('"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.', F.HUNG_TASK, Sev.WARN),
        ("0xd071e7fff89be: 0000 [#1] PREEMPT SMP NOPTI", F.KERNEL_OOPS, Sev.WARN),
        ("Oops - store (or AMO) access fault [#1]", F.KERNEL_OOPS, Sev.WARN),
        ("pcieport 0000:00:1c.0:   device [8086:7ab9] error status/mask=00001000/00002000", F.PCIE, Sev.WARN),
        ("EDAC DEVICE0: UE: l3 instance: l3 block: l3 count: 1 (L3)", F.ECC_UNCORRECTABLE, Sev.FATAL),
        ("EDAC DEVICE0: CE: cpu-cache instance: cpu0 block: L2 count: 1 (L2)", F.ECC_CORRECTABLE, Sev.WARN),
        ("radeon 0000:01:00.0: disabling GPU acceleration", F.GPU_INIT_FAILED, Sev.FATAL),
        ("radeon 0000:01:00.0: Wait for MC idle timedout !", F.GPU_HANG, Sev.WARN),
        ("NVRM: Xid (0002:00): 13, 0001 00000000", F.XID, Sev.WARN),
        ("NVRM: API mismatch: the client has the version 515.65.01, but", F.GPU_INIT_FAILED, Sev.WARN),
        ("NVRM: API mismatch: the client 'python' (pid 812)", F.GPU_INIT_FAILED, Sev.WARN),
    ],
)
def test_further_wordings_of_older_kernels_are_known(line: str, fault: F, severity: Sev) -> None:
    assert [(item.fault, item.severity) for item in findings_in([line], TABLE)] == [(fault, severity)]


# --- one fault or two ------------------------------------------------------------------------------------------------

FATAL_ON_THE_BUS = "pcieport 0000:a9:10.0: DPC: containment event, status:0x2009 source:0x0000"


def test_a_shape_is_asked_for_the_whole_of_a_message_that_a_mail_wrapped() -> None:
    stamp = "> Sep  8 22:26:03 localhost kernel: [ 6890.647808] "
    assert found(stamp + "F2FS-fs (sdc1): Failed to", "> read root inode") == [(F.IO_ERROR, Sev.WARN, "sdc1")]
    assert found(stamp + "nvme nvme0: Failed to read", "> smart log (error -5)") == []
    assert found(stamp + "nvme nvme0: hm", "> Failed to read, I think") == []


def test_a_memory_error_of_the_firmwares_record_is_found_by_its_entry_and_precedes_the_panic() -> None:
    record = ("{1}[Hardware Error]:  Error 0, type: fatal", "{1}[Hardware Error]:   section_type: memory error")
    panic = "Kernel panic - not syncing: Fatal hardware error!"
    assert found(*record, panic) == [
        (F.ECC_UNCORRECTABLE, Sev.FATAL, None),
        (F.KERNEL_PANIC, Sev.FATAL, None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "nvme nvme0: RCV name LS failed: No memory",  # drivers/nvme/host/fc.c
        "mpt3sas_cm0: Failed to setup ISR error -22",  # drivers/scsi/mpt3sas/mpt3sas_base.c
        "lpfc 0000:03:00.0: 0420 PCI enable MSI-X failed (-28)",  # drivers/scsi/lpfc/lpfc_init.c
        "qla2xxx [0000:03:00.0]-1015:2: Couldn't delete rsp que 3.",  # drivers/scsi/qla2xxx/qla_mid.c
        "CIFS: VFS: Unable to select appropriate authentication method!",  # fs/smb/client/sess.c
        "mmc1: error -110 doing runtime resume",  # drivers/mmc/core/mmc.c
        "device-mapper: cache metadata: unable to shrink cache due to dirty blocks",  # drivers/md/dm-cache-metadata.c
        "NVRM: GPU0 kdispGetChannelNum_HAL failed!",  # src/nvidia/src/kernel/gpu/disp
        "NVRM: GPU0 memmgrGetBank_IMPL: Heap Manager unable to get bank placement policy from HAL.",
        "pcieport 0000:00:01.0: failed to get reset lines",  # drivers/pci/controller
        "XFS (sdb1): Invalid superblock magic number",  # fs/xfs/xfs_mount.c: tried for a file system of another kind
        "ata2.00: Invalid log directory version 0x0000",  # drivers/ata/libata-core.c
        "amdgpu 0000:03:00.0: amdgpu: psp gfx command LOAD_IP_FW(0x6) failed and response status is (0x11)",
        "ufshcd-qcom 1d84000.ufshc: ufshcd_wb_ctrl write booster enable failed 253",  # drivers/ufs/core/ufshcd.c
        "BUG: sleeping function called from invalid context at mm/slab.h:421",  # kernel/sched/core.c
    ],
)
def test_a_step_of_a_drivers_setup_is_no_fault_whatever_its_words(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "nvme nvme0: Reading CRTO failed (-4)",  # drivers/nvme/host/core.c
        "smartpqi 0000:03:00.0: controller not ready after 180 seconds",  # drivers/scsi/smartpqi/smartpqi_sis.c
        "EXT4-fs (loop0): couldn't read orphan inode 12 (err -5)",  # fs/ext4/ialloc.c
        "ufshcd-mtk 112b0000.ufshci: OCS error from controller = 3 for tag 19",  # drivers/ufs/core/ufshcd.c
        "sd 0:0:0:1: [sdf] tag#9 data cmplt err -75 uas-tag 1 inflight:",  # drivers/usb/storage/uas.c
        "pata_pcmcia: probe of 0.0 failed with error -12",  # drivers/base/dd.c
        "F2FS-fs (loop5): Bitmap was wrongly set, blk:5634",  # fs/f2fs/segment.c
        "F2FS-fs (nvme0n1): lz4 decompress failed, ret:-4155",  # fs/f2fs/compress.c
        "device-mapper: block manager: array validator check failed for block 10",  # drivers/md/persistent-data
        "XFS (sda1): xfs_iformat_local: bad inode 131, forkoff 0x3, ptr",  # fs/xfs/libxfs/xfs_inode_fork.c
        "device-mapper: era: era_postsuspend: bitset flush failed",  # drivers/md/dm-era-target.c
        "qla2xxx [0000:03:00.0]-1015:2: MBX command error, Aborting ISP.",  # drivers/scsi/qla2xxx/qla_isr.c
    ],
)
def test_what_failed_and_how_is_a_warning_in_any_drivers_words(line: str) -> None:
    assert [(fault, severity) for fault, severity, _ in found(line)] == [(F.IO_ERROR, Sev.WARN)]


@pytest.mark.parametrize(
    "line",
    [
        "Internal error: : 1b [#1] SMP ARM",  # arch/arm/kernel/traps.c
        "init(1): Oops [#1]",  # arch/sparc/kernel/traps_64.c
        "kernel stack overflow (double-fault): 0000 [#1] SMP PTI",  # arch/x86/kernel/dumpstack.c
        "BUG: stack guard page was hit at 000000001056545c (stack is 00000000fa3f8fed..0000000005d39503)",
    ],
)
def test_a_kernel_that_dies_is_known_by_the_count_of_its_deaths_whatever_it_names(line: str) -> None:
    assert found(line) == [(F.KERNEL_OOPS, Sev.WARN, None)]


def test_a_controller_that_is_tried_again_or_absent_is_not_given_up() -> None:
    assert found("nvme 0000:01:00.0: probe with driver nvme failed with error -517") == []
    assert found("ahci-mvebu: probe of d00e0000.sata failed with error -19") == []


def test_an_oops_and_the_panic_that_it_ends_in_are_one_fault() -> None:
    oops = ("BUG: kernel NULL pointer dereference, address: 0000000000000018", "Oops: 0000 [#1] PREEMPT SMP NOPTI")
    assert found(*oops, "Kernel panic - not syncing: Fatal exception") == [(F.KERNEL_PANIC, Sev.FATAL, None)]
    assert found(*oops) == [(F.KERNEL_OOPS, Sev.WARN, None)]


def test_a_disk_that_the_bus_cut_off_is_no_second_fault() -> None:
    lines = (FATAL_ON_THE_BUS, "nvme nvme1: frozen state error detected, reset controller")
    assert found(*lines) == [(F.PCIE, Sev.FATAL, "0000:a9:10.0")]


def test_a_gpu_that_is_lost_while_it_is_reset_is_a_failed_reset() -> None:
    amd = f"amdgpu {CARD}: amdgpu: "
    assert found(
        amd + "MES might be in unrecoverable state, issue a GPU reset",
        amd + "GPU reset begin!. Source:  3",
        amd + "device lost from bus!",
        amd + "GPU reset end with ret = -19",
    ) == [(F.QUEUE_EVICTION, Sev.FATAL, CARD), (F.GPU_RESET_FAILED, Sev.FATAL, CARD)]


@pytest.mark.parametrize(
    ("vmid", "status", "expected"),
    [
        ("vmid:0 pasid:0", "0x00040B53", [(F.QUEUE_EVICTION, Sev.FATAL, CARD)]),
        ("vmid:6 pasid:32777", "0x00640B53", [(F.QUEUE_EVICTION, Sev.FATAL, CARD), (F.PAGE_FAULT, Sev.FATAL, CARD)]),
    ],
)
def test_a_page_fault_of_the_driver_itself_is_part_of_the_reset_that_it_falls_in(
    vmid: str, status: str, expected: list[tuple[F, Sev, str | None]]
) -> None:
    amd = f"amdgpu {CARD}: amdgpu: "
    assert (
        found(
            amd + "MES might be in unrecoverable state, issue a GPU reset",
            amd + "GPU reset begin!",
            amd + f"[gfxhub] page fault (src_id:0 ring:169 {vmid}, for process  pid 0 thread  pid 0)",
            amd + f"GCVM_L2_PROTECTION_FAULT_STATUS:{status}",
        )
        == expected
    )


def test_a_gpu_that_is_lost_without_a_reset_is_lost_to_the_bus() -> None:
    assert found(f"amdgpu {CARD}: amdgpu: device lost from bus!") == [(F.PCIE, Sev.FATAL, CARD)]


def test_the_usb_or_sound_function_of_a_card_is_no_second_fault() -> None:
    lines = (
        "xhci_hcd 0000:07:00.2: Unable to change power state from D3hot to D0, device inaccessible",
        "NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    )
    assert found(*lines) == [(F.XID, Sev.FATAL, "0000:07:00.0")]


SHUT_DOWN = (
    "XFS (vdb): User initiated shutdown received.",
    "XFS (vdb): Metadata I/O Error (0x4) detected at xfs_fs_goingdown+0x4b/0x180 [xfs] (fs/xfs/xfs_fsops.c:492)."
    "  Shutting down filesystem.",
    "XFS (vdb): Please unmount the filesystem and rectify the problem(s)",
    "XFS (vdb): log I/O error -5",
)
"""fs/xfs/xfs_fsops.c: xfs_do_force_shutdown; xfs_log.c."""


def test_a_file_system_that_a_person_or_a_test_shut_down_is_no_fault() -> None:
    assert list(findings_in([f"[  100.{n}00000] {line}" for n, line in enumerate(SHUT_DOWN)], TABLE)) == []


@pytest.mark.parametrize(
    "after",
    [
        "[  100.900000] XFS (vdc): log I/O error -5",
        "[  100.900000] I/O error, dev vdb, sector 8 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2",
        "[  100.900000] XFS (vdb): Metadata corruption detected at xfs_inode_buf_verify",
        "[  200.000000] XFS (vdb): log I/O error -5",
    ],
)
def test_what_no_shutdown_explains_is_a_fault_after_it(after: str) -> None:
    lines = [*(f"[  100.{n}00000] {line}" for n, line in enumerate(SHUT_DOWN)), after]
    assert [finding.severity for finding in findings_in(lines, TABLE)] == [Sev.FATAL]


@pytest.mark.parametrize(
    "line",
    [
        "qla2xxx [0000:81:00.0]-f801:2: qla_target(0): abort of a command 1 failed",
        "qla2xxx [0000:81:00.0]-10005:2: qla_target(0): aborting of the session 1 timed out",
        "nvme nvme0: Connect Invalid Data Parameter, cntlid: 65535",
        "BTRFS error (device sdb): open_ctree failed",
        "BTRFS error (device sdb): devid 2 uuid 6b0a8f7a-0000-4000-8000-5c6f0f5b1a2c is missing",
        "BTRFS error (device sdb): unable to start balance with target data profile 128",
        "pcieport 0000:00:1c.0: pciehp: Timeout on hotplug command 0x1038 (issued 65284 msec ago)",
    ],
)
def test_a_targets_initiators_and_what_a_mount_or_a_slot_lacks_are_no_fault(line: str) -> None:
    assert list(findings_in([line], TABLE)) == []


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("NILFS (sdb1): broken superblock, retrying with spare superblock (blocksize = 1024)", Sev.WARN),
        ("gfs2: fsid=dm-2.0: error freezing FS: -5", Sev.WARN),
        ("sd 0:0:0:0: [sda] tag#17 Done: FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s", Sev.FATAL),
        ("ufshcd-qcom 1d84000.ufshc: ufshcd_check_errors: saved_err 0x20000 saved_uic_err 0x0", Sev.WARN),
        ("bcache: bch_cache_set_error() bcache: error on 3f2a: journal io error, disabling caching", Sev.FATAL),
    ],
)
def test_what_gave_way_is_read_whatever_was_done_about_it(line: str, severity: Sev) -> None:
    """fs/nilfs2/the_nilfs.c, gfs2/super.c, scsi/scsi_logging.c, ufs/core/ufshcd.c, md/bcache/super.c of Linux 4.19."""
    assert [finding.severity for finding in findings_in([line], TABLE)] == [severity]


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("kvm [371]: nVHE hyp panic at: [<ffff8000090a51d0>] __kvm_nvhe_recursive_death+0x10/0x34!", F.KERNEL_PANIC, 2),
        ("kvm [304]: nVHE hyp BUG at: arch/arm64/kvm/hyp/nvhe/mem_protect.c:271!", F.KERNEL_PANIC, 2),
        ("Unhandled fault: external abort on non-linefetch (0x1008) at 0xf0c8802c", F.KERNEL_OOPS, 1),
        ("Kernel panic - not syncing: alloc_low_pages: can not alloc memory", F.OOM_KILL, 2),
        ("Kernel panic - not syncing: early_pgtable_alloc: Failed to allocate page table page", F.OOM_KILL, 2),
        ("REISERFS warning (device sdb1): sh-2029: reiserfs_read_bitmap_block: bitmap block (#1) reading failed",
         F.IO_ERROR, 1),
        ("overlayfs: failed to get inode (-5)", F.IO_ERROR, 1),
    ],
)  # fmt: skip
def test_a_hypervisor_that_dies_and_what_a_layer_could_not_read_is_known(line: str, fault: F, severity: int) -> None:
    """arch/arm64/kvm/handle_exit.c, arm/mm/fault.c, x86/mm/init.c, fs/reiserfs/bitmap.c, fs/overlayfs/export.c."""
    assert [(finding.fault, int(finding.severity)) for finding in findings_in([line], TABLE)] == [(fault, severity)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("riscv login: [178876.406122] Unable to handle kernel paging request at virtual address 0000000000012a28",
         F.KERNEL_OOPS),
        ("[10:53] <user> [    3.384408] Unable to handle kernel paging request at virtual address 000000004afb0080",
         F.KERNEL_OOPS),
        ("Page fault: bad address: Code=15 (Data TLB miss fault) at addr 800002e76660997f", F.KERNEL_OOPS),
        ("systemd(1): Instruction fault 4", F.KERNEL_OOPS),
        ("CIFS: VFS: smbdirect_connect_rdma_event_handler:251 event=rejected status=8", F.IO_ERROR),
        ("(ocfs2dc-ED62,1602,1):ocfs2_downconvert_lock:3674 ERROR: DLM error -16 while calling ocfs2_dlm_lock",
         F.IO_ERROR),
        ("(ocfs2dc-ED62,1602,1):ocfs2_unblock_lock:3918 ERROR: status = -16", F.IO_ERROR),
    ],
)  # fmt: skip
def test_a_prompt_before_a_stamp_and_words_of_other_architectures_hide_no_fault(line: str, fault: F) -> None:
    """arch/parisc/mm/fault.c, alpha/kernel/traps.c, fs/smb/client/smbdirect.c, ocfs2/dlmglue.c."""
    assert [finding.fault for finding in findings_in([line], TABLE)] == [fault]


@pytest.mark.parametrize("status", [-2, -28, -122])
def test_what_ocfs2_lacks_for_its_user_is_no_fault(status: int) -> None:
    assert list(findings_in([f"(touch,612,1):ocfs2_create:412 ERROR: status = {status}"], TABLE)) == []


def test_of_speakers_that_report_what_was_asked_for_the_newest_are_remembered() -> None:
    """A loop of tests, each on a device of its own, reports for as long as the daemon runs."""
    table = kernel_grammar()
    events = Events(table.kind)

    def add(line: str, at_s: float) -> Event | None:
        match = table.match(line)
        assert match is not None
        return events.add(match, number=1, line=line, at_s=at_s)

    for number in range(1000):
        assert add(f"XFS (loop{number}): User initiated shutdown received.", number / 1000) is None
    assert len(events._asked) == SPEAKERS_KEPT
    assert add("XFS (loop999): log I/O error -5", 1.5) is None
    assert add("XFS (loop0): log I/O error -5", 1.5) is not None


# --- what users' reports of machines with GPUs showed ----------------------------------------------------------------


def test_a_machine_without_the_vendors_card_has_no_fault_of_it() -> None:
    """kernel-open/nvidia/nv.c: the module is loaded, and the card that works is another vendor's."""
    assert found("NVRM: No NVIDIA graphics adapter found!", "NVRM: NVIDIA init module failed!") == []
    assert found("NVRM: No NVIDIA GPU found.") == []
    assert [fault for fault, *_ in found("NVRM: NVIDIA init module failed!")] == [F.GPU_INIT_FAILED]


@pytest.mark.parametrize("driver", ["amdgpu", "radeon", "nvidia"])
@pytest.mark.parametrize("error", [-19, -517])
def test_a_gpu_that_is_absent_or_tried_again_is_not_given_up(driver: str, error: int) -> None:
    """drivers/base/dd.c, call_driver_probe: no device, and a probe that is repeated later."""
    assert found(f"{driver}: probe of 0000:03:00.0 failed with error {error}") == []
    assert found(f"{driver} 0000:03:00.0: probe with driver {driver} failed with error {error}") == []
    assert [fault for fault, *_ in found(f"{driver}: probe of 0000:03:00.0 failed with error -1")] == [
        F.GPU_INIT_FAILED
    ]


def test_the_scheduler_that_does_not_answer_and_its_block_are_one_fault() -> None:
    """amdgpu_mes.c, amdgpu_device.c: amdgpu_device_ip_suspend_phase2."""
    of_gpu = "amdgpu 0000:c5:00.0: amdgpu: "
    lines = (of_gpu + "MES failed to respond to msg=SUSPEND", of_gpu + "suspend of IP block <mes_v12_0> failed -110")
    assert [fault for fault, *_ in found(*lines)] == [F.QUEUE_EVICTION]


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("août 16 21:08:50 systemd-oomd[812]: Killed /user.slice/user-1000.slice/train.scope", F.OOM_KILL, Sev.FATAL),
        ("Tasks in /slurm/uid_1000/job_812 are going to be killed due to memory.oom.group set", F.OOM_KILL, Sev.FATAL),
        ("CIFS: VFS: No writable handle to retry writepages rc=-9", F.IO_ERROR, Sev.FATAL),
        ("CIFS: VFS: No writable handles for inode", F.IO_ERROR, Sev.WARN),
        (
            "LustreError: 11-0: home-OST0001-osc-ffff8801: operation ost_read to node 192.0.2.20@tcp failed: rc = -107",
            F.IO_ERROR,
            Sev.WARN,
        ),
        (
            "BTRFS warning (device dm-0): failed to load free space cache for block group 29360128, rebuilding it now",
            F.IO_ERROR,
            Sev.WARN,
        ),
        ("BTRFS error (device dm-0): csum mismatch on free space cache", F.IO_ERROR, Sev.WARN),
        ("nvme nvme0: I/O 641 (Write) QID 8 timeout, aborting", F.IO_ERROR, Sev.WARN),
        ("nvme nvme0: I/O 641 QID 8 timeout, reset controller", F.IO_ERROR, Sev.FATAL),
        ("python3: Corrupted page table at address 7f1c2e400000", F.KERNEL_OOPS, Sev.WARN),
        ("amdgpu 0000:03:00.0: amdgpu: RAS records:95 exceed 90% of threshold:100", F.ECC_UNCORRECTABLE, Sev.WARN),
    ],
)
def test_what_a_report_names_is_as_severe_as_what_it_cost(line: str, fault: F, severity: Sev) -> None:
    """From oomd-manager.c, mm/oom_kill.c, fs/smb/client/file.c, ptlrpc/client.c, fs/btrfs/free-space-cache.c.

    The last from drivers/nvme/host/pci.c, arch/x86/mm/fault.c and amdgpu_ras_eeprom.c.
    """
    assert [(item.fault, item.severity) for item in findings_in([line], TABLE)] == [(fault, severity)]


@pytest.mark.parametrize(
    "line",
    [
        "BTRFS info (device dm-0): rebuilding free space tree",
        "LustreError: 11-0: home-MDT0000-mdc-ffff8801: operation mds_getattr to node 192.0.2.20@tcp failed: rc = -2",
        "oom_reaper: reaped process 812 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ],
)
def test_what_is_built_again_or_only_follows_is_no_fault(line: str) -> None:
    assert list(findings_in([line], TABLE)) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("NVRM: GPU0 _issueRpcAndWait: rpcRecvPoll timedout for fn 103 sequence 812!", F.XID),
        ("NVRM: _issueRpcAndWait: rpcRecvPoll failed with status 0x0000000f for fn 76 sequence 3!", F.XID),
        ("NVRM: kgspHealthCheck_TU102: ************* GSP-CrashCat Report *************", F.XID),
        ("               NVRM: installed in this system is not supported by open", F.GPU_INIT_FAILED),
        (
            "NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:1b80) installed in this system is not supported by the",
            F.GPU_INIT_FAILED,
        ),
        ('Jun  2 06:39:16: sending SIGTERM to process 812 uid 1000 "python3": badness 757, VmRSS 637 MiB', F.OOM_KILL),
        ('2025-06-02T06:39:16Z: killing process 812 "python3" with signal 9: badness 757, VmRSS 637 MiB', F.OOM_KILL),
    ],
)
def test_a_firmware_that_does_not_answer_a_card_left_out_and_a_stamp_with_a_colon_are_read(line: str, fault: F) -> None:
    """NVIDIA's rpc.c, kernel_gsp_tu102.c and osapi.c; earlyoom's kill.c."""
    assert [item.fault for item in findings_in([line], TABLE)] == [fault]


def test_a_request_that_the_gpus_firmware_refuses_is_no_fault() -> None:
    """NVIDIA's rpc.c: any other status than a lost, hung or reset GPU."""
    assert found("NVRM: _issueRpcAndWait: rpcRecvPoll failed with status 0x00000056 for fn 76 sequence 3!") == []


# --- what the drivers' format strings and whole logs of machines showed ----------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("NVRM: GPU0 intrServiceStall_IMPL: Failed GPU reg read : 0xffffffff. Check whether GPU is present on the bus",
         F.XID, Sev.FATAL),
        ("NVRM: GPU0 _kgspLogRpcSanityCheckFailure: GPU0 sanity check failed 0xf waiting for RPC response from GSP.",
         F.XID, Sev.FATAL),
        ("NVRM: GPU 0000:01:00.0: No interrupts of any type are available. Cannot use this GPU.",
         F.GPU_INIT_FAILED, Sev.FATAL),
        ("nvidia 0000:01:00.0: PM: failed to resume async: error -5", F.GPU_RESET_FAILED, Sev.FATAL),
        ("amdgpu 0000:03:00.0: PM: dpm_run_callback(): pci_pm_resume+0x0/0xf0 returns -110",
         F.GPU_RESET_FAILED, Sev.FATAL),
        ("VFS: Dirty inode writeback failed for block device sda1 (err=-5).", F.IO_ERROR, Sev.FATAL),
        ("EXT4-fs (sda2): error loading journal", F.IO_ERROR, Sev.FATAL),
        ("XFS (sda1): failed to locate log tail", F.IO_ERROR, Sev.FATAL),
        ("FAT-fs (sdb1): Directory bread(block 8192) failed", F.IO_ERROR, Sev.FATAL),
        (" sdb: unable to read partition table", F.IO_ERROR, Sev.FATAL),
        ("recoverable transport error, dev sdc, sector 0 op 0x0:(READ) flags 0x0", F.IO_ERROR, Sev.FATAL),
        ("scsi host6: uas_eh_device_reset_handler start", F.IO_ERROR, Sev.WARN),
        ("libceph: mon0 10.0.0.1:6789 socket closed (con state CONNECTING)", F.IO_ERROR, Sev.WARN),
        ("pcieport 0000:00:1c.0: AER: device recovery failed", F.PCIE, Sev.WARN),
        ("pcieport 0000:00:1c.5: can't find device of ID00e5", F.PCIE, Sev.WARN),
        ("dpc 0000:00:1d.0:pcie010: DPC containment event, status:0x1f11 source:0x0200", F.PCIE, Sev.WARN),
    ],
)  # fmt: skip
def test_what_a_driver_says_without_a_word_of_errors_is_found(line: str, fault: F, severity: Sev) -> None:
    """kernel_gsp.c and intr.c of NVIDIA; power/main.c, bdev.c, ext4/super.c, xfs_log_recover.c, fat/dir.c, aer.c."""
    assert [(item.fault, item.severity) for item in findings_in([line], TABLE)] == [(fault, severity)]


@pytest.mark.parametrize(
    "line",
    [
        "EXT3-fs (mmcblk0p2): error: couldn't mount because of unsupported optional features (240)",
        "EXT2-fs (loop0): error: couldn't mount because of unsupported optional features (2c0)",
        """EXT3-fs (mmcblk0p2): error: unrecognized mount option "discard" or missing value""",
        "pcieport 0000:00:02.1: pciehp: Slot(2): Link Down/Up ignored (recovered by DPC)",
        "ata5: failed to resume link (SControl 0)",
        "ata5.00: link offline, clearing class 1 to NONE",
        "fuse: cros-disks-init: abort connection, mounts: 2:44 (fuse.drivefs)",
        "nvidia 0000:01:00.0: BAR 1: can't assign mem pref (size 0x10000000)",
        "amdgpu 0000:03:00.0: PM: pci_pm_suspend(): amdgpu_pmops_suspend+0x0/0x80 [amdgpu] returns -16",
        "libceph: osd3 (1)10.0.0.3:6801 socket closed (con state OPEN)",
        "scsi host6: uas_eh_device_reset_handler success",
        "Dev sr0: unable to read RDB block 0",
        "blk_update_request: I/O error, dev mtdblock1, sector 0",
        "radeon 0000:01:00.0:   VM_CONTEXT1_PROTECTION_FAULT_STATUS 0x00000000",
        "Bank 4: 9443c100e3080a13 at 000000007e4f2f68 of the ledger",
    ],
)
def test_a_feature_that_is_not_had_an_empty_port_flash_and_an_idle_connection_are_no_fault(line: str) -> None:
    assert list(findings_in([line], TABLE)) == []


def test_a_recovery_that_failed_and_its_error_are_one_fault() -> None:
    card = "pcieport 0000:00:1c.0: "
    lines = (
        f"[  100.000000] {card}AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        f"[  101.500000] {card}AER: device recovery failed",
    )
    assert [fault for fault, *_ in found(*lines)] == [F.PCIE]


def test_a_machine_check_of_an_old_kernel_and_the_panic_that_ends_it_are_two_faults() -> None:
    lines = (
        "[  100.000000] CPU 0: Machine Check Exception: 0000000000000004",
        "[  100.000000] Bank 4: b604a00100000813 at 000000007e4f2f68",
        "[  100.000000] Kernel panic: CPU context corrupt",
    )
    assert [fault for fault, *_ in found(*lines)] == [F.ECC_UNCORRECTABLE, F.KERNEL_PANIC]
