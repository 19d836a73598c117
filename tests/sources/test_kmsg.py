"""The kernel log: records of every kind from a list, and real ones through the real device."""

from __future__ import annotations

import errno
import os
import select
import time
import uuid
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
from supervisor.sources.kernel.findings import RecordInterpreter
from supervisor.sources.kernel.kmsg import REOPEN_S, KernelLog, current_boot_id, parse_record

KMSG = Path("/dev/kmsg")
NOW = Moment(1000.0, 1_700_000_000.0)
AMD = "amdgpu 0000:0a:00.0: amdgpu: "


def record(sequence: int, message: str, *, facility: int = 0, at_us: int = 990_000_000, more: str = "") -> bytes:
    return f"{facility << 3 | 3},{sequence},{at_us},-;{message}\n{more}".encode()


def apart(number: int) -> bytes:
    """The beginning of a reset, long after the one before it: an event of its own."""
    return record(number, AMD + "GPU reset begin!", at_us=number * 200_000_000)


def log_of(
    *items: bytes | OSError, boot_id: str | None = None, after: int | None = None, user: bool = False
) -> KernelLog:
    return KernelLog(KMSG, user, boot_id, after, open_feed=lambda _path, _oldest: ListFeed(list(items)))


def test_a_record_becomes_a_finding_at_its_own_time() -> None:
    output = log_of(record(7, "usb 1-1: new device"), record(8, AMD + "GPU reset begin!")).read(NOW)
    assert output is not None
    (finding,) = output.findings
    assert (finding.fault, finding.gpu, finding.sequence, finding.fatal) == (F.GPU_RESET, "0000:0a:00.0", 8, True)
    assert finding.at == NOW.plus(-10.0)
    assert (output.sequence, output.lost_lines) == (8, 0)


def test_a_quiet_log_says_nothing() -> None:
    log = log_of(record(7, "usb 1-1: new device"))
    first = log.read(NOW)
    assert first is not None
    assert (first.findings, first.sequence) == ((), 7)
    assert log.read(NOW) is None


def test_words_of_user_space_are_believed_only_when_a_setting_says_so() -> None:
    forged = record(7, AMD + "GPU reset begin!", facility=1)
    output = log_of(forged).read(NOW)
    assert output is not None
    assert (output.findings, output.sequence) == ((), 7)
    accepted = log_of(forged, user=True).read(NOW)
    assert accepted is not None
    assert len(accepted.findings) == 1


def test_an_overrun_is_reported_by_the_gap() -> None:
    log = log_of(record(7, "a"), OSError(errno.EPIPE, "Broken pipe"), record(20, "b"))
    output = log.read(NOW)
    assert output is not None
    assert (output.sequence, output.lost_lines) == (20, 12)


def test_in_the_same_boot_reading_goes_on_after_the_last_sequence() -> None:
    items = [apart(number) for number in range(5, 9)]
    output = log_of(*items, boot_id=current_boot_id(), after=6).read(NOW)
    assert output is not None
    assert [finding.sequence for finding in output.findings] == [7, 8]
    gone = log_of(*items, boot_id=current_boot_id(), after=2).read(NOW)
    assert gone is not None
    assert (len(gone.findings), gone.lost_lines) == (4, 2)


def test_after_a_reboot_everything_is_new() -> None:
    items = [apart(number) for number in range(5, 9)]
    output = log_of(*items, boot_id=str(uuid.uuid4()), after=700).read(NOW)
    assert output is not None
    assert (len(output.findings), output.lost_lines) == (4, 0)


def test_only_a_first_start_begins_at_the_end() -> None:
    asked = []

    def open_feed(_path: Path, from_oldest: bool) -> ListFeed[bytes]:
        asked.append(from_oldest)
        return ListFeed[bytes]([])

    KernelLog(KMSG, False, None, None, open_feed=open_feed)
    KernelLog(KMSG, False, current_boot_id(), 5, open_feed=open_feed)
    KernelLog(KMSG, False, "another boot", 5, open_feed=open_feed)
    assert asked == [False, True, True]


def test_a_line_without_an_address_belongs_to_the_gpu_named_next_to_it() -> None:
    ring = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"
    output = log_of(
        record(1, AMD + "free PSP TMR buffer", at_us=790_000_000),
        record(2, ring, at_us=795_000_000),
        record(3, "amdgpu 0000:0b:00.0: amdgpu: PSP is resuming...", at_us=795_000_400),
        record(4, "[drm] VRAM is lost due to GPU reset!", at_us=999_000_000),
    ).read(NOW)
    assert output is not None
    assert [finding.gpu for finding in output.findings] == ["0000:0b:00.0", None]


