"""JSON from msgspec, in a process that goes on where no memory is left.

`msgspec.json.encode` ends the process by SIGSEGV where its buffer cannot grow (0.23), as under a limit of address space
or on a machine that commits no more memory than it has. `encode_into` raises MemoryError there.
"""

from __future__ import annotations

import msgspec

_ENCODER = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    """Return a value as JSON. Raises MemoryError, and what msgspec raises for what it cannot encode."""
    buffer = bytearray()
    _ENCODER.encode_into(value, buffer)
    return bytes(buffer)
