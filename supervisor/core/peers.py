"""What a node of a training is told of the ranks on its other nodes, as values, and for how long that counts.

What comes from another node cannot be verified here: it counts only while it is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

PEERS_FRESH_S = 5.0
"""A report that is older counts for nothing: it is repeated five times a second. As long as a lease by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWait:
    """What the ranks on another node of the training wait for, a file system, as that node found it."""

    node: str
    words: str
    """Who waits for what there, for a person."""
