"""Texts cut to the limits of a service, counted as the service counts and after its markup is escaped; pure."""

from __future__ import annotations

from collections.abc import Callable

CUT = "…"


def count_characters(text: str) -> int:
    """Return the number of Unicode code points."""
    return len(text)


def count_bytes(text: str) -> int:
    """Return the length in UTF-8."""
    return len(text.encode("utf-8", "replace"))


def count_utf16(text: str) -> int:
    """Return the length in UTF-16 code units, as JavaScript and Telegram count."""
    return len(text) + sum(character > "\uffff" for character in text)


def keep_text(text: str) -> str:
    """Escape nothing: for services and fields without markup."""
    return text


def fit(
    text: str,
    limit: int,
    count: Callable[[str], int] = count_characters,
    escape: Callable[[str], str] = keep_text,
) -> str:
    """Return a text escaped and at most `limit` long, with `…` at its end where it was cut.

    `escape` has to work on each character by itself, so that no escaped character is cut in two.
    """
    pieces: list[str] = []
    used, kept = 0, 0
    for character in text:
        piece = escape(character)
        used += count(piece)
        if used > limit:
            return "".join(pieces[:kept]) + CUT
        pieces.append(piece)
        if used + count(CUT) <= limit:
            kept = len(pieces)
    return "".join(pieces)
