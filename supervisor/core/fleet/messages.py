"""What a node and its leader tell each other, as values; the link has proven who sent them before they are read.

A node may run another version, or be broken: every value is read within its bounds, and what is unknown is None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeAlias

from supervisor.core.fleet.epoch import Epoch, read_epoch
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.peer_waits import NAMED_MAX
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import (
    COUNT_MAX,
    PATH_CHARS_MAX,
    RANK_MAX,
    STEP_MAX,
    UNIX_S_MAX,
    as_dict,
    as_float,
    as_int,
    as_list,
    as_message,
    as_text,
    cut,
    read_json_object,
)
from supervisor.core.peers import PeerStage, PeerWait
from supervisor.core.readings import Stage

REASON_CHARS_MAX = 2000
WAIT_CHARS_MAX = 500
RANKS_MAX = 256
"""Of one node."""
PORT_MAX = 65535
OFFERS_MAX = 64
EPOCH_NUMBERS_MAX = 8
TEXTS = frozenset({"exception", "stack", "reason"})
"""Of rows: what is said for people, in the training's own words."""
TEXT_CHARS_SUM = 32_768
"""Of all rows of a message, for each of TEXTS: a character takes 12 bytes at most, a message has a million."""


WARNINGS_MAX = 4
"""Of one beat; further ones come with the next."""
LASTED_S_MAX = 1e9


class MessageError(ValueError):
    """A message that cannot be read; the text says why."""


# --- of a node ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """First message of a link: what the node has running, as after a leader or a network that was away."""

    running: Epoch | None
    """The launch of which processes run."""
    ordered: Epoch | None
    """The newest launch that it was ever ordered."""
    host: str
    """Where other nodes reach it."""
    unix_s: float
    """Its wall clock."""
    instance: str = ""
    """Of the daemon, drawn at its start: two of one name differ in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWarning:
    """What a rule has warned of on a node."""

    number: int
    """Counted by the node's daemon from 1; it is sent again until the leader has it."""
    rule: str
    text: str
    ago_s: float
    """How long before the beat was sent: the clocks of nodes differ."""
    launch: str = ""
    """The epoch of the launch that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBeat:
    """The node is there."""

    sent_s: float
    """Its monotonic clock; the answer brings it back."""
    steps: int | None = None
    """The step that the training has reached by its rank 0; None on other nodes, or where that is not known."""
    counts_itself: bool = False
    """Whether rank 0 makes steps of which only its process's own count is known."""
    ranks: tuple[int, ...] = ()
    """The ranks that run on it."""
    storage_wait: str | None = None
    """Which file system its ranks are seen to wait for, and who; None where they do not, or that is not known."""
    epoch: Epoch | None = None
    """The launch that all this is about; None where none runs, or of a node that does not say."""
    stage: PeerStage | None = None
    """The stage of the training by its rank 0; None on other nodes, or where that is not known."""
    warnings: tuple[NodeWarning, ...] = ()
    """Those that the leader is not known to have, oldest first; only to one that takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something ended or disturbed the training on this node."""

    epoch: Epoch
    kind: str
    """`rank_exit`, the name of a rule, or `gave_up`."""
    reason: str
    rank: int | None = None
    killed_by: str | None = None
    """The signal that ended the rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken:
    """What was collected of the ranks of this node."""

    epoch: Epoch
    took_s: float
    ranks: tuple[RankEvidence, ...]
    folder: str | None = None
    """Where the rest lies, on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """No process of the launch runs on this node any more."""

    epoch: Epoch
    unkillable: bool = False
    waits: str | None = None
    """What such a process waits for in the kernel; None where that cannot be seen."""
    """False: all ended. True: SIGKILL did not end one, so that the node is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The training on this node ended by itself with status 0."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOffers:
    """The answer to `FindResume`: what this node could resume from, newest first."""

    number: int
    """Of the question."""
    offers: tuple[Offer, ...] = ()
    problem: str | None = None
    """Why the node could not look; then nothing follows from what it does not offer."""


# --- of the leader ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderBeat:
    """The answer to a node's beat."""

    echo_s: float
    """`sent_s` of the beat that it answers."""
    now_s: float
    """The leader's monotonic clock."""
    lease_s: float
    """How long the node may go on without hearing of the leader."""
    peer_waits: tuple[PeerWait, ...] = ()
    """Other nodes whose ranks wait for a file system; of many the first few."""
    peer_stage: PeerStage | None = None
    """The stage of the training where rank 0 is on another node; None where that is not known."""
    warned: int | None = None
    """The number of the newest warning that the leader has of this node's daemon; None: it takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The node may not join; its link ends with this."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the ranks of this node."""

    epoch: Epoch
    node_rank: int
    nodes: int
    host: str
    """Where the rendezvous is; the node of rank 0 keeps it."""
    port: int
    resume_from: str | None = None
    """What all ranks resume from, by the name in the nodes' offers; None: what the program itself finds."""
    resume_digest: str | None = None
    """The digest in those offers."""
    loads_itself: bool = False
    """Whether the program has to find and load by itself what it goes on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindResume:
    """Say what the next launch could resume from, and prove the newest that is not rejected yet.

    Each node proves its share of it: the shards of every `shares`-th rank, beginning with `share`. A checkpoint of the
    program's own is proven by the node of share 0; the others see by its digest that theirs is the same.
    """

    number: int
    """Counted by the leader; the answer brings it back."""
    share: int
    shares: int
    rejected: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Looked at only after all others."""
    since_unix_s: float = 0.0
    """When the training began: what its program saved itself counts from then on, for it may be another training's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Collect the evidence of all ranks; stop nothing yet."""

    epoch: Epoch
    limit_s: float
    incident: str
    waits_count: bool = True
    """Whether a rank that waits in the kernel may be at fault, which takes time to tell from one that reads a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End every process of the launch at once."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The training is over for this node: save, end the ranks, and end."""

    reason: str
    finished: bool = False
    """Whether it ended by itself on all nodes, so that nothing is to be resumed."""


