"""Text without the secrets that can be known by their form or their name; what looks like any other word, it leaves."""

from __future__ import annotations

import re

HIDDEN = "***"

_NAMES = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential"
_NAMED = re.compile(
    rf"(?i)((?:[\w.-]*(?:{_NAMES})[\w-]*)(?:[\"']?\s*[=:]\s*))(\"[^\"]*\"?|'[^']*'?|[^\s\"',;]{{4,}})"
    rf"|(--[\w-]*(?:{_NAMES})[\w-]*\s+)(\S+)"
)
"""A name that says what it holds, then a value: `HF_TOKEN=...`, `"password": "..."`, `--api-key ...`."""
_AUTHORIZATION = re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)(\S+)")
_USERINFO = re.compile(r"(://[^\s/:@]*:)([^\s/@]+)(?=@)")
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{18,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{20,}|whsec_[A-Za-z0-9+/=]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
"""Hugging Face, GitHub, GitLab, Slack, AWS, OpenAI, Standard Webhooks, JSON web tokens, as documented by each."""
_WEBHOOK = re.compile(r"(https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/)\S+")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


def without_secrets(text: str) -> str:
    """Return `text` with every secret that can be told for one replaced by `***`."""
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _WEBHOOK.sub(rf"\g<1>{HIDDEN}", text)
    text = _AUTHORIZATION.sub(rf"\g<1>{HIDDEN}", text)
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}", text)
    text = _NAMED.sub(lambda found: (found[1] or found[3]) + HIDDEN, text)
    return _FORMS.sub(HIDDEN, text)
