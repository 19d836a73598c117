"""The leader of a training on several nodes: one incident, evidence before the end, epochs that only grow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.culprit import Proof
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.ladder import FleetLimits, Rung
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.lease import Lease
from supervisor.core.fleet.resume import Offer
from supervisor.core.fleet.training import Command, Known, LeaderLimits, Over, Record, Requeue, Send, Stage
from tests.rigs.declared import check_declared

SAME_AT_ONCE = FleetLimits(may_requeue=False, backoff_s=())
BEGAN_S = 1000.0
"""On the leader's clock, which no training begins at 0 of."""
LIMITS = LeaderLimits(nodes=2, lease_s=2.0, lease_margin_s=0.5, spares_s=0.0, fleet=SAME_AT_ONCE)


@dataclass
class Nodes:
    """Nodes as the leader sees them, and the clock; each has two ranks, and does what it is ordered."""

    leading: Leading
    now_s: float = BEGAN_S
    running: dict[str, Epoch | None] = field(default_factory=dict)
    ordered: dict[str, Epoch] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    quiet_since_s: dict[str, float] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    """Whose ranks SIGKILL does not end."""
    facts: dict[int, dict[str, object]] = field(default_factory=dict)
    """What the evidence of a rank says."""
    made: int = 1
    """The step that all ranks have reached."""
    shows_steps: bool = True
    counts_itself: bool = False
    """Whether rank 0 does not know where in the training its process began."""
    saved: dict[str, tuple[Offer, ...]] = field(default_factory=dict)
    """What lies on each node to resume from, newest first."""
    blind: dict[str, str] = field(default_factory=dict)
    """Why a node cannot look."""
    records: list[Record] = field(default_factory=list)
    launches: list[ms.Launch] = field(default_factory=list)
    requeues: list[Requeue] = field(default_factory=list)
    overs: list[Over] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """The kinds of messages that were sent, in their order."""

    def join(self, *names: str, instance: str = "") -> None:
        for name in names:
            self.silent.discard(name)
            self.quiet_since_s.pop(name, None)
            self.running.setdefault(name, None)
            joined = ms.Joined(
                running=self.running[name],
                ordered=self.ordered.get(name),
                host=f"10.0.0.{name[1:]}",
                unix_s=0.0,
                instance=instance,
            )
            self.do(self.leading.joined(name, joined, self.now_s))

    def do(self, commands: list[Command]) -> None:
        if not all(isinstance(command, Send) and isinstance(command.message, ms.LeaderBeat) for command in commands):
            for value in (*commands, *self.leading.members.values(), self.leading.fleet, self.leading.incident):
                check_declared(value)
        for command in commands:
            match command:
                case Send():
                    self.order.append(type(command.message).__name__)
                case Record():
                    self.records.append(command)
                case Requeue():
                    self.requeues.append(command)
                case Over():
                    self.overs.append(command)
        for command in commands:
            if isinstance(command, Send) and command.node not in self.silent:
                self.obey(command.node, command.message)

    def obey(self, name: str, message: ms.Message) -> None:
        match message:
            case ms.Launch():
                assert self.running[name] is None, "a second launch beside the first"
                assert message.epoch.is_newer_than(self.ordered.get(name))
                self.running[name] = self.ordered[name] = message.epoch
                self.launches.append(message)
            case ms.FindResume():
                assert all(running is None for running in self.running.values()), "a rank may still write"
                if name in self.blind:
                    self.tell(name, ms.ResumeOffers(number=message.number, problem=self.blind[name]))
                    return
                offers = tuple(
                    replace(offer, proven=None) if offer.name in message.rejected else offer
                    for offer in self.saved.get(name, ())
                )
                self.tell(name, ms.ResumeOffers(number=message.number, offers=offers))
            case ms.Collect():
                first = 2 * int(name[1:]) if self.ordered.get(name) == message.epoch else None
                ranks = () if first is None else tuple(self.describe(name, rank) for rank in (first, first + 1))
                self.tell(name, ms.EvidenceTaken(epoch=message.epoch, took_s=0.1, ranks=ranks))
            case ms.Stop() if name not in self.stuck:
                self.running[name] = None
                self.tell(name, ms.Stopped(epoch=message.epoch))
            case _:
                pass

    def describe(self, name: str, rank: int) -> RankEvidence:
        return replace(RankEvidence(node=name, rank=rank), **self.facts.get(rank, {}))  # type: ignore[arg-type]  # a story's facts

    def tell(self, name: str, message: ms.Message) -> None:
        self.do(self.leading.took(name, message, self.now_s))

    def fault(self, name: str, reason: str = "rank 1 killed by SIGKILL", killed_by: str | None = None) -> None:
        epoch = self.running[name]
        assert epoch is not None
        self.tell(name, ms.Fault(epoch=epoch, kind="rank_exit", reason=reason, rank=1, killed_by=killed_by))

    def wait(self, seconds: float) -> None:
        """Let time pass, in which every node that is there beats."""
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            for name, running in self.running.items():
                if name not in self.silent:
                    steps = self.made if running and self.shows_steps and not self.counts_itself else None
                    itself = self.counts_itself and running is not None and name == "n0"
                    self.tell(name, ms.NodeBeat(sent_s=self.now_s, steps=steps, counts_itself=itself))
                elif running is not None and name not in self.stuck and self.lease_is_over(name):
                    self.running[name] = None
            self.do(self.leading.tick(self.now_s))

    def lease_is_over(self, name: str) -> bool:
        """A node that is cut off ends its ranks by its own clock."""
        return self.now_s - self.quiet_since_s.setdefault(name, self.now_s) >= LIMITS.lease_s


def begun(limits: LeaderLimits = LIMITS, *names: str) -> Nodes:
    nodes = Nodes(Leading(Epoch("run", 0, 0), limits, BEGAN_S))
    nodes.join(*(names or ("n0", "n1")))
    nodes.wait(0.2)
    assert nodes.leading.stage is Stage.RUNNING
    return nodes


def test_all_nodes_are_launched_as_one_with_places_of_their_own() -> None:
    nodes = begun()
    assert [(order.node_rank, order.nodes, order.host) for order in nodes.launches] == [
        (0, 2, "10.0.0.0"),
        (1, 2, "10.0.0.0"),
    ]
    assert {str(order.epoch) for order in nodes.launches} == {"run.0.1"}


def test_a_beat_is_answered_with_its_own_time_the_leaders_clock_and_the_lease() -> None:
    """By the three a node knows until when it may run, and how far its clock is off."""
    nodes = begun()
    answer = nodes.leading.took("n1", ms.NodeBeat(sent_s=7.0), nodes.now_s)
    assert answer == [Send(node="n1", message=ms.LeaderBeat(echo_s=7.0, now_s=nodes.now_s, lease_s=2.0, warned=0))]


