"""The secret that the nodes of one training share: read from a file of its owner, or made."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from supervisor.core.fleet.link import SECRET_BYTES_LEAST

SECRET_BYTES = 32
SECRET_BYTES_MAX = 4096


class SecretError(ValueError):
    """The secret cannot be used; the text names the file and what to do."""


def make_secret(path: Path) -> None:
    """Make a secret in a new file that its owner alone may read. Raises FileExistsError or OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(secrets.token_hex(SECRET_BYTES) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def read_secret(path: Path) -> bytes:
    """Return the secret in a file. Raises SecretError where it is missing, too short, or open to other users."""
    try:
        with path.open("rb") as file:
            status, content = os.fstat(file.fileno()), file.read(SECRET_BYTES_MAX).strip()
    except OSError as error:
        raise SecretError(f"{path}: {error.strerror}; `supervisorctl submit` makes it") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise SecretError(f"{path}: other users may read it; `chmod 600 {path}`, and make a new one if they did")
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"{path}: belongs to uid {status.st_uid}, not to this user ({os.geteuid()})")
    if len(content) < SECRET_BYTES_LEAST:
        raise SecretError(f"{path}: {len(content)} bytes, a secret has at least {SECRET_BYTES_LEAST}")
    return content
