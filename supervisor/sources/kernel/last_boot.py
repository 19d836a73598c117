"""Reads how the previous boot ended, from its journal and from pstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from supervisor import programs
from supervisor.core.findings import LAST_BOOT, About, FaultClass, FaultSeverity, KernelFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.events import Finding, kernel_finding
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in
from supervisor.sources.kernel.journal_entries import FIELDS, parse_entry
from supervisor.sources.kernel.log_lines import log_line

JOURNAL = ("journalctl", "--dmesg", "--boot=-1", "--lines=5000", "--quiet", "--no-pager", "--output=json")
PSTORE = (Path("/sys/fs/pstore"), Path("/var/lib/systemd/pstore"))
"""Where the kernel stores its last messages, and where systemd-pstore moves them at the next boot."""
DEADLINE_S = 10.0
JOURNAL_LIMIT_BYTES = 64 << 20
END_S = 300.0
"""Only messages this close to the end of the log are taken as the end of the boot."""
FINDINGS_LIMIT = 20
_FILE_LIMIT_BYTES = 1 << 20
_FILES_LIMIT = 64
_PANIC = re.compile(
    r"^(?:Kernel panic - not syncing: |BUG: (?:unable to handle|kernel NULL pointer)|Oops: |general protection fault|"
    r"Unable to handle kernel )"
)


def last_boot(
    now: Moment,
    since_unix_s: float,
    boot_id: str,
    *,
    journal: Sequence[str] = JOURNAL,
    pstore: Sequence[Path] = PSTORE,
) -> tuple[KernelFinding, ...]:
    """Return the faults at the end of the previous boot, stamped `now`; () if none are recorded.

    `boot_id` is the present one: a volatile journal has entries of no other. Files of pstore older than `since_unix_s`
    belong to an earlier boot.
    """
    found = [
        *_find_faults(_read_pstore(pstore, since_unix_s)),
        *_find_faults(_keep_last_lines(_read_journal(journal, boot_id))),
    ]
    known: dict[tuple[FaultClass, str | None], KernelFinding] = {}
    for number, (finding, about_gpu) in enumerate(found, start=1):
        about: About = "gpu" if about_gpu else "host"
        kernel = kernel_finding(finding, at=now, sequence=number, origin=LAST_BOOT, about=about)
        known.setdefault((finding.fault, finding.device), kernel)
    return tuple(known.values())[:FINDINGS_LIMIT]


def _find_faults(lines: Iterable[str]) -> Iterator[tuple[Finding, bool]]:
    """Yield the findings in the lines, each with whether it is about a GPU; a panic comes first."""
    text = list(lines)
    for number, line in enumerate(text, start=1):
        message = log_line(line).message
        if _PANIC.match(message):
            yield _build_panic_finding(number, message), False
            break
    grammar = kernel_grammar()
    for finding in findings_in(text, grammar):
        if finding.fault is FaultClass.KERNEL_PANIC:
            continue
        match = grammar.match(finding.line)
        yield finding, match is not None and match.row.device == "gpu"


def _build_panic_finding(number: int, message: str) -> Finding:
    return Finding(
        kind="kernel",
        line_number=number,
        line=message[:300],
        fault=FaultClass.KERNEL_PANIC,
        severity=FaultSeverity.FATAL,
        device=None,
        remedy="check the lines before it: the cause is a driver, the memory or the processor",
        source="kernel/panic.c",
    )


def _read_journal(command: Sequence[str], boot_id: str) -> list[tuple[float, str]]:
    """Return the kernel's last messages, each with its time in seconds; [] if there is no journal of that boot."""
    try:
        done = programs.run(
            (*command, f"--output-fields={FIELDS}"), DEADLINE_S, environment=os.environ, limit_bytes=JOURNAL_LIMIT_BYTES
        )
    except OSError:
        return []
    if done.status is None:
        return []
    entries = (parse_entry(line, number) for number, line in enumerate(done.stdout.splitlines(), start=1))
    earlier = (entry for entry in entries if entry is not None and entry.boot_id != boot_id.replace("-", ""))
    return [(entry.record.at_us / 1e6, entry.record.message) for entry in earlier if entry.record.facility == 0]


def _keep_last_lines(lines: list[tuple[float, str]]) -> list[str]:
    """Return the lines of the last minutes, each prefixed with its time."""
    end_s = lines[-1][0] if lines else 0.0
    return [f"[{at_s:.6f}] {message}" for at_s, message in lines if end_s - at_s <= END_S]


def _read_pstore(folders: Sequence[Path], since_unix_s: float) -> list[str]:
    """Return the lines that the kernel stored in pstore; a dump in several parts has its last part first."""
    lines: list[str] = []
    for folder in folders:
        for path in _list_dumps(folder, since_unix_s):
            try:
                with path.open("rb") as file:
                    text = file.read(_FILE_LIMIT_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            lines += text.splitlines()
    return lines


def _list_dumps(folder: Path, since_unix_s: float) -> list[Path]:
    try:
        files = [path for path in folder.rglob("dmesg*") if path.is_file() and path.stat().st_mtime >= since_unix_s]
    except OSError:
        return []
    # systemd-pstore joins the parts of one dump in a dmesg.txt: reading the parts too would duplicate every line.
    joined = {path.parent for path in files if path.name == "dmesg.txt"}
    files = [path for path in files if path.name == "dmesg.txt" or path.parent not in joined]
    return sorted(files, reverse=True)[:_FILES_LIMIT]
