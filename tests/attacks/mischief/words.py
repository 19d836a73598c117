"""Forged words: everything that daemon or shim parse, with values that no honest program writes."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import rocm_agent

from mischief.target import Target

EVENTS = (
    "alive", "claimed", "plan", "checkpoint_saved", "exception", "patched", "resumed", "train_end", "hook_failed",
    "save_failed", "allocator", "workers", "precision", "epoch_end", "remedy_applied", "setting_asked", "no_such_event",
    "loops", "counting", "file_saved", "conv2d_failed", "snapshots", "tuning", "stock",
)  # fmt: skip
FIELDS = (
    "python", "argv", "rank", "world_size", "torch", "imported", "framework", "version", "epochs", "start_epoch",
    "batches_per_epoch", "save_dir", "device", "model", "batch", "image_size", "paths", "epoch", "step", "requested",
    "kind", "stall_s", "write_s", "size_bytes", "every_s", "error", "type", "message", "traceback", "conv2d", "scope",
    "path", "lost", "where", "reserved_bytes", "allocated_bytes", "inactive_split_bytes", "retries", "ooms",
    "total_bytes", "loader", "pids", "training", "iterable", "ended", "asked", "used", "why", "fitness", "metrics",
    "train_loss", "val_loss", "setting", "remedies", "set", "pid", "monotonic_ns", "unix_s",
)  # fmt: skip
NOTES = {
    "shim.json": ("pid", "start_ticks", "boot_id", "training_pid", "training_start_ticks", "started_unix_s", "problem"),
    "exit.json": ("exit_code", "signal", "error", "max_rss_bytes", "user_s", "system_s", "ended_unix_s",
                  "ended_monotonic_ns", "leftovers"),
    "launch.json": ("argv", "cwd", "env", "grace_s", "save_s", "job", "attempt"),
    "remedies.json": ("settings", "version"),
    "ready.json": ("imported_s", "version"),
    "refused.json": ("why",),
    "triage.json": ("runs", "verdict", "step", "losses"),
    "standby.json": ("launch", "modules", "folder", "after", "alone_s"),
}  # fmt: skip
HEADER = (0, 4, 8, 12, 16, 20, 24, 28, 64, 68, 128, 132, 192, 196, 256, 264, 320, 324, 328)
"""Where the recorder's header has a field."""
RECORD = struct.Struct("<QqqiIdfffqIII")
UNSIGNED = (0, 1, 2, 255, 4096, 1 << 31, (1 << 32) - 1)
NEVER = 10**399


def odd(chance: Random, depth: int = 0) -> object:
    """Return a value that a parser may not expect."""
    plain: list[object] = [
        None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, NEVER, -NEVER, 0.0, -0.0, 5e-324, 1e308,
        float("nan"), float("inf"), "", "²", "1e999", "\x00", "\x1b[2J\x1b]0;x\x07", "a\nb", "../../x", "/dev/zero",
        "\ud800", "\u202eevil", "x" * chance.choice([10, 5_000, 400_000 if depth == 0 else 5_000]), "whsec_forged",
        "NaN",
    ]  # fmt: skip
    if depth < 3 and chance.random() < 0.2:
        return [odd(chance, depth + 1) for _ in range(chance.choice([0, 1, 3, 1500 if depth == 0 else 5]))]
    if depth < 3 and chance.random() < 0.2:
        return {str(odd(chance, 9))[:60]: odd(chance, depth + 1) for _ in range(chance.choice([0, 1, 4]))}
    return chance.choice(plain)


def _json(value: object) -> bytes:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    finally:
        sys.set_int_max_str_digits(limit)


