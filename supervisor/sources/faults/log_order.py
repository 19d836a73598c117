"""Puts the lines of a pasted kernel log in the order of time, and messages that share a line on lines of their own.

What a page, a forum or a terminal put around and into the lines is removed: tags, escapes, other spaces, colours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from supervisor.sources.kernel.log_lines import log_line

ORDER_LINES = 200
"""The first lines of a log show whether it has the newest line first."""
NEAR_S, EQUAL_S = 3600.0, 0.01
"""Stamps further apart may be of two boots or days; processors print within one hundredth of a second in any order."""
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_NEXT_MESSAGE = re.compile(
    r"(?<=[^\s:\]>|#$]) +(?=\[ *\d+\.\d{6}\] )"
    r"|(?:\\r)?\\n(?=\[ *\d+\.\d+\] )|<br ?/?>"
    rf"|(?<=\S) +(?=(?:{_MONTH} [ \d]\d \d\d:\d\d:\d\d|\d{{4}}-\d\d-\d\dT[\d:]{{8}}\S*) [^\s\[\]]+ kernel: )"
)

_SPACES = {0xA0: " ", 0x2007: " ", 0x202F: " ", 0x200B: None, 0x200E: None, 0xFEFF: None}
_MARKUP = re.compile(
    r"</?(?:pre|code|p|div|span|font|blockquote|samp|tt|strong|b|li|td|tr)(?:\s[^<>]{0,200})?>"
    r"|\[/?(?:code|quote|pre|spoiler|hide|icode|noparse)(?:=[^\[\]]{1,80})?\]|\{(?:noformat|code)(?::[^{}]{1,40})?\}",
    re.IGNORECASE,
)
_COLOUR = re.compile(
    r"(?:\^\[|\bESC|#033|\\e|\\033|\\x1b|\u241b)\[(?:\d{1,2}(?:;\d{1,3})*)?m|\[\d{1,2}(?:;\d{1,3})*m"
    r"|\[m(?![^\[\]]{1,40}\])|#033\[K"
)
"""A terminal's colours, whose escape character a page dropped or spelled; `[mmhub0]` and `[mlx5_core]` are none."""
_ESCAPED = re.compile(r"\\(?=[\[\]_*<>#`~|])")
_ENCLOSED = re.compile(r"(?:(\*\*|[`'])(.*\S)\1|\"((?:[^\"\\]|\\.)+)\")[,;]?\s*")


def split_messages(lines: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the messages of a log with the numbers of their lines: a page or a mail may have joined lines."""
    plain = (remove_markup(line) for line in lines)
    split = [(number, text) for number, line in enumerate(plain, start=1) for text in _NEXT_MESSAGE.split(line)]
    return [number for number, _ in split], [text for _, text in split]


def remove_markup(line: str) -> str:
    """Return a line without what a page, a forum or a terminal put around and into it; `<br>` is kept."""
    if not line.isascii():
        line = line.translate(_SPACES)
    if "&nbsp;" in line:
        line = line.replace("&nbsp;", " ")
    if "\\" in line:
        line = _ESCAPED.sub("", line)
    if "m" in line and "[" in line:
        line = _COLOUR.sub("", line)
    if "<" in line or "[" in line or "{" in line:
        line = _MARKUP.sub("", line)
    enclosed = _ENCLOSED.fullmatch(line.strip())
    return line if enclosed is None else enclosed[2] or enclosed[3].replace('\\"', '"')


def has_newest_first(lines: Sequence[str]) -> bool:
    """Whether the stamps of a log decrease, as with `journalctl -r` and in viewers of logs."""
    stamps = [at_s for line in lines[:ORDER_LINES] if (at_s := log_line(line).at_s) is not None]
    steps = [after - before for before, after in pairwise(stamps) if EQUAL_S < abs(after - before) < NEAR_S]
    return sum(step < 0 for step in steps) > 3 * sum(step > 0 for step in steps)


def oldest_first(numbers: Sequence[int], lines: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return a log in reverse; a line without a stamp stays below the line that it follows."""
    messages: list[list[tuple[int, str]]] = [[]]
    for number, line in zip(numbers, lines, strict=True):
        if log_line(line).at_s is not None:
            messages.append([])
        messages[-1].append((number, line))
    turned = [numbered for message in reversed(messages) for numbered in message]
    return [number for number, _ in turned], [line for _, line in turned]
