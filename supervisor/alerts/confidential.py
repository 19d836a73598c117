"""Whether a text of the other side gives away a secret that was sent to it; such a text is not recorded; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from urllib.parse import unquote

from supervisor.core.sanitize import sanitize

SECRET_CHARS_MIN = 4
"""A part of a path with a digit in it is taken for a secret from this length on; a word like `hooks` is none."""
WINDOW_CHARS = 10
"""So many letters and digits in the order of the secret are no accident."""
QUOTED_CHARACTERS = 200


def quote_text(text: str, secrets: Iterable[str], what: str) -> str:
    """Return a text of a receiver on one line, unless it repeats a secret; `what` names that."""
    if repeats_secret(text, secrets):
        return f"(its answer is not shown because it contains {what})"
    return sanitize(text[: 4 * QUOTED_CHARACTERS], QUOTED_CHARACTERS)


def repeats_secret(text: str, secrets: Iterable[str]) -> bool:
    """Whether a text gives away one of these, however it is quoted, escaped or cut."""
    shown = _reduce_to_alphanumerics(text)
    return any(_is_repeated(secret, shown) for secret in secrets)


def _is_repeated(secret: str, shown: str) -> bool:
    parts = re.split(r"[^A-Za-z0-9]+", unquote(secret))
    if any(part.lower() in shown for part in parts if len(part) >= SECRET_CHARS_MIN and not part.isalpha()):
        return True
    plain = _reduce_to_alphanumerics(secret)
    windows = (plain[at : at + WINDOW_CHARS] for at in range(len(plain) - WINDOW_CHARS + 1))
    return any(window in shown for window in windows)


def _reduce_to_alphanumerics(text: str) -> str:
    """Return the letters and digits of a text alone, without the escapes of URLs, HTML and JSON."""
    for _ in range(2):
        text = unquote(unescape(text.replace("\\/", "/")))
    return re.sub(r"[^a-z0-9]+", "", text.lower())
