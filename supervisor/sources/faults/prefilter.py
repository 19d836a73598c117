"""Finds a literal, and a complete word in it, that every match of a regular expression must contain."""

from __future__ import annotations

import re
from collections.abc import Iterable

EDGE = "\0"
"""Marks a word boundary in a literal; does not occur in any text."""
_CLASSES = frozenset("dDwWsSbBAZ")
"""Letters that are not literal after a backslash."""
_BOUNDARIES = frozenset("bsW")
_WORD = re.compile(r"(?<=[^A-Za-z0-9_])[A-Za-z0-9_]{2,}(?=[^A-Za-z0-9_])")
_SPACES = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")}
_BYTES = bytes(ord(" ") if code in _SPACES else code for code in range(256))
_ORDINARY = """
    access address all and at available bad been block broken buffer by change check command complete
    configuration configured context controller count current detected dev device disabled down driver due
    enabled end enter entry error event exit expected failed fault filesystem for from gpu hardware has in
    information initialized interrupt invalid is journal kernel last legacy limit link log mask memory
    message messages module more mounting no not of on over page path pcie pid port power present process
    processes queue reading ready received recovery register remove request reset response restore resume
    ret ring root send server setup shutting skipping speed started starting state status support system
    table temperature the thread threshold timeout to unable under unknown usable version warning was with
    write writing
"""
EVERYDAY = frozenset(_ORDINARY.split())
"""Words of ordinary lines; a literal's other words are more specific."""


def words_in(text: str) -> list[bytes]:
    """Return the words of a text: runs of letters, digits and underscores. As bytes, of which Python is fastest."""
    if text.isascii():
        return text.encode().translate(_BYTES).split()
    return [word.encode("utf-8", "surrogatepass") for word in text.translate(_SPACES).split()]


def word_of(literal: str) -> str | None:
    """Return the most specific word that is a complete word in every text with this literal; None if there is none."""
    words = _WORD.findall(literal)
    return max(words, key=lambda word: (word.lower() not in EVERYDAY, len(word)), default=None)


def pattern_of_any(literals: Iterable[str]) -> str:
    """Return a pattern that finds the first of some literals: they share their beginnings, so that few are tried."""
    ends: dict[str, list[str]] = {}
    for literal in literals:
        ends.setdefault(literal[:1], []).append(literal[1:])
    if "" in ends:
        return ""
    branches = [re.escape(first) + pattern_of_any(rest) for first, rest in sorted(ends.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def needle_of(pattern: str) -> str | None:
    """Return the best literal outside groups and alternatives, with EDGE at word boundaries; None if there is none.

    The best literal is that with the most specific word, or else the longest.
    """
    runs, run, at = [""], "", 0
    while at < len(pattern):
        char = pattern[at]
        if char == "|":
            return None
        if char == "\\":
            literal, at, edge = *_read_escape(pattern, at), pattern[at + 1 : at + 2] in _BOUNDARIES
        elif char in "([":
            literal, at, edge = None, _skip_group(pattern, at), False
        else:
            literal, at, edge = (None if char in ".^$?*+{}" else char), at + 1, char in "^$"
        follower = pattern[at] if at < len(pattern) else ""
        if literal is None or follower in ("?", "*", "{"):
            edge = edge and follower not in ("?", "*", "{")
            runs.append(run + EDGE * edge)
            run = EDGE * edge
            at = _skip_braces(pattern, at)
            continue
        run += literal
        if follower == "+":
            runs.append(run)
            run = ""
    runs.append(run)
    best = max(runs, key=lambda text: (_score_literal(text), len(text.strip(EDGE))))
    return best if best.strip(EDGE) else None


def _score_literal(literal: str) -> int:
    word = word_of(literal)
    return 0 if word is None else 1 + (word.lower() not in EVERYDAY)


def _read_escape(pattern: str, at: int) -> tuple[str | None, int]:
    char = pattern[at + 1 : at + 2]
    return (None if char in _CLASSES or char.isdigit() else char), at + 2


def _skip_group(pattern: str, at: int) -> int:
    """Return the position after the group or set that begins at `at`."""
    if pattern[at] == "[":
        return _skip_set(pattern, at)
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _skip_set(pattern, at) - 1
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at + 1
        at += 1
    return at


def _skip_set(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] != "^" else 3
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _skip_braces(pattern: str, at: int) -> int:
    if pattern[at : at + 1] != "{":
        return at
    end = pattern.find("}", at)
    return len(pattern) if end < 0 else end + 1
