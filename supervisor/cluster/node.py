"""The node's side of a training: one thread that watches its ranks, keeps the link to the leader and obeys it.

What happens to a rank goes to the leader at once. Without word of a leader for the lease, and without steps, the thread
ends the ranks itself: it needs nothing for that but its clock. Files are read elsewhere, and answered later: their
folder may be one that all nodes share, and hang.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from supervisor.children.files_apart import apart
from supervisor.children.prompt_thread import PromptThread
from supervisor.cluster import ranks as ra
from supervisor.cluster.answers_later import AnswersLater
from supervisor.cluster.connection import Connection
from supervisor.cluster.end_watch import EndWatch
from supervisor.cluster.evidence_answers import EvidenceAnswers
from supervisor.cluster.leader_link import FindAddress, LeaderLink, LinkUses, NodeSettings, resolve
from supervisor.cluster.node_host import Host, Running
from supervisor.cluster.rank_evidence import read_steps_made
from supervisor.cluster.unsent_warnings import UnsentWarnings
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.lease import Lease
from supervisor.core.moments import Moment
from supervisor.core.peers import PEERS_FRESH_S
from supervisor.runner.process_table import Process

log = logging.getLogger(__name__)

BEAT_EVERY_S = 0.2
FIND_RANKS_EVERY_S = 0.2
INSTANCE_BYTES = 8
ALONE_LIMIT_S = 1800.0
"""How long a node without ranks waits for a leader: longer than any engine takes to start one again, and than a leader
waits for its nodes (`LeaderLimits.gather_s`)."""
FAULTS_MAX = 8
STOPPED_EVERY_S = 0.02
KILL_AGAIN_S = 1.0
UNKILLABLE_AFTER_S = 8.0
"""Before the leader concludes it by itself (`LeaderLimits.kill_s`): only the node knows what the process waits for."""
FIRST_LEASE_S = 5.0
SLEPT_S = 0.5
"""The two clocks that differ by a sleep are read one after the other, and a busy machine may halt between them."""


class Node:
    """The thread; what other threads tell it goes through its queue."""

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        now: Callable[[], Moment],
        find_address: FindAddress | None = None,
        read_asleep_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`now` reads the clocks; `find_address` returns where a host's name leads, None asks the system.

        `read_asleep_s` returns for how long this machine has slept since its start.
        """
        self._settings, self._host, self._now = settings, host, now
        self._read_asleep_s, self._asleep_s = read_asleep_s, read_asleep_s()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._bell, selectors.EVENT_READ, None)
        self._link = LeaderLink(
            settings,
            self._ready,
            LinkUses(
                clock=self._clock,
                call=self._call,
                greet=self._greet,
                obey=lambda message: self._fenced(partial(self._obey, message)),
            ),
            find_address or resolve,
        )
        self._evidence = EvidenceAnswers(settings.node, host, self._clock, self._call, self._link.send)
        self._beat_at_s = self._find_at_s = self._stopped_at_s = 0.0
        self._ordered: Epoch | None = None
        self._running: Running | None = None
        self._ranks: list[ra.RankProcess] = []
        self._stopping_since_s: float | None = None
        self._kill_again_s = 0.0
        self._steps_asked = AnswersLater[int | None]("cluster-steps", self._call)
        self._alive_asked = AnswersLater[bool]("cluster-alive", self._call)
        self._waits_asked = AnswersLater[str | None]("cluster-waits", self._call)
        self._ranks_asked = AnswersLater[list[ra.RankProcess]]("cluster-ranks", self._call)
        self._warnings = UnsentWarnings()
        self._ends = EndWatch(lambda process: self._call(partial(self._take_begun_end, process)))
        self._settled: Epoch | None = None
        """The newest launch of which nothing runs, or will."""
        self._lease = Lease(lease_s=FIRST_LEASE_S, renewed_s=self._clock())
        self._leaving = False
        """Whether the ranks are to save and end: an end is no fault then, and their launcher goes on to its own."""
        self._over = False
        self._instance = secrets.token_hex(INSTANCE_BYTES)
        self._peers_wait = False
        """Whether other nodes waited by the leader's newest answer."""
        self._faults: list[ms.Fault] = []
        """Of the launch that was ordered last: repeated to each leader that comes, until there is another launch."""
        self._finished: Epoch | None = None
        """The newest launch that ended by itself with status 0, which is repeated to each leader likewise."""
        self._alone_since_s = self._clock()
        """Since when there has been no leader and no rank."""
        self._due = (
            self._find_ranks, self._check_stopped, self._beat, self._check_lease, self._keep_link, self._check_alone,
        )  # fmt: skip

    @property
    def problem(self) -> str | None:
        """Why there is no leader at present."""
        return self._link.problem

    def _clock(self) -> float:
        return self._now().monotonic_s

    # --- from other threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        PromptThread(self._run, "cluster-node").start()

    def end(self) -> None:
        """End the thread; the link is closed."""
        self._call(self._finish)

    def launched(self, running: Running) -> None:
        """Take in that the ordered launch became an attempt."""
        self._call(lambda: self._take_launched(running))

    def ended(self, epoch: Epoch, *, finished: bool, reason: str) -> None:
        """Take in that nothing of a launch runs any more, or that it could not be made."""
        self._call(lambda: self._take_ended(epoch, finished=finished, reason=reason))

    def flagged(self, epoch: Epoch, rule: str, reason: str) -> None:
        """Take in that a rule has flagged the training on this node."""
        self._call(lambda: self._report_fault(ms.Fault(epoch=epoch, kind=rule, reason=reason)))

    def warned(self, epoch: Epoch, rule: str, text: str, at: Moment) -> None:
        """Take in what a rule has warned of on this node."""
        self._call(lambda: self._warnings.add(rule, text, at.monotonic_s, str(epoch)))

    def continued(self, epoch: Epoch, pids: Sequence[int]) -> None:
        """Take in that processes which a signal had stopped have been continued."""
        self._call(lambda: self._note_continued(epoch, pids))

    def _call(self, work: Callable[[], None]) -> None:
        self._calls.put(work)
        os.eventfd_write(self._bell, 1)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over:
            ready, now_s = self._ready.select(self._wait_s()), self._clock()
            self._fenced(self._note_sleep)
            for key, events in ready:
                if key.fileobj == self._bell:
                    self._fenced(partial(os.eventfd_read, self._bell))
                elif isinstance(key.data, ra.RankProcess):
                    self._fenced(partial(self._take_rank_end, key.data, now_s))
                else:
                    self._fenced(partial(self._link.serve, events))
            while not self._calls.empty():
                self._fenced(self._calls.get())
            now_s = self._clock()
            for work in self._due:
                self._fenced(partial(work, now_s))

    def _fenced(self, work: Callable[[], object]) -> None:
        """Do some work of this thread, which must not end by an error: it alone ends ranks that are cut off."""
        try:
            work()
        except Exception:
            log.exception("cluster.node_failed")

    def _note_sleep(self) -> None:
        """Have the time that this machine slept count for the lease, and ask the leader at once."""
        asleep_s, now_s = self._read_asleep_s(), self._clock()
        slept_s, self._asleep_s = asleep_s - self._asleep_s, asleep_s
        if slept_s >= SLEPT_S:
            log.warning("cluster.slept", extra={"fields": {"slept_s": round(slept_s, 1)}})
            self._lease, self._beat_at_s = self._lease.woken(slept_s, now_s), now_s

    def _wait_s(self) -> float:
        due = [self._beat_at_s]
        if self._link.connect_at_s is not None:
            due.append(self._link.connect_at_s)
        if self._running is not None and not self._is_all_found():
            due.append(self._find_at_s)
        if self._stopping_since_s is not None:
            due.append(self._stopped_at_s)
        return min(max(0.0, min(due) - self._clock()), BEAT_EVERY_S)

    def _keep_link(self, now_s: float) -> None:
        self._link.keep(now_s, is_wanted=not self._leaving or self._is_busy())

    def _finish(self) -> None:
        self._over = True
        self._link.close()
        self._steps_asked.end()
        self._alive_asked.end()
        self._waits_asked.end()
        self._ranks_asked.end()
        self._ready.close()

    # --- what the leader is sent ----------------------------------------------------------------------------------

    def _greet(self) -> tuple[ms.Message, ...]:
        """Return what a leader has to know of this node before anything else."""
        self._evidence.offset = ClockOffset()
        self._warnings.begin_link()
        running = self._ordered if self._is_launching() else None
        if self._running is not None:
            running = self._running.epoch
        ends: list[ms.Message] = [*self._faults]
        if self._finished is not None and self._finished == self._ordered:
            ends.append(ms.Finished(epoch=self._finished))
        if ends:
            running = self._ordered  # until the leader has how it ended: it would take its ranks for lost
        joined = ms.Joined(
            running=running,
            ordered=self._ordered,
            host=self._settings.host,
            unix_s=self._now().unix_s,
            instance=self._instance,
        )
        return joined, *ends

    def _beat(self, now_s: float) -> None:
        if now_s < self._beat_at_s:
            return
        self._beat_at_s = now_s + BEAT_EVERY_S
        ranks = tuple(rank.rank for rank in self._ranks)
        if self._running is not None:
            folder, epoch = self._running.folder, self._running.epoch
            self._steps_asked.ask(
                partial(apart, read_steps_made, folder, ranks), partial(self._take_steps, epoch, now_s)
            )
        if self._link.is_joined:
            beat = ms.NodeBeat(sent_s=now_s, ranks=ranks, warnings=self._warnings.list_next(now_s))
            self._link.send(beat if self._running is None else self._describe_launch(beat, self._running))

    def _describe_launch(self, beat: ms.NodeBeat, running: Running) -> ms.NodeBeat:
        """Return a beat with what is known of the launch that runs here."""
        place = self._host.read_place(running)
        steps = None if place is None else place.on_training
        return replace(
            beat,
            steps=steps,
            counts_itself=place is not None and steps is None,
            storage_wait=self._host.read_storage_wait(running),
            epoch=running.epoch,
            stage=self._host.read_stage(running),
        )

    def _take_steps(self, epoch: Epoch, asked_s: float, steps: int | None) -> None:
        if self._running is None or self._running.epoch != epoch:
            return
        self._lease = self._lease.stepped(steps, asked_s)
        ra.forget_stops(self._ranks, steps)

    def _is_busy(self) -> bool:
        """Whether ranks run, or are about to."""
        return self._running is not None or self._is_launching()

    def _check_alone(self, now_s: float) -> None:
        """End this node where no leader comes: one that has ended, and could not say so, never does."""
        if self._link.is_joined or self._leaving or self._is_busy():
            self._alone_since_s = now_s
        elif now_s - self._alone_since_s >= ALONE_LIMIT_S:
            alone_s = now_s - self._alone_since_s
            self._host.give_up(f"no leader for {alone_s:.0f} s, and no rank runs here: {self.problem or 'none came'}")
            self._leaving = True

    def _check_lease(self, now_s: float) -> None:
        if not self._is_busy():
            self._lease = Lease(lease_s=self._lease.lease_s, renewed_s=now_s)
            return
        if self._stopping_since_s is None and self._lease.is_over(now_s):
            silent_s = now_s - self._lease.renewed_s
            log.error("cluster.lease_over", extra={"fields": {"silent_s": round(silent_s, 2), "why": self.problem}})
            self._stop(f"no leader for {silent_s:.1f} s (lease {self._lease.lease_s:.1f} s): {self.problem}")

    # --- what the leader orders -----------------------------------------------------------------------------------

    def _obey(self, message: ms.Message) -> None:
        match message:
            case ms.LeaderBeat():
                self._take_leader_beat(message)
            case ms.Launch():
                self._launch(message)
            case ms.Collect():
                self._evidence.collect(message, self._running, self._ranks)
            case ms.FindResume():
                PromptThread(partial(self._find_resume, message, self._link.connection), "cluster-resume").start()
            case ms.Stop():
                if self._running is not None or self._is_launching():
                    if self._ordered is not None and not self._ordered.is_newer_than(message.epoch):
                        self._stop(message.reason)
                else:
                    self._link.send(ms.Stopped(epoch=message.epoch))
            case ms.Refused() | ms.Leave():
                self._part(message)
            case _:
                log.warning("cluster.unexpected", extra={"fields": {"message": type(message).__name__}})

    def _part(self, message: ms.Refused | ms.Leave) -> None:
        """Go out of the training, or wait until whoever has this node's name may be gone."""
        if isinstance(message, ms.Refused):
            self._link.be_refused(message.reason)
            return
        if self._leaving:
            return  # said again: a second request would end the daemon before its training has been saved
        log.info("cluster.leaving", extra={"fields": {"reason": message.reason}})
        self._host.leave(message.reason, finished=message.finished)
        self._leaving = True

    def _take_leader_beat(self, beat: ms.LeaderBeat) -> None:
        now_s = self._clock()
        self._link.take_answer(beat.echo_s)
        self._lease = self._lease.renewed(min(beat.echo_s, now_s), beat.lease_s)
        self._evidence.offset = self._evidence.offset.measured(sent_s=beat.echo_s, theirs_s=beat.now_s, now_s=now_s)
        self._warnings.take_answer(beat.warned)
        self._note_peers(beat, now_s)

    def _note_peers(self, beat: ms.LeaderBeat, now_s: float) -> None:
        """Pass on what other nodes report; an answer that was long on its way says what was, not what is."""
        is_fresh = now_s - beat.echo_s <= PEERS_FRESH_S
        waits = beat.peer_waits if is_fresh else ()
        if self._running is not None and (waits or self._peers_wait):
            self._host.note_peer_waits(self._running, waits)
        if self._running is not None and beat.peer_stage is not None and is_fresh:
            self._host.note_peer_stage(self._running, beat.peer_stage)
        self._peers_wait = bool(waits)

    def _launch(self, order: ms.Launch) -> None:
        if not order.epoch.is_newer_than(self._ordered) or self._running is not None:
            fields = {"epoch": str(order.epoch), "newest": str(self._ordered), "leader": self._link.peer_text}
            log.warning("cluster.launch_refused", extra={"fields": fields})
            return
        self._ordered, self._stopping_since_s = order.epoch, None
        self._faults = []
        self._evidence.begin_launch(order.epoch)
        self._lease = Lease(lease_s=self._lease.lease_s, renewed_s=self._clock())
        log.info("cluster.launch", extra={"fields": {"epoch": str(order.epoch), "node_rank": order.node_rank}})
        self._host.launch(order)

    def _find_resume(self, asked: ms.FindResume, asker: Connection | None) -> None:
        """Answer on the link on which it was asked: a leader that has come since has questions of its own."""
        try:
            answer = ms.ResumeOffers(number=asked.number, offers=self._host.find_resume(asked))
        except Exception as error:
            unexpected = not isinstance(error, OSError)
            log.warning("cluster.resume_failed", extra={"fields": {"why": str(error)}}, exc_info=unexpected)
            answer = ms.ResumeOffers(number=asked.number, problem=f"{type(error).__name__}: {error}")
        self._call(lambda: self._link.send(answer) if self._link.connection is asker else None)

    def _stop(self, reason: str) -> None:
        if self._stopping_since_s is not None:
            return
        self._stopping_since_s = self._clock()
        self._kill_again_s = self._stopping_since_s + KILL_AGAIN_S
        ra.kill(self._ranks)
        if self._running is not None:
            self._host.stop(self._running, reason)
        elif self._ordered is not None and self._host.cancel(self._ordered):
            self._settled = self._ordered

    def _check_stopped(self, now_s: float) -> None:
        if self._stopping_since_s is None or now_s < self._stopped_at_s:
            return
        self._stopped_at_s = now_s + STOPPED_EVERY_S
        running = self._running
        if running is None:
            # One that is becoming an attempt cannot be taken back: it is ended as soon as it is there.
            if not self._is_launching():
                self._report_stopped()
            return
        self._alive_asked.ask(partial(self._host.is_alive, running), partial(self._take_alive, running))
        if now_s < self._kill_again_s:
            return
        if now_s - self._stopping_since_s >= UNKILLABLE_AFTER_S:
            self._waits_asked.ask(
                partial(self._host.describe_waits, running), partial(self._report_unkillable, running)
            )
        self._kill_again_s = now_s + KILL_AGAIN_S
        self._host.stop(running, "still alive after SIGKILL")

    def _report_unkillable(self, running: Running, waits: str | None) -> None:
        if self._running is running and self._stopping_since_s is not None:
            log.error("cluster.unkillable", extra={"fields": {"epoch": str(running.epoch), "waits": waits}})
            self._link.send(ms.Stopped(epoch=running.epoch, unkillable=True, waits=waits))

    def _take_alive(self, running: Running, alive: bool) -> None:  # noqa: FBT001 - the answer to a question
        if not alive and self._running is running and self._stopping_since_s is not None:
            self._clear(running)
            self._report_stopped()

    def _report_stopped(self) -> None:
        self._stopping_since_s = None
        if self._ordered is not None:
            self._link.send(ms.Stopped(epoch=self._ordered))

    def _clear(self, running: Running) -> None:
        self._settled = running.epoch
        for rank in self._ranks:
            self._forget(rank)
        self._ranks, self._running = [], None
        log.info("cluster.stopped", extra={"fields": {"epoch": str(running.epoch)}})

    # --- the ranks ------------------------------------------------------------------------------------------------

    def _is_launching(self) -> bool:
        return self._ordered is not None and self._running is None and self._settled != self._ordered

    def _take_launched(self, running: Running) -> None:
        self._running, self._ranks = running, []
        self._find_at_s = 0.0
        if self._stopping_since_s is not None:
            self._host.stop(running, "stopped before it had started")

    def _is_all_found(self) -> bool:
        return bool(self._ranks) and len(self._ranks) >= self._ranks[0].local_size

    def _find_ranks(self, now_s: float) -> None:
        running = self._running
        if running is None or self._is_all_found() or now_s < self._find_at_s:
            return
        self._find_at_s = now_s + FIND_RANKS_EVERY_S
        known = {rank.process.pid for rank in self._ranks}
        self._ranks_asked.ask(partial(ra.find_ranks, running.shim_pid, known), partial(self._take_ranks, running))

    def _take_ranks(self, running: Running, found: list[ra.RankProcess]) -> None:
        for rank in found:
            if self._running is not running or any(known.rank == rank.rank for known in self._ranks):
                rank.close()
                continue
            self._ranks.append(rank)
            self._ready.register(rank.handle, selectors.EVENT_READ, rank)
            self._ends.add(rank.process)

    def _note_continued(self, epoch: Epoch, pids: Sequence[int]) -> None:
        for rank in self._ranks if self._running is not None and self._running.epoch == epoch else ():
            if rank.process.pid in pids:
                rank.stopped_at_step = self._lease.steps or 0

    def _forget(self, rank: ra.RankProcess) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._ready.unregister(rank.handle)
        rank.close()
        self._ends.remove(rank.process)

    def _take_begun_end(self, process: Process) -> None:
        """Act on the end of a rank whose memory the kernel has still to free."""
        for rank in self._ranks if self._stopping_since_s is None and not self._leaving else ():
            if rank.process is process and rank.ended_s is None:
                self._take_rank_end(rank, self._clock())

    def _take_rank_end(self, rank: ra.RankProcess, now_s: float) -> None:
        """Act on the end of a rank: first nothing of it may be lost, then the leader is told.

        Ranks whose ends were found together have the same time: which of them ended first is not known.
        """
        self._ready.unregister(rank.handle)
        if self._running is None or self._stopping_since_s is not None or self._leaving:
            return
        ra.note_end(rank, now_s)
        if not rank.failed:
            ra.release(rank)  # status 0, or its launcher was quicker: then the exit of the launcher says how
            return
        how = f"killed by {rank.killed_by}" if rank.killed_by else f"exited with status {rank.exit_code}"
        self._report_fault(
            ms.Fault(
                epoch=self._running.epoch,
                kind="rank_exit",
                reason=f"rank {rank.rank} {how}",
                rank=rank.rank,
                killed_by=rank.killed_by,
            )
        )

    def _report_fault(self, fault: ms.Fault) -> None:
        if self._ordered != fault.epoch or self._stopping_since_s is not None:
            return
        log.warning("cluster.fault", extra={"fields": {"kind": fault.kind, "reason": fault.reason}})
        if fault not in self._faults:
            self._faults = [*self._faults[: FAULTS_MAX - 1], fault]
        self._link.send(fault)

    def _take_ended(self, epoch: Epoch, *, finished: bool, reason: str) -> None:
        if epoch == self._settled:
            return  # it was stopped, and that was reported
        if self._running is not None and self._running.epoch == epoch:
            stopping = self._stopping_since_s is not None
            if stopping:
                return  # `_check_stopped` reports it, once nothing is left
            if not finished:
                self._evidence.note_end(self._running, list(self._ranks))
                self._report_fault(ms.Fault(epoch=epoch, kind="exit", reason=reason))
            self._clear(self._running)
        elif self._ordered == epoch:
            if not finished:
                self._report_fault(ms.Fault(epoch=epoch, kind="launch_failed", reason=reason))
            self._settled = epoch
        if finished:
            self._finished = epoch
            self._link.send(ms.Finished(epoch=epoch))
        else:
            self._link.send(ms.Stopped(epoch=epoch))
