"""Tells whether a pickle uses `getattr` as Python's own pickle module does: to name a method, a nested class, a member.

Up to protocol 3, which torch.save uses, `Outer.inner` is written as a call of getattr with the class and the name. In
any protocol a method of an object is, and a member of an Enum by early releases of Python 3.11, which Debian 12 has.
Where dill wrote the pickle, a type of Python's own is named by a call too. That is as harmless as the name. A pickle
that keeps such a function as a value could have another function call it, on anything.
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
_MARK, _POP, _DUP, _PROTO = b"(", b"0", b"2", b"\x80"
_FOREIGN = frozenset([b"\x82", b"\x83", b"\x84", b"i", b"g", b"p"])
"""Other ways to a name or to the memo, which no pickle of protocol 2 or later has."""
_TO_MARK = {**dict.fromkeys([b"d", b"l", b"t", b"o", b"\x91"], 1), **dict.fromkeys([b"1", b"e", b"u", b"\x90"], 0)}
"""What takes everything down to the last mark off the stack, and whether it puts something there."""
_TAKES = {
    **dict.fromkeys([_TUPLE1, b"Q", b"\x98"], (1, 1)),
    **dict.fromkeys([_TUPLE2, _REDUCE, _STACK_GLOBAL, b"\x81"], (2, 1)),
    **dict.fromkeys([b"\x87", b"\x92"], (3, 1)),
    **dict.fromkeys([_POP, b"a", b"b", STOP], (1, 0)),
    b"s": (2, 0),
}
"""How many values an opcode takes off the stack and puts there; any other puts one."""
_CHANGES = frozenset([b"a", b"b", b"e", b"s", b"u", b"\x90"])
"""What changes the value that is then on top of the stack."""
_TEXT_BYTES = 256
"""A longer text is the name of nothing that is looked for."""
Value = Tuple[str, bytes]
"""Of a value its kind, as far as it matters, and of a text the text."""
_OTHER, _TEXT, _MARKED = "other", "text", "mark"
_ARGUMENTS = {"getattr": "thing and text", "type": "one text"}
"""What each function must be called with."""
_FUNCTIONS = frozenset(_ARGUMENTS)


def only_names_attributes(file: BinaryIO) -> bool:
    """Whether each function of NAMING in the pickle at which `file` stands is called at once, and nothing else.

    getattr is called with a thing and a text, dill's function with a text. What the thing is, is not looked at. Its
    opcodes must have been checked before (`shorten`); `file` stands at its beginning, before and after.
    """
    begin = file.tell()
    try:
        machine = _Machine()
        return all(machine.take(code, argument) for code, argument in _list_opcodes(file)) and machine.is_free()
    finally:
        file.seek(begin)


class _Machine:
    """Follows what a pickle puts on its stack and into its memo, as far as it takes to know where these are."""

    def __init__(self) -> None:
        self._stack: List[Value] = []
        self._memo: Dict[int, Value] = {}

    def is_free(self) -> bool:
        """Whether no such function is left on the stack."""
        return all(kind not in _FUNCTIONS for kind, _ in self._stack)

    def take(self, code: bytes, argument: bytes) -> bool:
        """Take the next opcode; return whether such functions are nowhere but in a call that only names."""
        if code in _FOREIGN:
            return False
        if code in (FRAME, _PROTO):
            return True
        if code in PUTS or code == _MEMOIZE:
            return self._keep(int(argument) if code in PUTS else len(self._memo))
        if code in _TO_MARK:
            return self._take_to_mark(_TO_MARK[code]) and not (code in _CHANGES and self._has_function())
        count, puts = _TAKES.get(code, (0, 1))
        if count > len(self._stack):
            return False
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        made = self._make(code, argument, taken)
        if made is None:
            return False
        if puts:
            self._stack.append(made)
        return not (code in _CHANGES and self._has_function())

    def _has_function(self) -> bool:
        """Whether such a function lies on top of the stack."""
        return bool(self._stack) and self._stack[-1][0] in _FUNCTIONS

    def _keep(self, place: int) -> bool:
        if not self._stack or self._stack[-1][0] == _MARKED:
            return False
        self._memo[place] = self._stack[-1]
        return True

    def _take_to_mark(self, puts: int) -> bool:
        while self._stack:
            kind, _ = self._stack.pop()
            if kind == _MARKED:
                self._stack.extend([(_OTHER, b"")] * puts)
                return True
            if kind in _FUNCTIONS:
                return False
        return False

    def _make(self, code: bytes, argument: bytes, taken: List[Value]) -> Optional[Value]:
        """Return what an opcode makes of what it took off the stack; None where that may not be."""
        kinds = [kind for kind, _ in taken]
        if code == _REDUCE and kinds[0] in _FUNCTIONS:
            return (_OTHER, b"") if kinds[1] == _ARGUMENTS[kinds[0]] else None
        if not _FUNCTIONS.isdisjoint(kinds) or (_MARKED in kinds and code != _POP):
            return None
        if code in _TEXTS:
            return _TEXT, argument
        if code in _GETS:
            return self._memo.get(int(argument), (_OTHER, b""))
        if code == _DUP:
            kept = self._stack[-1] if self._stack else (_MARKED, b"")
            return None if kept[0] in _FUNCTIONS or kept[0] == _MARKED else kept
        if code == _GLOBAL:
            module, _, name = argument.partition(b" ")
            return NAMING.get((module, name), _OTHER), b""
        if code == _STACK_GLOBAL:
            return (NAMING.get((taken[0][1], taken[1][1]), _OTHER), b"") if kinds == [_TEXT, _TEXT] else None
        return _kind_of(code, kinds), b""


def _kind_of(code: bytes, kinds: List[str]) -> str:
    """Return the kind of what any other opcode makes of values of these kinds."""
    if code == _MARK:
        return _MARKED
    if code == _TUPLE2 and kinds[1] == _TEXT:
        return _ARGUMENTS["getattr"]
    return _ARGUMENTS["type"] if code == _TUPLE1 and kinds == [_TEXT] else _OTHER


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
