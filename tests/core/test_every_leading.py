"""A training on several nodes, word for word: what its leader orders, whom it names, and what a link refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.culprit import name_culprit
from supervisor.core.fleet.epoch import Epoch, check_job
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.ladder import Fleet, FleetLimits, choose_restart
from supervisor.core.fleet.launch_progress import LaunchProgress
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.link import (
    GREETING_BYTES_MAX,
    MAC_BYTES,
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    Role,
    encode_greeting,
)
from supervisor.core.fleet.peer_stage import LaunchStage
from supervisor.core.fleet.peer_waits import PeerWaits
from supervisor.core.fleet.resume_question import ResumeQuestion
from supervisor.core.fleet.training import Command, Known, LeaderLimits, Record, Send, incident_facts

from .test_fleet_culprit import ranks as waiting_ranks
from .test_fleet_leading import BEGAN_S, LIMITS, Nodes, generation
from .test_fleet_link import NODE, leader, node, pair, take
from .transcripts import read, show

REQUEUES = replace(LIMITS, fleet=FleetLimits(may_requeue=True))


EPOCH = re.compile(r"epoch=Epoch\(job=(\w+), engine_restarts=(\d+), relaunch=(\d+)\)")


def write(message: ms.Message) -> str:
    """Return a message in one line, its epoch as people read it."""
    return EPOCH.sub(r"epoch=\1.\2.\3", show(message))


@dataclass
class Scribe(Nodes):
    """Nodes whose leader's commands are written down, each with its time."""

    lines: list[str] = field(default_factory=list)

    @property
    def clock(self) -> str:
        """The time since the story began."""
        return f"{self.now_s - BEGAN_S:4.1f} s"

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(message=ms.LeaderBeat()):
                    pass
                case Send():
                    self.lines.append(f"  {self.clock}  to {command.node}: {write(command.message)}")
                case Record():
                    what = "closed" if command.closed else "opened"
                    self.lines.append(f"  {self.clock}  {what} {show(incident_facts(command.incident))}")
                case _:
                    self.lines.append(f"  {self.clock}  {show(command)}")
        super().do(commands)

    def succeed(self, relaunch: int, *, live: bool = True) -> None:
        """Another leader takes over, and knows this launch as the last."""
        self.lines.append(f"  {self.clock}  the leader is replaced")
        self.leading = Leading(Epoch("run", 0, relaunch), LIMITS, self.now_s, self.leading.fleet, is_live=live)

    def lose_ranks(self, *names: str) -> None:
        for name in names:
            self.running[name] = None


def begin(limits: LeaderLimits = LIMITS, *names: str, kind: type[Scribe] = Scribe) -> Scribe:
    """Nodes that were launched."""
    nodes = kind(Leading(Epoch("run", 0, 0), limits, BEGAN_S))
    nodes.join(*(names or ("n0", "n1")))
    nodes.wait(0.2)
    return nodes


def killed() -> Scribe:
    nodes = begin()
    nodes.facts[1] = {"killed_by": "SIGKILL", "ended_at_s": 5.0}
    nodes.facts[2] = {"exception": "RuntimeError: Connection closed by peer", "communication": True}
    nodes.fault("n0")
    nodes.wait(0.3)
    return nodes


def two_reports() -> Scribe:
    nodes = begin()
    epoch = nodes.running["n1"]
    assert epoch is not None
    nodes.silent.update({"n0", "n1"})
    nodes.fault("n0")
    nodes.wait(0.2)
    nodes.tell("n1", ms.Fault(epoch=epoch, kind="rank_exit", reason="rank 2 exited with status 1", rank=2))
    nodes.silent.clear()
    nodes.wait(1.5)
    return nodes


def cut_off(*names: str) -> Scribe:
    nodes = begin(LIMITS, *names) if names else begin()
    nodes.silent.add("n1")
    nodes.wait(8.0)
    nodes.join("n1")
    nodes.wait(1.0)
    return nodes


def requeued() -> Scribe:
    nodes = begin(REQUEUES)
    nodes.silent.add("n1")
    nodes.wait(8.0)
    return nodes


