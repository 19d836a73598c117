"""The leader of a training on several nodes: a state machine without clock and I/O; at most one incident is open.

gathering -> choosing -> running -> collecting -> stopping -> waiting -> gathering ...
                                                                      -> requeued | over

On the first fault every node is asked for evidence, for `evidence_s` at most; then every process of the launch is
ended on every node; then whoever is at fault is named (`culprit.py`) and all ranks start again (`ladder.py`) under a
new epoch. A node that does not answer has ended its ranks by its lease before the next launch: a job is requeued while
that lease runs out, and the leader after this one waits for its end. Before each launch the nodes say what they could
resume from (`resume.py`): all ranks are launched from the same state, or none is.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.all_evidence import complete_evidence, describe_silent, first_rank
from supervisor.core.fleet.culprit import Culprit, Proof, name_culprit
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import DAEMON_ENDED, DECISIVE, RankEvidence
from supervisor.core.fleet.ladder import Fleet, Restart, Rung, choose_restart, choose_wait_s
from supervisor.core.fleet.launch_progress import LaunchProgress
from supervisor.core.fleet.members import Members
from supervisor.core.fleet.peer_stage import LaunchStage
from supervisor.core.fleet.peer_waits import PeerWaits
from supervisor.core.fleet.resume import AskAgain, NoneProven, Resume
from supervisor.core.fleet.resume_question import ResumeQuestion
from supervisor.core.fleet.training import (
    Command,
    Incident,
    Known,
    LeaderLimits,
    Member,
    Over,
    Record,
    RecordWarning,
    Requeue,
    Send,
    Stage,
)

FINISHED = "the training finished on all nodes"
WITNESSES_MAX = 1024
AWAY_S = 0.5
"""A leader that did nothing for so long has messages of its nodes to read before it takes any for lost."""


class Leading:
    """One training; each method takes what happened and returns what is to be done."""

    def __init__(
        self, epoch: Epoch, limits: LeaderLimits, now_s: float, fleet: Fleet | None = None, *, is_live: bool = True
    ) -> None:
        """`epoch`: the last one that was launched, its relaunch 0 before the first; `is_live`: unless it had ended."""
        self.epoch, self.limits = epoch, limits
        self._fence = 0
        self.stage, self.since_s = Stage.GATHERING, now_s
        self.members = Members()
        self.fleet = fleet
        """The nodes that train and the spares, once they are chosen."""
        self.incident: Incident | None = None
        self._unfinished: Incident | None = None
        """Begun, by the leader before this one or by a node that was first to be back; to be gone through again."""
        self._waits_count = True
        """Whether it matters for the open incident that a rank waits in the kernel."""
        self._answered: set[str] = set()
        """Nodes that have sent evidence of the open incident."""
        self.incidents = 0
        self.began_unix_s = 0.0
        self.progress = LaunchProgress()
        self._peer_waits, self._peer_stage = PeerWaits(), LaunchStage()
        self._enough_since_s: float | None = None
        self.question = ResumeQuestion(limits, now_s)
        self.not_before_s = now_s
        """When the next launch may be made at the earliest."""
        self._ticked_s = self._back_s = now_s
        """When the leader last did what was due, and since when it has done so without a gap."""
        self._leave: ms.Leave | None = None
        """What every node is told once the training leaves its nodes, and one that comes later too."""
        self._epoch_over = epoch.relaunch == 0 or not is_live
        """Whether the processes of the present epoch must have ended: none of it may be taken for a training."""
        self.ranks_until_s = 0.0
        """Until when ranks of an earlier launch may still run, on nodes that this leader may never hear of."""

    @classmethod
    def take_over(cls, known: Known, limits: LeaderLimits, now_s: float) -> Leading:
        """Return the training as the leader before this one left it."""
        leading = cls(known.epoch, limits, now_s, known.fleet, is_live=known.is_live)
        leading.incidents, leading.began_unix_s, leading._fence = known.incidents, known.began_unix_s, known.fence
        leading.progress = LaunchProgress(known.steps, known.resumed, known.fruitless)
        leading._unfinished = known.incident if known.is_live else None
        leading.ranks_until_s = min(known.ranks_until_s, now_s + limits.fence_s)
        if known.is_finished:  # nodes that did not take that in are sent away, and that is the end
            leading.stage, leading._leave = Stage.LEAVING, ms.Leave(reason=FINISHED, finished=True)
        return leading

    @property
    def resume_problem(self) -> str | None:
        """Why the next launch waits: which node could not look for what to resume from."""
        if self.stage is not Stage.CHOOSING or self.fleet is None:
            return None
        return self.question.find_problem(self.fleet.nodes)

    # --- what happens ---------------------------------------------------------------------------------------------

    def find_namesake(self, node: str, joined: ms.Joined, now_s: float) -> bool:
        """Whether another daemon has joined under this name and is heard of, as `Members.find_namesake`."""
        return self.members.find_namesake(node, joined, now_s, self.limits.lease_s)

    def joined(self, node: str, joined: ms.Joined, now_s: float) -> list[Command]:
        """Take a node in, or back."""
        for seen in (joined.running, joined.ordered):
            if seen is not None and seen.is_newer_than(self.epoch) and seen.is_possible:
                self.epoch, self._epoch_over = seen, False  # launched before this leader began, and not written down
                self._unfinished = None
        before = self.members.get(node)
        finished = before is not None and before.finished and joined.ordered in (None, self.epoch)
        another = before is None and joined.running is None and joined.ordered != self.epoch and not self._epoch_over
        self.members[node] = member = Member(
            host=joined.host, seen_s=now_s, running=joined.running, instance=joined.instance, is_another=another
        )
        member.finished = finished
        member.warned = before.warned if before is not None and before.instance == joined.instance else None
        if before is not None and before.running == self.epoch and joined.running is None and not finished:
            self._note_ended_daemon(node, before, joined.instance)
        if self._leave is not None:
            return [Send(node=node, message=self._leave), *self.tick(now_s)]
        if joined.running is not None and (stop := self._stop_late(node, joined.running, now_s)):
            return [*stop, *self.tick(now_s)]
        if self.stage is Stage.COLLECTING and joined.running is not None:
            return [self._collect(node)]
        if self.stage is Stage.CHOOSING and self._trains(node):
            self._enter(Stage.GATHERING, now_s)  # its answer went with its link
        lost = self.stage is Stage.RUNNING and self._trains(node) and joined.running is None and not finished
        if lost:
            opened = self._begin_loss(node, "its daemon ended, and with it its ranks", now_s)
            self._note_ended_daemon(node, before, joined.instance)
            return opened
        return self.tick(now_s)

    def _note_ended_daemon(self, node: str, before: Member | None, instance: str) -> None:
        """Note in the open incident that a node is back with another daemon: what its ranks were is known to none."""
        if self.incident is None or before is None or before.instance == instance:
            return
        rank = first_rank(before, self._training().index(node) if self._trains(node) else 0)
        if (node, rank) not in {(known.node, known.rank) for known in self.incident.evidence}:
            ended = RankEvidence(node=node, rank=rank, exception=DAEMON_ENDED)
            self.incident = replace(self.incident, evidence=(*self.incident.evidence, ended))

    def disconnected(self, node: str) -> None:
        """Note that a node's link broke: it may be back within the lease."""
        if node in self.members:
            self.members[node].connected = False

    def took(self, node: str, message: ms.Message, now_s: float) -> list[Command]:
        """Take a message of a node that has joined."""
        member = self.members.get(node)
        if member is None:
            return []
        returned, member.seen_s, member.connected = not member.connected, now_s, True
        late: list[Command] = []
        if returned and member.running is not None and not isinstance(message, ms.Stopped):
            late = self._stop_late(node, member.running, now_s)
        return [*late, *self._take(node, member, message, now_s)]

    def _take(self, node: str, member: Member, message: ms.Message, now_s: float) -> list[Command]:
        match message:
            case ms.NodeBeat():
                return self._take_beat(node, member, message, now_s)
            case ms.Fault() if message.epoch == self.epoch:
                return self._take_fault(node, message, now_s)
            case ms.EvidenceTaken() if message.epoch == self.epoch:
                return self._take_evidence(node, message, now_s)
            case ms.Stopped():
                member.unkillable = member.unkillable or message.unkillable
                member.waits = message.waits or member.waits
                if message.epoch == member.running and not message.unkillable:
                    member.running, member.ranks = None, ()
                return self.tick(now_s)
            case ms.Finished() if message.epoch == self.epoch:
                member.finished, member.running = True, None
                return self.tick(now_s)
            case ms.ResumeOffers() if message.number == self.question.number and self._trains(node):
                self.question.take(node, message)
                return self.tick(now_s)
            case _:
                return []

    def _stop_late(self, node: str, running: Epoch, now_s: float) -> list[Command]:
        """Have a node that is heard of again end what it runs of a launch that is over, and wait for that."""
        if self.stage is Stage.WAITING:
            self._enter(Stage.STOPPING, now_s)
        ending = self._epoch_over or self.stage is Stage.STOPPING or running != self.epoch
        return [_stop(node, running, "an earlier launch")] if ending else []

    def asked_to_stop(self, reason: str, now_s: float) -> list[Command]:
        """Save and end the training: its user wants it, or its engine."""
        if self.stage in (Stage.LEAVING, Stage.OVER):
            return []
        self._enter(Stage.LEAVING, now_s)
        return [*self._leave_all(ms.Leave(reason=reason)), *self.tick(now_s)]

    def tick(self, now_s: float) -> list[Command]:
        """Do what is due."""
        self._note_absence(now_s)
        match self.stage:
            case Stage.GATHERING:
                begun = self._unfinished
                return self._gather(now_s) if begun is None else self._take_up_incident(begun, now_s)
            case Stage.CHOOSING:
                return self._await_offers(now_s)
            case Stage.RUNNING:
                return self._watch(now_s)
            case Stage.COLLECTING:
                return self._stop_all(now_s) if self._is_collected(now_s) else []
            case Stage.STOPPING:
                return self._await_stopped(now_s)
            case Stage.WAITING:
                return self._restart(now_s)
            case Stage.LEAVING:
                ended = not any(member.running for member in self.members.values() if member.connected)
                if (ended and not self._awaits_nodes(now_s)) or now_s - self.since_s >= self.limits.leave_s:
                    finished = self._leave is not None and self._leave.finished
                    return self._end(finished=finished, reason=FINISHED if finished else "stopped", now_s=now_s)
                return []
            case Stage.OVER:
                return []

    def _awaits_nodes(self, now_s: float) -> bool:
        """Whether nodes of a launch before this leader have not come to it yet, though ranks may run on them."""
        here = self._epoch_over or self.fleet is None or set(self.fleet.nodes) <= set(self.members)
        return not here and now_s - self.since_s < self.limits.fence_s

    def _note_absence(self, now_s: float) -> None:
        if now_s - self._ticked_s >= AWAY_S:
            self._back_s = now_s
        self._ticked_s = now_s

    # --- gathering and launching ----------------------------------------------------------------------------------

    def _gather(self, now_s: float) -> list[Command]:
        usable = self._usable()
        running = [] if self._epoch_over else [node for node in usable if self.members.is_in(node, self.epoch)]
        if len(running) >= self.limits.nodes:  # this leader, or the one before it, was away
            self.fleet = self.fleet or Fleet(nodes=tuple(running), spares=tuple(set(usable) - set(running)))
            self._enter(Stage.RUNNING, now_s)
            return []
        if len(usable) < self.limits.nodes:
            self._enough_since_s = None
            if now_s - self.since_s >= self.limits.gather_s:
                reason = self.members.describe_missing(usable, self.fleet, self.limits)
                return self._end(finished=False, reason=reason, now_s=now_s)
            return []
        if self._enough_since_s is None:
            self._enough_since_s = now_s
        if running:
            # A leader that came back to a part of its training: the rest of it is lost, or about to be back.
            if now_s - self._enough_since_s < self.limits.fence_s:
                return []
            return self._take_up_remains(running, usable, now_s)
        usable = [node for node in usable if self.members[node].running is None]
        if len(usable) < self.limits.nodes:
            return []
        if now_s - self._enough_since_s < self.limits.spares_s and self.epoch.relaunch == 0:
            return []
        if now_s < self.not_before_s or self._may_run_unseen(now_s):
            return []
        lost = self._record_lost_launch(now_s)
        self.fleet = (self.fleet or Fleet(nodes=())).with_nodes(usable, self.limits.nodes)
        self._enter(Stage.CHOOSING, now_s)
        return [*lost, *self._ask_for_offers(rejected=frozenset())]

    def _may_run_unseen(self, now_s: float) -> bool:
        """Whether a node may still have ranks of a launch before this leader's, by its lease."""
        if now_s < self.ranks_until_s or any(self._may_end_late(member, now_s) for member in self.members.values()):
            return True
        if self._epoch_over or now_s - self.since_s >= self.limits.fence_s:
            return False
        return self.fleet is None or not set(self.fleet.nodes) <= set(self.members.connected())

    def _may_end_late(self, member: Member, now_s: float) -> bool:
        """Whether a node was heard of with ranks, which it has been ordered to end, so that its lease was renewed."""
        return member.running is not None and not member.unkillable and now_s - member.seen_s < self.limits.fence_s

    def _record_lost_launch(self, now_s: float) -> list[Command]:
        """Return the incident of a launch that ended on all nodes, by their leases, while there was no leader."""
        if self._epoch_over:
            return []
        self._epoch_over = True
        reason = "every node ended its ranks by the lease while there was no leader"
        lost = self._make_incident("no_leader", reason, "-", None, now_s)
        culprit = Culprit(proof=Proof.NONE, reason="no node is at fault: there was no leader")
        if self.fleet is not None:  # a daemon may have ended meanwhile too, or its machine
            named = name_culprit(complete_evidence(lost, self.fleet, self.members))
            culprit = named if named.nodes else culprit
        return [Record(incident=replace(lost, culprit=culprit, rung=Rung.SAME_NODES), closed=True)]

    def _take_up_incident(self, begun: Incident, now_s: float) -> list[Command]:
        """Go through an incident whose leader ended meanwhile, once its nodes are back or have ended their ranks."""
        expected = set(self.fleet.nodes) if self.fleet is not None else set()
        here = set(self.members.connected())
        all_here = expected <= here if expected else len(here) >= self.limits.nodes
        if not all_here and now_s - self.since_s < self.limits.fence_s:
            return []
        if not here:
            return []
        self.fleet = self.fleet or Fleet(nodes=()).with_nodes(self._usable(), self.limits.nodes)
        return self._open(replace(begun, began_s=now_s), now_s)

    def _take_up_remains(self, running: list[str], usable: list[str], now_s: float) -> list[Command]:
        """Make the loss of the other nodes, while there was no leader, an incident like any other."""
        others = [node for node in usable if node not in running]
        self.fleet = self.fleet or Fleet(nodes=tuple((running + others)[: self.limits.nodes]))
        lost = next((node for node in self.fleet.nodes if node not in running), running[0])
        return self._begin_loss(lost, "its ranks ended while there was no leader", now_s)

    def _ask_for_offers(self, rejected: frozenset[str]) -> list[Command]:
        assert self.fleet is not None
        asked = self.question.ask(self.fleet.nodes, rejected, self._passed_over(), self.began_unix_s)
        return [Send(node=node, message=message) for node, message in asked.items()]

    def _passed_over(self) -> frozenset[str]:
        return self.progress.find_passed_over(self.limits.passed_over_after)

    def _await_offers(self, now_s: float) -> list[Command]:
        """Launch as soon as every node has proven the same state; unknown is not "nothing saved"."""
        assert self.fleet is not None
        for node in self.fleet.nodes:
            if self.members.is_connected(node) and self._is_silent(node, now_s):
                self.members[node].connected = False
        if not set(self.fleet.nodes) <= set(self._usable()):
            self._enter(Stage.GATHERING, now_s)
            return []
        match self.question.judge(self.fleet.nodes, self._passed_over(), self.since_s, now_s):
            case None:
                return []
            case Resume() as resume:
                return self._launch(self.fleet, resume, now_s)
            case AskAgain(rejected=rejected):
                return self._ask_for_offers(rejected)
            case NoneProven(reason=reason):
                return self._end(finished=False, reason=reason, now_s=now_s)

    def _launch(self, fleet: Fleet, resume: Resume, now_s: float) -> list[Command]:
        offer = resume.offer
        if self.progress.launch(offer, now_s):
            fleet = replace(fleet, same_restarts=0)
        self.fleet, self.epoch, self._unfinished = fleet, self.epoch.next(self._fence), None
        self._enough_since_s, self._epoch_over, self.ranks_until_s = None, False, 0.0
        self._peer_waits, self._peer_stage = PeerWaits(), LaunchStage()
        self._enter(Stage.RUNNING, now_s)
        host = self.members[fleet.nodes[0]].host
        port = self.limits.port + self.epoch.relaunch % self.limits.ports
        commands: list[Command] = []
        for number, node in enumerate(fleet.nodes):
            member = self.members[node]
            member.running, member.ranks, member.seen_s = self.epoch, (), now_s
            member.finished = member.is_another = False
            launch = ms.Launch(
                epoch=self.epoch,
                node_rank=number,
                nodes=len(fleet.nodes),
                host=host,
                port=port,
                resume_from=None if offer is None else offer.name,
                resume_digest=None if offer is None else offer.digest,
                loads_itself=resume.loads_itself,
            )
            commands.append(Send(node=node, message=launch))
        return commands

    # --- one incident ---------------------------------------------------------------------------------------------

    def _take_beat(self, node: str, member: Member, beat: ms.NodeBeat, now_s: float) -> list[Command]:
        member.ranks = beat.ranks or member.ranks
        of_earlier = beat.epoch is not None and beat.epoch != self.epoch  # sent before its order to launch had come
        is_present = member.running == self.epoch and self.fleet is not None and not of_earlier
        if is_present and self.progress.take_steps(beat.steps, counts_itself=beat.counts_itself):
            assert self.fleet is not None
            self.fleet = replace(self.fleet, same_restarts=0)
        trains = is_present and self.stage is Stage.RUNNING and self._trains(node)
        self._peer_waits.take(node, beat.storage_wait if trains else None, now_s)
        self._peer_stage.take(node, beat.stage if trains else None, now_s)
        warned = [warning for warning in beat.warnings if warning.number > (member.warned or 0)]
        member.warned = max((warning.number for warning in warned), default=member.warned)
        answer = ms.LeaderBeat(
            echo_s=beat.sent_s,
            now_s=now_s,
            lease_s=self.limits.lease_s,
            peer_waits=self._peer_waits.find(node, now_s) if trains else (),
            peer_stage=self._peer_stage.find(node, now_s) if trains else None,
            warned=member.warned or 0,
        )
        written = [RecordWarning(node=node, instance=member.instance, warning=warning) for warning in warned]
        return [*written, Send(node=node, message=answer)]

    def _take_fault(self, node: str, fault: ms.Fault, now_s: float) -> list[Command]:
        if self.stage is Stage.RUNNING:
            begun = self._make_incident(fault.kind, fault.reason, node, fault.rank, now_s)
            if not self._takes_evidence and fault.rank is not None and fault.killed_by in DECISIVE:
                ended = RankEvidence(node=node, rank=fault.rank, killed_by=fault.killed_by)
                begun = replace(begun, evidence=(ended,))
            return self._open(begun, now_s, waits_count=fault.killed_by not in DECISIVE)
        if self.incident is not None and not self._is_known(self.incident, node, fault):
            witness = f"{now_s - self.incident.began_s:.3f} s later, {node}: {fault.kind}: {fault.reason}"
            self.incident = replace(self.incident, witnesses=(*self.incident.witnesses, witness)[:WITNESSES_MAX])
        elif self.stage is Stage.GATHERING and not self._epoch_over and self._unfinished is None:
            self._unfinished = self._make_incident(fault.kind, fault.reason, node, fault.rank, now_s)
        return []

    @staticmethod
    def _is_known(incident: Incident, node: str, fault: ms.Fault) -> bool:
        """Whether a fault is in an incident already: a node repeats what its launch ended by on each new link."""
        if (incident.node, incident.kind, incident.reason) == (node, fault.kind, fault.reason):
            return True
        return any(text.endswith(f" later, {node}: {fault.kind}: {fault.reason}") for text in incident.witnesses)

    def _begin_loss(self, node: str, reason: str, now_s: float) -> list[Command]:
        return self._open(self._make_incident("node_lost", reason, node, None, now_s), now_s)

    def _make_incident(self, kind: str, reason: str, node: str, rank: int | None, now_s: float) -> Incident:
        self.incidents += 1
        return Incident(
            id=str(self.epoch), epoch=self.epoch, kind=kind, reason=reason, node=node, rank=rank, began_s=now_s
        )

    def _open(self, incident: Incident, now_s: float, *, waits_count: bool = True) -> list[Command]:
        self.incident, self._answered, self._waits_count = incident, set(), waits_count
        if not self._takes_evidence:
            return [Record(incident=incident, closed=False), *self._stop_all(now_s)]
        self._enter(Stage.COLLECTING, now_s)
        asked: list[Command] = [self._collect(name) for name in self._training() if self.members[name].connected]
        return [*asked, Record(incident=self.incident, closed=False)]

    @property
    def _takes_evidence(self) -> bool:
        """Whether nodes are asked for evidence before the end; else a rank that was killed is all that can be named."""
        return self.limits.evidence_s > 0

    def _collect(self, node: str) -> Send:
        assert self.incident is not None
        order = ms.Collect(
            epoch=self.epoch,
            limit_s=self.limits.evidence_s,
            incident=self.incident.id,
            waits_count=self._waits_count,
        )
        return Send(node=node, message=order)

    def _take_evidence(self, node: str, taken: ms.EvidenceTaken, now_s: float) -> list[Command]:
        """Take in what a node says of its own ranks; of another's it knows nothing."""
        if self.incident is None:
            return []
        self._answered.add(node)
        known = {(rank.node, rank.rank) for rank in self.incident.evidence}
        new = tuple(rank for rank in taken.ranks if rank.node == node and (rank.node, rank.rank) not in known)
        self.incident = replace(self.incident, evidence=(*self.incident.evidence, *new))
        return self.tick(now_s)

    def _is_collected(self, now_s: float) -> bool:
        assert self.incident is not None
        expected = {node for node in self._training() if self.members[node].connected}
        if self._unfinished is None:  # else also those have evidence whose ranks the leader before this one has ended
            expected = {node for node in expected if self.members[node].running}
        return expected <= self._answered or now_s - self.since_s >= self.limits.evidence_s

    def _stop_all(self, now_s: float) -> list[Command]:
        assert self.incident is not None
        self.incident = replace(self.incident, collected_s=now_s - self.incident.began_s)
        self._enter(Stage.STOPPING, now_s)
        nodes = [node for node in self.members.connected() if self.members[node].running is not None]
        reason = f"{self.incident.kind} on {self.incident.node}: {self.incident.reason}"
        stops: list[Command] = [_stop(node, self.epoch, reason) for node in nodes]
        return [*stops, *self._await_stopped(now_s)]

    def _await_stopped(self, now_s: float) -> list[Command]:
        assert self.incident is not None
        waited_s = now_s - self.since_s
        alive = [node for node in self.members.connected() if self.members.runs(node)]
        silent = [node for node in alive if self._is_silent(node, now_s)]
        self._note_silent(silent)
        if set(alive) - set(silent) and waited_s < self.limits.kill_s:
            return []
        for node in set(alive) - set(silent):
            self.members[node].unkillable = True
        self.incident = replace(self.incident, stopped_s=now_s - self.incident.began_s)
        self._enter(Stage.WAITING, now_s)
        return self.tick(now_s)

    def _find_ranks_end_s(self) -> float:
        """Return by when every node that does not answer has ended its ranks by itself; 0 where all have answered."""
        unheard = [node for node in self._training() if self.members.runs(node) and not self.members[node].connected]
        return self.since_s + self.limits.fence_s if unheard else 0.0

    # --- what follows ---------------------------------------------------------------------------------------------

    def _restart(self, now_s: float) -> list[Command]:
        """Close the incident and start again, once no rank runs; a requeue takes its time until then."""
        assert self.incident is not None
        assert self.fleet is not None
        ranks_end_s = self._find_ranks_end_s()
        if now_s < ranks_end_s and not self.limits.fleet.may_requeue:
            return []
        evidence = complete_evidence(self.incident, self.fleet, self.members)
        culprit = name_culprit(evidence)
        joined = tuple(node for node in self._usable() if node not in self.fleet.nodes)
        known = self.progress.is_known(self.incident.began_s, self.limits.fleet.settle_s)
        fleet = replace(self.fleet, spares=joined)
        restart = choose_restart(culprit, fleet, now_s, self.limits.fleet, progress_known=known)
        if now_s < ranks_end_s and restart.rung is not Rung.REQUEUE:
            return []
        self.progress.end(culprit, evidence)
        self.incident = replace(
            self.incident, culprit=culprit, rung=restart.rung, excluded=restart.excluded, taken=restart.taken
        )
        closed: list[Command] = [Record(incident=self.incident, closed=True)]
        self.incident, self._unfinished, self._epoch_over = None, None, True
        self.ranks_until_s = ranks_end_s if now_s < ranks_end_s else 0.0
        for member in self.members.values():
            if not member.connected:
                member.running = None  # its lease is over, or the next leader waits for that
        lost = {rank.node for rank in evidence if not rank.reachable}
        return [*closed, *self._carry_out(restart, self._may_wait(culprit, lost), now_s)]

    def _carry_out(self, restart: Restart, may_wait: bool, now_s: float) -> list[Command]:  # noqa: FBT001 - an answer
        match restart.rung:
            case Rung.REQUEUE:
                self._enter(Stage.OVER, now_s)
                return [
                    *self._leave_all(ms.Leave(reason="the job is requeued")),
                    Requeue(excluded=tuple(sorted(restart.fleet.excluded)), reason=restart.reason),
                ]
            case Rung.GIVE_UP if restart.spent or not may_wait:
                return self._end(finished=False, reason=restart.reason, now_s=now_s)
            case _:
                self.fleet = restart.fleet
                self.not_before_s = now_s + choose_wait_s(self.fleet.same_restarts, self.limits.fleet)
                self._enter(Stage.GATHERING, now_s)
                return self.tick(now_s)

    def _may_wait(self, culprit: Culprit, lost: set[str]) -> bool:
        """Whether the nodes at fault are only missing, and may be back or are, or no proof ends the training."""
        here = [node for node in culprit.nodes if node not in lost and self.members.is_connected(node)]
        missing = bool(culprit.nodes) and not here
        doubted = culprit.proof is not Proof.PHYSICAL  # no reason to end a training that no other node can take over
        return missing or doubted

    def _watch(self, now_s: float) -> list[Command]:
        training = self._training()
        if training and all(self.members[node].finished for node in training):
            return self._end(finished=True, reason=FINISHED, now_s=now_s)
        silent = [node for node in training if self._is_silent(node, now_s) and not self.members[node].finished]
        if not silent:
            return []
        reason = f"not heard of for {now_s - self.members[silent[0]].seen_s:.1f} s"
        self.incident = self._make_incident("node_lost", reason, silent[0], None, now_s)
        self._note_silent(silent)
        return self._open(self.incident, now_s)

    def _is_silent(self, node: str, now_s: float) -> bool:
        """Whether a node was not heard of for a lease, in which this leader was there to hear it."""
        return now_s - max(self.members[node].seen_s, self._back_s) >= self.limits.lease_s

    def _note_silent(self, nodes: list[str]) -> None:
        """Take nodes for lost, and note it in the incident: they may be back before it is judged."""
        assert self.incident is not None
        assert self.fleet is not None
        for node in nodes:
            self.members[node].connected = False
        lost = describe_silent(nodes, self.incident.evidence, self.fleet, self.members)
        self.incident = replace(self.incident, evidence=(*self.incident.evidence, *lost))

    def _end(self, *, finished: bool, reason: str, now_s: float) -> list[Command]:
        self._enter(Stage.OVER, now_s)
        return [*self._leave_all(ms.Leave(reason=reason, finished=finished)), Over(finished=finished, reason=reason)]

    def _leave_all(self, leave: ms.Leave) -> list[Send]:
        self._leave = leave
        return [Send(node=node, message=leave) for node in self.members.connected()]

    # --- who is there ---------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage, now_s: float) -> None:
        self.stage, self.since_s = stage, now_s

    def _trains(self, node: str) -> bool:
        return self.fleet is not None and node in self.fleet.nodes

    def _training(self) -> list[str]:
        """Return the nodes that train and have joined this leader."""
        return [node for node in self.fleet.nodes if node in self.members] if self.fleet is not None else []

    def _usable(self) -> list[str]:
        return self.members.usable(self.fleet.excluded if self.fleet is not None else frozenset())


def _stop(node: str, epoch: Epoch, reason: str) -> Send:
    return Send(node=node, message=ms.Stop(epoch=epoch, reason=reason))
