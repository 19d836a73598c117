"""Tells whether a pickle uses `getattr` as Python's own pickle module does: to name a method, a nested class, a member.

Up to protocol 3, which torch.save uses, `Outer.inner` is written as a call of getattr with the class and the name; by
early releases of Python 3.11, which Debian 12 has, a member of an Enum is so too, in any protocol. Where dill wrote the
pickle, a type of Python's own is named by a call as well. That is as harmless as the name. A pickle that keeps such a
function as a value could have another function call it, on anything.
"""

from __future__ import annotations

from typing import BinaryIO, Dict, Iterator, List, Optional, Tuple

from .opcodes import COUNTED, FIXED, FRAME, LINES, PUTS, STOP

NAMING = {
    (b"__builtin__", b"getattr"): "getattr",
    (b"builtins", b"getattr"): "getattr",
    (b"dill._dill", b"_load_type"): "type",
    (b"dill.dill", b"_load_type"): "type",
}
"""The functions whose calls name something, each with the first part of its call."""
_TEXTS = frozenset([b"X", b"\x8c"])
_GETS = frozenset([b"h", b"j"])
_GLOBAL, _STACK_GLOBAL, _MEMOIZE, _TUPLE1, _TUPLE2, _REDUCE = b"c", b"\x93", b"\x94", b"\x85", b"\x86", b"R"
_FOREIGN = frozenset([b"\x82", b"\x83", b"\x84", b"i", b"g", b"p"])
"""Other ways to a name or to the memo, which no pickle of protocol 2 or later has."""
_TEXT_BYTES = 256
"""A longer text is the name of nothing that is looked for."""
_OTHER, _TEXT = "other", "text"
_NEXT = {
    "getattr": {_OTHER: "class"}, "class": {_TEXT: "text"}, "text": {_TUPLE2: "tuple"},
    "type": {_TEXT: "name"}, "name": {_TUPLE1: "tuple"},
    "tuple": {_REDUCE: ""},
}  # fmt: skip
"""What follows each part of a call that names, and which part of it that is; module and name of a class aside."""


def only_names_attributes(file: BinaryIO) -> bool:
    """Whether each function of NAMING in the pickle at which `file` stands is called at once.

    getattr is called with a thing and a text, dill's function with a text.
    Its opcodes must have been checked before (`check_opcodes`); `file` stands at its beginning, before and after.
    """
    begin = file.tell()
    try:
        calls = _Calls()
        return all(calls.take(code, argument) for code, argument in _list_opcodes(file)) and not calls.part
    finally:
        file.seek(begin)


class _Calls:
    """Follows what a pickle puts on its stack and into its memo, as far as it takes to know where these are."""

    def __init__(self) -> None:
        self.part = ""
        """Of the call that is being written: the last one, or "" for none."""
        self._top: Tuple[str, bytes] = (_OTHER, b"")
        """What was put on the stack last; of a text also the text."""
        self._texts: List[bytes] = []
        """Those that lie on top of the stack, with nothing else among them, since the last call or its last part."""
        self._memo: Dict[int, Tuple[str, bytes]] = {}

    def take(self, code: bytes, argument: bytes) -> bool:
        """Take the next opcode; return whether no such function is anywhere but in a call that only names."""
        if code in _FOREIGN:
            return False
        if code == FRAME:
            return True
        if code in PUTS or code == _MEMOIZE:
            self._memo[int(argument) if code in PUTS else len(self._memo)] = self._top
            return True
        pushed = self._find_pushed(code, argument)
        if pushed is None:
            return False
        self._top = pushed
        return self._follow(code)

    def _find_pushed(self, code: bytes, argument: bytes) -> Optional[Tuple[str, bytes]]:
        """Return what this opcode leaves on top of the stack; None for a name that is made of anything but texts."""
        if code in _TEXTS:
            return _TEXT, argument
        if code in _GETS:
            return self._memo.get(int(argument), (_OTHER, b""))
        if code == _GLOBAL:
            module, _, name = argument.partition(b" ")
        elif code == _STACK_GLOBAL:
            if len(self._texts) < 2 or (self.part and len(self._texts) != 2):
                return None
            module, name = self._texts[-2:]
        else:
            return _OTHER, b""
        return NAMING.get((module, name), _OTHER), b""

    def _follow(self, code: bytes) -> bool:
        """Go on to the next part of a call, if there is one; return whether it may stand there."""
        kind, text = self._top
        if kind == _TEXT and self.part in ("", "getattr"):
            self._texts.append(text)
            return True
        named = code == _STACK_GLOBAL or not self._texts
        self._texts = []
        if not self.part:
            self.part = kind if kind in NAMING.values() else ""
            return True
        pushes = code in _TEXTS or code in _GETS or code in (_GLOBAL, _STACK_GLOBAL)
        following = _NEXT[self.part].get(kind if pushes else code)
        self.part = following or ""
        return named and following is not None


def _list_opcodes(file: BinaryIO) -> Iterator[Tuple[bytes, bytes]]:
    """Yield each opcode with its argument: a place of the memo as its number, a short text; of others nothing."""
    code = b""
    while code != STOP:
        code = file.read(1)
        if code in LINES:
            yield code, b" ".join(file.readline().strip() for _ in range(LINES[code]))
        elif code in COUNTED:
            length = int.from_bytes(file.read(COUNTED[code]), "little")
            short = code in _TEXTS and length <= _TEXT_BYTES
            text = file.read(length) if short else b""
            file.seek(0 if short else length, 1)
            yield code, text
        elif code in FIXED:
            argument = file.read(FIXED[code])
            is_place = code in _GETS or code in PUTS
            yield code, b"%d" % int.from_bytes(argument, "little") if is_place else b""
        else:
            return  # its end, or no opcode
