"""Finds in a regular expression a literal that every fitting text must contain; it gives up rather than guess."""

from __future__ import annotations

_CLASSES = frozenset("dDwWsSbBAZ")
"""What a backslash makes more than a letter."""


def needle_of(pattern: str) -> str | None:
    """Return the longest literal outside every group and choice, None where there is none."""
    runs, run, at = [""], "", 0
    while at < len(pattern):
        char = pattern[at]
        if char == "|":
            return None
        if char == "\\":
            literal, at = _escaped(pattern, at)
        elif char in "([":
            literal, at = None, _after(pattern, at)
        else:
            literal, at = (None if char in ".^$?*+{}" else char), at + 1
        follower = pattern[at] if at < len(pattern) else ""
        if literal is None or follower in ("?", "*", "{"):
            runs.append(run)
            run = ""
            at = _past_braces(pattern, at)
            continue
        run += literal
        if follower == "+":
            runs.append(run)
            run = ""
    runs.append(run)
    return max(runs, key=len) or None


def _escaped(pattern: str, at: int) -> tuple[str | None, int]:
    char = pattern[at + 1 : at + 2]
    return (None if char in _CLASSES or char.isdigit() else char), at + 2


def _after(pattern: str, at: int) -> int:
    """Return where the group or the set that opens at `at` has ended."""
    if pattern[at] == "[":
        return _after_set(pattern, at)
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _after_set(pattern, at) - 1
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at + 1
        at += 1
    return at


def _after_set(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] != "^" else 3
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _past_braces(pattern: str, at: int) -> int:
    if pattern[at : at + 1] != "{":
        return at
    end = pattern.find("}", at)
    return len(pattern) if end < 0 else end + 1