def left_without(relaunch: int, ended: tuple[str, ...], *, live: bool = True) -> Scribe:
    """Another leader finds that these nodes' ranks have ended."""
    nodes = begin()
    nodes.succeed(relaunch, live=live)
    nodes.lose_ranks(*ended)
    nodes.join("n0", "n1")
    nodes.wait(6.0)
    return nodes


def of_an_earlier_launch() -> Scribe:
    nodes = begin()
    nodes.silent.add("n1")
    nodes.leading.disconnected("n1")
    earlier = nodes.running["n1"]
    nodes.wait(8.0)
    nodes.running["n1"] = earlier
    nodes.join("n1")
    nodes.wait(0.5)
    return nodes


def daemon_killed() -> Scribe:
    nodes = begin()
    nodes.leading.disconnected("n1")
    nodes.lose_ranks("n1")
    nodes.join("n1")
    nodes.wait(1.0)
    return nodes


def unkillable() -> Scribe:
    nodes = begin(REQUEUES)
    nodes.stuck.add("n1")
    nodes.fault("n0")
    nodes.wait(12.0)
    return nodes


def unkillable_with_reason() -> Scribe:
    nodes = begin(REQUEUES)
    nodes.stuck.add("n1")
    nodes.fault("n0")
    nodes.wait(8.0)
    epoch = nodes.running["n1"]
    assert epoch is not None
    waits = "process 7 (rank) waits in request_wait_answer: for a file system"
    nodes.tell("n1", ms.Stopped(epoch=epoch, unkillable=True, waits=waits))
    nodes.wait(4.0)
    return nodes


def again_and_again(*, progress: bool) -> Scribe:
    """The same fault four times, of which three in a row without progress end the training."""
    nodes = begin(replace(LIMITS, fleet=FleetLimits(restarts_per_cause=3, may_requeue=False)))
    nodes.leading.progress.steps = 10
    for rank in range(4):
        nodes.facts[rank] = {"exception": "ValueError: the same everywhere"}
    for number in range(4):
        nodes.fault("n0")
        nodes.wait(16.0)
        if progress and number == 1:
            nodes.tell("n0", ms.NodeBeat(sent_s=nodes.now_s, steps=20))
    return nodes


def finished() -> Scribe:
    nodes = begin()
    for name in ("n0", "n1"):
        epoch = nodes.running[name]
        assert epoch is not None
        nodes.lose_ranks(name)
        nodes.tell(name, ms.Finished(epoch=epoch))
    return nodes


def stopped() -> Scribe:
    nodes = begin()
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    return nodes


def too_few(*names: str) -> Scribe:
    nodes = Scribe(Leading(Epoch("run", 0, 0), replace(LIMITS, gather_s=5.0), BEGAN_S))
    nodes.join(*names)
    nodes.wait(6.0)
    return nodes


def left_within_an_incident(*back: str) -> Scribe:
    """Another leader takes an open incident up, and these nodes are back."""
    nodes = begin()
    nodes.silent.update({"n0", "n1"})
    nodes.fault("n0")
    known = Known(
        epoch=nodes.leading.epoch, fleet=nodes.leading.fleet, incident=nodes.records[-1].incident, incidents=1
    )
    nodes.leading = Leading.take_over(known, LIMITS, nodes.now_s)
    nodes.join(*back)
    nodes.wait(6.0)
    return nodes


class OneByOne(Scribe):
    """Nodes that prove the newest state that is neither rejected nor passed over, and look no further."""

    def obey(self, name: str, message: ms.Message) -> None:
        if not isinstance(message, ms.FindResume):
            super().obey(name, message)
            return
        left = [offer for offer in self.saved.get(name, ()) if offer.name not in message.rejected]
        first = min(left, key=lambda offer: offer.name in message.passed_over, default=None)
        offers = tuple(offer if offer is first else replace(offer, proven=None) for offer in self.saved.get(name, ()))
        self.tell(name, ms.ResumeOffers(number=message.number, offers=offers))