def test_a_killed_rank_is_one_incident_evidence_first_then_the_end_then_a_new_epoch() -> None:
    nodes = begun()
    nodes.facts[1] = {"killed_by": "SIGKILL", "ended_at_s": 5.0}
    nodes.facts[2] = {"exception": "RuntimeError: Connection closed by peer", "communication": True}
    nodes.order.clear()
    nodes.fault("n0")
    nodes.wait(0.3)
    kinds = [kind for kind in nodes.order if kind != "LeaderBeat"]
    assert kinds == ["Collect", "Collect", "Stop", "Stop", "FindResume", "FindResume", "Launch", "Launch"]
    opened, closed = nodes.records
    assert (opened.closed, closed.closed, opened.incident.id) == (False, True, closed.incident.id)
    culprit = closed.incident.culprit
    assert culprit is not None
    assert (culprit.proof, culprit.ranks) == (Proof.PHYSICAL, (1,))
    assert closed.incident.rung is Rung.SAME_NODES
    assert closed.incident.excluded == ()
    assert [str(order.epoch) for order in nodes.launches[2:]] == ["run.0.2", "run.0.2"]


def test_without_time_for_evidence_all_ranks_are_ended_at_once_and_a_killed_one_is_named_all_the_same() -> None:
    nodes = begun(replace(LIMITS, evidence_s=0.0))
    nodes.order.clear()
    nodes.fault("n0", killed_by="SIGKILL")
    assert nodes.order[:2] == ["Stop", "Stop"], "in the moment of the fault"
    nodes.wait(0.3)
    assert "Collect" not in nodes.order
    opened, closed = nodes.records
    assert (opened.closed, closed.closed) == (False, True)
    assert closed.incident.culprit is not None
    assert closed.incident.culprit.ranks == (1,)
    assert nodes.leading.stage is Stage.RUNNING


def test_what_other_nodes_report_of_the_same_fault_is_a_witness_and_no_second_incident() -> None:
    nodes = begun()
    epoch = nodes.running["n1"]
    assert epoch is not None
    nodes.silent.update({"n0", "n1"})
    nodes.fault("n0")
    nodes.tell("n1", ms.Fault(epoch=epoch, kind="rank_exit", reason="rank 2 exited with status 1", rank=2))
    nodes.silent.clear()
    nodes.wait(1.5)
    nodes.tell("n1", ms.Fault(epoch=epoch, kind="rank_exit", reason="rank 3 exited with status 1", rank=3))
    closed = [record for record in nodes.records if record.closed]
    assert len(nodes.records) == 2
    assert len(closed) == 1
    assert closed[0].incident.witnesses[0].endswith("n1: rank_exit: rank 2 exited with status 1")
    assert nodes.leading.stage is Stage.RUNNING, "a fault of an earlier epoch is no fault of this one"


@pytest.mark.parametrize(("killed_by", "counts"), [("SIGKILL", False), ("SIGTERM", True), (None, True)])
def test_a_rank_that_was_killed_is_at_fault_so_no_time_is_spent_on_ranks_that_wait_in_the_kernel(
    killed_by: str | None, counts: bool
) -> None:
    """What a launcher, or a lost peer, can end a rank by leaves it open."""
    nodes = begun()
    epoch = nodes.running["n0"]
    assert epoch is not None
    fault = ms.Fault(epoch=epoch, kind="rank_exit", reason="rank 1 ended", rank=1, killed_by=killed_by)
    orders = [command.message for command in nodes.leading.took("n0", fault, nodes.now_s) if isinstance(command, Send)]
    assert [order.waits_count for order in orders if isinstance(order, ms.Collect)] == [counts, counts]


def test_a_node_whose_collecting_hangs_does_not_hold_up_the_end() -> None:
    nodes = begun()
    nodes.silent.add("n1")
    nodes.fault("n0")
    nodes.silent.discard("n1")
    nodes.wait(0.8)
    assert nodes.leading.stage is Stage.COLLECTING
    nodes.wait(0.4)
    assert [record.closed for record in nodes.records] == [False, True]
    assert nodes.records[1].incident.collected_s == pytest.approx(1.0, abs=0.11)


def test_a_node_that_is_cut_off_is_left_to_its_lease_and_a_spare_takes_its_place() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2", "n3")
    nodes = begun(replace(LIMITS, nodes=3), "n0", "n1", "n2", "n3")
    nodes.silent.add("n1")
    before = len(nodes.launches)
    nodes.wait(3.0)
    assert nodes.leading.stage is Stage.WAITING
    assert len(nodes.launches) == before, "the cut-off node may still write"
    nodes.wait(2.5)
    closed = nodes.records[-1].incident
    assert (closed.kind, closed.rung, closed.excluded, closed.taken) == ("node_lost", Rung.SPARE, ("n1",), ("n3",))
    assert sorted(name for name, epoch in nodes.running.items() if epoch == nodes.leading.epoch) == ["n0", "n2", "n3"]
    nodes.join("n1")
    nodes.wait(1.0)
    assert nodes.running["n1"] is None, "an excluded node does not come back"


def test_without_a_spare_a_lost_node_is_waited_for() -> None:
    nodes = begun()
    nodes.silent.add("n1")
    nodes.wait(8.0)
    assert nodes.leading.stage.value == "gathering"
    nodes.join("n1")
    nodes.wait(0.5)
    assert nodes.leading.stage is Stage.RUNNING
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_where_the_engine_requeues_a_lost_node_is_left_out() -> None:
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=True)))
    nodes.silent.add("n1")
    nodes.wait(8.0)
    assert [requeue.excluded for requeue in nodes.requeues] == [("n1",)]
    assert nodes.leading.stage is Stage.OVER


def requeued_without(lost: str) -> Nodes:
    """Return a training that was requeued while a lost node still has ranks."""
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=True)))
    nodes.silent.add(lost)
    wait_until(nodes, lambda: nodes.requeues)
    assert nodes.running[lost] is not None
    return nodes


def wait_until(nodes: Nodes, condition: Callable[[], object]) -> None:
    """Let time pass until a condition holds; fail after 20 s."""
    end_s = nodes.now_s + 20.0
    while not condition():
        assert nodes.now_s < end_s
        nodes.wait(0.1)


def next_leader(nodes: Nodes, ranks_until_s: float) -> None:
    """Have the leader of the requeued job take over."""
    known = Known(epoch=Epoch("run", 1, 0), is_live=False, ranks_until_s=ranks_until_s)
    nodes.leading = Leading.take_over(known, nodes.leading.limits, nodes.now_s)
    nodes.launches.clear()


def test_a_requeue_takes_its_time_while_the_lease_of_a_lost_node_runs_out_and_nothing_is_launched_before() -> None:
    nodes = requeued_without("n1")
    until_s = nodes.leading.ranks_until_s
    assert until_s == pytest.approx(nodes.now_s + LIMITS.fence_s)
    next_leader(nodes, until_s)
    nodes.join("n0", "n2")
    wait_until(nodes, lambda: nodes.launches)
    assert nodes.now_s == pytest.approx(until_s, abs=0.11)
    assert [str(order.epoch) for order in nodes.launches] == ["run.1.1", "run.1.1"]


