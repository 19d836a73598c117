"""A picture of few colours with short texts, encoded as PNG; pure, of the standard library alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

Color = tuple[int, int, int]
GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", ".": "00002", "-": "00700", "+": "02720", "e": "07643", "h": "44755", "l": "22222",
    "o": "00757", "s": "03616", " ": "00000", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647",
    "F": "74644", "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755",
    "N": "75555", "O": "25552", "P": "65644", "Q": "25573", "R": "65655", "S": "34216", "T": "72222", "U": "55557",
    "V": "55552", "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "_": "00007", "=": "07070", "%": "51245",
    "(": "24442", ")": "21112", ":": "02020", ",": "00024", "/": "11244",
}  # fmt: skip
"""Five rows of three pixels each, a row as an octal digit."""
GLYPH_WIDTH, GLYPH_HEIGHT, GLYPH_SCALE = 3, 5, 2


class Canvas:
    """Pixels, each an index into the palette; the first colour is that of the paper."""

    def __init__(self, width: int, height: int, palette: Sequence[Color]) -> None:
        self.width, self.height, self._palette = width, height, palette
        self.pixels = bytearray(width * height)

    def fill(self, place: tuple[int, int], size: tuple[int, int], color: int) -> None:
        """Colour a rectangle from its upper left corner on; what is outside of the picture is left out."""
        left, right = max(0, place[0]), min(self.width, place[0] + size[0])
        for row in range(max(0, place[1]), min(self.height, place[1] + size[1])):
            begin = row * self.width
            self.pixels[begin + left : begin + right] = bytes([color]) * max(0, right - left)

    def write(self, text: str, left: int, top: int, color: int) -> None:
        """Write a text; characters without a glyph, and what is left or right of the picture, are left out."""
        shown = [GLYPHS[character] for character in text if character in GLYPHS]
        for number, glyph in enumerate(shown):
            for place in range(GLYPH_WIDTH * GLYPH_HEIGHT * GLYPH_SCALE**2):
                row, column = divmod(place, GLYPH_WIDTH * GLYPH_SCALE)
                if int(glyph[row // GLYPH_SCALE]) >> (GLYPH_WIDTH - 1 - column // GLYPH_SCALE) & 1:
                    x = left + number * (GLYPH_WIDTH + 1) * GLYPH_SCALE + column
                    if 0 <= x < self.width:
                        self.pixels[(top + row) * self.width + x] = color

    def encode(self) -> bytes:
        """Return the PNG (W3C PNG, third edition): 8 bits a pixel, with a palette, every row without a filter."""
        width = self.width
        rows = b"".join(b"\0" + self.pixels[row * width : (row + 1) * width] for row in range(self.height))
        header = struct.pack(">2I5B", width, self.height, 8, 3, 0, 0, 0)
        palette = bytes(value for color in self._palette for value in color)
        parts = (b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(_encode_chunk(kind, content) for kind, content in parts)


def measure(text: str) -> int:
    """Return how many pixels wide a text is."""
    return sum(character in GLYPHS for character in text) * (GLYPH_WIDTH + 1) * GLYPH_SCALE


def _encode_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