def _append(target: Target, content: bytes) -> None:
    fd = target.open(target.folder / "agent.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


def append_word(target: Target, fields: Mapping[str, object]) -> None:
    """Append a word with these fields to the agent's log."""
    usual = {"pid": os.getpid(), "rank": 0, "monotonic_ns": time.monotonic_ns(), "unix_s": 1.7e9}
    _append(target, _json({**usual, **fields}) + b"\n")


def _word(chance: Random) -> tuple[str, bytes]:
    event = chance.choice(EVENTS)
    word: dict[str, object] = {
        "event": event, "pid": os.getpid(), "rank": 0, "monotonic_ns": time.monotonic_ns(), "unix_s": 1.7e9,
    }  # fmt: skip
    for name in chance.sample(FIELDS, chance.choice([1, 3, 8, 40])):
        word[name] = odd(chance)
    return event, _json(word) + b"\n"


def agent_word(target: Target, chance: Random) -> str:
    """Words of the agent, with odd values."""
    count, last = chance.choice([1, 1, 5]), ""
    for _ in range(count):
        last, line = _word(chance)
        _append(target, line)
    return f"{count} forged words, the last one {last}"


def agent_bytes(target: Target, chance: Random) -> str:
    """Bytes that are no words."""
    kind = chance.choice(["random", "deep", "long", "half", "surrogate", "number"])
    content = {
        "random": chance.randbytes(5000) + b"\n",
        "deep": b"[" * 200_000 + b"\n",
        "long": b'{"event": "' + b"x" * 3_000_000 + b'"}\n',
        "half": b'{"event": "alive"',
        "surrogate": b'{"event": "exception", "monotonic_ns": 1, "message": "\\ud800\\udfff\\ud83d"}\n',
        "number": b'{"event": "allocator", "monotonic_ns": 1' + b"0" * 5000 + b"}\n",
    }[kind]
    _append(target, content)
    return f"bytes that are no word: {kind}"


def agent_flood(target: Target, chance: Random) -> str:
    """Tens of thousands of short words."""
    count, event = chance.choice([2_000, 30_000]), chance.choice(EVENTS)
    line = _json({"event": event, "pid": 1, "rank": 0, "monotonic_ns": time.monotonic_ns(), "unix_s": 1.7e9})
    _append(target, (line + b"\n") * count)
    return f"{count} words {event}"


def note(target: Target, chance: Random) -> str:
    """A note of the shim or the daemon with odd values; now and then with the daemon's own pid."""
    name = chance.choice(list(NOTES))
    fields: dict[str, object] = {"version": chance.choice([1, 1, 2, NEVER])}
    for field in NOTES[name]:
        fields[field] = odd(chance)
    if name == "shim.json" and chance.random() < 0.5:
        pid = chance.choice([target.daemon_pid, 1, 2, os.getppid(), os.getpid()])
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields |= {"pid": pid, "start_ticks": int(stat.rpartition(")")[2].split()[19]), "boot_id": boot}
    content = chance.choice([_json(fields), _json(fields), _json(fields)[:-5], b"", b"[]", b'{"a":' * 50_000])
    path = target.folder / name
    draft = target.folder / f"draft{os.getpid()}"
    fd = target.open(draft, os.O_WRONLY | os.O_CREAT)
    os.write(fd, content)
    os.close(fd)
    draft.rename(path)
    return f"a forged {name} with pid {str(fields.get('pid'))[:12]}"


def recorder_header(target: Target, chance: Random) -> str:
    """An extreme number in a field of the recorder's header."""
    name = chance.choice(["recorder.bin", "recorder.bin", "recorder.rank1.bin"])
    at, value = chance.choice(HEADER), chance.choice(UNSIGNED)
    fd = target.open(target.folder / name, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, struct.pack("<I", value), at)
    finally:
        os.close(fd)
    return f"{value} at {at} of {name}"


def _records(chance: Random, head: int, count: int) -> bytes:
    content = b""
    for number in range(head, head + count):
        step = chance.choice([number, -1, 0, 2**62, -(2**62), chance.randrange(10_000)])
        loss = chance.choice([0.5, float("nan"), float("inf"), -1e308, 5e-324])
        at = chance.choice([time.monotonic_ns(), 0, -1, 2**62])
        small = chance.choice([0.0, float("nan"), 3e38, -1.0])
        fields = (number + 1, step, at, chance.choice([0, 7, -1, 2**31 - 1]), chance.randrange(256), loss)
        check = ((number + 1) & 0xFFFFFFFF) ^ (0xA5A5A5A5 if chance.random() < 0.95 else 1)
        content += RECORD.pack(*fields, small, small, small, chance.choice([0, -1, 2**62]), *_counts(chance), check)
    return content


def _counts(chance: Random) -> tuple[int, int]:
    """Samples and tokens of a step."""
    return chance.choice([0, 32, 2**32 - 1]), chance.choice([0, 4096, 2**32 - 1])


def recorder_records(target: Target, chance: Random) -> str:
    """Records with steps, times and numbers that no training makes, and a head that counts them."""
    count = chance.choice([1, 50, 2000])
    fd = target.open(target.folder / "recorder.bin", os.O_RDWR)
    try:
        (head,) = struct.unpack("<Q", os.pread(fd, 8, 64).ljust(8, b"\0"))
        slot = head % 131072
        count = min(count, 131072 - slot)
        os.pwrite(fd, _records(chance, head, count), 4096 + slot * RECORD.size)
        os.pwrite(fd, struct.pack("<Q", (head + count + chance.choice([0, 0, 0, 5, 2**40])) % 2**64), 64)
    finally:
        os.close(fd)
    return f"{count} forged records from {head}"


def rank_recorder(target: Target, chance: Random) -> str:
    """A recorder of another rank, laid out as asked for or otherwise."""
    rank = chance.choice([1, 2, 63, 4096, 2**31, 2**64])
    slots = chance.choice([1, 1024, 2**32 - 1, 0])
    fd = target.open(target.folder / f"recorder.rank{rank}.bin", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(
            fd, struct.pack("<8sIIII", b"ROCMREC1", 4096, chance.choice([64, RECORD.size]), slots, rank % 2**32), 0
        )
        os.pwrite(fd, struct.pack("<Q", chance.choice([0, 5, 2**63])), 64)
        os.pwrite(fd, _records(chance, 0, 20), 4096)
        if chance.random() < 0.5:
            os.ftruncate(fd, min(4096 + slots * 64, 1 << 42))
    finally:
        os.close(fd)
    return f"a recorder of rank {rank} with {slots} slots"


def steps(target: Target, chance: Random) -> str:
    """Steps as an honest training makes them, with losses that need not be honest."""
    count, loss = chance.choice([1, 20, 200]), chance.choice([0.5, 0.5, float("nan"), float("inf"), 1e308, 5e-324])
    for _ in range(count):
        rocm_agent.step(loss=loss)
    return f"{count} steps with loss {loss}"


def odd_steps(target: Target, chance: Random) -> str:
    """Steps whose numbers are odd, by the agent's own call."""
    value = odd(chance)
    rocm_agent.step(loss=value, step=value, epoch=value, lr=value)
    rocm_agent.stage(str(value))
    return f"a step {str(value)[:40]!r}"


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def _pickled(target: Target, chance: Random) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        kind = chance.choice(["bomb", "class", "zeros", "deep"])
        contents: dict[str, Callable[[], bytes]] = {
            "bomb": lambda: pickle.dumps(_Bomb(target.saves.parent / "unpickled")),
            "class": lambda: b"c" + b"m" * 3_000_000 + b"\nC\n.",
            "zeros": lambda: b"\0" * 60_000_000,
            "deep": lambda: b"(" * 500_000 + b".",
        }
        archive.writestr("archive/data.pkl", contents[kind]())
        archive.writestr("archive/version", "3\n")
    return held.getvalue()


def checkpoint(target: Target, chance: Random) -> str:
    """Tell of a checkpoint that is none."""
    kind = chance.choice(["pickle", "tensors", "fifo", "link", "secret", "sparse", "folder", "odd", "many", "good"])
    path = target.saves / f"{kind}{chance.randrange(20)}{chance.choice(['.pt', '.safetensors', '.ckpt'])}"
    reported: list[str] = [str(path)]
    if kind in ("fifo", "link", "secret", "folder"):
        target.clear(path)
        laid: dict[str, Callable[[], None]] = {
            "fifo": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to(f"{path.name}2"),
            "secret": lambda: path.symlink_to(target.secret),
            "folder": path.mkdir,
        }
        laid[kind]()
    elif kind == "odd":
        reported = [str(odd(chance))[:4000] for _ in range(3)]
    elif kind == "many":
        reported = [str(target.saves / f"{number}.pt") for number in range(2000)]
    else:
        header = _json({"w": {"dtype": "F32", "shape": [chance.choice([1, 2**40, -1])], "data_offsets": [0, 4]}})
        contents: dict[str, Callable[[], bytes]] = {
            "pickle": lambda: _pickled(target, chance),
            "tensors": lambda: struct.pack("<Q", chance.choice([len(header), 2**63, 0])) + header + b"\0\0\x80\x7f",
            "sparse": lambda: b"PK\x03\x04",
            "good": lambda: struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0),
        }
        content = contents[kind]()
        fd = target.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, content)
        if kind == "sparse":
            os.ftruncate(fd, 1 << 40)
        os.close(fd)
    step = chance.choice([None, 1, 50, -1, 2**63, "x"])
    word = {"event": "checkpoint_saved", "pid": os.getpid(), "rank": 0, "monotonic_ns": time.monotonic_ns()}
    _append(
        target,
        _json({**word, "unix_s": 1.7e9, "paths": reported, "epoch": None, "step": step, "requested": False}) + b"\n",
    )
    return f"a checkpoint told of: {kind}, step {step}"


