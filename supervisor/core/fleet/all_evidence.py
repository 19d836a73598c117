"""What is known of every rank when an incident is judged: what its node found, or that its node found nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.core.fleet.evidence import DAEMON_ENDED, RankEvidence
from supervisor.core.fleet.ladder import Fleet
from supervisor.core.fleet.training import Incident, Member

UNKILLABLE = "a process that SIGKILL does not end"


def complete_evidence(incident: Incident, fleet: Fleet, members: Mapping[str, Member]) -> list[RankEvidence]:
    """Return what is known of every rank; of a node that does not answer, that it does not."""
    found = list(incident.evidence)
    answered = {rank.node for rank in found}
    for number, node in enumerate(node for node in fleet.nodes if node in members):
        member = members[node]
        if member.unkillable:
            fault = UNKILLABLE if member.waits is None else f"{UNKILLABLE}: {member.waits}"
            found.append(RankEvidence(node=node, rank=first_rank(member, number), fault=fault))
        elif node not in answered:
            ended = DAEMON_ENDED if member.is_another else None
            rank, reachable = first_rank(member, number), member.connected
            found.append(RankEvidence(node=node, rank=rank, reachable=reachable, exception=ended))
    missing = [node for node in fleet.nodes if node not in members]
    return [*found, *(RankEvidence(node=node, rank=number, reachable=False) for number, node in enumerate(missing))]


def describe_silent(
    nodes: Sequence[str], known: Sequence[RankEvidence], fleet: Fleet, members: Mapping[str, Member]
) -> tuple[RankEvidence, ...]:
    """Return what is known of nodes that were not heard of for a lease; where one has answered, that counts.

    It holds though they are back before the incident is judged: what their ranks did meanwhile is not known.
    """
    answered = {rank.node for rank in known}
    places = {node: number for number, node in enumerate(fleet.nodes)}
    return tuple(
        RankEvidence(node=node, rank=first_rank(members[node], places[node]), reachable=False)
        for node in nodes
        if node in places and node not in answered
    )


def first_rank(member: Member, number: int) -> int:
    """Return the first rank of a node; the node's own place where its ranks are not known."""
    return member.ranks[0] if member.ranks else number