@pytest.mark.parametrize("until_s", [math.inf, BEGAN_S + 1e6])
def test_a_leader_that_does_not_know_when_ranks_end_waits_for_a_lease_from_its_own_begin(until_s: float) -> None:
    nodes = requeued_without("n1")
    next_leader(nodes, until_s)
    began_s = nodes.now_s
    nodes.join("n0", "n2")
    wait_until(nodes, lambda: nodes.launches)
    assert nodes.now_s - began_s == pytest.approx(LIMITS.fence_s, abs=0.11)


def test_a_node_that_is_back_with_ranks_after_a_requeue_ends_them_before_others_begin() -> None:
    """Its link to the next leader renews its lease."""
    nodes = requeued_without("n1")
    next_leader(nodes, nodes.leading.ranks_until_s)
    nodes.join("n0", "n2")
    nodes.stuck.add("n1")
    nodes.join("n1")
    nodes.wait(LIMITS.fence_s + 2.0)
    assert not nodes.launches
    nodes.stuck.clear()
    nodes.running["n1"] = None
    nodes.tell("n1", ms.Stopped(epoch=Epoch("run", 0, 1)))
    nodes.wait(0.2)
    assert [str(order.epoch) for order in nodes.launches] == ["run.1.1", "run.1.1"]


def test_a_lost_node_is_replaced_by_a_spare_only_after_its_lease_where_a_requeue_is_allowed_too() -> None:
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=True)), "n0", "n1", "n2")
    nodes.silent.add("n1")
    nodes.wait(LIMITS.lease_s + 1.0)
    assert not any(record.closed for record in nodes.records), "it may be back, and its evidence counts"
    nodes.wait(5.0)
    assert [record.incident.rung for record in nodes.records if record.closed] == [Rung.SPARE]
    assert not nodes.requeues


def test_a_node_daemon_that_is_killed_and_started_again_is_one_incident() -> None:
    nodes = begun()
    nodes.leading.disconnected("n1")
    nodes.running["n1"] = None
    nodes.join("n1")
    nodes.wait(1.0)
    assert [(record.incident.kind, record.closed) for record in nodes.records] == [
        ("node_lost", False),
        ("node_lost", True),
    ]
    assert nodes.records[-1].incident.excluded == ()
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_a_lost_node_is_named_with_the_rank_that_it_last_reported() -> None:
    nodes = begun()
    nodes.tell("n1", ms.NodeBeat(sent_s=nodes.now_s, ranks=(8, 9)))
    nodes.wait(0.5)
    nodes.silent.add("n1")
    nodes.wait(8.0)
    culprit = nodes.records[-1].incident.culprit
    assert culprit is not None
    assert (culprit.nodes, culprit.ranks) == (("n1",), (8,)), "and not by the place of the node among the others"


def test_a_link_that_breaks_and_is_back_within_the_lease_costs_nothing() -> None:
    nodes = begun()
    nodes.leading.disconnected("n1")
    nodes.silent.add("n1")
    nodes.wait(1.0)
    nodes.join("n1")
    nodes.wait(5.0)
    assert nodes.records == []
    assert len(nodes.launches) == 2


def test_ranks_that_ended_while_there_was_no_leader_are_an_incident_too() -> None:
    nodes = begun()
    nodes.leading = Leading(Epoch("run", 0, 1), LIMITS, nodes.now_s, nodes.leading.fleet)
    nodes.running = {"n0": None, "n1": None}
    nodes.join("n0", "n1")
    nodes.wait(1.0)
    assert [(record.incident.kind, record.incident.id) for record in nodes.records] == [("no_leader", "run.0.1")]
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_a_training_that_had_ended_begins_again_without_an_incident() -> None:
    nodes = begun()
    nodes.leading = Leading(Epoch("run", 0, 1), LIMITS, nodes.now_s, nodes.leading.fleet, is_live=False)
    nodes.running = {"n0": None, "n1": None}
    nodes.join("n0", "n1")
    nodes.wait(1.0)
    assert nodes.records == []
    assert nodes.leading.epoch == Epoch("run", 0, 2)


@pytest.mark.parametrize("written_down", [0, 1])
def test_a_leader_that_was_killed_takes_up_the_training_as_it_runs(written_down: int) -> None:
    """Also where it died before it had written down what it had launched."""
    nodes = begun()
    nodes.leading = Leading(Epoch("run", 0, written_down), LIMITS, nodes.now_s)
    nodes.join("n0", "n1")
    nodes.wait(10.0)
    assert len(nodes.launches) == 2
    assert nodes.leading.stage is Stage.RUNNING
    nodes.fault("n0")
    nodes.wait(0.5)
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_leader_and_node_daemon_killed_together_are_one_incident_and_one_training() -> None:
    nodes = begun()
    fleet = nodes.leading.fleet
    nodes.running["n1"] = None
    nodes.leading = Leading(Epoch("run", 0, 1), LIMITS, nodes.now_s, fleet)
    nodes.join("n0", "n1")
    nodes.wait(6.0)
    assert [record.closed for record in nodes.records] == [False, True]
    assert nodes.records[0].incident.node == "n1"
    assert set(nodes.running.values()) == {Epoch("run", 0, 2)}


def take_over(nodes: Nodes, *, open_incident: bool, fence: int = 0, is_finished: bool = False) -> None:
    """Another leader begins with what the one before it had written down."""
    before = nodes.leading
    nodes.leading = Leading.take_over(
        Known(
            epoch=before.epoch,
            fleet=before.fleet,
            incident=nodes.records[-1].incident if open_incident else None,
            incidents=before.incidents,
            fence=fence,
            is_finished=is_finished,
            steps=before.progress.steps,
        ),
        LIMITS,
        nodes.now_s,
    )


def test_a_leader_that_is_killed_within_an_incident_leaves_it_to_its_successor_which_names_the_same_culprit() -> None:
    nodes = begun()
    nodes.facts[1] = {"killed_by": "SIGKILL", "ended_at_s": 5.0}
    nodes.silent.update({"n0", "n1"})  # the leader ends before any evidence has come
    nodes.fault("n0")
    take_over(nodes, open_incident=True)
    nodes.join("n0", "n1")
    nodes.wait(1.0)
    assert [(record.incident.id, record.closed) for record in nodes.records] == [
        ("run.0.1", False),
        ("run.0.1", False),
        ("run.0.1", True),
    ]
    closed = nodes.records[-1].incident
    assert (closed.kind, closed.node, closed.rank) == ("rank_exit", "n0", 1)
    assert closed.culprit is not None
    assert closed.culprit.ranks == (1,)
    assert nodes.leading.incidents == 1
    assert set(nodes.running.values()) == {Epoch("run", 0, 2)}


