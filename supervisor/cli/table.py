"""Formats aligned columns of plain text, with colours if wanted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

GAP = "  "
LEAST_LAST = 16
"""Columns of the terminal that the last column is cut to, at least."""
LEAST_PATH = 24
"""The same, of a path."""
_PATH = re.compile(rf"(?<!\S)/\S{{{LEAST_PATH},}}")
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Cell:
    """Sanitized text and its colour."""

    text: str
    style: str | None = None
    right: bool = False
    """Right-aligned, as numbers are."""
    path: bool = False
    """Cut in the middle, for its end says more than its middle."""


Column: TypeAlias = list[Cell]
"""The cells of one column, its title first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """Output format: colours and width."""

    color: bool = False
    width: int | None = None
    """Columns of the terminal; None: unlimited."""

    def paint(self, text: str, style: str | None) -> str:
        """Return `text` in a colour, if colours are enabled."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.color and style else text

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
        """Return lines of aligned cells, which fit the terminal.

        Where it is too narrow, columns without a value are left out, paths are cut in the middle and the last column at
        its end; columns that still have no room follow below, behind the first column again.
        """
        titles = [Cell(title, "bold", rows[0][index].right if rows else False) for index, title in enumerate(head)]
        columns: list[Column] = [[row[index] for row in (titles, *rows)] for index in range(len(head))]
        fits = self.width is None or _total_width(columns) <= self.width
        blocks = [columns] if fits or self.width is None else _split_blocks(columns, self.width)
        return "\n".join(line for block in blocks for line in self._format_block(block))

    def _format_block(self, columns: Sequence[Column]) -> Iterator[str]:
        widths = [_width_of(column) for column in columns]
        for row in zip(*columns, strict=True):
            yield self._format_line(row, widths)

    def _format_line(self, row: Sequence[Cell], widths: Sequence[int]) -> str:
        parts = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            last = index == len(widths) - 1
            room = None if self.width is None else self.width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
            text = cut(cell.text, room) if last and room is not None else cell.text
            padding = "" if last and not cell.right else " " * (width - cells(text))
            painted = self.paint(text, cell.style)
            parts.append(padding + painted if cell.right else painted + padding)
        return GAP.join(parts).rstrip()


def cells(text: str) -> int:
    """Return the width of `text` in terminal columns."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def cut(text: str, width: int) -> str:
    """Return `text` cut to `width` columns, but to no fewer than ten; the middle of its paths goes before its end."""
    width = max(width, 10)
    if cells(text) <= width:
        return text
    text = _PATH.sub(lambda found: cut_middle(found[0], max(LEAST_PATH, len(found[0]) + width - cells(text))), text)
    if cells(text) <= width:
        return text
    while cells(text) > width - 1:
        text = text[: max(0, len(text) - max(1, (cells(text) - width) // 2))]
    return text + "…"


def cut_middle(text: str, width: int) -> str:
    """Return `text` with a part cut out to have `width` columns, but no fewer than ten; two thirds are its end."""
    width = max(width, 10)
    if cells(text) <= width:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while cells(head) + cells(tail) > width - 1:
        if 2 * cells(head) > cells(tail):  # the end of a path says more than its beginning
            head = head[:-1]
        else:
            tail = tail[1:]
    return f"{head}…{tail}"


def _split_blocks(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Return the columns in blocks of at most `width`, each with the first column; only the last is cut by the pen."""
    first, *others = columns
    kept = _shorten_paths([first, *(column for column in others if not _is_empty(column))], width)
    blocks = [[kept[0]]]
    for column in kept[1:]:
        room = width - _total_width(blocks[-1]) - len(GAP)
        needed = min(_width_of(column), LEAST_LAST) if column is kept[-1] else _width_of(column)
        if needed > room and len(blocks[-1]) > 1:
            blocks.append([kept[0]])
        blocks[-1].append(column)
    return blocks


def _shorten_paths(columns: list[Column], width: int) -> list[Column]:
    """Return the columns with paths as short as lets all of them fit, the last one cut, or with LEAST_PATH."""
    last = _width_of(columns[-1])
    excess = _total_width(columns) - last + min(last, LEAST_LAST) - width
    if excess <= 0:
        return columns
    return [
        [replace(cell, text=cut_middle(cell.text, max(LEAST_PATH, _width_of(column) - excess))) for cell in column]
        if any(cell.path for cell in column)
        else column
        for column in columns
    ]


def _is_empty(column: Column) -> bool:
    """Whether no row has a value in a column; a table without rows has all of its columns."""
    return len(column) > 1 and all(cell.text in ("", "-") for cell in column[1:])


def _width_of(column: Column) -> int:
    return max(cells(cell.text) for cell in column)


def _total_width(columns: Sequence[Column]) -> int:
    return sum(map(_width_of, columns)) + len(GAP) * (len(columns) - 1)


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
