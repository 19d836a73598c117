"""Formats aligned columns of plain text, with colours if wanted."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Cell:
    """Sanitized text and its colour."""

    text: str
    style: str | None = None
    right: bool = False
    """Right-aligned, as numbers are."""


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
        """Return lines of aligned cells; the last column is cut at the width of the terminal."""
        titles = [Cell(title, "bold", rows[0][index].right if rows else False) for index, title in enumerate(head)]
        widths = [max(cells(row[index].text) for row in (titles, *rows)) for index in range(len(head))]
        return "\n".join(self._format_line(row, widths) for row in (titles, *rows))

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
    """Return `text` cut to `width` columns, but to no fewer than ten."""
    width = max(width, 10)
    if cells(text) <= width:
        return text
    while cells(text) > width - 1:
        text = text[: max(0, len(text) - max(1, (cells(text) - width) // 2))]
    return text + "…"


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
