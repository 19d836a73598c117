"""Makes a string of unknown origin harmless to a terminal; it changes nothing that a person would read.

Whatever a job, the kernel log or the network brought may hold escape sequences that move the cursor, set the window's
title, write the clipboard (OSC 52) or turn the order of letters round (CVE-2021-42574).
"""

from __future__ import annotations

import re

LENGTH_LIMIT = 4000
_SEQUENCES = re.compile(
    r"""
      (?:\x1b[PX^_]|[\x90\x98\x9e\x9f]) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c|\Z)?   # DCS, SOS, PM, APC
    | (?:\x1b\]|\x9d) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c|\Z)?                     # OSC
    | (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?                                           # CSI
    | \x1b [ -/]* [0-~]?                                                             # the other escapes
    """,
    re.VERBOSE,
)
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069"  # no width; marks, embeddings, overrides, isolates
    "\u2028\u2029"  # separators that some terminals and editors take for a new line
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"  # surrogates, BOM, annotations, tags
)


def sanitize(text: str, limit: int = LENGTH_LIMIT) -> str:
    """Return `text` with escape sequences and characters that a terminal acts on taken out, tab and newline kept."""
    clean = _HARMFUL.sub("", _SEQUENCES.sub("", text.replace("\r\n", "\n")))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def one_line(text: str, limit: int = LENGTH_LIMIT) -> str:
    """Return the same on one line, as a cell of a table needs it."""
    return " ".join(sanitize(text, limit).split())


def sanitized(value: object) -> object:
    """Return a JSON value with every string in it made harmless; the keys are ours."""
    match value:
        case str():
            return sanitize(value)
        case list():
            return [sanitized(one) for one in value]
        case dict():
            return {key: sanitized(one) for key, one in value.items()}
        case _:
            return value