def choosing() -> Scribe:
    """After a fault the newest of three states brought no step twice, and n1 finds the next one damaged."""
    nodes = begin(LIMITS, kind=OneByOne)
    nodes.leading.progress.steps, nodes.leading.progress.fruitless = 1000, {"step-000000000030": 2}
    nodes.made, nodes.leading.began_unix_s = 1000, 1.8e9  # no step beyond those that are known
    saved = tuple(generation(step) for step in (30, 20, 10))
    nodes.saved = {"n0": saved, "n1": (saved[0], replace(saved[1], proven=False, reason="damaged"), saved[2])}
    nodes.fault("n0")
    nodes.wait(0.3)
    return nodes


STORIES: dict[str, Callable[[], Scribe]] = {
    "a rank is killed": killed,
    "two nodes report": two_reports,
    "a node is cut off": cut_off,
    "a node is cut off, and a spare is there": lambda: cut_off("n0", "n1", "n2"),
    "a node is cut off, and the engine requeues": requeued,
    "no leader, and all ranks ended": lambda: left_without(1, ("n0", "n1")),
    "no leader, and the ranks of a node ended": lambda: left_without(1, ("n1",)),
    "no leader, and it had not written down its launch": lambda: left_without(0, ()),
    "no leader, of a training that was over": lambda: left_without(1, ("n0", "n1"), live=False),
    "a node comes back with an earlier launch": of_an_earlier_launch,
    "the daemon of a node is killed": daemon_killed,
    "SIGKILL does not end a process": unkillable,
    "SIGKILL does not end a process, and its node says what that waits for": unkillable_with_reason,
    "the same fault again and again": lambda: again_and_again(progress=False),
    "the same fault, and progress between": lambda: again_and_again(progress=True),
    "finished": finished,
    "stopped by its user": stopped,
    "the leader is killed within an incident, and all nodes are back": lambda: left_within_an_incident("n0", "n1"),
    "the leader is killed within an incident, and a node is lost with it": lambda: left_within_an_incident("n0"),
    "states to resume from are asked for until one is proven by all": choosing,
    "one node of two comes": lambda: too_few("n0"),
    "no node comes": too_few,
}


def describe_state(leading: Leading) -> str:
    """Return what a leader holds at the end of a story, apart from its settings."""
    held: dict[str, Any] = {}
    for name, value in vars(leading).items():
        if isinstance(value, ResumeQuestion):
            asked = vars(value)
            held |= {"questions": value.number, "rejected": asked["_rejected"], "offers": asked["_answers"]}
            held["ask_at_s"] = asked["_again_at_s"]
        elif isinstance(value, LaunchProgress):
            held |= {name.lstrip("_"): known for name, known in vars(value).items()}
            held["newest"] = None if value.resumed is held["newest"] else held["newest"]
        elif isinstance(value, LaunchStage):
            held["peer_stage"] = vars(value)["_newest"]
        elif isinstance(value, PeerWaits):
            held["peer_waits"] = vars(value)["_waits"]
        else:
            held[name.lstrip("_")] = value
    for name in ("epoch", "fence", "limits", "stage", "fleet", "incident", "unfinished", "ticked_s", "back_s"):
        del held[name]
    held |= {name: sorted(held[name]) for name in ("answered", "rejected", "offers")}
    members = {name: show(member) for name, member in held.pop("members").items()}
    facts = [f"{name} {show(value)}" for name, value in held.items() if value not in (None, {}, [])]
    return "\n    ".join([", ".join(facts), *(f"{name}: {EPOCH.sub('', text)}" for name, text in members.items())])


def tell_leading() -> str:
    """Return every story."""
    parts = []
    for title, play in STORIES.items():
        nodes = play()
        fleet = f"  then {nodes.leading.stage.value}, {nodes.leading.epoch}, {show(nodes.leading.fleet)}"
        parts.append("\n".join([title, *nodes.lines, fleet, f"    {describe_state(nodes.leading)}", ""]))
    return "\n".join(parts)


# --- who is named, and what follows -------------------------------------------------------------------------------


def found(nodes: int, **ranks: object) -> list[RankEvidence]:
    """Ranks of which these differ, as `r3={...}`; all others wait in the same collective."""
    evidence = waiting_ranks(nodes)
    for name, facts in ranks.items():
        number = int(name[1:])
        evidence[number] = replace(evidence[number], **facts)  # type: ignore[arg-type]  # a story's facts
    return evidence


