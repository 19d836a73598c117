"""The daemon of one node of a training: it launches when the leader orders it, and reports what it finds.

Rules, record, evidence and the reading of the ranks are those of every daemon. What follows from a fault is the
leader's to decide: a flag goes to it instead of stopping the attempt, and no attempt is launched without its order. A
leader that does not act leaves the flagged attempt to this daemon's own deadline.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.children.file_asks import NoAnswerError
from supervisor.children.files_apart import apart_within
from supervisor.children.prompt_thread import PromptThread, ends_within
from supervisor.cluster.leader_link import NodeSettings
from supervisor.cluster.node import Node
from supervisor.cluster.node_host import Running
from supervisor.cluster.rendezvous import environment_of
from supervisor.core import attempt_files as fo
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.decide import describe_waits
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.resume import Offer
from supervisor.core.moments import Moment
from supervisor.core.peers import PEERS_FRESH_S, PeerStage, PeerWait
from supervisor.core.scale import Place
from supervisor.core.stats.holds import FRESH_S
from supervisor.daemon.clock import read_asleep_s
from supervisor.daemon.launch.launch_spec import LaunchOrder
from supervisor.daemon.roles.resume_offers import LOOK_LIMIT_S, ResumeOffers
from supervisor.daemon.wiring import Assembly, LeaderHooks
from supervisor.runner import evidence
from supervisor.runner.attempt_folder import check_disk
from supervisor.sources.processes import pids_below, waits_of

log = logging.getLogger(__name__)

LEADER = "the leader of the training"
FACTS_LIMIT_S = 0.2
ANNOUNCED_S = 5.0
"""Until the ranks of all nodes have come to the step at which rank 0 has them save."""
DISKS_LIMIT_S = 5.0
"""How long the first reading of the disks is waited for."""
LOOK_S = 0.1
WAITS_NAMED = 3
LAUNCHES_KEPT = 8
RECORD_LIMIT_S = 5.0
"""How long the shim of a stopped launch may take to write how it ended. All nodes wait for that, and the leader leaves
out a node on which something lives for longer (`LeaderLimits.kill_s`)."""
START_LIMIT_S = 60.0
"""Of a daemon whose leader refuses it while it starts; it reads its GPUs and its record meanwhile."""
CLEAR_LIMIT_S = 30.0
"""How long removing the snapshots of a training that has finished may take before the daemon ends all the same."""


class Member:
    """Implements `cluster.node_host.Host` for one job of an assembled daemon."""

    def __init__(self, parts: Assembly, job: str, settings: NodeSettings, offers: ResumeOffers) -> None:
        self._parts, self._job, self._host = parts, job, settings.host
        self._offers = offers
        self._lock = threading.Lock()
        self._order: ms.Launch | None = None
        """Ordered, and not yet an attempt."""
        self._epochs: dict[int, Epoch] = {}
        """Of those that have not ended, by the number of the attempt."""
        self._launches: dict[int, Epoch] = {}
        """Of the newest attempts: what their end shows is warned of once it is recorded, when they are over."""
        self._place: tuple[Epoch, Place] | None = None
        """How far the newest launch has come by its rank 0."""
        self._storage_wait: tuple[Epoch, float, str] | None = None
        """What the ranks of a launch wait for here, and by a reading of when on the monotonic clock."""
        self._stage: tuple[Epoch, Moment, PeerStage] | None = None
        """The stage of a launch whose rank 0 is here, and by a reading of when."""
        self._keeps_shared = False
        """Whether this node of all removes what lies in the folder of all."""
        self._stopped: tuple[Epoch, float] | None = None
        """The newest launch that was to be stopped, and since when by the monotonic clock."""
        self.given_up: str | None = None
        """Why this daemon ends without a leader's word."""
        self._node = Node(settings, self, parts.clock.now, read_asleep_s=read_asleep_s)
        parts.lead(
            LeaderHooks(
                leads=True,
                may_launch=self.may_launch,
                take_order=self.take_order,
                report_flag=self.report_flag,
                report_warning=self.report_warning,
            )
        )
        parts.on_turn(self._take)

    def start(self) -> None:
        """Begin to look for the leader."""
        self._node.start()

    def end(self) -> None:
        """Close the link."""
        self._node.end()

    # --- asked by the loop and the executor -----------------------------------------------------------------------

    def may_launch(self) -> bool:
        """Whether the leader has ordered a launch that is still to be made."""
        return self._order is not None

    def take_order(self, attempt: int) -> LaunchOrder:
        """Return what the leader wants of an attempt that is being launched.

        Raises ValueError without an order, OSError where what it resumes from cannot be read any more.
        """
        with self._lock:
            order, self._order = self._order, None
            if order is None:
                raise ValueError(f"{LEADER} took its order back")
            self._epochs[attempt] = self._launches[attempt] = order.epoch
            self._launches.pop(attempt - LAUNCHES_KEPT, None)
            self._keeps_shared = order.node_rank == 0
        return LaunchOrder(
            env=environment_of(order, self._host),
            resume_from=self._offers.locate(order),
            loads_itself=order.loads_itself,
        )

    def report_flag(self, decision: de.Stop) -> bool:
        """Report a flagged attempt; return whether that is left to the leader."""
        epoch = self._epochs.get(decision.attempt)
        if decision.flag is None or epoch is None:
            return False
        self._node.flagged(epoch, decision.flag.rule, decision.reason)
        return True

    def report_warning(self, decision: de.Warn) -> None:
        """Report what a rule has warned of."""
        epoch = self._launches.get(decision.attempt)
        if epoch is not None:
            self._node.warned(epoch, decision.flag.rule, decision.flag.message, decision.at)

    def _take(self, event: ev.Event, _: Moment) -> None:
        """Tell the node's thread what became of an attempt."""
        if isinstance(event, ev.StageEntered | ev.StepsMade | ev.RecorderIdle):
            self._take_stage(event)
        match event:
            case ev.Launched() if (epoch := self._epochs.get(event.attempt)) is not None:
                self._node.launched(Running(epoch=epoch, folder=self._folder(event.attempt), shim_pid=event.shim_pid))
            case ev.StepsMade() if event.rank == 0 and (epoch := self._epochs.get(event.attempt)) is not None:
                attempt = self._parts.loop.job_states[self._job].job.attempt
                if attempt is not None and attempt.number == event.attempt and attempt.last_step is not None:
                    self._place = epoch, attempt.place_of(attempt.last_step)
            case ev.ProcessesRead() if (epoch := self._epochs.get(event.attempt)) is not None:
                self._take_storage_wait(event, epoch)
            case ev.Continued() if (epoch := self._epochs.get(event.attempt)) is not None:
                self._node.continued(epoch, event.pids)
            case ev.LaunchFailed() if (epoch := self._epochs.pop(event.attempt, None)) is not None:
                self._node.ended(epoch, finished=False, reason=event.error)
            case ev.Exited() if (epoch := self._epochs.pop(event.attempt, None)) is not None:
                self._node.ended(epoch, finished=event.status.clean, reason=_describe_exit(event))
            case ev.HostLost() if (epoch := self._epochs.pop(event.attempt, None)) is not None:
                self._node.ended(epoch, finished=False, reason=event.reason)
            case _:
                pass

    def _take_stage(self, event: ev.StageEntered | ev.StepsMade | ev.RecorderIdle) -> None:
        """Keep the stage of rank 0 where that is here: its recorder was read, so that this is no stage of the past."""
        epoch, history = self._epochs.get(event.attempt), self._parts.loop.job_states[self._job].history
        if epoch is None or history is None or history.stage is None or history.stage_since is None:
            return
        lasted_s = max(0.0, event.at.seconds_since(history.stage_since))
        stepped = history.last_step_at is not None
        self._stage = epoch, event.at, PeerStage(stage=history.stage, lasted_s=lasted_s, stepped=stepped)

    def _take_storage_wait(self, event: ev.ProcessesRead, epoch: Epoch) -> None:
        """Keep what the ranks here wait for where that explains a missing step; other nodes report their own waits."""
        history = self._parts.loop.job_states[self._job].history
        waits = () if history is None else history.storage.own
        words = "; ".join(wait.words for wait in waits[:WAITS_NAMED])
        self._storage_wait = (epoch, event.at.monotonic_s, words) if words else None

    # --- asked by the node's thread -------------------------------------------------------------------------------

    def launch(self, order: ms.Launch) -> None:
        """See `Host.launch`."""
        with self._lock:
            self._order = order
        self._ask(ev.Ask.START)

    def cancel(self, epoch: Epoch) -> bool:
        """See `Host.cancel`."""
        with self._lock:
            held = self._order is not None and self._order.epoch == epoch
            if held:
                self._order = None
        return held

    def stop(self, running: Running, reason: str) -> None:
        """See `Host.stop`. To the record it is a restart that was asked for, which costs the job no budget."""
        log.warning("member.stopping", extra={"fields": {"epoch": str(running.epoch), "reason": reason}})
        self._ask(ev.Ask.RESTART)
        now_s = self._parts.clock.now().monotonic_s
        if self._stopped is None or self._stopped[0] != running.epoch:
            self._stopped = running.epoch, now_s
        late = now_s - self._stopped[1] >= RECORD_LIMIT_S
        PromptThread(partial(self._kill, running, late=late), "cluster-kill").start()

    def is_alive(self, running: Running) -> bool:
        """See `Host.is_alive`."""
        return self._parts.launcher.alive(self._job, running.folder)

    def describe_waits(self, running: Running) -> str | None:
        """See `Host.describe_waits`."""
        return describe_waits([wait for pid in pids_below(running.shim_pid) or () for wait in waits_of(pid, "rank")])

    def read_place(self, running: Running) -> Place | None:
        """See `Host.read_place`."""
        known = self._place
        return None if known is None or known[0] != running.epoch else known[1]

    def read_storage_wait(self, running: Running) -> str | None:
        """See `Host.read_storage_wait`. A reading that is not current says nothing, as on this node itself."""
        if (known := self._storage_wait) is None or known[0] != running.epoch:
            return None
        return known[2] if self._parts.clock.now().monotonic_s - known[1] <= FRESH_S else None

    def read_stage(self, running: Running) -> PeerStage | None:
        """See `Host.read_stage`. A recorder that is not read at present says nothing."""
        if (known := self._stage) is None or known[0] != running.epoch:
            return None
        read_s = max(0.0, self._parts.clock.now().seconds_since(known[1]))
        return replace(known[2], lasted_s=known[2].lasted_s + read_s) if read_s <= PEERS_FRESH_S else None

    def note_peer_stage(self, running: Running, stage: PeerStage) -> None:
        """See `Host.note_peer_stage`."""
        now = self._parts.clock.now()
        for attempt in self._list_attempts(running):
            self._parts.inbox.put(ev.PeerStageSeen(at=now, job=self._job, attempt=attempt, stage=stage))

    def _list_attempts(self, running: Running) -> list[int]:
        return [attempt for attempt, epoch in tuple(self._epochs.items()) if epoch == running.epoch]

    def note_peer_waits(self, running: Running, waits: tuple[PeerWait, ...]) -> None:
        """See `Host.note_peer_waits`."""
        now = self._parts.clock.now()
        for attempt in self._list_attempts(running):
            self._parts.inbox.put(ev.PeerWaitsSeen(at=now, job=self._job, attempt=attempt, waits=waits))

    def take_evidence(self, running: Running, incident: str, limit_s: float) -> Path:
        """See `Host.take_evidence`."""
        parts = self._parts
        states = parts.loop.job_states
        try:
            facts = parts.inbox.ask(
                lambda: parts.evidence(states[self._job].job, states[self._job].history), FACTS_LIMIT_S
            )
        except TimeoutError:
            facts = evidence.EvidenceFacts()
        taken = evidence.take(
            running.folder, parts.launcher, self._job, facts, incident, limit_s=max(0.1, limit_s - FACTS_LIMIT_S)
        )
        return taken.folder

    def find_resume(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        """See `Host.find_resume`. A node whose disk has no room for a launch, or fails, cannot be launched either."""
        until_s = self._parts.clock.now().monotonic_s + DISKS_LIMIT_S
        while self._parts.newest.host is None and self._parts.clock.now().monotonic_s < until_s:
            time.sleep(LOOK_S)
        job_state = self._parts.loop.job_states.get(self._job)
        if job_state is not None and (disk := self._parts.disk_room.find_full(job_state)) is not None:
            raise OSError(errno.ENOSPC, f"{disk.room_words}, too little for a launch", disk.path)
        apart_within(LOOK_LIMIT_S, check_disk, self._parts.state, self._job)
        return self._offers.find(asked)

    def leave(self, reason: str, *, finished: bool) -> None:
        """See `Host.leave`: the daemon's own end saves and ends the training first."""
        log.info("member.leaving", extra={"fields": {"reason": reason}})
        PromptThread(partial(self._end_daemon, clears=finished and self._keeps_shared), "cluster-leave").start()

    def give_up(self, reason: str) -> None:
        """See `Host.give_up`."""
        log.error("member.given_up", extra={"fields": {"reason": reason}})
        self.given_up = reason
        self.leave(reason, finished=False)

    def _clear_offers(self) -> None:
        try:
            self._offers.clear()
        except (OSError, NoAnswerError) as error:
            log.warning("member.not_cleared", extra={"fields": {"why": str(error)}})

    def _end_daemon(self, *, clears: bool) -> None:
        """End this daemon; on nodes without rank 0 once the ranks have ended that it had save, at most `save_s` later.

        Only rank 0 can be asked to save: to end the others at once would leave it without their shards.
        """
        try:
            self._clear_and_await_save(clears=clears)
        finally:  # whatever is amiss there, this daemon ends
            _await_handlers(START_LIMIT_S)
            os.kill(os.getpid(), signal.SIGTERM)

    def _clear_and_await_save(self, *, clears: bool) -> None:
        if clears and not ends_within(CLEAR_LIMIT_S, "cluster-clear", self._clear_offers):
            log.warning("member.not_cleared", extra={"fields": {"why": f"not done within {CLEAR_LIMIT_S:.0f} s"}})
        settings = self._parts.settings.jobs[self._job]
        waits = settings.snapshot_replicas is not None and not self._keeps_shared
        until_s = self._parts.clock.now().monotonic_s + (settings.save_s + ANNOUNCED_S if waits else 0.0)
        while self._is_running() and self._parts.clock.now().monotonic_s < until_s:
            time.sleep(LOOK_S)

    def _is_running(self) -> bool:
        attempt = max(self._epochs, default=None)
        return attempt is not None and self._parts.launcher.alive(self._job, self._folder(attempt))

    def _kill(self, running: Running, *, late: bool) -> None:
        """Have the shim kill all of an attempt; end it where it alone is left for long: a disk refuses its record."""
        launcher = self._parts.launcher
        below = pids_below(running.shim_pid) if late else None
        if below is not None and not below:
            log.error("member.end_not_recorded", extra={"fields": {"epoch": str(running.epoch)}})
            launcher.kill_all(self._job, running.folder)
        elif not launcher.signal(self._job, running.folder, signal.Signals[fo.SHIM_KILL]):
            launcher.kill_all(self._job, running.folder)

    def _ask(self, ask: ev.Ask) -> None:
        now = self._parts.clock.now()
        self._parts.inbox.put(ev.UserRequest(at=now, job=self._job, ask=ask, by=LEADER))
        self._parts.inbox.put(ev.Tick(at=now))

    def _folder(self, attempt: int) -> Path:
        return self._parts.state / "jobs" / self._job / str(attempt)


def _describe_exit(event: ev.Exited) -> str:
    status = event.status
    if status.signal is not None:
        return f"the command was killed by signal {status.signal}"
    return status.error or f"the command exited with status {status.code}"


def _await_handlers(limit_s: float) -> None:
    """Wait until this daemon takes signals: before, one would end it without its status and its reason."""
    for _ in range(math.ceil(limit_s / LOOK_S)):
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        time.sleep(LOOK_S)
