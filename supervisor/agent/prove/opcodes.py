"""Looks through a pickle's opcodes before Python's own reader does, which trusts every size that a pickle names.

That reader makes room for a memo entry or a bytearray as large as four or eight bytes claim: nine bytes cost it 1 GB
and 0.6 s, and a bytearray that does not fit into memory makes CPython print an error of its own, `SystemError:
deallocated bytearray object has exported buffers`. It also keeps all that it reads, of which only the shape matters.
"""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Optional

from .kinds import Rejected

FIXED = {
    **dict.fromkeys([bytes([code]) for code in b"(.012NRQabd}el]ostu)"], 0),
    **dict.fromkeys([bytes([code]) for code in b"\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98"], 0),
    **dict.fromkeys([b"K", b"h", b"q", b"\x80", b"\x82"], 1),
    **dict.fromkeys([b"M", b"\x83"], 2),
    **dict.fromkeys([b"J", b"j", b"r", b"\x84"], 4),
    **dict.fromkeys([b"G", b"\x95"], 8),
}
"""Bytes of the argument, by opcode."""
COUNTED = {
    **dict.fromkeys([b"U", b"C", b"\x8a", b"\x8c"], 1),
    **dict.fromkeys([b"B", b"T", b"X", b"\x8b"], 4),
    **dict.fromkeys([b"\x8d", b"\x8e", b"\x96"], 8),
}
"""Bytes of the length that stands before the argument."""
LINES = {**dict.fromkeys([b"F", b"I", b"L", b"P", b"S", b"V", b"g", b"p"], 1), b"c": 2, b"i": 2}
"""Lines of text."""
STOP, PUT, PUTS, FRAME = b".", b"p", (b"q", b"r"), b"\x95"
LINE_LIMIT_BYTES = 1 << 20
INTEGER_CHARACTERS = 20
LONG_BYTES = 1 << 10
"""A longer text, or run of bytes, is left out: an array of numpy lies in a pickle as one, of gigabytes in a replay
buffer that a program saves with its weights."""
LONG_TEXT = b"\0"
"""Stands for one: no name of a class holds this character."""
TEXTS = frozenset([b"T", b"X", b"\x8d"])
"""Opcodes whose argument is a text; of the other counted ones it is bytes, or a number."""
NUMBERS = frozenset([b"\x8a", b"\x8b"])
JOBLIB_ARRAY = (b"joblib.numpy_pickle", b"NumpyArrayWrapper")
"""Module and class of what stands for an array in a file of joblib's: its numbers follow between the opcodes."""
NOT_TORCH = "no checkpoint: a pickle that torch did not write"


class Kept(io.BytesIO):
    """The pickle as it is read."""

    why_short: Optional[str] = None
    """Why it is left at an array of joblib's, which no other reader gets beyond; None where it is not."""


def shorten(file: BinaryIO, size: int) -> Kept:
    """Return the pickle at which `file` stands without what is long and not looked at; `file` stands behind it then.

    `size` is that of all of the file. Raises Rejected for a pickle that claims more than it holds. Where it is cut
    short or no pickle, the reader says so. Frames only say how much is read at once, and are left out.
    """
    read, code, passed, kept, before = file.read, b"", 0, Kept(), b""
    while code != STOP:
        code = read(1)
        passed += 1
        length = FIXED.get(code)
        if length is not None:
            argument = read(length) if length else b""
            if code in PUTS:
                _check_entry(int.from_bytes(argument, "little"), passed)
            elif code == FRAME:
                _check_length(int.from_bytes(argument, "little"), size - file.tell())
                continue
        elif code in COUNTED:
            argument = _read_counted(file, code, size)
            before, name = argument[COUNTED[code] :], before
            if (name, before) == JOBLIB_ARRAY:
                kept.why_short = _judge_end(file)
                break
        elif code in LINES:
            argument = _read_lines(file, code, passed)
            if tuple(argument.split()) == JOBLIB_ARRAY:
                kept.why_short = _judge_end(file)
                break
        else:
            kept.write(code)
            break  # its end, or no opcode
        kept.write(code + argument)
    kept.seek(0)
    return kept


def _read_counted(file: BinaryIO, code: bytes, size: int) -> bytes:
    """Return the length and the argument of an opcode; of a long one a shorter of its kind."""
    head = file.read(COUNTED[code])
    length = int.from_bytes(head, "little")
    _check_length(length, size - file.tell())
    if length <= LONG_BYTES or code in NUMBERS:
        return head + file.read(length)
    file.seek(length, os.SEEK_CUR)
    text = LONG_TEXT if code in TEXTS else b""
    return len(text).to_bytes(COUNTED[code], "little") + text


def _judge_end(file: BinaryIO) -> str:
    """Return what a file of joblib's is, which ends with its pickle."""
    file.seek(-1, os.SEEK_END)
    return NOT_TORCH if file.read(1) == STOP else "truncated: it ends before its pickle does"


def _read_lines(file: BinaryIO, code: bytes, passed: int) -> bytes:
    lines = []
    for _ in range(LINES[code]):
        lines.append(file.readline(LINE_LIMIT_BYTES))
        if len(lines[-1]) == LINE_LIMIT_BYTES:
            raise Rejected("its pickle has a line of more than %d bytes" % LINE_LIMIT_BYTES)
    line = lines[-1]
    if code == PUT:
        _check_entry(int(line) if line.strip().isdigit() and len(line) < INTEGER_CHARACTERS else len(line), passed)
    return b"".join(lines)


def _check_entry(number: int, passed: int) -> None:
    """Raise Rejected for an entry of the memo with a number beyond that of all opcodes up to here."""
    if number > passed:
        raise Rejected("its pickle numbers an object %d after %d opcodes" % (number, passed))


def _check_length(length: int, left: int) -> None:
    if length > left:
        raise Rejected("its pickle is damaged or cut short (%d bytes claimed, %d left)" % (length, left))
