"""The stage of a training as its leader passes it on: from the node of rank 0 to those that cannot see it themselves.

Only the node of rank 0 reports one, and only of the launch that it runs. What it reported last is passed on while that
is fresh, with its age: a node or a link that is gone says nothing of the stage.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.peers import PEERS_FRESH_S, PeerStage


class LaunchStage:
    """The stage of one launch."""

    def __init__(self) -> None:
        self._newest: tuple[str, PeerStage, float] | None = None
        """Which node reported it, what, and when."""

    def take(self, node: str, stage: PeerStage | None, now_s: float) -> None:
        """Take in what a node's beat says; None where rank 0 is not there, or its stage is not known."""
        if stage is not None:
            self._newest = node, stage, now_s
        elif self._newest is not None and self._newest[0] == node:
            self._newest = None

    def find(self, asking: str, now_s: float) -> PeerStage | None:
        """Return the stage for a node other than the one that reported it."""
        if self._newest is None:
            return None
        node, stage, seen_s = self._newest
        if node == asking or now_s - seen_s > PEERS_FRESH_S:
            return None
        return replace(stage, lasted_s=stage.lasted_s + now_s - seen_s)
