"""The readers of foreign files, each fed through the real file: written, damaged, and read as the daemon reads it.

`fuzz.py` runs them beside the parsers of text. What is looked for: an exception, a reading that takes more than 50 ms
of processor time, a value outside of what its field can hold, a process that grows.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import pickle
import random
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent import prove
from supervisor.control.tail import tail
from supervisor.core import attempt_files as fo
from supervisor.core.checkpoints.checkpoint import Fingerprint
from supervisor.core.checkpoints.tensor_stats import profile_of
from supervisor.core.events import AgentEvent, AgentReported
from supervisor.core.foreign_values import EPOCH_MAX, STEP_MAX
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.stats.rate_limit import Allowance
from supervisor.daemon.attempt_reader import parse_ranks
from supervisor.daemon.checkpoints.resume_search import _checkpoint_of_report
from supervisor.runner.attempt_folder import read_exit, read_note, read_shim, read_start_error
from supervisor.runner.evidence import read_output_tail
from supervisor.runner.generation_store import FACTS, PROFILE, SERIAL, GenerationStore
from supervisor.sources.attempt.agent_log import AgentLogReader
from supervisor.sources.attempt.output import OutputReader
from supervisor.sources.attempt.recorder import RecorderReader
from supervisor.sources.kernel.journal_entries import parse_entry
from supervisor.store.rows import checkpoint_row, event_row

NOW = Moment(10_000.0, 1_700_000_000.0)
HANG_S = 0.05
PROOF_S, PROOF_BYTES = 1.0, 1 << 30
"""A proof has a process of its own with limits on time and memory, half of which is allowed here."""
GROWN_BYTES = 1_000_000
WARM_UP_INPUTS = 2000
LARGEST = 20_000
JUNK = (
    b"9" * 400, b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b"[" * 40, b"{" * 40, b'"' + b"x" * 300 + b'"',
    b"9223372036854775808", b"\\ud800", b"\xff\xfe", b"\x00" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\n", b"\r",
    b'"a": 1, "a": 2, ', b"\x1b[2A", b"\x80\x04", b"../", "\u0661".encode(), b"0.5e-324", b"2147483648",
    b",", b":", b"}", b"\\u0000",
)  # fmt: skip
LINES = (
    {"event": "plan", "framework": "ultralytics", "epochs": 3, "start_epoch": 0, "batches_per_epoch": 17},
    {"event": "allocator", "reserved_bytes": 1 << 30, "allocated_bytes": 1 << 29, "retries": 0, "total_bytes": 1 << 33},
    {"event": "checkpoint_saved", "paths": ["/runs/last.pt"], "epoch": 1, "step": 34, "requested": False},
    {"event": "epoch_end", "epoch": 1, "fitness": 0.5, "metrics": {"mAP50-95": 0.4}, "val_loss": None},
    {"event": "workers", "loader": 3, "pids": [1, 2, 3], "training": True, "ended": False},
    {"event": "exception", "type": "OSError", "message": "boom", "traceback": "Traceback\n  File x line 3\n" * 20},
    {"event": "precision", "asked": "half", "used": "single", "why": "gfx1010", "device": "cuda"},
    {"event": "claimed", "rank": 1, "world_size": 2, "torch": "2.1", "imported": [["torch", "/t.py"]] * 5},
    {"event": "resumed", "path": "/runs/last.pt", "epoch": 1, "step": 34},
)  # fmt: skip


@dataclass(frozen=True)
class FileFeed:
    """One reader: the file that it reads, contents to begin with, and what is asked of it."""

    file: Path
    contents: Sequence[bytes]
    read: Callable[[], None]
    limit_s: float = HANG_S
    """How much processor time one reading may take."""


@dataclass(frozen=True)
class Fed:
    """What came of feeding one reader."""

    name: str
    inputs: int
    wrong: int
    took_s: float
    slowest_s: float | None = None
    """Processor time; like the growth it is measured where a file is read."""
    grown_bytes: int | None = None

    @property
    def bad(self) -> bool:
        """Whether an input went wrong, or more was kept than a million inputs may leave."""
        return self.wrong > 0 or (self.grown_bytes or 0) > GROWN_BYTES * max(1.0, self.inputs / 1e6)

    def with_another(self, other: Fed) -> Fed:
        """Return both, of two processes, together."""
        slowest = [item.slowest_s for item in (self, other) if item.slowest_s is not None]
        grown = [item.grown_bytes for item in (self, other) if item.grown_bytes is not None]
        return Fed(
            self.name, self.inputs + other.inputs, self.wrong + other.wrong, self.took_s + other.took_s,
            max(slowest, default=None), sum(grown) if grown else None,
        )  # fmt: skip

    def row(self) -> str:
        """Return the line of the table."""
        line = f"{self.name:<24} {self.inputs:>9} inputs  {self.wrong:>6} wrong  {self.took_s:8.1f} s"
        if self.slowest_s is not None and self.grown_bytes is not None:
            line += f"  slowest {self.slowest_s * 1000:5.1f} ms  grown {self.grown_bytes / 1e6:6.2f} MB"
        return line


def feeds(folder: Path) -> dict[str, FileFeed]:
    """Return every reader of a foreign file by name; they work below `folder`."""
    attempt = folder / "jobs" / "night" / "1"
    (attempt / fo.RUN).mkdir(parents=True)
    (attempt / fo.SHIM).write_text(json.dumps(_shim()))
    shelf = GenerationStore(folder / "generations", 0)
    generation = shelf.folder / "000001"
    generation.mkdir(parents=True)
    (generation / "last.pt").write_bytes(b"x" * 100)
    facts = {
        "name": "last.pt",
        "size_bytes": 100,
        "modified_ns": (generation / "last.pt").stat().st_mtime_ns,
        "step": 9,
    }
    (generation / FACTS).write_text(json.dumps(facts))
    checkpoint = folder / "checkpoint.pt"
    notes = [json.dumps(_exit()).encode(), json.dumps({**_exit(), "error": "not found"}).encode()]
    return {
        "agent.jsonl file": FileFeed(attempt / fo.AGENT, _words(), lambda: _read_words(attempt)),
        "recorder.bin file": FileFeed(attempt / fo.RECORDER, [ring(5), ring(40)], lambda: _readring(attempt)),
        "exit.json file": FileFeed(attempt / fo.EXIT, notes, lambda: _read_exit(attempt)),
        "shim.json file": FileFeed(attempt / fo.SHIM, [json.dumps(_shim()).encode()], lambda: _read_shim(attempt)),
        "output.log file": FileFeed(attempt / fo.OUTPUT, _printed(), lambda: _read_output(attempt)),
        "generation.json file": FileFeed(generation / FACTS, [json.dumps(facts).encode()], lambda: _read_shelf(shelf)),
        "generation's profile": FileFeed(generation / PROFILE, [_profile()], lambda: _read_profile(shelf)),
        "generations' serial": FileFeed(shelf.folder / SERIAL, [b'{"last": 7}'], lambda: _read_serial(shelf)),
        "a checkpoint file": FileFeed(checkpoint, _checkpoints(), lambda: _prove(checkpoint), PROOF_S),
        "journal's line": FileFeed(folder / "entry", [_entry()], lambda: _entry_of(folder / "entry")),
        "names of ranks": FileFeed(folder / "names", [_names()], lambda: _ranks(folder / "names")),
    }  # fmt: skip


def fuzz_file(name: str, feed: FileFeed, inputs: int, chance: random.Random) -> Fed:
    """Feed one reader through its file; return how many inputs went wrong, the first of them printed."""
    began, wrong, slowest_s, before = time.perf_counter(), 0, 0.0, 0
    for number in range(inputs):
        if number == min(WARM_UP_INPUTS, inputs // 2):
            before = memory_bytes()
        content = damaged_bytes(chance.choice(feed.contents), chance)
        feed.file.write_bytes(content)
        spent_s = time.thread_time()
        try:
            feed.read()
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {type(error).__name__}: {error}\n  {content[:600]!r}", file=sys.stderr)  # noqa: T201
        spent_s = time.thread_time() - spent_s
        if spent_s > feed.limit_s:
            wrong += 1
            print(f"{name}: {spent_s * 1000:.0f} ms for {content[:300]!r}", file=sys.stderr)  # noqa: T201
        slowest_s = max(slowest_s, spent_s)
    grown_bytes = memory_bytes() - before
    return Fed(name, inputs, wrong, time.perf_counter() - began, slowest_s, grown_bytes)


def memory_bytes() -> int:
    """Return what this process holds, without what its allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return a cut, spliced, doubled, flipped or sprinkled copy of a file's content."""
    if len(content) > LARGEST:
        start = chance.randrange(len(content) - LARGEST)
        content = chance.choice((content[:LARGEST], content[start : start + LARGEST]))
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(content) + 1)
        end = min(len(content), start + chance.choice((0, 1, 4, 8, 30, 500)))
        byte = bytes([chance.randrange(256)])
        put = chance.choice((chance.choice(JUNK), chance.choice(JUNK), byte, b"", content[start:end] * 2))
        content = content[:start] + put + content[end:]
    return content if chance.random() > 0.05 else content[: chance.randrange(len(content) + 1)]


