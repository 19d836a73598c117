"""The nodes that have joined a leader: who is connected, who may train, and which of those that should never came."""

from __future__ import annotations

from collections.abc import Collection

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.ladder import Fleet
from supervisor.core.fleet.training import LeaderLimits, Member

HOW_BACK = (
    "the script of `supervisorctl submit` starts an ended daemon again; started otherwise, start the same command there"
)
HOW_NEVER = "see the job's output for what their daemons say"


class Members(dict[str, Member]):
    """Every node that has joined, by its name, those that are away too."""

    def find_namesake(self, node: str, joined: ms.Joined, now_s: float, lease_s: float) -> bool:
        """Whether another daemon has joined under this name and was heard of within a lease, so that this may not join.

        One that has ranks running under the leader's orders displaces one that has none: it was there before a leader
        that has just begun. The same daemon that connects again is no other.
        """
        member = self.get(node)
        if member is None or not member.connected or joined.instance == member.instance:
            return False
        if now_s - member.seen_s >= lease_s:
            return False
        return member.running is not None or joined.running is None

    def is_connected(self, node: str) -> bool:
        """Whether a node has joined, and its link is not known to be broken."""
        return node in self and self[node].connected

    def connected(self) -> list[str]:
        """Return the nodes with a link."""
        return [node for node, member in self.items() if member.connected]

    def runs(self, node: str) -> bool:
        """Whether a node has ranks that can still be ended."""
        return self[node].running is not None and not self[node].unkillable

    def is_in(self, node: str, epoch: Epoch) -> bool:
        """Whether a node has ranks of a launch, or had them until they ended by themselves."""
        return self[node].running == epoch or self[node].finished

    def usable(self, excluded: Collection[str]) -> list[str]:
        """Return the nodes that may train, in the order of their names."""
        return sorted(
            node for node, member in self.items() if member.connected and not member.unkillable and node not in excluded
        )

    def describe_missing(self, usable: list[str], fleet: Fleet | None, limits: LeaderLimits) -> str:
        """Return which nodes did not come in time, for people, and what may be done about it."""
        missing, wanted = limits.nodes - len(usable), limits.nodes
        reason = f"{missing} of {wanted} nodes did not come within {limits.gather_s:.0f} s"
        here = f"; here are {', '.join(usable)}" if usable else ""
        silent = [node for node in limits.given if node not in self]
        here += f"; never came: {', '.join(silent)}: {HOW_NEVER}" if silent else ""
        gone = [node for node in fleet.nodes if not self.is_connected(node)] if fleet is not None else []
        back = f"; {', '.join(gone)} trained before: {HOW_BACK}" if gone else ""
        return reason + here + back
