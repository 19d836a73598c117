"""Which nodes of a training wait for their storage, as their leader passes it on to those that wait for them.

A wait is passed on only as a node itself found it, and only while beats that report it are fresh: what others wait for
is never in a node's beat, so that no wait can keep itself up, and a node or a link that is gone excuses nothing.
"""

from __future__ import annotations

from supervisor.core.peers import PEERS_FRESH_S, PeerWait

NAMED_MAX = 4
"""One that waits explains as much as all; the others are for people."""


class PeerWaits:
    """What the nodes of one launch wait for, by the newest beat of each."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[PeerWait, float]] = {}
        """Of each node that waits: for what, and when it last reported that."""

    def take(self, node: str, words: str | None, now_s: float) -> None:
        """Take in what a node's beat says that its ranks wait for; None where they wait for nothing."""
        if words is None:
            self._waits.pop(node, None)
        else:
            self._waits[node] = PeerWait(node=node, words=words), now_s

    def find(self, asking: str, now_s: float) -> tuple[PeerWait, ...]:
        """Return what nodes other than `asking` wait for; of many the first few."""
        found: list[PeerWait] = []
        for node, (wait, seen_s) in self._waits.items():
            if node != asking and now_s - seen_s <= PEERS_FRESH_S:
                found.append(wait)
            if len(found) == NAMED_MAX:
                break
        return tuple(found)