def fits(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


# --- what is read -------------------------------------------------------------------------------------------------


def _read_words(attempt: Path) -> None:
    reader = AgentLogReader(attempt, allowance=Allowance(50.0, 2000))
    history = History(now=NOW, launched_at=NOW)
    for fact in (*reader.read(NOW), *reader.finish(NOW)):
        fits(fact.at.monotonic_s <= NOW.monotonic_s, "time")
        report = AgentReported(
            at=fact.at, job="night", attempt=1, agent_event=fact.agent_event, facts=fact.facts, pid=fact.pid
        )
        history.add(report)
        row = event_row(report)
        fits(row is not None and len(str(row["body"])) <= 65_536, "body")
        paths = fact.facts.get("paths")
        fits(not isinstance(paths, list) or not any("\0" in path for path in paths), "path")
        if fact.agent_event is AgentEvent.CHECKPOINT_SAVED:
            item = _checkpoint_of_report("/runs/last.pt", Fingerprint(size_bytes=1, modified_ns=1, inode=1), fact.facts)
            kept = checkpoint_row("night", 1, item, NOW)
            fits((kept["step"] or 0) <= STEP_MAX and abs(kept["epoch"] or 0) <= EPOCH_MAX, "step")
    fits((history.plan.epochs or 0) <= EPOCH_MAX and (history.plan.batches_per_epoch or 0) <= STEP_MAX, "plan")


def _readring(attempt: Path) -> None:
    cursor = 0
    with RecorderReader(attempt) as reader:
        for _ in range(4):
            page = reader.read(cursor, NOW)
            fits(page.cursor >= cursor and len(page.records) + page.lost == page.cursor - cursor, "cursor")
            fits(all(0 <= record.step <= STEP_MAX and (record.epoch or 0) >= 0 for record in page.records), "step")
            cursor = page.cursor
            if not page.behind:
                return


def _read_exit(attempt: Path) -> None:
    status = read_exit(attempt, NOW)
    if status is not None:
        fits(status.at.monotonic_s <= NOW.monotonic_s and status.at.unix_s < 3e11, "time")
        fits((status.code or 0) <= 255 and len(status.error or "") <= 1000 and bool(status.words), "status")
    read_start_error(attempt)
    read_note(attempt, fo.EXIT)


def _read_shim(attempt: Path) -> None:
    note = read_shim(attempt)
    fits(note is None or (0 < note.pid <= 2**22 and len(note.boot_id) <= 64), "pid")


def _read_output(attempt: Path) -> None:
    reader = OutputReader(attempt, 1_000_000)
    page, last = reader.read(NOW), reader.finish(NOW)
    fits(page.problem is None and last.problem is None, str(page.problem or last.problem))
    fits(len(last.last_line) <= 4096, "last line")
    read_output_tail(attempt)
    tail(attempt, fo.FOLDED, None, 100)
    (attempt / fo.FOLDED).unlink(missing_ok=True)


def _read_shelf(shelf: GenerationStore) -> None:
    for item in shelf.all():
        fits((item.step or 0) <= STEP_MAX and abs(item.epoch or 0) <= EPOCH_MAX, "step")
        fits(len(item.reason or "") <= 1000 and len(item.source or "") <= 4096, "reason")
        checkpoint_row("night", 1, item, NOW)


def _read_profile(shelf: GenerationStore) -> None:
    for item in shelf.all():
        profile_of(shelf.profile(item))


def _read_serial(shelf: GenerationStore) -> None:
    fits(0 < shelf._next_serial() < 2**62, "serial")


def _prove(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (PROOF_BYTES, hard))
    try:
        answer = prove.prove(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    fits(len(json.dumps(answer, allow_nan=False)) < 100_000, "answer")
    profile_of(answer["profile"])


def _entry_of(path: Path) -> None:
    parse_entry(path.read_bytes(), 1)


def _ranks(path: Path) -> None:
    names = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    fits(all(0 < rank < 10**6 for rank, _ in parse_ranks(names)), "rank")


# --- contents to begin with -----------------------------------------------------------------------------------------


def _words() -> list[bytes]:
    common = {"pid": 4242, "rank": 0, "monotonic_ns": 9_000 * 10**9, "unix_s": 1_699_999_000.5}
    lines = [json.dumps({**common, **fields}).encode() + b"\n" for fields in LINES]
    return [b"".join(lines), *lines]


def ring(steps: int) -> bytes:
    capacity = 16
    header = bytearray(fo.HEADER_BYTES)
    fo.IDENTITY.pack_into(header, 0, fo.MAGIC, fo.HEADER_BYTES, fo.RECORD.size, capacity, 0)
    fo.HEAD.pack_into(header, fo.HEAD_OFFSET, steps)
    fo.STAGE.pack_into(header, fo.STAGE_OFFSET, 3, 0, 9_000 * 10**9)
    fo.ASIDE.pack_into(header, fo.ASIDE_OFFSET, 1, 1, 9_000 * 10**9)
    slots = [bytes(fo.RECORD.size)] * capacity
    for number in range(steps):
        check = (number + 1) ^ fo.CHECK_XOR
        fields = (number + 1, number, 10**9, 1, 63, 0.5, 0.1, 1.0, 0.1, 1 << 30, 8, 0, check)
        slots[number % capacity] = fo.RECORD.pack(*fields)
    return bytes(header) + b"".join(slots)


def _shim() -> dict[str, object]:
    return {"version": 1, "pid": 77, "start_ticks": 12345, "boot_id": "b" * 36, "training_pid": 78}


def _exit() -> dict[str, object]:
    end = {"ended_unix_s": 1_699_999_999.5, "ended_monotonic_ns": 9_999 * 10**9, "started_unix_s": 1_699_990_000.0}
    return {"version": 1, "exit_code": 1, "signal": None, "error": None, "max_rss_bytes": 1 << 30, **end}


def _printed() -> list[bytes]:
    bar = b"\r  1/2  0G  0.1  0.3  0.2  13  64:  33%|###3| 2/6 [00:00<00:00, 13.45it/s]"
    lines = b"Traceback (most recent call last):\n  File x, line 3\ntorch.cuda.OutOfMemoryError: HIP out of memory\n"
    return [
        bar * 30 + b"\n",
        lines,
        b"{'loss': 0.69, 'grad_norm': nan, 'epoch': 0.25}\n" * 5,
        "\x1b[32m✓\x1b[0m\n".encode() * 9,
    ]


def _profile() -> bytes:
    rows = [[f"model.{number}.weight", "Float", [16, 3, 3], 0.1, 0.0, 0, "+-" * 32] for number in range(20)]
    return json.dumps({"tensors": rows, "optimizers": {"optimizer": 20}, "updates": 7}).encode()


def _checkpoints() -> list[bytes]:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + struct.pack("<4f", 1, 2, 3, 4)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps({"epoch": 3, "step": 9, "best_fitness": 0.5, "x": [1, "y"]}, 2))
        made.writestr("archive/version", "3\n")
        made.writestr("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))
    return [tensors, archive.getvalue(), pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)]


def _entry() -> bytes:
    fields = {"MESSAGE": "amdgpu 0000:0a:00.0: GPU reset begin!", "__CURSOR": "s=1;i=2", "_TRANSPORT": "kernel"}
    times = {"_SOURCE_MONOTONIC_TIMESTAMP": "5140900", "__MONOTONIC_TIMESTAMP": "5140901", "_BOOT_ID": "b" * 32}
    return json.dumps({**fields, **times, "SYSLOG_FACILITY": "0", "_KERNEL_DEVICE": "+pci:0000:0a:00.0"}).encode()


def _names() -> bytes:
    return "\n".join(
        ["recorder.bin", *(f"recorder.rank{number}.bin" for number in range(9)), "recorder.rank².bin"]
    ).encode()