def test_the_launches_of_a_leader_with_a_higher_fence_are_newer_than_any_that_the_one_before_still_orders() -> None:
    nodes = begun()
    before = nodes.leading
    take_over(nodes, open_incident=False, fence=1)
    nodes.join("n0", "n1")
    assert set(nodes.running.values()) == {Epoch("run", 0, 1)}, "the training goes on"
    nodes.fault("n0")
    nodes.wait(1.0)
    assert set(nodes.running.values()) == {Epoch("run", 1, 2)}
    assert nodes.running["n0"] is not None
    assert nodes.running["n0"].is_newer_than(before.epoch.next().next()), "though it orders two more"


def test_what_was_found_of_ranks_that_the_leader_before_had_ended_still_names_the_culprit() -> None:
    nodes = begun()
    nodes.facts[3] = {"process_state": "T"}
    nodes.silent.add("n1")
    nodes.fault("n0", "stall")
    nodes.running = {"n0": None, "n1": None}  # ended by the leader that is killed before it knows
    take_over(nodes, open_incident=True)
    nodes.join("n0", "n1")
    nodes.wait(0.3)
    closed = nodes.records[-1].incident
    assert closed.culprit is not None
    assert (closed.kind, closed.culprit.ranks) == ("rank_exit", (3,))


@pytest.mark.parametrize("open_incident", [True, False])
def test_a_node_that_died_while_there_was_no_leader_is_named_though_another_daemon_of_it_is_there(
    open_incident: bool,
) -> None:
    nodes = begun()
    nodes.facts[0] = {"sequence": 7}
    nodes.facts[1] = {"sequence": 9}
    nodes.silent.update({"n0", "n1"})
    if open_incident:
        nodes.fault("n0", "stall")
    nodes.running["n1"] = None
    nodes.ordered.pop("n1")
    take_over(nodes, open_incident=open_incident)
    nodes.join("n0")
    nodes.join("n1", instance="another")
    nodes.wait(6.0)
    culprit = nodes.records[-1].incident.culprit
    assert culprit is not None
    assert (culprit.proof, culprit.nodes) == (Proof.PHYSICAL, ("n1",)), "and not the rank whose peers are gone"
    assert culprit.reason.endswith("(n1) ended first: its node's daemon ended, and with it its ranks")


def test_a_fault_that_is_repeated_to_a_new_leader_before_all_nodes_are_back_is_not_lost() -> None:
    nodes = begun()
    take_over(nodes, open_incident=False)
    nodes.join("n0")
    nodes.fault("n0", "rank 0 killed by SIGKILL")
    assert nodes.records == [], "n1 may be back within a moment"
    nodes.silent.add("n0")
    nodes.join("n1")
    nodes.fault("n0", "rank 0 killed by SIGKILL")
    nodes.join("n0")
    nodes.wait(1.0)
    assert [(record.incident.reason, record.closed) for record in nodes.records] == [
        ("rank 0 killed by SIGKILL", False),
        ("rank 0 killed by SIGKILL", True),
    ]
    assert nodes.records[-1].incident.witnesses == (), "the same report again is no witness"
    assert set(nodes.running.values()) == {Epoch("run", 0, 2)}


def test_an_incident_whose_other_node_does_not_come_back_waits_for_that_node_s_lease() -> None:
    nodes = begun()
    nodes.silent.update({"n0", "n1"})
    nodes.fault("n0")
    take_over(nodes, open_incident=True)
    nodes.join("n0")
    nodes.wait(2.0)
    assert nodes.leading.stage is Stage.GATHERING, "n1 may still train"
    nodes.wait(4.0)
    assert nodes.records[-1].closed
    assert len(nodes.launches) == 2, "nothing was launched without n1"


def joined(instance: str, running: Epoch | None = None) -> ms.Joined:
    return ms.Joined(running=running, ordered=running, host="10.0.0.9", unix_s=0.0, instance=instance)


def test_a_second_daemon_of_the_same_name_may_not_join_while_the_first_beats() -> None:
    leading = Leading(Epoch("run", 0, 1), LIMITS, 0.0)
    assert not leading.find_namesake("n0", joined("first"), 0.0)
    leading.joined("n0", joined("first"), 0.0)
    assert leading.find_namesake("n0", joined("second"), 1.0)
    assert not leading.find_namesake("n0", joined("first"), 1.0), "the same one, whose link was made anew"
    assert not leading.find_namesake("n1", joined("second"), 1.0)
    assert not leading.find_namesake("n0", joined("second"), LIMITS.lease_s), "the first is silent: its machine is gone"
    leading.disconnected("n0")
    assert not leading.find_namesake("n0", joined("second"), 1.0), "the first has ended, and was started again"


def test_the_daemon_whose_ranks_run_has_the_name_and_not_the_one_that_was_first_at_a_new_leader() -> None:
    leading, epoch = Leading(Epoch("run", 0, 1), LIMITS, 0.0), Epoch("run", 0, 1)
    leading.joined("n0", joined("idle"), 0.0)
    assert not leading.find_namesake("n0", joined("trains", epoch), 0.1)
    leading.joined("n0", joined("trains", epoch), 0.1)
    assert leading.find_namesake("n0", joined("idle"), 0.2)


def test_a_process_that_sigkill_does_not_end_takes_its_node_out() -> None:
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=True)))
    nodes.stuck.add("n1")
    nodes.fault("n0")
    nodes.wait(12.0)
    assert [requeue.excluded for requeue in nodes.requeues] == [("n1",)]
    assert nodes.records[-1].incident.culprit is not None


def test_the_same_fault_again_and_again_ends_the_training_with_its_reason() -> None:
    nodes = begun(replace(LIMITS, fleet=replace(SAME_AT_ONCE, restarts_per_cause=3)))
    nodes.leading.progress.steps = 10
    for rank in range(4):
        nodes.facts[rank] = {"exception": "ValueError: the same everywhere"}
    for _ in range(4):
        nodes.fault("n0")
        nodes.wait(0.3)
    assert [over.finished for over in nodes.overs] == [False]
    assert "3 restarts without progress" in nodes.overs[0].reason
    assert "all ranks ended alike" in nodes.overs[0].reason


def test_a_fault_that_comes_back_at_once_waits_longer_each_time_until_there_is_progress() -> None:
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=False, backoff_s=(0.0, 5.0))))
    nodes.fault("n0")
    nodes.wait(0.3)
    assert nodes.leading.epoch == Epoch("run", 0, 2), "the first restart waits for nothing"
    nodes.fault("n0")
    nodes.wait(4.5)
    assert nodes.leading.epoch == Epoch("run", 0, 2)
    nodes.wait(1.0)
    assert nodes.leading.epoch == Epoch("run", 0, 3)
    nodes.made += 1
    nodes.wait(0.2)
    nodes.fault("n0")
    nodes.wait(0.3)
    assert nodes.leading.epoch == Epoch("run", 0, 4), "steps were made"