def test_the_address_that_the_kernel_attaches_is_used() -> None:
    output = log_of(
        record(1, "[drm] VRAM is lost due to GPU reset!", more=" SUBSYSTEM=pci\n DEVICE=+pci:0000:0c:00.0\n")
    ).read(NOW)
    assert output is not None
    assert output.findings[0].gpu == "0000:0c:00.0"


def test_a_record_never_lies_in_the_future() -> None:
    output = log_of(record(1, AMD + "GPU reset begin!", at_us=2_000_000_000)).read(NOW)
    assert output is not None
    assert output.findings[0].at == NOW


def test_escapes_are_undone_but_for_control_characters() -> None:
    seen = parse_record(rb"3,1,5,-;caf\xc3\xa9 \x1b[31m")
    assert seen is not None
    assert seen.message == "café \\x1b[31m"


def test_a_log_that_may_not_be_read_names_the_remedy_and_is_tried_again() -> None:
    allowed = False

    def open_feed(_path: Path, _oldest: bool) -> ListFeed[bytes]:
        if not allowed:
            raise OSError(errno.EPERM, "Operation not permitted")
        return ListFeed([record(1, AMD + "GPU reset begin!")])

    log = KernelLog(KMSG, False, None, None, open_feed=open_feed)
    assert "CAP_SYSLOG" in (log.problem or "")
    assert (log.fileno(), log.read(NOW)) == (-1, None)
    allowed = True
    assert log.read(NOW.plus(1)) is None
    assert log.read(NOW.plus(REOPEN_S)) is not None
    assert log.problem is None


def test_a_path_that_is_no_device_is_a_problem(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "absent", False, None, None)
    assert "enabled = false" in (log.problem or "")


def test_a_device_that_breaks_is_closed_and_reported() -> None:
    log = log_of(record(1, "a"), OSError(errno.EIO, "Input/output error"))
    output = log.read(NOW)
    assert output is not None
    assert (output.sequence, log.fileno()) == (1, -1)
    assert "Input/output error" in (log.problem or "")


def test_recorded_records_of_an_oom_kill(outputs: Path) -> None:
    lines = (outputs / "kernel/memcg-oom.kmsg").read_bytes().splitlines(keepends=True)
    output = log_of(*lines).read(Moment(15100.0, 1_700_000_000.0))
    assert output is not None
    (kill,) = output.findings
    assert (kill.fault, kill.pid, kill.process, kill.gpu, kill.about) == (F.OOM_KILL, 8609, "python3", None, "host")
    assert kill.lines > 3


RING = "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"


def test_what_later_lines_of_an_event_report_is_the_same_finding_reported_again() -> None:
    feed = ListFeed([record(1, AMD + RING)])
    log = KernelLog(KMSG, False, None, None, open_feed=lambda _path, _oldest: feed)
    begun = log.read(NOW)
    feed.items = [
        record(2, AMD + "Process information: process python pid 812 thread python pid 812", at_us=990_000_100),
        record(3, AMD + "GPU reset begin!", at_us=990_000_200),
    ]
    more = log.read(NOW.plus(0.1))
    feed.items = [record(4, AMD + "GPU reset(1) failed", at_us=994_000_000), record(5, "usb 1-1: new device")]
    failed = log.read(NOW.plus(4))
    feed.items = [record(6, AMD + "GPU reset end with ret = -110", at_us=994_000_100)]
    nothing_new = log.read(NOW.plus(4.1))
    assert None not in (begun, more, failed, nothing_new)
    ((first,), (second,), (third,)) = (item.findings for item in (begun, more, failed) if item)
    assert (first.key, first.fault, first.severity) == (second.key, F.GPU_HANG, Sev.FATAL)
    assert (second.fault, second.pid, second.process, second.line) == (F.GPU_HANG, 812, "python", first.line)
    assert (third.key, third.fault, third.at, third.lines) == (first.key, F.GPU_RESET_FAILED, first.at, 4)
    assert "reboot the machine" in (third.remedy or "")
    assert nothing_new
    assert nothing_new.findings == ()


def test_a_fatal_line_that_comes_again_is_reported_again_for_whoever_was_launched_between() -> None:
    feed = ListFeed([record(1, AMD + RING)])
    log = KernelLog(KMSG, False, None, None, open_feed=lambda _path, _oldest: feed)
    begun = log.read(NOW)
    feed.items = [record(2, AMD + RING, at_us=990_100_000)]
    at_once = log.read(NOW.plus(1))
    feed.items = [record(3, AMD + "GPU reset(1) succeeded!", at_us=995_000_000)]
    over = log.read(NOW.plus(2))
    feed.items = [record(4, AMD + RING, at_us=1_020_000_000)]
    again = log.read(NOW.plus(60))
    ((first,), (), (reset,), (second,)) = (item.findings for item in (begun, at_once, over, again) if item)
    assert first.reported_at == NOW.plus(-10)
    assert (reset.fault, reset.reported_at) == (F.GPU_RESET, NOW.plus(-9.9))
    assert (second.key, second.at, second.reported_at) == (first.key, first.at, NOW.plus(20))


