"""The leader's process: accepts the nodes of one training, asks `core.fleet.leading` what to do, and does that.

It holds nothing that the nodes and its record do not: an engine that starts it again loses no training.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor import __version__
from supervisor.cluster.connection import Connection
from supervisor.cluster.leader_record import LeaderRecord
from supervisor.control.peers import find_owner
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.link import Greeting, LinkError, Role
from supervisor.core.fleet.training import Command, Over, Record, RecordWarning, Requeue, Send
from supervisor.core.moments import Moment
from supervisor.core.stats.log_limit import LogLimit

log = logging.getLogger(__name__)

TICK_S = 0.05
PROVE_LIMIT_S = 5.0
UNPROVEN_MAX = 128
"""Connections that have not proven who they are; more than that are a flood: of the address that has most of them the
oldest is closed."""
ACCEPTED_PER_TURN = 8
"""So that each of them is read from in several turns before it can be closed for another: a proof takes three."""
NO_DESCRIPTORS_WAIT_S = 1.0
"""Until it is accepted again where no file descriptor is left: what waits in the queue would have every turn follow the
one before at once."""
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
STRANGERS_LOGGED, STRANGERS_EVERY_S = 10, 10.0
"""How many links that proved nothing are logged, and in what time: who needs no secret must not fill the log."""
SAME_STRANGER_S = 600.0
"""How long what was logged of such a link is not logged again."""
CLOCK_WARN_S = 60.0
SET_BACK_S = 5.0
"""Within one turn: both clocks are read one after the other, and a busy machine may be late between them."""
REQUEUE_STATUS = 75
END_LIMIT_S = 5.0
"""How long nodes may take to take in that the training has ended, and those whose link broke to come back for it."""
REQUEUE_LIMIT_S = 1.0
"""The same where the engine ends all of them, and the job waits for that."""

RECORD_FINISHED_LIMIT_S = 1.0
"""How long nodes that have finished wait for the record of that, whose folder may hang."""


class Engine(Protocol):
    """What an engine adds: other nodes than those that have joined."""

    fence: int
    """By which the launches of this leader are newer than those of an earlier one; 0 where the engine counts none."""

    def requeue(self, excluded: Sequence[str], reason: str) -> None:
        """Have the whole job started again without some nodes. Raises OSError or ValueError with the reason."""
        ...

    def tick(self) -> None:
        """Do what is due, such as starting the daemon of a node again."""
        ...


class Announcer(Protocol):
    """Tells people of incidents and of the end; every method returns at once."""

    def announce(self, command: Command, leading: Leading) -> None:
        """Take in what is being carried out."""
        ...

    def warn_of_record(self, problem: str) -> None:
        """Tell that the leader's record cannot be written, once until it could."""
        ...

    def tick(self) -> None:
        """Do what is due, such as trying again."""
        ...

    def close(self) -> None:
        """Wait for what is being sent, for a bounded time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A connection that a node has made."""

    connection: Connection
    since_s: float
    owner: str
    """Its address, without the port."""