def test_a_node_that_died_is_named_though_another_daemon_of_it_is_back_before_the_incident_is_closed() -> None:
    nodes = begun()
    nodes.silent.add("n1")
    nodes.leading.disconnected("n1")
    nodes.facts[0] = nodes.facts[1] = {"exception": "RuntimeError: Connection reset by peer", "communication": True}
    nodes.fault("n0", "rank 0 exited with status 1")
    assert nodes.leading.stage is Stage.WAITING, "until its lease is over"
    nodes.running["n1"] = None
    nodes.ordered.pop("n1")
    nodes.join("n1", instance="another")
    nodes.wait(3.0)
    culprit = nodes.records[-1].incident.culprit
    assert culprit is not None
    assert (culprit.nodes, culprit.node_at_fault) == (("n1",), False)
    assert culprit.reason.endswith("(n1) ended first: its node's daemon ended, and with it its ranks")


def test_a_launch_of_which_only_the_process_counts_the_steps_is_neither_progress_nor_the_lack_of_it() -> None:
    nodes = begun(
        replace(LIMITS, fleet=FleetLimits(may_requeue=False, backoff_s=(0.0, 5.0, 60.0), restarts_per_period=6))
    )
    nodes.counts_itself = True
    for relaunch in range(2, 8):
        nodes.wait(0.2)
        nodes.fault("n0")
        nodes.wait(0.3)
        assert nodes.leading.epoch == Epoch("run", 0, relaunch), "its program may go on from a checkpoint of its own"
    nodes.fault("n0")
    nodes.wait(0.3)
    assert "6 restarts within" in nodes.overs[0].reason, "it is not endless"


def test_launches_without_a_step_are_a_row_only_where_none_between_them_made_steps() -> None:
    """Months of them would come to a wait of minutes, and then to the end of the training."""
    nodes = begun(replace(LIMITS, fleet=FleetLimits(may_requeue=False, backoff_s=(0.0, 5.0, 60.0))))
    for relaunch in range(2, 8, 2):
        nodes.counts_itself = True
        nodes.wait(0.2)
        nodes.fault("n0")
        assert nodes.leading.epoch == Epoch("run", 0, relaunch)
        nodes.fault("n0")  # before any step
        nodes.wait(0.3)
        assert nodes.leading.epoch == Epoch("run", 0, relaunch + 1), "at once"


def test_a_training_that_restarts_all_the_time_is_given_up_whatever_progress_it_makes() -> None:
    nodes = begun(replace(LIMITS, fleet=replace(SAME_AT_ONCE, restarts_per_period=3, period_s=60.0)))
    for _ in range(2):
        for _ in range(2):
            nodes.made += 1
            nodes.wait(0.2)
            nodes.fault("n0")
            nodes.wait(0.3)
        assert nodes.overs == []
        nodes.wait(60.0)
    for _ in range(4):
        nodes.made += 1
        nodes.wait(0.2)
        nodes.fault("n0")
        nodes.wait(0.3)
    assert nodes.overs[0].reason.startswith("3 restarts within 60 s: ")


def test_statistics_alone_end_no_training_that_has_no_other_node() -> None:
    nodes = begun()
    nodes.facts[0] = {"collective": 6, "in_collective": True}
    nodes.facts[1] = {"collective": 5, "in_collective": True}
    for relaunch in (2, 3, 4):
        nodes.fault("n0", "no step for 60 s")
        nodes.wait(0.3)
        assert nodes.overs == []
        assert nodes.leading.epoch == Epoch("run", 0, relaunch)


def test_a_training_that_finishes_everywhere_is_over_and_a_stop_is_no_fault() -> None:
    nodes = begun()
    for name in ("n0", "n1"):
        epoch = nodes.running[name]
        assert epoch is not None
        nodes.running[name] = None
        nodes.tell(name, ms.Finished(epoch=epoch))
    assert [over.finished for over in nodes.overs] == [True]
    stopped = begun()
    stopped.do(stopped.leading.asked_to_stop("its user", stopped.now_s))
    assert stopped.order[-2:] == ["Leave", "Leave"]
    assert stopped.records == []


def test_a_node_that_finished_and_whose_daemon_joins_again_has_finished_still() -> None:
    nodes = begun()
    epoch = nodes.running["n0"]
    assert epoch is not None
    nodes.running["n0"] = None
    nodes.tell("n0", ms.Finished(epoch=epoch))
    nodes.join("n0", instance="another")
    nodes.running["n1"] = None
    nodes.tell("n1", ms.Finished(epoch=epoch))
    assert nodes.records == []
    assert [over.finished for over in nodes.overs] == [True]


def finish(nodes: Nodes, name: str) -> None:
    """The ranks of a node end by themselves."""
    epoch = nodes.running[name]
    assert epoch is not None
    nodes.running[name] = None
    nodes.tell(name, ms.Finished(epoch=epoch))


def join_finished(nodes: Nodes, name: str) -> None:
    """A node greets another leader after its ranks have ended by themselves."""
    epoch = nodes.ordered[name]
    nodes.do(nodes.leading.joined(name, joined("first", epoch), nodes.now_s))
    nodes.tell(name, ms.Finished(epoch=epoch))


@pytest.mark.parametrize("names", [("n0", "n1"), ("n1", "n0")])
def test_a_node_that_finished_before_another_leader_came_has_finished_for_that_one_too(names: tuple[str, str]) -> None:
    """Rank 0 may save and validate for long after the ranks of other nodes have ended."""
    nodes = begun()
    finish(nodes, "n1")
    take_over(nodes, open_incident=False)
    for name in names:
        nodes.wait(1.0)
        join_finished(nodes, name) if name == "n1" else nodes.join(name)
    nodes.wait(LIMITS.fence_s + 1.0)
    assert (nodes.leading.stage, nodes.records) == (Stage.RUNNING, [])
    finish(nodes, "n0")
    assert [over.finished for over in nodes.overs] == [True]


def test_a_training_that_finished_on_all_nodes_while_there_was_no_leader_has_finished() -> None:
    nodes = begun()
    nodes.running = {"n0": None, "n1": None}
    take_over(nodes, open_incident=False)
    for name in ("n0", "n1"):
        join_finished(nodes, name)
    nodes.wait(1.0)
    assert (nodes.records, [over.finished for over in nodes.overs]) == ([], [True])


