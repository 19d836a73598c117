"""Text as roff with the man(7) macros: escaped, one macro or one line of text a line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

_SPECIAL = {"\\": "\\e", "-": "\\-", "~": "\\(ti", "^": "\\(ha", "`": "\\(ga", "'": "\\(aq"}
LINE_CHARACTERS = 78
"""mandoc complains of lines of text beyond 80."""


def page(lines: Iterable[str]) -> str:
    """Return a whole page; a heading is not followed by the mark of a paragraph, which mandoc calls superfluous."""
    kept: list[str] = []
    for line in lines:
        if line != ".PP" or not kept[-1].startswith((".SH", ".SS")):
            kept.append(line)
    return "\n".join(kept) + "\n"


def escape(text: str) -> str:
    """Return `text` so that roff prints it as it is; control characters become spaces."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return "".join(_SPECIAL.get(character, character) for character in plain)


def bold(text: str) -> str:
    """Return escaped `text` in bold."""
    return f"\\fB{escape(text)}\\fR"


def title(name: str, section: int, at_unix_s: int, source: str) -> str:
    """Return the line that opens a page."""
    day = datetime.fromtimestamp(at_unix_s, timezone.utc).strftime("%Y-%m-%d")
    return f'.TH {name.upper()} {section} "{day}" "{source}"'


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of `text`, its paragraphs separated; click's mark of a preformatted paragraph keeps its lines."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", textwrap.dedent(text).strip())):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from literal(paragraph.removeprefix("\b").strip("\n").splitlines())
        else:
            yield from flow(paragraph)


def flow(text: str) -> Iterator[str]:
    """Yield `text` as lines that the reader's terminal fills."""
    words = escape(" ".join(text.split()))
    for line in textwrap.wrap(words, LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False):
        yield _escape_macro(line)


def literal(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that stay as they are."""
    yield ".RS 4"
    yield ".nf"
    yield from (_escape_macro(escape(line)) or "\\&" for line in lines)
    yield ".fi"
    yield ".RE"


def tagged(tag: str, text: Iterable[str]) -> Iterator[str]:
    """Yield a paragraph with a hanging tag; `tag` is escaped already, `text` are its lines."""
    yield ".TP"
    yield _escape_macro(tag)
    body = list(text)
    yield from body or ["\\&"]


def _escape_macro(line: str) -> str:
    """Return a line that roff takes for no macro."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