def test_a_bus_error_is_about_its_device_and_not_about_a_gpu() -> None:
    output = log_of(
        record(1, "ath10k_pci 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible"),
        record(2, "I/O error, dev nvme0n1, sector 2048 op 0x1:(WRITE) flags 0x0"),
    ).read(NOW)
    assert output is not None
    bus, disk = output.findings
    assert (bus.about, bus.gpu, bus.device) == ("pci", "0000:01:00.0", None)
    assert (disk.about, disk.gpu, disk.device) == ("disk", None, "nvme0n1")


@given(st.binary(max_size=120) | st.text(max_size=40).map(lambda text: f"3,5,7,-;{text}".encode("utf-8", "replace")))
def test_no_record_makes_it_raise_or_invent(raw: bytes) -> None:
    seen = parse_record(raw)
    if seen is not None:
        assert f",{seen.sequence}," in raw.decode("utf-8", "backslashreplace") or b",0" in raw
        assert seen.device is None or seen.device.encode() in raw
    output = log_of(raw).read(NOW)
    assert (output is None) == (seen is None)


# --- the real device ----------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[KernelLog]:
    if os.geteuid() != 0 or not os.access(KMSG, os.W_OK):
        pytest.skip("writing kernel records needs root and /dev/kmsg")
    log = KernelLog(KMSG, accept_user_records=True, boot_id=None, after_sequence=None)
    yield log
    log.close()


def now() -> Moment:
    return Moment(time.clock_gettime(time.CLOCK_MONOTONIC), 1_700_000_000.0)


def write(line: str) -> None:
    with KMSG.open("w") as device:
        device.write(f"<3>{line}\n")


def wait_for(log: KernelLog, mark: str) -> tuple[int, str | None]:
    """Return sequence and card of the finding whose line holds the mark."""
    end = time.perf_counter() + 60
    while time.perf_counter() < end:
        select.select([log.fileno()], [], [], 1.0)
        output = log.read(now())
        for finding in output.findings if output else ():
            if mark in finding.line:
                assert abs(finding.at.monotonic_s - now().monotonic_s) < 30
                return finding.sequence, finding.gpu
    raise AssertionError(f"{mark} did not come")


@pytest.mark.kernel
def test_a_real_record_is_found_where_it_is_ordered_to_be_believed(log: KernelLog) -> None:
    mark = uuid.uuid4().hex
    card = f"0000:0a:{uuid.uuid4().int % 32:02x}.{uuid.uuid4().int % 8}"
    write(f"amdgpu {card}: amdgpu: GPU reset begin! test {mark}")
    sequence, gpu = wait_for(log, mark)
    assert gpu == card
    assert log.sequence is not None
    assert log.sequence >= sequence
    again = KernelLog(KMSG, True, current_boot_id(), sequence - 1)
    assert wait_for(again, mark)[0] == sequence
    again.close()
    strict = KernelLog(KMSG, False, current_boot_id(), sequence - 1)
    findings: list[KernelFinding] = []
    while strict.sequence is None or strict.sequence < sequence:  # a read is of a part of a long log
        output = strict.read(now())
        findings += output.findings if output is not None else ()
    strict.close()
    assert not any(mark in finding.line for finding in findings)


@pytest.mark.kernel
def test_a_first_start_on_the_real_device_reads_nothing_old() -> None:
    if os.geteuid() != 0 or not os.access(KMSG, os.W_OK):
        pytest.skip("writing kernel records needs root and /dev/kmsg")
    mark = uuid.uuid4().hex
    write(f"amdgpu 0000:0a:00.0: amdgpu: GPU reset begin! old {mark}")
    log = KernelLog(KMSG, True, None, None)
    output = log.read(now())
    log.close()
    assert output is None or not any(mark in finding.line for finding in output.findings)


def test_a_command_of_an_optical_drive_is_no_fault_of_a_disk(tmp_path: Path) -> None:
    for name, kind in (("dev5.0", "atapi"), ("dev6.0", "ata"), ("dev6.1", "atapi")):
        (tmp_path / "class/ata_device" / name).mkdir(parents=True)
        (tmp_path / "class/ata_device" / name / "class").write_text(f"{kind}\n")
    interpreter = RecordInterpreter("kmsg", sys_root=tmp_path)
    first = "exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen"
    lines = (f"ata5.00: {first}", "ata5: reset failed, giving up", f"ata6.01: {first}", f"ata6.00: {first}")
    records = [parse_record(record(number, line)) for number, line in enumerate(lines)]
    findings = interpreter.findings([item for item in records if item is not None], NOW)
    assert [finding.device for finding in findings] == ["ata6.00"]