@pytest.mark.parametrize("back", [(), ("n0",), ("n0", "n1")])
def test_a_training_that_is_recorded_as_finished_is_over_once_its_nodes_have_taken_that_in(
    back: tuple[str, ...],
) -> None:
    """Its leader was killed before all of them had: those that are left are sent away, and the others have gone."""
    nodes = begun()
    nodes.running = {"n0": None, "n1": None}
    take_over(nodes, open_incident=False, is_finished=True)
    nodes.order.clear()
    for name in back:
        join_finished(nodes, name)
    nodes.silent.update({"n0", "n1"} - set(back))
    nodes.wait(LIMITS.fence_s - 1.0)
    assert bool(nodes.overs) == (len(back) == 2)
    nodes.wait(1.1)
    assert [over.finished for over in nodes.overs] == [True]
    assert nodes.order.count("Leave") >= len(back)
    assert (nodes.records, len(nodes.launches)) == ([], 2)


def test_a_node_whose_daemon_ends_after_its_ranks_have_finished_is_not_lost() -> None:
    nodes = begun()
    finish(nodes, "n0")
    nodes.ordered.pop("n0")
    nodes.join("n0", instance="another")
    finish(nodes, "n1")
    assert nodes.records == []
    assert [over.finished for over in nodes.overs] == [True]


def test_a_training_that_is_stopped_is_over_once_every_node_has_ended_its_ranks() -> None:
    nodes = begun()
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    epoch = nodes.running["n0"]
    assert epoch is not None
    nodes.wait(1.0)
    nodes.tell("n0", ms.Stopped(epoch=epoch))
    assert (nodes.leading.stage, nodes.overs) == (Stage.LEAVING, []), "n1 is still saving"
    nodes.tell("n1", ms.Stopped(epoch=epoch))
    assert nodes.overs == [Over(finished=False, reason="stopped")]
    assert nodes.leading.stage is Stage.OVER
    assert nodes.leading.asked_to_stop("its user", nodes.now_s) == []


def test_a_training_that_is_stopped_is_over_after_its_time_to_leave_whatever_still_runs() -> None:
    nodes = begun(replace(LIMITS, leave_s=5.0))
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    nodes.wait(4.9)
    assert nodes.leading.stage is Stage.LEAVING
    nodes.wait(0.2)
    assert nodes.overs == [Over(finished=False, reason="stopped")]


def test_a_leader_that_is_to_stop_what_another_has_begun_waits_for_its_nodes() -> None:
    """The one before it was killed before its nodes had the order to leave: without it they would train on."""
    nodes = begun()
    take_over(nodes, open_incident=False)
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    nodes.wait(1.0)
    assert nodes.overs == []
    for name in ("n0", "n1"):
        nodes.join(name)
        assert nodes.order[-1] == "Leave"
        nodes.running[name] = None
        nodes.tell(name, ms.Stopped(epoch=nodes.leading.epoch))
    assert nodes.overs == [Over(finished=False, reason="stopped")]


def test_a_leader_that_is_to_stop_waits_for_nodes_that_do_not_come_until_their_ranks_have_ended_by_the_lease() -> None:
    nodes = begun()
    take_over(nodes, open_incident=False)
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    nodes.silent.update(nodes.running)
    nodes.wait(LIMITS.fence_s - 0.2)
    assert nodes.overs == []
    nodes.wait(0.4)
    assert nodes.overs == [Over(finished=False, reason="stopped")]


def test_a_node_that_comes_once_the_training_leaves_is_sent_away_too() -> None:
    nodes = begun()
    nodes.do(nodes.leading.asked_to_stop("its user", nodes.now_s))
    late = nodes.leading.joined("n2", joined("late"), nodes.now_s)
    assert late == [Send(node="n2", message=ms.Leave(reason="its user"))]


def test_the_first_launch_waits_for_spares_and_a_further_one_does_not() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), replace(LIMITS, spares_s=3.0), BEGAN_S))
    nodes.join("n0", "n1")
    nodes.wait(2.9)
    assert nodes.launches == []
    nodes.wait(0.2)
    assert len(nodes.launches) == 2
    nodes.fault("n0")
    nodes.wait(0.3)
    assert [str(order.epoch) for order in nodes.launches[2:]] == ["run.0.2", "run.0.2"]


def test_a_daemon_that_ended_in_a_launch_and_is_back_as_another_is_evidence_with_its_own_rank() -> None:
    nodes = begun()
    nodes.tell("n1", ms.NodeBeat(sent_s=nodes.now_s, ranks=(8, 9)))
    nodes.leading.disconnected("n1")
    nodes.running["n1"] = None
    nodes.join("n1", instance="another")
    nodes.wait(1.0)
    evidence = nodes.records[-1].incident.evidence
    ended = [(rank.rank, rank.exception) for rank in evidence if rank.node == "n1" and rank.exception is not None]
    assert ended == [(8, "its node's daemon ended, and with it its ranks")]


def test_a_fault_that_comes_while_the_next_launch_is_chosen_is_of_the_launch_that_is_over() -> None:
    nodes = begun()
    epoch = nodes.running["n0"]
    assert epoch is not None
    nodes.silent.add("n1")
    wait_until(nodes, lambda: nodes.leading.stage is Stage.GATHERING)
    late = ms.Fault(epoch=epoch, kind="rank_exit", reason="rank 0 exited with status 1", rank=0)
    nodes.tell("n0", late)
    records = len(nodes.records)
    nodes.join("n1")
    nodes.wait(1.0)
    assert len(nodes.records) == records
    assert nodes.leading.stage is Stage.RUNNING


def test_a_spare_that_falls_silent_during_an_incident_is_no_part_of_it() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.silent.add("n2")
    nodes.wait(0.5)
    nodes.fault("n0")
    nodes.wait(3.0)
    closed = nodes.records[-1].incident
    assert {rank.node for rank in closed.evidence} == {"n0", "n1"}
    assert closed.rung is Rung.SAME_NODES


def test_too_few_nodes_are_an_error_that_names_those_that_came() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), replace(LIMITS, gather_s=5.0), BEGAN_S))
    nodes.join("n0")
    nodes.wait(6.0)
    assert [over.finished for over in nodes.overs] == [False]
    assert "1 of 2 nodes did not come within 5 s; here are n0" in nodes.overs[0].reason


def test_of_the_nodes_that_the_engine_has_given_those_that_never_came_are_named() -> None:
    limits = replace(LIMITS, gather_s=5.0, given=("n0", "n1", "n2"))
    nodes = Nodes(Leading(Epoch("run", 0, 0), limits, BEGAN_S))
    nodes.join("n1")
    nodes.wait(6.0)
    text = "1 of 2 nodes did not come within 5 s; here are n1; never came: n0, n2: see the job's output"
    assert text in nodes.overs[0].reason


def test_a_node_that_does_not_come_back_is_named_with_how_its_daemon_comes_back() -> None:
    nodes = begun(replace(LIMITS, gather_s=5.0))
    nodes.silent.add("n1")
    nodes.wait(20.0)
    assert "here are n0; n1 trained before: the script of `supervisorctl submit` starts" in nodes.overs[0].reason