class Leader:
    """The loop; `run` returns the exit status."""

    def __init__(  # noqa: PLR0913 - what a process consists of
        self,
        *,
        leading: Leading,
        job: str,
        name: str,
        secret: bytes,
        listening: socket.socket,
        record: LeaderRecord,
        engine: Engine,
        announcer: Announcer,
        now: Callable[[], Moment],
    ) -> None:
        self._leading, self._job, self._name, self._secret = leading, job, name, secret
        self._listening, self._record, self._engine, self._now = listening, record, engine, now
        self._announcer = announcer
        self._ready = selectors.DefaultSelector()
        listening.setblocking(False)  # noqa: FBT003 - the standard library's
        self._ready.register(listening, selectors.EVENT_READ, None)
        self._accept_at_s: float | None = None
        """When it is accepted again, where it is not at present."""
        self._unproven: list[Peer] = []
        self._proven: list[Peer] = []
        self._nodes: dict[str, Peer] = {}
        self._refused: dict[str, str] = {}
        """Why the last daemon that was refused under a name was: told once, however often it tries."""
        self._strangers_since_s, self._strangers = 0.0, 0
        self._log_limit = LogLimit(SAME_STRANGER_S, UNPROVEN_MAX)
        """Of what is logged of links, without their ports."""
        self._resume_problem: str | None = None
        self._status: int | None = None
        self._wall_ahead_s = self._read_wall_ahead_s()
        self._storage_behind_s: float | None = None
        self._asked_to_stop: str | None = None
        self._leave_sent: set[str] = set()
        """The nodes to which it was sent that they are to leave."""
        self._parted: list[Peer] = []
        """Links of such nodes that this end has closed for sending."""

    def _clock(self) -> float:
        return self._now().monotonic_s

    def _read_wall_ahead_s(self) -> float:
        now = self._now()
        return now.unix_s - now.monotonic_s

    def ask_to_stop(self, reason: str) -> None:
        """Have the training saved and ended; may be called in a signal's handler."""
        self._asked_to_stop = reason

    def run(self) -> int:
        """Lead until the training is over; return 0 where it finished, 75 where it is to be requeued, else 1."""
        while self._status is None:
            self._take_in_events()
            self._do_due()
        self._part_with_nodes()
        self._close()
        return self._status

    def _take_in_events(self) -> None:
        """Read from those that are there before others are let in, for which one of them may have to go."""
        found = self._ready.select(TICK_S)
        for key, events in found:
            if key.data is not None:
                self._serve(key.data, events)
        if any(key.data is None for key, _ in found):
            self._accept()

    def _do_due(self) -> None:
        now_s = self._clock()
        self._accept_again(now_s)
        self._follow_wall_clock()
        if self._asked_to_stop is None and self._record.is_stop_asked():
            self._asked_to_stop = "stopped by its user"
        if self._asked_to_stop is not None:
            self._carry_out(self._leading.asked_to_stop(self._asked_to_stop, now_s))
        self._carry_out(self._leading.tick(now_s))
        for peer in [peer for peer in self._unproven if now_s - peer.since_s > PROVE_LIMIT_S]:
            self._drop(peer, f"{peer.connection.link.peer_text}: has not proven who it is within {PROVE_LIMIT_S:.0f} s")
        self._engine.tick()
        self._announcer.tick()
        self._warn_of_resume()
        problem = self._record.find_problem()
        if problem is not None:
            self._announcer.warn_of_record(problem)
        self._write_state()

    def _follow_wall_clock(self) -> None:
        """Have the begin of the training on a wall clock that was set back: what is saved from now on is not older."""
        before_s, self._wall_ahead_s = self._wall_ahead_s, self._read_wall_ahead_s()
        set_back_s = before_s - self._wall_ahead_s
        if set_back_s >= SET_BACK_S:
            log.warning("leader.clock_set_back", extra={"fields": {"by_s": round(set_back_s)}})
            self._leading.began_unix_s -= set_back_s
            self._leading.question.clocks.note_set_back(set_back_s)
        self._follow_storage_clock()

    def _follow_storage_clock(self) -> None:
        """Have the begin of the training by the clock that stamps files, which may be another machine's."""
        behind_s, before_s = self._record.storage_behind_s, self._storage_behind_s
        if behind_s is None or behind_s == before_s:
            return
        self._storage_behind_s = behind_s
        self._leading.question.clocks.note_storage(behind_s)
        if behind_s >= CLOCK_WARN_S and (before_s is None or before_s < CLOCK_WARN_S):
            log.warning("leader.clock_ahead_of_storage", extra={"fields": {"by_s": round(behind_s)}})

    def _write_state(self) -> None:
        """Write the state; of a training that is over for good only in the end, once its nodes have taken that in.

        A leader that comes before sends them away; to one that comes after it the training is another.
        """
        if self._status != 0:
            self._record.write_state(self._leading)

    # --- connections ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                opened, address = self._listening.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._make_room(error)
                return
            self._take_in(opened, address)

    def _make_room(self, error: OSError) -> None:
        """Give up a connection that has proven nothing for the next one, or accept none for a while."""
        if self._unproven:
            self._drop(self._find_most_crowding(), f"{error.strerror}: closing a connection that has proven nothing")
            return
        now_s = self._clock()
        if self._log_limit.allows("no descriptors", now_s):
            log.error("leader.no_descriptors", extra={"fields": {"error": error.strerror, "nodes": len(self._nodes)}})
        self._ready.unregister(self._listening)
        self._accept_at_s = now_s + NO_DESCRIPTORS_WAIT_S

    def _accept_again(self, now_s: float) -> None:
        if self._accept_at_s is not None and now_s >= self._accept_at_s:
            self._ready.register(self._listening, selectors.EVENT_READ, None)
            self._accept_at_s = None

    def _find_most_crowding(self) -> Peer:
        """Return the oldest connection of the address that has most of those that have proven nothing."""
        (owner, _), *_ = Counter(peer.owner for peer in self._unproven).most_common(1)
        return next(peer for peer in self._unproven if peer.owner == owner)

    def _take_in(self, opened: socket.socket, address: tuple[str, int]) -> None:
        if len(self._unproven) >= UNPROVEN_MAX:
            text = f"{UNPROVEN_MAX} connections that have proven nothing: closing the oldest"
            self._drop(self._find_most_crowding(), text)
        text, owner = f"{address[0]}:{address[1]}", find_owner(opened, address)
        greeting = Greeting(name=self._name, version=__version__, job=self._job)
        connection = Connection(opened, Role.LEADER, greeting, self._secret, text)
        peer = Peer(connection=connection, since_s=self._clock(), owner=owner)
        self._unproven.append(peer)
        self._ready.register(opened, selectors.EVENT_READ, peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if peer not in self._proven and peer not in self._unproven:
            return  # closed since the events were asked for, to make room for another
        try:
            if events & selectors.EVENT_READ:
                for message in peer.connection.read():
                    self._take(peer, message)
            if peer in self._proven or peer in self._unproven:
                self._flush(peer)
        except (LinkError, OSError) as error:
            self._drop(peer, str(error))

    def _take(self, peer: Peer, message: ms.Message) -> None:
        now_s, greeting = self._clock(), peer.connection.link.peer
        assert greeting is not None
        if peer in self._unproven:
            self._unproven.remove(peer)
            self._proven.append(peer)
        node = greeting.name
        if isinstance(message, ms.Joined):
            self._let_join(peer, greeting, message, now_s)
        elif self._nodes.get(node) is peer:
            self._carry_out(self._leading.took(node, message, now_s))

    def _let_join(self, peer: Peer, greeting: Greeting, message: ms.Joined, now_s: float) -> None:
        node, earlier = greeting.name, self._nodes.get(greeting.name)
        if earlier is not None and earlier is not peer:
            if self._leading.find_namesake(node, message, now_s):
                self._refuse(node, peer, earlier)
                return
            self._drop(earlier, f"node {node}: has connected again")
        self._nodes[node] = peer
        self._refused.pop(node, None)
        self._compare_clock(node, message)
        if greeting.version != __version__:
            fields = {"node": node, "version": greeting.version, "own": __version__}
            log.warning("leader.version_differs", extra={"fields": fields})
        log.info("leader.joined", extra={"fields": {"node": node, "version": greeting.version}})
        self._carry_out(self._leading.joined(node, message, now_s))

    def _refuse(self, node: str, peer: Peer, earlier: Peer) -> None:
        """End the link of a daemon whose name another one has; that one is not disturbed."""
        theirs, host = earlier.connection.link.address, peer.connection.link.address.rpartition(":")[0]
        reason = f"node {node} at {host}: a daemon at {theirs} has joined under this name; give each its own --node"
        with contextlib.suppress(LinkError, OSError):
            peer.connection.send(ms.Refused(reason=reason))
        quiet, self._refused[node] = self._refused.get(node) == reason, reason
        self._drop(peer, reason, quiet=quiet)

    def _compare_clock(self, node: str, joined: ms.Joined) -> None:
        """Take in how far a node's clock is from this one, by which what it saves is known from what was before."""
        ahead_s = joined.unix_s - self._now().unix_s
        self._leading.question.clocks.note_node(node, -ahead_s)
        if abs(ahead_s) >= CLOCK_WARN_S:
            fields = {"node": node, "ahead_s": round(ahead_s)}
            log.warning("leader.clock_differs", extra={"fields": fields})

    def _warn_of_resume(self) -> None:
        """Warn, once for each reason, that a launch waits because a node cannot look for what to resume from."""
        problem, before = self._leading.resume_problem, self._resume_problem
        self._resume_problem = problem
        if problem is not None and problem != before:
            log.warning("leader.resume_unknown", extra={"fields": {"why": problem}})

    def _flush(self, peer: Peer) -> None:
        peer.connection.flush()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.connection.waits_to_send else 0)
        if self._ready.get_key(peer.connection.socket).events != wanted:
            self._ready.modify(peer.connection.socket, wanted, peer)

    def _drop(self, peer: Peer, why: str, *, quiet: bool = False) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._ready.unregister(peer.connection.socket)
        with contextlib.suppress(LinkError, OSError):
            peer.connection.flush()  # who this leader is, to a node that does not belong to it
        peer.connection.close()
        quiet = quiet or peer in self._parted or (peer in self._unproven and not self._may_log_stranger(peer, why))
        for peers in (self._unproven, self._proven):
            if peer in peers:
                peers.remove(peer)
        if not quiet:
            log.warning("leader.link_ended", extra={"fields": {"why": why}})
        for node in [name for name, known in self._nodes.items() if known is peer]:
            del self._nodes[node]
            self._leading.disconnected(node)

    def _may_log_stranger(self, peer: Peer, why: str) -> bool:
        """Count a link that ends before anything was proven; return whether it is one of the first of its time.

        What a node says that tries again and again is logged once, and again after a while.
        """
        now_s, address = self._clock(), peer.connection.link.address
        text = why.replace(address, address.rpartition(":")[0])
        if not self._log_limit.allows(text, now_s):
            return False
        if now_s - self._strangers_since_s >= STRANGERS_EVERY_S:
            if self._strangers > STRANGERS_LOGGED:
                fields = {
                    "links": self._strangers - STRANGERS_LOGGED,
                    "since_s": round(now_s - self._strangers_since_s),
                }
                log.warning("leader.strangers_not_logged", extra={"fields": fields})
            self._strangers_since_s, self._strangers = now_s, 0
        self._strangers += 1
        return self._strangers <= STRANGERS_LOGGED

    # --- what is to be done ---------------------------------------------------------------------------------------

    def _carry_out(self, commands: Sequence[Command]) -> None:
        """Send first, record then: no disk may hold up the end of a launch.

        How the training ended is recorded first: nodes that leave for that can report it to no other leader.
        """
        self._record_end(commands)
        for command in commands:
            if isinstance(command, Send):
                self._send(command)
        for command in commands:
            self._announcer.announce(command, self._leading)
            match command:
                case Record():
                    self._record.write_incident(command.incident, closed=command.closed)
                case RecordWarning():
                    self._record.write_warning(command)
                case Requeue():
                    self._requeue(command)
                case Over():
                    log.info("leader.over", extra={"fields": {"finished": command.finished, "reason": command.reason}})
                    self._status = 0 if command.finished or command.reason == "stopped" else 1
                case Send():
                    pass

    def _record_end(self, commands: Sequence[Command]) -> None:
        for over in [command for command in commands if isinstance(command, Over)]:
            self._record.write_over(self._leading.epoch, finished=over.finished, reason=over.reason)
            if over.finished:
                self._record.await_over(RECORD_FINISHED_LIMIT_S)

    def _requeue(self, command: Requeue) -> None:
        self._record.write_excluded(command.excluded)
        try:
            self._engine.requeue(command.excluded, command.reason)
        except (OSError, ValueError) as error:
            log.error("leader.requeue_failed", extra={"fields": {"why": str(error)}})
            self._record.write_over(self._leading.epoch, finished=False, reason=f"could not be requeued: {error}")
            self._status = 1
            return
        self._status = REQUEUE_STATUS

    def _send(self, command: Send) -> None:
        peer = self._nodes.get(command.node)
        if peer is None or peer in self._parted:
            return
        if isinstance(command.message, ms.Leave):
            self._leave_sent.add(command.node)
        if isinstance(command.message, ms.Launch):
            self._record.write_state(self._leading)
        try:
            peer.connection.send(command.message)
            self._flush(peer)
        except (LinkError, OSError) as error:
            self._drop(peer, str(error))

    def _part_with_nodes(self) -> None:
        """Wait until each node has taken in that it is to leave.

        A socket that is closed with a beat unread in it resets the link, and what was sent last may be lost with it: so
        this end is closed for sending, and the node closes the other one once it has read all.
        """
        self._write_state()
        is_over = self._status != REQUEUE_STATUS
        until_s = self._clock() + (END_LIMIT_S if is_over else REQUEUE_LIMIT_S)
        while self._clock() < until_s:
            for peer in [self._nodes[node] for node in self._leave_sent & set(self._nodes)]:
                self._part_with(peer)
            awaited = self._leave_sent & set(self._nodes)
            absent = set(self._leading.members) - set(self._nodes) - self._leave_sent if is_over else set()
            if not awaited and not absent:
                return
            self._take_in_events()
        left = sorted((self._leave_sent & set(self._nodes)) | (set(self._leading.members) - self._leave_sent))
        log.warning("leader.leave_not_taken", extra={"fields": {"nodes": left}})

    def _part_with(self, peer: Peer) -> None:
        if peer in self._parted or peer.connection.waits_to_send:
            return
        self._parted.append(peer)
        with contextlib.suppress(OSError):
            peer.connection.socket.shutdown(socket.SHUT_WR)

    def _close(self) -> None:
        self._ready.close()
        for peer in (*self._proven, *self._unproven):
            peer.connection.close()
        self._listening.close()
        self._record.write_state(self._leading)
        self._announcer.close()
        self._record.close()