def all_ended(*at_s: float, **facts: object) -> list[RankEvidence]:
    """Every rank of three nodes has ended at its time, by a clock that is 10 ms off."""
    ended = [{"ended_at_s": second, "offset_error_s": 0.01, **facts} for second in at_s]
    return found(len(at_s) // 2, **{f"r{number}": entry for number, entry in enumerate(ended)})


def counted(*numbers: int | None) -> list[RankEvidence]:
    """Ranks that have begun so many collectives."""
    evidence = waiting_ranks((len(numbers) + 1) // 2)
    return [replace(rank, sequence=number) for rank, number in zip(evidence, numbers, strict=True)]


GONE: dict[str, object] = {"reachable": False}
EVIDENCE = {
    "nothing": found(3),
    "a node does not answer": found(4, r2=GONE, r3=GONE),
    "half of the nodes do not answer": found(2, r2=GONE, r3=GONE),
    "most nodes do not answer": found(3, r0=GONE, r1=GONE, r2=GONE, r3=GONE),
    "faults of two nodes": found(3, r0={"fault": "gpu_hang"}, r5={"fault": "ecc"}),
    "a fault of one node": found(3, r5={"fault": "ecc"}),
    "all wait in the kernel": found(1, r0={"process_state": "D"}, r1={"process_state": "D"}),
    "one waits in the kernel": found(2, r1={"process_state": "D"}),
    "one is stopped": found(2, r1={"process_state": "T"}),
    "one ended": found(2, r1={"exception": "ValueError: x"}),
    "one ended without a reason": found(2, r1={"killed_by": "SIGBUS"}),
    "all ended alike": all_ended(1.0, 2.0, 3.0, 4.0, exception="ValueError: x"),
    "all ended, one clearly first": found(
        2,
        r0={"killed_by": "SIGSEGV", "ended_at_s": 2.0},
        r2={"exception": "ValueError: x", "ended_at_s": 1.0, "offset_error_s": 0.5},
    ),
    "ended within the error of clocks": found(
        2,
        r0={"killed_by": "SIGSEGV", "ended_at_s": 2.0, "offset_error_s": 0.5},
        r2={"exception": "ValueError: x", "ended_at_s": 1.0, "offset_error_s": 0.5},
    ),
    "ended on one node": found(
        2, r0={"killed_by": "SIGSEGV", "ended_at_s": 2.0}, r1={"exception": "ValueError: x", "ended_at_s": 1.999}
    ),
    "ended at a time that is not known": found(2, r0={"killed_by": "SIGSEGV"}, r2={"exception": "ValueError: x"}),
    "only lost peers": found(2, r0={"exception": "closed by peer", "communication": True}),
    "one is behind": found(3, r3={"collective": 99}),
    "two are behind": found(3, r2={"collective": 99}, r3={"collective": 99}),
    "one has begun fewer collectives": counted(7, 7, 7, 6),
    "one has begun more collectives": counted(7, 7, 7, 8),
    "one of two has begun fewer collectives": counted(7, 6),
    "the collectives of one are not known": counted(7, None, 7, 7),
    "one is behind in another group": found(
        3, r3={"collective": 9, "group": "tp"}, r2={"collective": 8, "group": "tp"}
    ),
    "one is alone in its group": found(3, r3={"collective": 9, "group": "tp"}),
    "one is outside": found(3, r3={"in_collective": False}),
    "it is not known who is outside": found(3, r3={"in_collective": False}, r4={"in_collective": None}),
    "another stack": found(3, r3={"stack": "read_image", "collective": None}),
    "two stacks of two ranks": found(1, r1={"stack": "read_image", "in_collective": None}),
    "stacks without a usual one": found(2, r2={"stack": "a"}, r3={"stack": "b"}),
    "one was slow": found(3, r3={"slow_windows": 5}),
    "one was slow for less": found(3, r3={"slow_windows": 4}),
    "most were slow": found(1, r0={"slow_windows": 9}, r1={"slow_windows": 9}),
    "two nodes were slow": found(3, r1={"slow_windows": 9}, r3={"slow_windows": 8}),
}
FLEETS = {
    "alone": (Fleet(nodes=("n0", "n1", "n2")), FleetLimits(may_requeue=False)),
    "spare": (Fleet(nodes=("n0", "n1", "n2"), spares=("s0", "s1")), FleetLimits(may_requeue=False)),
    "named before": (Fleet(nodes=("n0", "n1", "n2"), named_at_s={"n1": (60.0,), "n0": (60.0,)}), FleetLimits()),
    "named long ago": (Fleet(nodes=("n0", "n1", "n2"), named_at_s={"n1": (-90_000.0,)}), FleetLimits()),
    "too often": (Fleet(nodes=("n0", "n1", "n2"), same_restarts=20), FleetLimits()),
}


def tell_culprits() -> str:
    """Return whom each evidence names, and how the training is started again with each fleet; 100 s into it."""
    lines = []
    for title, evidence in EVIDENCE.items():
        culprit = name_culprit(evidence)
        lines += [title, f"  {show(culprit)}"]
        for name, (fleet, limits) in FLEETS.items():
            restart = choose_restart(culprit, fleet, 100.0, limits)
            held = ", ".join(sorted(restart.fleet.excluded))
            after = replace(restart.fleet, excluded=frozenset())
            lines.append(f"    {name}: {show(replace(restart, fleet=after))}" + (f" excluded: {held}" if held else ""))
    return "\n".join(lines) + "\n"


# --- what a link refuses ------------------------------------------------------------------------------------------


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def greeted(**changes: object) -> bytes:
    """The greeting of a node of which something is otherwise."""
    return framed(json.dumps(json.loads(encode_greeting(Role.NODE, NODE, b"x" * NONCE_BYTES)) | changes).encode())


def send_twice() -> None:
    a, b = pair()
    a.send(b"x")
    sent = take(a)
    list(b.feed(sent + sent))


REFUSALS: dict[str, Callable[[], object]] = {
    "a short secret": lambda: node(secret=b"short"),
    "a short nonce": lambda: node(nonce=b"n"),
    "a name that is none": lambda: check_job("a/b"),
    "HTTP": lambda: list(node().feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
    "no object": lambda: list(leader().feed(framed(b"[]"))),
    "another protocol": lambda: list(leader().feed(greeted(protocol=2))),
    "another role": lambda: list(leader().feed(greeted(role="leader"))),
    "no name": lambda: list(leader().feed(greeted(name=""))),
    "no nonce": lambda: list(leader().feed(greeted(nonce=None))),
    "another training": lambda: list(leader().feed(greeted(job="other"))),
    "another secret": lambda: list(leader().feed(greeted() + framed(b"proof"))),
    "a long greeting": lambda: list(leader().feed((GREETING_BYTES_MAX + 1).to_bytes(4, "big"))),
    "a long message": lambda: list(pair()[1].feed((MESSAGE_BYTES_MAX + MAC_BYTES + 1).to_bytes(4, "big"))),
    "a long message to be sent": lambda: pair()[0].send(b"x" * (MESSAGE_BYTES_MAX + 1)),
    "sent before the proof": lambda: node().send(b"x"),
    "repeated": send_twice,
    "no message": lambda: ms.decode(b"{}"),
    "a message without an epoch": lambda: ms.decode(b'{"message": "Finished"}'),
    "a message without a number": lambda: ms.decode(b'{"message": "NodeBeat"}'),
    "a rank beyond all": lambda: ms.decode(b'{"message": "Launch", "epoch": "run.1.2", "node_rank": -1}'),
    "a message without a text": lambda: ms.decode(b'{"message": "Fault", "epoch": "run.1.2"}'),
}


def tell_refusals() -> str:
    """Return what each refusal says."""
    lines = []
    for title, act in REFUSALS.items():
        with pytest.raises((ValueError, ms.MessageError)) as refused:
            act()
        lines.append(f"{title}: {refused.value}")
    return "\n".join(lines) + "\n"


TRANSCRIPTS = {"leading": tell_leading, "culprits": tell_culprits, "refusals": tell_refusals}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_story_reads_as_it_was_reviewed(name: str) -> None:
    assert TRANSCRIPTS[name]() == read(name)