def generation(step: int, epoch: int = 1, **facts: object) -> Offer:
    """A generation that a node has proven, unless the facts say otherwise."""
    known: dict[str, object] = {"name": f"step-{step:012d}", "digest": "a", "proven": True, "step": step, **facts}
    return Offer(epoch=(0, epoch), **known)  # type: ignore[arg-type]  # a story's facts


def resumed_from(nodes: Nodes) -> set[tuple[str | None, str | None]]:
    """What the newest launch of every node resumes from."""
    return {(order.resume_from, order.resume_digest) for order in nodes.launches if order.epoch == nodes.leading.epoch}


def test_all_nodes_resume_from_the_newest_generation_that_each_has_proven() -> None:
    nodes = begun()
    assert resumed_from(nodes) == {(None, None)}, "nothing was saved: from the beginning"
    saved = (generation(30), generation(20), generation(10))
    nodes.saved = {"n0": saved, "n1": (replace(saved[0], proven=False, reason="damaged"), *saved[1:])}
    nodes.fault("n0")
    nodes.wait(0.3)
    assert resumed_from(nodes) == {("step-000000000020", "a")}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            (),
            "(step-000000000030: n1: is not there, nor is any other). Ranks resume together only from a folder that "
            "all nodes share: mount it on n1, or copy step-000000000030 there with its times",
        ),
        ((generation(30, digest="b"),), "(step-000000000030: n0: is another one there). Ranks resume together only"),
        ((generation(30, proven=False, reason="damaged"),), "step-000000000030: n1: damaged"),
    ],
)
def test_where_states_are_saved_and_none_is_proven_alike_the_training_stops(
    other: tuple[Offer, ...], reason: str
) -> None:
    """From the beginning would hide that all of it is lost, and from what one node sees would mix two states."""
    nodes = begun()
    nodes.saved = {"n0": (generation(30),), "n1": other}
    nodes.fault("n0")
    nodes.wait(0.3)
    assert len(nodes.launches) == 2
    assert nodes.leading.stage is Stage.OVER
    assert reason in nodes.overs[0].reason


def test_a_later_launch_that_went_on_from_an_older_step_is_newer_than_steps_beyond_it() -> None:
    nodes = begun()
    nodes.saved = dict.fromkeys(("n0", "n1"), (generation(25, epoch=2), generation(30)))
    nodes.fault("n0")
    nodes.wait(0.3)
    assert resumed_from(nodes) == {("step-000000000025", "a")}


def test_a_state_that_brings_no_new_step_twice_gives_way_to_an_older_one() -> None:
    nodes = begun()
    nodes.leading.progress.steps = 1000
    nodes.saved = dict.fromkeys(("n0", "n1"), (generation(30), generation(20)))
    for step in (30, 30, 20):
        nodes.fault("n0")
        nodes.wait(0.3)
        assert resumed_from(nodes) == {(f"step-{step:012d}", "a")}


def test_a_node_that_cannot_look_is_asked_again_and_is_no_node_without_a_state() -> None:
    nodes = begun(replace(LIMITS, choose_s=20.0))
    nodes.saved, nodes.blind = dict.fromkeys(("n0", "n1"), (generation(30),)), {"n1": "OSError: Stale file handle"}
    nodes.fault("n0")
    nodes.wait(8.0)
    assert nodes.leading.stage is Stage.CHOOSING
    nodes.blind.clear()
    nodes.wait(6.0)
    assert resumed_from(nodes) == {("step-000000000030", "a")}
    nodes.blind["n1"] = "OSError: Stale file handle"
    nodes.fault("n0")
    nodes.wait(30.0)
    assert nodes.overs[0].reason == "what to resume from is not known: n1: OSError: Stale file handle"


@pytest.mark.parametrize(("name", "number"), [("n0", 1), ("n2", 2)])
def test_an_answer_to_an_earlier_question_or_of_a_spare_counts_for_nothing(name: str, number: int) -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.blind = dict.fromkeys(("n0", "n1"), "OSError: Stale file handle")
    nodes.fault("n0")
    nodes.wait(0.3)
    assert nodes.leading.stage is Stage.CHOOSING
    state = vars(nodes.leading)["question"]
    before = dict(vars(state)["_answers"])
    nodes.tell(name, ms.ResumeOffers(number=number, offers=(generation(30),)))
    assert vars(state)["_answers"] == before


def test_a_leader_that_finds_more_nodes_at_work_than_it_needs_knows_the_others_as_spares() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.leading = Leading(nodes.leading.epoch, LIMITS, nodes.now_s)
    nodes.join("n2", "n0", "n1")
    assert nodes.leading.fleet is not None
    assert (set(nodes.leading.fleet.nodes), nodes.leading.fleet.spares) == ({"n0", "n1"}, ("n2",))


def test_a_leader_that_knows_no_nodes_takes_up_the_rest_of_a_training_with_those_that_joined() -> None:
    nodes = begun()
    nodes.running["n1"] = None
    nodes.leading = Leading(Epoch("run", 0, 1), LIMITS, nodes.now_s)
    nodes.join("n0", "n1")
    nodes.wait(3.0)
    assert [(record.incident.kind, record.incident.node) for record in nodes.records] == [("node_lost", "n1")] * 2
    assert set(nodes.running.values()) == {Epoch("run", 0, 2)}


def test_a_fault_repeated_to_a_leader_that_knows_no_nodes_is_an_incident_of_those_that_joined() -> None:
    nodes = begun()
    nodes.leading = Leading(Epoch("run", 0, 1), LIMITS, nodes.now_s)
    nodes.join("n0")
    nodes.fault("n0")
    nodes.join("n1")
    nodes.wait(0.3)
    assert [record.closed for record in nodes.records] == [False, True]
    assert set(nodes.running.values()) == {Epoch("run", 0, 2)}


def test_a_node_that_is_late_with_an_earlier_launch_is_waited_for_from_when_it_came() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.silent.add("n0")
    nodes.stuck.add("n0")
    nodes.wait(2.2)
    assert nodes.leading.stage is Stage.WAITING
    nodes.join("n0")
    assert (nodes.leading.stage, nodes.leading.since_s) == (Stage.STOPPING, nodes.now_s)


def test_a_node_that_is_lost_while_it_looks_is_waited_for_and_asked_again() -> None:
    nodes = begun()
    nodes.blind = {"n1": "OSError: Stale file handle"}
    nodes.fault("n0")
    nodes.wait(0.3)
    nodes.leading.disconnected("n1")
    nodes.silent.add("n1")
    nodes.wait(1.0)
    assert nodes.leading.stage is Stage.GATHERING
    nodes.blind.clear()
    nodes.join("n1")
    nodes.wait(0.3)
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_a_node_that_is_back_over_the_same_link_is_stopped_and_awaited() -> None:
    """A network that was away for longer than the lease may bring its beats back while its ranks live."""
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.silent.add("n0")
    nodes.stuck.add("n0")  # its ranks take their time to end
    nodes.wait(2.2)
    assert (nodes.leading.stage, nodes.running["n0"]) == (Stage.WAITING, Epoch("run", 0, 1))
    nodes.silent.discard("n0")
    nodes.wait(1.0)
    assert nodes.order[-1] == "LeaderBeat"
    assert "Stop" in nodes.order[-40:]
    assert nodes.leading.stage is Stage.STOPPING
    nodes.running["n0"] = None
    nodes.tell("n0", ms.Stopped(epoch=Epoch("run", 0, 1)))
    assert nodes.leading.epoch == Epoch("run", 0, 2)


