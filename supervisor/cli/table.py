"""Aligned columns of plain text, coloured only when asked; it neither prints nor knows what it shows."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Cell:
    """Text, sanitized, and its colour."""

    text: str
    style: str | None = None
    right: bool = False
    """Numbers stand at the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """How to write: with colours or without, and how wide."""

    color: bool = False
    width: int | None = None
    """Columns of the terminal; None: as wide as it comes."""

    def paint(self, text: str, style: str | None) -> str:
        """Return `text` in a colour, where there are colours."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.color and style else text

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
        """Return lines of aligned cells; the last column takes the rest of the line and is cut there."""
        titles = [Cell(title, "bold", rows[0][index].right if rows else False) for index, title in enumerate(head)]
        widths = [max(cells(row[index].text) for row in (titles, *rows)) for index in range(len(head))]
        return "\n".join(self._line(row, widths) for row in (titles, *rows))

    def _line(self, row: Sequence[Cell], widths: Sequence[int]) -> str:
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
    """Return how many columns of a terminal `text` takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns, and never less than ten."""
    width = max(width, 10)
    if cells(text) <= width:
        return text
    while cells(text) > width - 1:
        text = text[: max(0, len(text) - max(1, (cells(text) - width) // 2))]
    return text + "…"


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
