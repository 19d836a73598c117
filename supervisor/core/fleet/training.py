"""A training on several nodes as its leader knows it, and what the leader has done for it: values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.culprit import Culprit, Proof
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.ladder import Fleet, FleetLimits, Rung
from supervisor.core.fleet.resume import Offer


class Stage(str, Enum):
    """Where the training stands."""

    GATHERING = "gathering"
    """Waits for its nodes."""
    CHOOSING = "choosing"
    """Its nodes look for what to resume from."""
    RUNNING = "running"
    COLLECTING = "collecting"
    """Evidence is being taken; everything still runs."""
    STOPPING = "stopping"
    """Every process is being ended."""
    WAITING = "waiting"
    """All that can answer have ended; a node that cannot has until its lease is over."""
    LEAVING = "leaving"
    """Stopped by its user: saves and ends."""
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLimits:
    """Durations in seconds, and what the owner allows."""

    nodes: int
    """Nodes that train; what joins beyond them is a spare."""
    given: tuple[str, ...] = ()
    """The names of all nodes that the engine has given, where it names them: who of them is missing can be said."""
    evidence_s: float = 1.0
    lease_s: float = 5.0
    lease_margin_s: float = 0.5
    """For the end of a node's ranks after its lease, and clocks that run unlike each other."""
    kill_s: float = 10.0
    """A process that exists this long after SIGKILL is not going to end."""
    gather_s: float = 600.0
    spares_s: float = 3.0
    """How long further nodes are waited for, once there are enough."""
    choose_s: float = 1800.0
    """How long nodes may take to prove what to resume from: a shard of many gigabytes is read as a whole."""
    ask_again_s: float = 5.0
    """After a node could not look; a file system may be back."""
    passed_over_after: int = 2
    """Launches from one state without a new step, after which an older one is preferred."""
    leave_s: float = 60.0
    port: int = 29400
    ports: int = 64
    """Rendezvous ports, one after the other: the last one may not be free yet."""
    fleet: FleetLimits = field(default_factory=lambda: FleetLimits(may_requeue=False))

    @property
    def fence_s(self) -> float:
        """After the last word of a node, or the last step, its ranks have ended by themselves."""
        return self.lease_s + self.lease_margin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault of the training, whatever number of nodes report it."""

    id: str
    epoch: Epoch
    kind: str
    reason: str
    node: str
    """The node that reported it first."""
    rank: int | None
    began_s: float
    """Seconds on the leader's clock."""
    witnesses: tuple[str, ...] = ()
    """What came in after it, in its order."""
    evidence: tuple[RankEvidence, ...] = ()
    collected_s: float | None = None
    """From its begin until evidence was in, or its time over."""
    stopped_s: float | None = None
    """From its begin until every process had ended."""
    culprit: Culprit | None = None
    rung: Rung | None = None
    excluded: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()


def incident_facts(incident: Incident) -> Mapping[str, object]:
    """Return an incident for a record in JSON."""
    culprit = incident.culprit or Culprit(proof=Proof.NONE, reason="not known yet")
    return {
        "id": incident.id,
        "epoch": str(incident.epoch),
        "kind": incident.kind,
        "reason": incident.reason,
        "node": incident.node,
        "rank": incident.rank,
        "witnesses": list(incident.witnesses),
        "collected_s": incident.collected_s,
        "stopped_s": incident.stopped_s,
        "culprit": {
            "proof": culprit.proof.value,
            "reason": culprit.reason,
            "ranks": list(culprit.ranks),
            "nodes": list(culprit.nodes),
        },
        "rung": None if incident.rung is None else incident.rung.value,
        "excluded": list(incident.excluded),
        "taken": list(incident.taken),
    }


# --- what the leader has done for it ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A message for a node."""

    node: str
    message: ms.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An incident to be written down: when it begins, and once it is closed."""

    incident: Incident
    closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """The engine is to start the whole job again, without some nodes."""

    excluded: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The training has ended for good."""

    finished: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWarning:
    """What a rule has warned of on a node, to be written down."""

    node: str
    instance: str
    """Of its daemon: with the warning's number it tells two from one that was sent twice."""
    warning: ms.NodeWarning


Command: TypeAlias = Send | Record | RecordWarning | Requeue | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a leader before this one wrote down."""

    epoch: Epoch
    """The last one that it launched."""
    fleet: Fleet | None = None
    is_live: bool = True
    """Whether that launch had not ended."""
    is_over: bool = False
    """Whether that leader had come to its end, and wrote that down."""
    is_finished: bool = False
    """Whether the launch had finished on all nodes, and its leader was killed before it came to its end."""
    ranks_until_s: float = 0.0
    """Until when ranks of a launch may still run, on this leader's clock; inf: not known, for a lease from now on."""
    incident: Incident | None = None
    """Of that launch, begun and not closed."""
    incidents: int = 0
    fence: int = 0
    """Of the engine, for the launches of this leader (`cluster.leader.Engine`)."""
    steps: int | None = None
    began_unix_s: float = 0.0
    """When the training began, by its first leader's clock; in a record by the earliest one (`wall_clocks.py`)."""
    resumed: Offer | None = None
    fruitless: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Member:
    """A node as the leader knows it."""

    host: str
    connected: bool = True
    seen_s: float
    """When it was last heard of."""
    instance: str = ""
    """Of its daemon."""
    is_another: bool = False
    """Whether this daemon began after the present launch, so that the one with its ranks has ended."""
    running: Epoch | None = None
    ranks: tuple[int, ...] = ()
    unkillable: bool = False
    waits: str | None = None
    """What a process waits for that SIGKILL does not end."""
    warned: int | None = None
    """The number of the newest warning that this leader has of its daemon; None: it has none."""
    finished: bool = False