def test_a_launch_that_ended_without_a_leader_is_one_incident_also_where_a_node_is_lost_before_the_next() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.running = dict.fromkeys(nodes.running)
    nodes.blind = {"n1": "OSError: Stale file handle"}
    nodes.leading = Leading(nodes.leading.epoch, LIMITS, nodes.now_s, nodes.leading.fleet)
    nodes.join("n0", "n1", "n2")
    nodes.wait(0.3)
    assert nodes.leading.stage is Stage.CHOOSING
    nodes.join("n1")
    assert [record.incident.kind for record in nodes.records] == ["no_leader"]


def test_a_leader_that_begins_without_one_of_its_nodes_waits_for_that_ones_lease() -> None:
    nodes = begun(LIMITS, "n0", "n1", "n2")
    nodes.silent.add("n0")
    nodes.running["n1"] = None
    nodes.leading = Leading(nodes.leading.epoch, LIMITS, nodes.now_s, nodes.leading.fleet)
    nodes.join("n1", "n2")
    nodes.wait(2.0)
    assert nodes.leading.stage is Stage.GATHERING
    nodes.wait(1.0)
    assert nodes.leading.epoch == Epoch("run", 0, 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fault", "cut", "back", "wait", "killed", "leader", "lagging"]),
        st.sampled_from(["n0", "n1", "n2"]),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_whatever_happens_there_is_one_training_and_one_incident_an_epoch(steps: list[tuple[str, str]]) -> None:
    """`Nodes.obey` fails where a node is launched twice, or with an epoch that does not grow.

    A leader that begins reads from its record whether the last launch had ended (`leader_state.read_known`).
    """
    limits = replace(LIMITS, fleet=FleetLimits(restarts_per_cause=1000, may_requeue=False))
    nodes = begun(limits, "n0", "n1", "n2")
    for what, name in steps:
        if nodes.leading.stage is Stage.OVER:
            break
        match what:
            case "fault" if nodes.running[name] is not None and name not in nodes.silent:
                nodes.fault(name)
            case "cut":
                nodes.silent.add(name)
            case "back" if name in nodes.silent:
                nodes.join(name)
            case "killed":
                nodes.leading.disconnected(name)
                nodes.running[name] = None
                nodes.join(name)
            case "leader":
                epoch = nodes.leading.epoch
                closed = any(record.closed and record.incident.epoch == epoch for record in nodes.records)
                nodes.leading = Leading(epoch, limits, nodes.now_s, nodes.leading.fleet, is_live=not closed)
                nodes.join(*(each for each in nodes.running if each not in nodes.silent))
            case "lagging":
                nodes.tell(name, ms.Fault(epoch=Epoch("run", 0, 0), kind="rank_exit", reason="of an earlier epoch"))
            case _:
                nodes.wait(1.0)
        running = {epoch for each, epoch in nodes.running.items() if epoch is not None and each not in nodes.silent}
        assert len(running) <= 1
    ids = [record.incident.id for record in nodes.records if record.closed]
    assert len(ids) == len(set(ids))


@given(
    beats=st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans(), st.booleans()), max_size=30),
)
def test_a_lease_is_over_exactly_when_neither_leader_nor_step_came_in_its_time(
    beats: list[tuple[float, bool, bool]],
) -> None:
    lease, now_s, last_s, steps = Lease(lease_s=2.0, renewed_s=0.0, steps=0), 0.0, 0.0, 0
    for passed_s, renewed, stepped in beats:
        now_s += passed_s
        if renewed:
            lease, last_s = lease.renewed(now_s, 2.0), now_s
        if stepped:
            steps += 1
            last_s = now_s
        lease = lease.stepped(steps, now_s)
        assert lease.is_over(now_s + 1.0) == (now_s + 1.0 - last_s >= 2.0)


def test_a_lease_counts_from_when_the_beat_was_sent_and_nan_ends_it() -> None:
    lease = Lease(lease_s=2.0, renewed_s=0.0).renewed(5.0, 2.0)
    assert lease.renewed(4.0, 2.0).renewed_s == 5.0
    assert lease.is_over(float("nan"))
    assert not lease.is_over(6.99)
    assert lease.is_over(7.0)


def test_a_node_that_slept_has_its_lease_run_meanwhile_and_a_moment_to_hear_its_leader() -> None:
    lease = Lease(lease_s=5.0, renewed_s=100.0, steps=7, stepped_s=100.5)
    briefly, long = lease.woken(2.0, 101.0), lease.woken(3600.0, 101.0)
    assert (briefly.is_over(103.4), briefly.is_over(103.6)) == (False, True), "5 s after its last step"
    assert (long.is_over(102.9), long.is_over(103.0)) == (False, True)
    late = long.renewed(100.9, 5.0).stepped(9, 101.5)
    assert late.is_over(103.0), "sent before it slept, and a step that may have been made before"
    assert not late.stepped(10, 102.0).is_over(106.9), "all slept, and go on together"
    assert not late.renewed(101.2, 5.0).is_over(106.1)


def test_a_node_is_believed_of_its_own_ranks_alone() -> None:
    nodes = Nodes(Leading(Epoch("job", 0, 0), LIMITS, BEGAN_S))
    nodes.join("n0", "n1")
    nodes.silent.add("n0")  # its own evidence is on its way
    nodes.fault("n1")
    slandered = RankEvidence(node="n0", rank=0, fault="a broken GPU")
    nodes.tell("n1", ms.EvidenceTaken(epoch=nodes.leading.epoch, took_s=0.1, ranks=(slandered,)))
    assert nodes.leading.incident is not None
    assert [rank.node for rank in nodes.leading.incident.evidence] == ["n1", "n1"]


def test_a_node_that_names_more_launches_than_there_can_be_is_not_followed() -> None:
    """After the last number that an epoch can have no node could be launched any more."""
    leading = Leading(Epoch("run", 0, 1), LIMITS, 0.0)
    for ordered, followed in (
        (Epoch("run", 0, 999_999_999), 1),
        (Epoch("run", 999_999_999, 0), 1),
        (Epoch("run", 0, 9), 9),
    ):
        leading.joined("n0", ms.Joined(running=None, ordered=ordered, host="h", unix_s=0.0), 0.0)
        assert leading.epoch == Epoch("run", 0, followed)