Message: TypeAlias = (
    Joined
    | NodeBeat
    | Fault
    | EvidenceTaken
    | Stopped
    | Finished
    | ResumeOffers
    | LeaderBeat
    | Refused
    | Launch
    | FindResume
    | Collect
    | Stop
    | Leave
)
Facts: TypeAlias = dict[str, object]


def encode(message: Message) -> bytes:
    """Return a message as it is sent: what the training itself said is in it no longer than the link can carry."""
    facts: Facts = {"message": type(message).__name__}
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Epoch):
            facts[field.name] = str(value)
        elif field.name == "ranks" and isinstance(message, EvidenceTaken):
            facts[field.name] = _write_rows(message.ranks[:RANKS_MAX])
        elif isinstance(message, ResumeOffers) and field.name == "offers":
            facts[field.name] = _write_rows(message.offers[:OFFERS_MAX])
        elif isinstance(message, LeaderBeat) and field.name == "peer_waits":
            facts[field.name] = [asdict(wait) for wait in message.peer_waits[:NAMED_MAX]]
        elif isinstance(message, NodeBeat) and field.name == "warnings":
            facts[field.name] = [_write_warning(warning) for warning in message.warnings[:WARNINGS_MAX]]
        elif isinstance(value, PeerStage):
            facts[field.name] = {**asdict(value), "stage": value.stage.value}
        else:
            facts[field.name] = cut(value, PATH_CHARS_MAX) if isinstance(value, str) else value
    return json.dumps(facts).encode()


