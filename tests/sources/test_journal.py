"""The journal's kernel entries: recorded ones from a child that prints them, and how the last boot ended."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.events import KernelReported
from supervisor.core.findings import FaultClass as F
from supervisor.core.findings import FaultSeverity as Sev
from supervisor.core.findings import KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.kernel.journal import REOPEN_S, JournalLog
from supervisor.sources.kernel.journal_entries import parse_entry
from supervisor.sources.kernel.last_boot import last_boot

NOW = Moment(1000.0, 1_700_000_000.0)
BOOT = "b4a10a15-8fcc-4761-be53-bc928bbc8c02"
AMD = "amdgpu 0000:0a:00.0: amdgpu: "


def entry(number: int, message: object, **more: object) -> dict[str, object]:
    return {
        "__CURSOR": f"s=a;i={number}",
        "__REALTIME_TIMESTAMP": "1700000000000000",
        "_SOURCE_MONOTONIC_TIMESTAMP": str(900_000_000 + number),
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "MESSAGE": message,
        **more,
    }


def printing(tmp_path: Path, *entries: dict[str, object], and_then: str = "sys.stdin.read()") -> list[str]:
    """A command that prints entries as journalctl does, keeps its arguments, and stays as `--follow` does."""
    script = tmp_path / "journal.py"
    (tmp_path / "entries").write_text("".join(json.dumps(item) + "\n" for item in entries))
    script.write_text(
        "import sys, time, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / 'asked').write_text('\\n'.join(sys.argv[1:]))\n"
        "sys.stdout.write((here / 'entries').read_text()); sys.stdout.flush()\n"
        f"{and_then}\n"
    )
    return [sys.executable, str(script)]


def read(log: JournalLog, until: str | None) -> list[KernelReported]:
    """Read until an entry's cursor was reached."""
    output: list[KernelReported] = []
    end = time.perf_counter() + 120
    while log.cursor != until and time.perf_counter() < end:
        item = log.read(NOW)
        output += [item] if item else []
        if log.fileno() >= 0:
            select.select([log.fileno()], [], [], 0.2)
    assert log.cursor == until
    return output


@pytest.fixture
def logs() -> Iterator[list[JournalLog]]:
    made: list[JournalLog] = []
    yield made
    for log in made:
        log.close()


@pytest.mark.slow
def test_entries_become_findings_and_the_cursor_is_kept(tmp_path: Path, logs: list[JournalLog]) -> None:
    command = printing(
        tmp_path,
        entry(1, "usb 1-1: new device"),
        entry(2, "[drm] VRAM is lost due to GPU reset!", _KERNEL_DEVICE="+pci:0000:0c:00.0"),
        entry(3, list(b"NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus \xff")),
        and_then="time.sleep(60)",
    )
    log = JournalLog(None, command=command)
    logs.append(log)
    findings = [finding for item in read(log, "s=a;i=3") for finding in item.findings]
    assert [(item.fault, item.gpu, item.pid) for item in findings] == [
        (F.GPU_RESET, "0000:0c:00.0", None), (F.XID, "0000:9b:00.0", 7),
    ]  # fmt: skip
    assert findings[0].at == Moment(900.000002, 1_700_000_000.0 - 99.999998)
    assert "--lines=0" in (tmp_path / "asked").read_text()


@pytest.mark.slow
def test_reading_goes_on_after_the_cursor_of_the_daemon_before(tmp_path: Path, logs: list[JournalLog]) -> None:
    command = printing(tmp_path, entry(8, AMD + "GPU reset begin!"), and_then="time.sleep(60)")
    log = JournalLog("s=a;i=7", command=command)
    logs.append(log)
    (output,) = read(log, "s=a;i=8")
    assert [finding.fault for finding in output.findings] == [F.GPU_RESET]
    assert "--after-cursor=s=a;i=7" in (tmp_path / "asked").read_text()


@pytest.mark.slow
def test_what_a_program_wrote_into_the_log_is_not_believed(tmp_path: Path, logs: list[JournalLog]) -> None:
    command = printing(tmp_path, entry(1, AMD + "GPU reset begin!", SYSLOG_FACILITY="1"), and_then="time.sleep(60)")
    log = JournalLog(None, command=command)
    logs.append(log)
    (output,) = read(log, "s=a;i=1")
    assert output.findings == ()


