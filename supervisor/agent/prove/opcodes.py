"""Looks through a pickle's opcodes before Python's own reader does, which trusts every size that a pickle names.

That reader makes room for a memo entry or a bytearray as large as four or eight bytes claim: nine bytes cost it 1 GB
and 0.6 s, and a bytearray that does not fit into memory makes CPython print an error of its own, `SystemError:
deallocated bytearray object has exported buffers`.
"""

from __future__ import annotations

import os
from typing import BinaryIO

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
SKIPPED_BYTES = 1 << 16
"""A longer argument is not read but skipped."""


def check_opcodes(file: BinaryIO, size: int) -> None:
    """Raise Rejected for a pickle that claims more than it holds; `file` stands at its beginning, before and after.

    `size` is that of all of the file. Where a pickle is cut short or no pickle, the reader says so.
    """
    begin = file.tell()
    try:
        _walk_opcodes(file, size)
    finally:
        file.seek(begin)


def _walk_opcodes(file: BinaryIO, size: int) -> None:
    read, passed, code = file.read, 0, b""
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
        elif code in COUNTED:
            _skip_counted(file, int.from_bytes(read(COUNTED[code]), "little"), size)
        elif code in LINES:
            _skip_lines(file, code, passed)
        else:
            return  # its end, or no opcode


def _skip_counted(file: BinaryIO, length: int, size: int) -> None:
    _check_length(length, size - file.tell())
    if length > SKIPPED_BYTES:
        file.seek(length, os.SEEK_CUR)
    else:
        file.read(length)


def _skip_lines(file: BinaryIO, code: bytes, passed: int) -> None:
    line = b""
    for _ in range(LINES[code]):
        line = file.readline(LINE_LIMIT_BYTES)
        if len(line) == LINE_LIMIT_BYTES:
            raise Rejected("its pickle has a line of more than %d bytes" % LINE_LIMIT_BYTES)
    if code == PUT:
        _check_entry(int(line) if line.strip().isdigit() and len(line) < INTEGER_CHARACTERS else len(line), passed)


def _check_entry(number: int, passed: int) -> None:
    """Raise Rejected for an entry of the memo with a number beyond that of all opcodes up to here."""
    if number > passed:
        raise Rejected("its pickle numbers an object %d after %d opcodes" % (number, passed))


def _check_length(length: int, left: int) -> None:
    if length > left:
        raise Rejected("its pickle is damaged or cut short (%d bytes claimed, %d left)" % (length, left))
