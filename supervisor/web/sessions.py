"""Tokens that let a browser in once, and the sessions that they become.

A session is two secrets. The cookie is kept from scripts (`HttpOnly`), but a browser sends it to every port of the same
host, so that another user's server on this machine could collect it. The key is kept by the page in the storage of its
origin, which includes the port, and no other port ever sees it. A request needs both.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TOKEN_BYTES = 32
TOKEN_LIFE_S = 600.0
SESSION_LIFE_S = 30 * 86_400.0
SAVE_EVERY_S = 3600.0
TRIES_PER_MINUTE = 5
SESSIONS_KEPT = 100


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a browser gets for its token."""

    cookie: str
    key: str


class Sessions:
    """Tokens in memory, each good once; sessions in memory and, where a file is given, over restarts."""

    def __init__(self, now_unix_s: Callable[[], float], file: Path | None = None) -> None:
        """Sessions are read from `file` where it exists; it holds hashes, which grant no access."""
        self._now = now_unix_s
        self._file = file
        self._tokens: dict[str, float] = {}
        self._used: dict[str, float] = _read_sessions(file)
        self._failures: deque[float] = deque(maxlen=TRIES_PER_MINUTE)

    def make_token(self) -> str:
        """Return a new token: 256 bits, good once within ten minutes."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._tokens[_hash(token)] = self._now() + TOKEN_LIFE_S
        return token

    @property
    def awaits_token(self) -> bool:
        """Whether a token has been given out that is not used yet."""
        now = self._now()
        self._tokens = {known: until for known, until in self._tokens.items() if until > now}
        return bool(self._tokens)

    @property
    def is_exhausted(self) -> bool:
        """Whether too many wrong tokens came within the last minute."""
        return len(self._failures) == TRIES_PER_MINUTE and self._now() - self._failures[0] < 60.0

    def open(self, token: str) -> NewSession | None:
        """Return a session for a token, which is used up by that; None where the token is not good, or no more."""
        given = _hash(token)
        known = next((item for item in self._tokens if hmac.compare_digest(item, given)), None)
        if self.is_exhausted or known is None or self._tokens.pop(known) < self._now():
            self._failures.append(self._now())
            return None
        made = NewSession(cookie=secrets.token_urlsafe(TOKEN_BYTES), key=secrets.token_urlsafe(TOKEN_BYTES))
        self._used[_hash(made.cookie + made.key)] = self._now()
        self._save()
        return made

    def is_open(self, cookie: str, key: str) -> bool:
        """Return whether these two belong to a session that was used within its life; it counts as used now."""
        given, now = _hash(cookie + key), self._now()
        known = next((item for item in self._used if hmac.compare_digest(item, given)), None)
        if known is None or now - self._used[known] > SESSION_LIFE_S:
            return False
        if now - self._used[known] > SAVE_EVERY_S:
            self._used[known] = now
            self._save()
        return True

    def revoke_all(self) -> int:
        """End every session; return how many there were."""
        ended = len(self._used)
        self._used, self._tokens = {}, {}
        self._save()
        return ended

    def _save(self) -> None:
        newest = sorted(self._used, key=lambda item: self._used[item], reverse=True)[:SESSIONS_KEPT]
        self._used = {item: self._used[item] for item in newest}
        if self._file is None:
            return
        part = self._file.with_name(self._file.name + ".part")
        with suppress(OSError):  # a session then ends with this process
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                json.dump(self._used, written)
            part.replace(self._file)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _read_sessions(file: Path | None) -> dict[str, float]:
    """Return the sessions of a file of our own directory; none where it cannot be read."""
    try:
        found = {} if file is None else json.loads(file.read_bytes())
        return {str(known): float(at) for known, at in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