@pytest.mark.slow
def test_a_journal_that_may_not_be_read_is_reported_and_tried_again(tmp_path: Path, logs: list[JournalLog]) -> None:
    command = printing(tmp_path, and_then="sys.exit('No journal files were opened due to insufficient permissions.')")
    log = JournalLog(None, command=command)
    logs.append(log)
    end = time.perf_counter() + 120
    while log.problem is None and time.perf_counter() < end:
        log.read(NOW)
    assert "insufficient permissions" in (log.problem or "")
    assert "systemd-journal" in (log.problem or "")
    printing(tmp_path, entry(1, "a"), and_then="time.sleep(60)")
    assert log.read(NOW.plus(1)) is None
    assert log.fileno() == -1
    log.read(NOW.plus(REOPEN_S))
    read(log, "s=a;i=1")
    assert log.problem is None


@pytest.mark.slow
def test_a_machine_without_journalctl_has_a_problem() -> None:
    log = JournalLog(None, command=["/nonexistent/journalctl"])
    assert log.read(NOW) is None
    assert "No such file" in (log.problem or "")


@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: json.dumps(entry(1, text)).encode()))
def test_no_line_makes_the_parser_raise(line: bytes) -> None:
    found = parse_entry(line, 3)
    assert found is None or found.record.sequence == 3


# --- how the last boot ended --------------------------------------------------------------------------------------


def ended(tmp_path: Path, *entries: dict[str, object], pstore: tuple[Path, ...] = ()) -> tuple[KernelFinding, ...]:
    return last_boot(NOW, 0.0, BOOT, journal=printing(tmp_path, *entries, and_then=""), pstore=pstore)


def at(second: int, message: str) -> dict[str, object]:
    return entry(second, message, _SOURCE_MONOTONIC_TIMESTAMP=str(second * 1_000_000))


@pytest.mark.slow
def test_the_end_of_the_last_boots_journal_is_reported_and_not_its_beginning(tmp_path: Path) -> None:
    (hang,) = ended(
        tmp_path,
        at(10, "I/O error, dev sda, sector 2048 op 0x1:(WRITE) flags 0x0"),
        at(5000, AMD + "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3"),
        at(5001, AMD + "GPU reset begin!"),
    )
    assert (hang.fault, hang.gpu, hang.origin, hang.severity) == (F.GPU_HANG, "0000:0a:00.0", "last boot", Sev.FATAL)
    assert hang.at == NOW


@pytest.mark.slow
def test_a_boot_that_ended_well_or_left_nothing_says_nothing(tmp_path: Path) -> None:
    assert ended(tmp_path, at(5000, "wlan0: associated")) == ()
    assert ended(tmp_path) == ()
    assert last_boot(NOW, 0.0, BOOT, journal=["/nonexistent/journalctl"], pstore=(tmp_path / "absent",)) == ()


@pytest.mark.slow
def test_a_journal_that_is_not_kept_over_boots_reports_no_last_one(tmp_path: Path) -> None:
    present = {**at(5000, AMD + "GPU reset begin!"), "_BOOT_ID": BOOT.replace("-", "")}
    assert ended(tmp_path, present) == ()


@pytest.mark.slow
def test_the_kernels_last_words_come_from_pstore(tmp_path: Path) -> None:
    folder = tmp_path / "pstore" / "7530486857247"
    folder.mkdir(parents=True)
    panicked = "<0>[  101.0] Kernel panic - not syncing: Fatal exception\n"
    text = f"Panic#1 Part1\n<6>[  100.5] {AMD}GPU reset(2) failed\n{panicked}"
    (folder / "dmesg.txt").write_text(text)
    (folder / "dmesg-efi-1").write_text(text)
    panic, failed = ended(tmp_path, pstore=(tmp_path / "pstore",))
    assert (panic.fault, panic.line, panic.about) == (
        F.KERNEL_PANIC, "Kernel panic - not syncing: Fatal exception", "host",
    )  # fmt: skip
    assert (failed.fault, failed.gpu, failed.lines) == (F.GPU_RESET_FAILED, "0000:0a:00.0", 1)


@pytest.mark.slow
def test_a_dump_of_an_earlier_boot_is_left_alone(tmp_path: Path) -> None:
    dump = tmp_path / "pstore" / "dmesg-ramoops-0"
    dump.parent.mkdir()
    dump.write_text("<0>[  101.0] Kernel panic - not syncing: Fatal exception\n")
    os.utime(dump, (1000, 1000))
    command = printing(tmp_path, and_then="")
    assert last_boot(NOW, 2000.0, BOOT, journal=command, pstore=(dump.parent,)) == ()
    assert len(last_boot(NOW, 500.0, BOOT, journal=command, pstore=(dump.parent,))) == 1
