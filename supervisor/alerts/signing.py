"""Signatures of Standard Webhooks: HMAC-SHA256 over id, time and body; a secret never shows in a repr or a message."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

PREFIX = "whsec_"
SHORTEST_BYTES = 24
LONGEST_BYTES = 64


class Secret:
    """One shared secret."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        """Read `whsec_` and base64 of 24 to 64 bytes; raise ValueError, which never holds the text, otherwise."""
        encoded = text.strip().removeprefix(PREFIX)
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"a secret is {PREFIX} followed by base64; this one is not base64") from None
        if not SHORTEST_BYTES <= len(key) <= LONGEST_BYTES:
            raise ValueError(
                f"a secret holds {SHORTEST_BYTES} to {LONGEST_BYTES} bytes, this one {len(key)}; make one with "
                f"echo {PREFIX}$(openssl rand -base64 32)"
            )
        self._key = key

    def sign(self, alert_id: str, unix_s: int, body: bytes) -> str:
        """Return the signature, `v1,BASE64`, over an attempt's id, time (whole Unix seconds) and body."""
        signed = b".".join((alert_id.encode(), str(unix_s).encode(), body))
        return "v1," + base64.b64encode(hmac.new(self._key, signed, hashlib.sha256).digest()).decode()

    def __repr__(self) -> str:
        return "Secret(...)"


def read_secrets(text: str) -> tuple[Secret, ...]:
    """Read secrets separated by white space: while a secret is changed, old and new one both sign.

    Raises ValueError, which never holds the text.
    """
    secrets = tuple(Secret(part) for part in text.split())
    if not secrets:
        raise ValueError(f"no secret is set; a secret is {PREFIX} followed by base64")
    return secrets


def headers(secrets: tuple[Secret, ...], alert_id: str, unix_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of one delivery attempt; without a secret it goes unsigned."""
    always = {"webhook-id": alert_id, "webhook-timestamp": str(unix_s)}
    if not secrets:
        return always
    return {**always, "webhook-signature": " ".join(secret.sign(alert_id, unix_s, body) for secret in secrets)}