def output(target: Target, chance: Random) -> str:
    """Output that readers have trouble with."""
    lines = [
        b"\r" * 20_000,
        b"\x1b[2J\x1b]52;c;AAAA\x07\n",
        b"\xff\xfe\x00\n",
        b"x" * 900_000,
        b"RuntimeError: CUDA out of memory\n",
        b"epoch 1/" + b"9" * 5000 + b" loss nan\n",
        "²³½ %|█".encode() * 3000,
        b"Traceback (most recent call last):\n" * 300,
        b"100%|##########| 999999999999999999999/1 [00:00<?, ?it/s]\r",
        b"NCCL error HIP error: hipErrorNoBinaryForGpu\n" * 50,
    ]
    line = chance.choice(lines)
    os.write(1, line)
    return f"output {line[:24]!r}, {len(line)} bytes"


def output_flood(target: Target, chance: Random) -> str:
    """Megabytes of output at once."""
    piece = chance.choice([b"x" * 79 + b"\n", b"\n", b"\r", b"\x1b[0m", b"loss 0.5 it/s\r"])
    count = chance.choice([1, 8]) * 1_000_000
    block = piece * (65536 // len(piece))
    for _ in range(count // len(block)):
        os.write(1, block)
    return f"{count} bytes of {piece[:12]!r}"


ACTIONS: Mapping[str, Callable[[Target, Random], str]] = {
    made.__name__: made
    for made in (
        agent_word, agent_bytes, agent_flood, note, recorder_header, recorder_records, rank_recorder, steps, odd_steps,
        checkpoint, output, output_flood,
    )
}  # fmt: skip