def _write_rows(rows: Sequence[RankEvidence | Offer]) -> list[Facts]:
    """Return rows with their texts as long as all of them together may be."""
    limit = min(REASON_CHARS_MAX, TEXT_CHARS_SUM // max(1, len(rows)))
    return [
        {name: cut(value, limit) if name in TEXTS and value else value for name, value in asdict(row).items()}
        for row in rows
    ]


def _write_warning(warning: NodeWarning) -> Facts:
    return {**asdict(warning), "text": cut(warning.text, WAIT_CHARS_MAX)}


def decode(data: bytes) -> Message:
    """Return the message that was sent. Raises MessageError."""
    facts = read_json_object(data)
    kind = facts.get("message") if facts is not None else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if facts is None or reader is None:
        raise MessageError(f"is no message of this version: {data[:80]!r}")
    try:
        return reader(facts)
    except _MissingError as error:
        raise MessageError(f"{kind}: {error}") from error


class _MissingError(Exception):
    """A field that a message must have."""


def _epoch(facts: Facts) -> Epoch:
    found = read_epoch(facts.get("epoch"))
    if found is None:
        raise _MissingError("epoch is missing or invalid")
    return found


def _float(facts: Facts, name: str) -> float:
    found = as_float(facts.get(name))
    if found is None:
        raise _MissingError(f"{name} is missing or no number")
    return found


def _int(facts: Facts, name: str, maximum: int) -> int:
    found = as_int(facts.get(name), maximum=maximum)
    if found is None:
        raise _MissingError(f"{name} is missing or not from 0 to {maximum}")
    return found


def _text(facts: Facts, name: str) -> str:
    found = as_text(facts.get(name))
    if found is None:
        raise _MissingError(f"{name} is missing")
    return found


def _reason(facts: Facts) -> str:
    return as_message(facts.get("reason"), REASON_CHARS_MAX) or "no reason given"


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def read_rank_evidence(value: object) -> RankEvidence | None:
    """Return the evidence of a rank as another node sent it; None where it names no rank."""
    facts = as_dict(value)
    node, rank = as_text(facts.get("node")), as_int(facts.get("rank"), maximum=RANK_MAX)
    if node is None or rank is None:
        return None
    return RankEvidence(
        node=node,
        rank=rank,
        reachable=_bool(facts.get("reachable")) is not False,
        fault=as_text(facts.get("fault")),
        killed_by=as_text(facts.get("killed_by")),
        exception=as_message(facts.get("exception"), REASON_CHARS_MAX),
        communication=_bool(facts.get("communication")) is True,
        ended_at_s=as_float(facts.get("ended_at_s")),
        offset_error_s=as_float(facts.get("offset_error_s"), 0.0) or 0.0,
        process_state=as_text(facts.get("process_state"), 1),
        group=as_text(facts.get("group")) or "world",
        sequence=as_int(facts.get("sequence")),
        collective=as_int(facts.get("collective")),
        in_collective=_bool(facts.get("in_collective")),
        stack=as_message(facts.get("stack"), REASON_CHARS_MAX),
        slow_windows=as_int(facts.get("slow_windows"), maximum=COUNT_MAX) or 0,
    )


def _read_evidence(facts: Facts) -> EvidenceTaken:
    ranks = (read_rank_evidence(item) for item in as_list(facts.get("ranks"), RANKS_MAX))
    return EvidenceTaken(
        epoch=_epoch(facts),
        took_s=_float(facts, "took_s"),
        ranks=tuple(rank for rank in ranks if rank is not None),
        folder=as_message(facts.get("folder"), REASON_CHARS_MAX),
    )


def _read_joined(facts: Facts) -> Joined:
    running, ordered = read_epoch(facts.get("running")), read_epoch(facts.get("ordered"))
    return Joined(
        running=running,
        ordered=ordered,
        host=_text(facts, "host"),
        unix_s=_float(facts, "unix_s"),
        instance=as_text(facts.get("instance")) or "",
    )


def _read_node_beat(facts: Facts) -> NodeBeat:
    ranks = (as_int(item, maximum=RANK_MAX) for item in as_list(facts.get("ranks"), RANKS_MAX))
    return NodeBeat(
        sent_s=_float(facts, "sent_s"),
        steps=as_int(facts.get("steps")),
        counts_itself=_bool(facts.get("counts_itself")) is True,
        ranks=tuple(rank for rank in ranks if rank is not None),
        storage_wait=as_message(facts.get("storage_wait"), WAIT_CHARS_MAX),
        epoch=read_epoch(facts.get("epoch")),
        stage=_read_peer_stage(facts.get("stage")),
        warnings=_read_warnings(facts.get("warnings")),
    )


def _read_peer_stage(value: object) -> PeerStage | None:
    """Return a stage; None for anything else, and for one that only a later version knows."""
    facts = as_dict(value)
    name, lasted_s = as_text(facts.get("stage")), as_float(facts.get("lasted_s"), 0.0, LASTED_S_MAX)
    stage = next((stage for stage in Stage if stage.value == name), None)
    if stage is None or lasted_s is None:
        return None
    return PeerStage(stage=stage, lasted_s=lasted_s, stepped=_bool(facts.get("stepped")) is True)


def _read_warnings(value: object) -> tuple[NodeWarning, ...]:
    found = (_read_warning(as_dict(item)) for item in as_list(value, WARNINGS_MAX))
    return tuple(warning for warning in found if warning is not None)


def _read_warning(facts: Facts) -> NodeWarning | None:
    number, ago_s = as_int(facts.get("number"), 1, COUNT_MAX), as_float(facts.get("ago_s"), 0.0, LASTED_S_MAX)
    rule, text = as_text(facts.get("rule")), as_message(facts.get("text"), WAIT_CHARS_MAX)
    if number is None or ago_s is None or rule is None or text is None:
        return None
    return NodeWarning(number=number, rule=rule, text=text, ago_s=ago_s, launch=as_text(facts.get("launch")) or "")


def _read_leader_beat(facts: Facts) -> LeaderBeat:
    waits = (_read_peer_wait(item) for item in as_list(facts.get("peer_waits"), NAMED_MAX))
    return LeaderBeat(
        echo_s=_float(facts, "echo_s"),
        now_s=_float(facts, "now_s"),
        lease_s=_float(facts, "lease_s"),
        peer_waits=tuple(wait for wait in waits if wait is not None),
        peer_stage=_read_peer_stage(facts.get("peer_stage")),
        warned=as_int(facts.get("warned"), maximum=COUNT_MAX),
    )


def _read_peer_wait(value: object) -> PeerWait | None:
    facts = as_dict(value)
    node, words = as_text(facts.get("node")), as_message(facts.get("words"), WAIT_CHARS_MAX)
    return None if node is None or words is None else PeerWait(node=node, words=words)


def _read_launch(facts: Facts) -> Launch:
    return Launch(
        epoch=_epoch(facts),
        node_rank=_int(facts, "node_rank", RANK_MAX),
        nodes=_int(facts, "nodes", RANK_MAX),
        host=_text(facts, "host"),
        port=_int(facts, "port", PORT_MAX),
        resume_from=as_text(facts.get("resume_from"), PATH_CHARS_MAX),
        resume_digest=as_text(facts.get("resume_digest")),
        loads_itself=_bool(facts.get("loads_itself")) is True,
    )


def _read_find_resume(facts: Facts) -> FindResume:
    return FindResume(
        number=_int(facts, "number", COUNT_MAX),
        share=_int(facts, "share", RANK_MAX),
        shares=_int(facts, "shares", RANK_MAX),
        rejected=_read_names(facts.get("rejected")),
        passed_over=_read_names(facts.get("passed_over")),
        since_unix_s=as_float(facts.get("since_unix_s"), 0.0, UNIX_S_MAX) or 0.0,
    )


def _read_names(value: object) -> tuple[str, ...]:
    names = (as_text(item, PATH_CHARS_MAX) for item in as_list(value, OFFERS_MAX))
    return tuple(name for name in names if name is not None)


def read_offer(value: object) -> Offer | None:
    """Return what a node offers to resume from; None where it has no name or digest."""
    facts = as_dict(value)
    name, digest = as_text(facts.get("name"), PATH_CHARS_MAX), as_text(facts.get("digest"))
    if name is None or digest is None:
        return None
    numbers = [as_int(item) for item in as_list(facts.get("epoch"), EPOCH_NUMBERS_MAX)]
    return Offer(
        name=name,
        digest=digest,
        epoch=tuple(number for number in numbers if number is not None),
        step=as_int(facts.get("step"), maximum=STEP_MAX),
        saved_unix_s=as_float(facts.get("saved_unix_s"), 0.0, UNIX_S_MAX) or 0.0,
        proven=_bool(facts.get("proven")),
        reason=as_message(facts.get("reason"), REASON_CHARS_MAX),
        loads_itself=_bool(facts.get("loads_itself")) is True,
    )


def _read_resume_offers(facts: Facts) -> ResumeOffers:
    offers = (read_offer(item) for item in as_list(facts.get("offers"), OFFERS_MAX))
    return ResumeOffers(
        number=_int(facts, "number", COUNT_MAX),
        offers=tuple(offer for offer in offers if offer is not None),
        problem=as_message(facts.get("problem"), REASON_CHARS_MAX),
    )


_READERS: dict[str, Callable[[Facts], Message]] = {
    "Joined": _read_joined,
    "NodeBeat": _read_node_beat,
    "Fault": lambda facts: Fault(
        epoch=_epoch(facts),
        kind=_text(facts, "kind"),
        reason=_reason(facts),
        rank=as_int(facts.get("rank"), maximum=RANK_MAX),
        killed_by=as_text(facts.get("killed_by")),
    ),
    "EvidenceTaken": _read_evidence,
    "Stopped": lambda facts: Stopped(
        epoch=_epoch(facts),
        unkillable=_bool(facts.get("unkillable")) is True,
        waits=as_message(facts.get("waits"), REASON_CHARS_MAX),
    ),
    "Finished": lambda facts: Finished(epoch=_epoch(facts)),
    "ResumeOffers": _read_resume_offers,
    "FindResume": _read_find_resume,
    "LeaderBeat": _read_leader_beat,
    "Refused": lambda facts: Refused(reason=_reason(facts)),
    "Launch": _read_launch,
    "Collect": lambda facts: Collect(
        epoch=_epoch(facts),
        limit_s=_float(facts, "limit_s"),
        incident=_text(facts, "incident"),
        waits_count=_bool(facts.get("waits_count")) is not False,
    ),
    "Stop": lambda facts: Stop(epoch=_epoch(facts), reason=_reason(facts)),
    "Leave": lambda facts: Leave(reason=_reason(facts), finished=_bool(facts.get("finished")) is True),
}
