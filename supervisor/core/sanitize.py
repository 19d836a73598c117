"""Foreign text made safe to print and to keep: without control characters and without recognizable secrets.

Whatever a job, the kernel log or the network brought may hold escape sequences that move the cursor, set the window's
title, write the clipboard (OSC 52) or turn the order of letters round (CVE-2021-42574).

The text is a training's, and `re` holds every other thread up while it searches: no pattern may take longer than in
proportion to the text. What is repeated before a pattern's first fixed word, or in a part that may fail, is bounded.
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
    clean = _HARMFUL.sub("", _SEQUENCES.sub("", text))
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
            return [sanitized(item) for item in value]
        case dict():
            return {key: sanitized(item) for key, item in value.items()}
        case _:
            return value


HIDDEN = "***"

_NAMES = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential"
_NAMED = re.compile(
    rf"(?i)((?:{_NAMES})[\w-]{{0,64}}[\"']?\s{{0,16}}[=:]\s{{0,16}})(\"[^\"]*\"?|'[^']*'?|[^\s\"',;]{{4,}})"
    rf"|((?<!-)--[\w-]{{0,64}}(?:{_NAMES})[\w-]{{0,64}}\s{{1,16}})(\S+)"
)
"""A name that says what it holds, then a value: `HF_TOKEN=...`, `"password": "..."`, `--api-key ...`."""
_AUTHORIZATION = re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)(\S+)")
_USERINFO = re.compile(r"(://[^\s/:@]*:)([^\s/@]+)(?=@)")
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{18,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{20,}|whsec_[A-Za-z0-9+/=]{16,}"
    r"|eyJ[\w-]{8,512}\.[\w-]{8,}\.[\w-]{8,})"
)
"""Hugging Face, GitHub, GitLab, Slack, AWS, OpenAI, Standard Webhooks, JSON web tokens, as documented by each."""
_WEBHOOK = re.compile(r"(https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/)\S+")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


def without_secrets(text: str) -> str:
    """Return `text` with every recognizable secret replaced by `***`."""
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _WEBHOOK.sub(rf"\g<1>{HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\g<1>{HIDDEN}", text)
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}", text)
    text = _NAMED.sub(lambda found: (found[1] or found[3]) + HIDDEN, text)
    return _FORMS.sub(HIDDEN, text)
