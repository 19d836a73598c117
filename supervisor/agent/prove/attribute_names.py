"""Tells whether a pickle uses `getattr` as Python's own pickle module does: to name a method or a nested class.

Up to protocol 3, which torch.save uses, `Outer.inner` is written as a call of getattr with the class and the name. That
is as harmless as the name. A pickle that keeps getattr as a value could have another function call it, on anything.
"""

from __future__ import annotations

from typing import BinaryIO, Iterator, Set, Tuple

from .opcodes import COUNTED, FIXED, LINES, STOP

GETATTR = frozenset([b"__builtin__ getattr", b"builtins getattr"])
_GLOBAL = b"c"
_GETS = frozenset([b"h", b"j"])
_PUTS = frozenset([b"q", b"r"])
_TEXTS = frozenset([b"X"])
_FOREIGN = frozenset([b"\x93", b"\x94", b"\x82", b"\x83", b"\x84", b"i", b"g", b"p"])
"""Other ways to a name or to the memo, which no pickle of protocol 2 or 3 has."""
_TUPLE2, _REDUCE = b"\x86", b"R"
_NEXT = {
    "function": {"global": "class", "get": "class"},
    "class": {"text": "text", "get": "text"},
    "text": {"tuple": "tuple"},
    "tuple": {"call": ""},
}
"""What follows each part of a call, and which part of it that is."""
_KINDS = {
    **dict.fromkeys(_GETS, "get"),
    **dict.fromkeys(_TEXTS, "text"),
    _GLOBAL: "global",
    _TUPLE2: "tuple",
    _REDUCE: "call",
}


def only_names_attributes(file: BinaryIO) -> bool:
    """Whether each getattr in the pickle at which `file` stands is called at once, with a thing and a text.

    Its opcodes must have been checked before (`check_opcodes`); `file` stands at its beginning, before and after.
    """
    begin = file.tell()
    try:
        return _follow_calls(file)
    finally:
        file.seek(begin)


def _follow_calls(file: BinaryIO) -> bool:
    places: Set[bytes] = set()
    part, is_new = "", False
    for code, argument in _list_opcodes(file):
        if code in _FOREIGN:
            return False
        if code in _PUTS:
            if argument in places or (part == "function" and not is_new):
                return False
            if part == "function":
                places.add(argument)
                is_new = False
            continue
        is_getattr = (code == _GLOBAL and argument in GETATTR) or (code in _GETS and argument in places)
        if part:
            following = None if is_getattr else _NEXT[part].get(_KINDS.get(code, ""))
            if following is None:
                return False
            part = following
        elif is_getattr:
            part, is_new = "function", code == _GLOBAL
    return not part


def _list_opcodes(file: BinaryIO) -> Iterator[Tuple[bytes, bytes]]:
    """Yield each opcode with its argument: a place of the memo as its number, of texts and bytes nothing."""
    code = b""
    while code != STOP:
        code = file.read(1)
        if code in LINES:
            yield code, b" ".join(file.readline().strip() for _ in range(LINES[code]))
        elif code in COUNTED:
            file.seek(int.from_bytes(file.read(COUNTED[code]), "little"), 1)
            yield code, b""
        elif code in FIXED:
            argument = file.read(FIXED[code])
            is_place = code in _GETS or code in _PUTS
            yield code, b"%d" % int.from_bytes(argument, "little") if is_place else b""
        else:
            return  # its end, or no opcode
