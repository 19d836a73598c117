"""A node whose leader falls silent: the link is made anew, and no report is lost with the old one."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from boss_by_hand import SECRET, Boss
from cluster_by_hand import until

from supervisor.cluster.connection import Connection
from supervisor.cluster.leader_link import REFUSED_WAIT_S, SILENT_LIMIT_S, Address, NodeSettings, resolve
from supervisor.cluster.node import FIRST_LEASE_S, Node
from supervisor.cluster.node_host import Running
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.resume import Offer
from supervisor.core.moments import Moment
from supervisor.core.peers import PEERS_FRESH_S, PeerStage, PeerWait
from supervisor.core.readings import Stage
from supervisor.core.scale import Place
from supervisor.daemon.clock import SystemClock

EPOCH = Epoch("run", 0, 1)
PID_OF_NONE = 2**22 + 1
"""Beyond what a kernel gives."""
CLOCK = SystemClock()


def now_s() -> float:
    return CLOCK.now().monotonic_s


@dataclass
class Daemon:
    """The node's daemon, which starts nothing."""

    ordered: list[Epoch] = field(default_factory=list)
    waits_for: str | None = None
    peer_waits: list[tuple[PeerWait, ...]] = field(default_factory=list)
    stage: PeerStage | None = None
    peer_stages: list[PeerStage] = field(default_factory=list)

    def launch(self, order: ms.Launch) -> None:
        self.ordered.append(order.epoch)

    def stop(self, running: Running, reason: str) -> None:
        raise AssertionError(reason)

    def cancel(self, epoch: Epoch) -> bool:
        return epoch in self.ordered

    def is_alive(self, running: Running) -> bool:
        return False

    def describe_waits(self, running: Running) -> str | None:
        return None

    def read_place(self, running: Running) -> Place | None:
        return None

    def read_storage_wait(self, running: Running) -> str | None:
        return self.waits_for

    def note_peer_waits(self, running: Running, waits: tuple[PeerWait, ...]) -> None:
        self.peer_waits.append(waits)

    def read_stage(self, running: Running) -> PeerStage | None:
        return self.stage

    def note_peer_stage(self, running: Running, stage: PeerStage) -> None:
        self.peer_stages.append(stage)

    def take_evidence(self, running: Running, incident: str, limit_s: float) -> Path:
        raise AssertionError(incident)

    def find_resume(self, asked: ms.FindResume) -> tuple[Offer, ...]:
        raise AssertionError(asked)

    def leave(self, reason: str, *, finished: bool) -> None:
        raise AssertionError(reason, finished)

    def give_up(self, reason: str) -> None:
        raise AssertionError(reason)


def test_a_leader_that_answers_no_more_is_connected_to_again_and_what_was_reported_meanwhile_is_repeated(
    boss: Boss,
) -> None:
    elapsed_s = [0.0]
    daemon = Daemon()
    address: tuple[str, int] = boss.listening.getsockname()
    settings = NodeSettings(node="n0", job="run", leader=address, secret=SECRET, host="127.0.0.1")
    node = Node(settings, daemon, lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))
    node.start()
    try:
        first = accept_launched(boss, daemon)
        node.ended(EPOCH, finished=True, reason="")  # into a network that carries nothing any more
        boss.take_until(first, lambda message: message == ms.Finished(epoch=EPOCH))
        elapsed_s[0] += SILENT_LIMIT_S + 1.0
        until(lambda: node.problem is not None and "has not answered for" in node.problem, "the silence to be noticed")
        elapsed_s[0] += 1.0
        joined, *rest = boss.take_until(boss.accept(), lambda message: message == ms.Finished(epoch=EPOCH))
        # Not as one that lost its ranks, which would be an incident.
        assert isinstance(joined, ms.Joined)
        assert (joined.running, joined.ordered) == (EPOCH, EPOCH)
        assert rest[0] == ms.Finished(epoch=EPOCH)
    finally:
        node.end()


def test_a_training_that_finished_here_is_reported_to_each_leader_that_comes(boss: Boss) -> None:
    """The one before it had that, and other nodes may go on for long."""
    daemon = Daemon()
    node = begin(boss, daemon, CLOCK.now)
    try:
        first = accept_launched(boss, daemon)
        node.ended(EPOCH, finished=True, reason="")
        boss.take_until(first, lambda message: message == ms.Finished(epoch=EPOCH))
        answer(boss, first, now_s)
        first.close()
        joined, report, *_ = boss.take_until(boss.accept(), lambda message: isinstance(message, ms.NodeBeat))
        assert isinstance(joined, ms.Joined)
        assert (joined.running, report) == (EPOCH, ms.Finished(epoch=EPOCH))
    finally:
        node.end()


def accept_launched(boss: Boss, daemon: Daemon) -> Connection:
    """Return the link of a node that comes, once it has ordered a launch."""
    link = boss.accept()
    boss.take_until(link, lambda message: isinstance(message, ms.Joined))
    link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=1, host="127.0.0.1", port=1))
    until(lambda: daemon.ordered == [EPOCH], "the launch")
    return link


def begin(boss: Boss, daemon: Daemon, clock: Callable[[], Moment], name: str = "n0") -> Node:
    address: tuple[str, int] = boss.listening.getsockname()
    node = Node(NodeSettings(node=name, job="run", leader=address, secret=SECRET, host="127.0.0.1"), daemon, clock)
    node.start()
    return node


def answer(boss: Boss, link: Connection, leader_now: Callable[[], float]) -> None:
    """Answer beats of a node from now on, and await so many of them that it knows what this leader's clock is ahead."""
    boss.leader_now = leader_now
    for _ in range(3):
        boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))


def ask_for_evidence(boss: Boss, link: Connection) -> ms.EvidenceTaken:
    link.send(ms.Collect(epoch=EPOCH, limit_s=1.0, incident="run.0.1"))
    *_, taken = boss.take_until(link, lambda message: isinstance(message, ms.EvidenceTaken))
    assert isinstance(taken, ms.EvidenceTaken)
    return taken


def test_ends_on_nodes_whose_clocks_are_an_hour_apart_are_in_their_order_for_each_leader(
    boss: Boss, tmp_path: Path
) -> None:
    """Both clocks of the node are an hour from the leader's, and the next leader's are a day from both."""
    node_ahead_s, began_s = 3600.0, now_s()

    def node_clock() -> Moment:
        return Moment(monotonic_s=now_s() + node_ahead_s, unix_s=CLOCK.now().unix_s - node_ahead_s)

    class Evidence(Daemon):
        def take_evidence(self, running: Running, incident: str, limit_s: float) -> Path:
            return tmp_path

        def stop(self, running: Running, reason: str) -> None:
            pass

        def is_alive(self, running: Running) -> bool:
            return False

        def read_place(self, running: Running) -> None:
            return None

    daemon = Evidence()
    node = begin(boss, daemon, node_clock)
    script = "RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 sleep 600 & echo $!; exec sleep 600"
    parent = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)  # its child is the rank
    try:
        assert parent.stdout is not None
        rank = int(parent.stdout.readline())
        first = accept_launched(boss, daemon)
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=parent.pid))
        answer(boss, first, now_s)
        boss.take_until(first, lambda message: isinstance(message, ms.NodeBeat) and message.ranks == (0,))
        os.kill(rank, signal.SIGKILL)
        boss.take_until(first, lambda message: isinstance(message, ms.Fault))
        ended_s = now_s()
        (found,) = ask_for_evidence(boss, first).ranks
        assert found.ended_at_s is not None
        assert began_s - 1.0 <= found.ended_at_s <= ended_s + 1.0, "on the leader's clock, and not on the node's"
        assert found.offset_error_s < 1.0
        node.ended(EPOCH, finished=False, reason="the rank was killed")
        boss.take_until(first, lambda message: message == ms.Stopped(epoch=EPOCH))
        first.close()  # the leader dies; the next one is on another machine
        second = boss.accept()
        boss.take_until(second, lambda message: isinstance(message, ms.Joined))
        answer(boss, second, lambda: now_s() + 86400.0)
        (again,) = ask_for_evidence(boss, second).ranks
        assert again.ended_at_s is not None
        assert again.ended_at_s - found.ended_at_s == pytest.approx(86400.0, abs=1.0)
    finally:
        node.end()
        parent.kill()
        parent.wait()


def test_what_ended_a_launch_is_reported_to_each_leader_that_comes(boss: Boss) -> None:
    """A leader that has answered a report may die with it."""
    daemon = Daemon()
    node = begin(boss, daemon, CLOCK.now)
    try:
        first = accept_launched(boss, daemon)
        node.ended(EPOCH, finished=False, reason="the command exited with status 1")
        fault = ms.Fault(epoch=EPOCH, kind="launch_failed", reason="the command exited with status 1")
        boss.take_until(first, lambda message: message == fault)
        answer(boss, first, now_s)
        first.close()
        joined, again = boss.take_until(boss.accept(), lambda message: message == fault)[:2]
        assert isinstance(joined, ms.Joined)
        assert joined.running == EPOCH, "it is not a daemon that was started again"
        assert again == fault
    finally:
        node.end()


def test_a_leader_of_the_past_launches_nothing_and_no_launch_is_made_twice(
    boss: Boss, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the secret, and takes itself for the leader still: its fence is lower."""
    daemon = Daemon()
    node = begin(boss, daemon, CLOCK.now)
    newer, older = Epoch("run", 1, 3), Epoch("run", 0, 9)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        for epoch in (newer, older, newer):
            link.send(ms.Launch(epoch=epoch, node_rank=0, nodes=1, host="127.0.0.1", port=1))
        until(lambda: len([item for item in caplog.records if "refused" in item.message]) == 2, "two refusals")
        answer(boss, link, now_s)
        assert daemon.ordered == [newer]
        port = boss.listening.getsockname()[1]
        fields = vars(next(item for item in caplog.records if "refused" in item.message))["fields"]
        assert fields == {"epoch": "run.0.9", "newest": "run.1.3", "leader": f"leader boss (127.0.0.1:{port})"}
    finally:
        node.end()


def test_a_node_that_slept_ends_its_ranks_where_no_leader_answers_then(boss: Boss, tmp_path: Path) -> None:
    """The leader was awake, and has ended all others once the lease was over: this machine's clock stood still."""
    elapsed_s, asleep_s, ends = [0.0], [0.0], queue.SimpleQueue[str]()

    class Stopping(Daemon):
        def stop(self, running: Running, reason: str) -> None:
            ends.put(reason)

        def is_alive(self, running: Running) -> bool:
            return True

    address: tuple[str, int] = boss.listening.getsockname()
    node = Node(
        NodeSettings(node="n0", job="run", leader=address, secret=SECRET, host="127.0.0.1"),
        daemon := Stopping(),
        lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0),
        read_asleep_s=lambda: asleep_s[0],
    )
    node.start()
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        elapsed_s[0] = 1.0
        *_, beat = boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))
        assert isinstance(beat, ms.NodeBeat)
        link.send(ms.LeaderBeat(echo_s=beat.sent_s, now_s=now_s(), lease_s=60.0))
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=1, host="127.0.0.1", port=1))
        until(lambda: daemon.ordered == [EPOCH], "the launch")
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=PID_OF_NONE))
        asleep_s[0] = 3600.0

        def moves_on() -> bool:
            elapsed_s[0] += 0.1
            return not ends.empty()

        until(moves_on, "its ranks to be ended")
        assert elapsed_s[0] < 60.0, "awake it would have had the whole lease"
        assert ends.get().startswith("no leader for ")
    finally:
        node.end()


def test_a_node_that_is_refused_says_why_and_tries_again(boss: Boss) -> None:
    elapsed_s = [0.0]
    node = begin(boss, Daemon(), lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        link.send(ms.Refused(reason="node n0 at 10.0.0.3: a daemon at 10.0.0.2:4711 has joined under this name"))
        until(lambda: node.problem is not None and "10.0.0.2:4711" in node.problem, "the reason")
        elapsed_s[0] += REFUSED_WAIT_S + 0.1
        boss.take_until(boss.accept(), lambda message: isinstance(message, ms.Joined))
    finally:
        node.end()


def test_a_leaders_name_that_is_not_resolved_keeps_no_rank_beyond_the_lease(boss: Boss, tmp_path: Path) -> None:
    """Without a network a name takes many seconds, and without a network the lease has to end the ranks."""
    elapsed_s, stopped, asked, answered = [0.0], threading.Event(), threading.Event(), threading.Event()

    class Ending(Daemon):
        def stop(self, running: Running, reason: str) -> None:
            stopped.set()

    def find_address(host: str, port: int) -> Address | OSError:
        if boss.links:
            asked.set()
            answered.wait()
        return resolve(host, port)

    address: tuple[str, int] = boss.listening.getsockname()
    settings = NodeSettings(node="n0", job="run", leader=address, secret=SECRET, host="127.0.0.1")
    node = Node(settings, Ending(), lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0), find_address)
    node.start()
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=1, host="127.0.0.1", port=1))
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=os.getpid()))
        link.close()
        until(lambda: node.problem is not None, "the end of the link")
        elapsed_s[0] += 1.0
        assert asked.wait(60.0)
        elapsed_s[0] += FIRST_LEASE_S
        assert stopped.wait(60.0)
    finally:
        answered.set()
        node.end()


def test_what_the_ranks_wait_for_is_in_each_beat_and_what_those_of_others_do_reaches_the_daemon(
    boss: Boss, tmp_path: Path
) -> None:
    elapsed_s, daemon = [0.0], Daemon(waits_for="process 7 (python) waits for /data (nfs4)")
    node = begin(boss, daemon, lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))
    others = (PeerWait(node="n1", words="process 9 (python) waits for a file system"),)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=2, host="127.0.0.1", port=1))
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=os.getpid()))

        def answer_next(waits: tuple[PeerWait, ...], late_s: float = 0.0) -> ms.NodeBeat:
            elapsed_s[0] += 0.3
            *_, beat = boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))
            assert isinstance(beat, ms.NodeBeat)
            echo_s = beat.sent_s - late_s
            link.send(ms.LeaderBeat(echo_s=echo_s, now_s=1.0, lease_s=60.0, peer_waits=waits))
            return beat

        until(lambda: answer_next(()).storage_wait == daemon.waits_for, "a beat with the wait")
        assert daemon.peer_waits == [], "none waits, and none did"
        answer_next(others)
        until(lambda: daemon.peer_waits == [others], "the wait of the other node")
        answer_next(others, late_s=PEERS_FRESH_S + 0.1)
        until(lambda: daemon.peer_waits == [others, ()], "an answer to a beat of long ago says that none is known")
        answer_next(())
        answer_next(others)
        until(lambda: daemon.peer_waits == [others, (), others], "the next one")
        daemon.waits_for = None
        until(lambda: answer_next(()).storage_wait is None, "a beat without a wait")
        until(lambda: daemon.peer_waits == [others, (), others, ()], "the end of the wait")
        for _ in range(3):
            answer_next(())
        assert daemon.peer_waits == [others, (), others, ()], "it is reported once"
    finally:
        node.end()


def test_a_leader_of_a_version_that_knows_no_waits_is_obeyed_as_ever_and_reports_none(
    boss: Boss, tmp_path: Path
) -> None:
    daemon = Daemon(waits_for="process 7 (python) waits for /data (nfs4)")
    node = begin(boss, daemon, CLOCK.now)
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=2, host="127.0.0.1", port=1))
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=os.getpid()))
        for _ in range(5):
            *_, beat = boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))
            assert isinstance(beat, ms.NodeBeat)
            old = {"message": "LeaderBeat", "echo_s": beat.sent_s, "now_s": now_s(), "lease_s": 60.0}
            link.link.send(json.dumps(old).encode())
            link.flush()
        until(lambda: daemon.ordered == [EPOCH], "the launch")
        assert node.problem is None
        assert daemon.peer_waits == []
    finally:
        node.end()


def test_the_stage_of_rank_0_is_in_each_beat_of_its_launch_and_reaches_the_daemon_while_it_is_fresh(
    boss: Boss, tmp_path: Path
) -> None:
    saving = PeerStage(stage=Stage.CHECKPOINT, lasted_s=2.0, stepped=True)
    elapsed_s, daemon = [0.0], Daemon(stage=saving)
    node = begin(boss, daemon, lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))
    try:
        link = boss.accept()
        boss.take_until(link, lambda message: isinstance(message, ms.Joined))

        def answer_next(stage: PeerStage | None, late_s: float = 0.0) -> ms.NodeBeat:
            elapsed_s[0] += 0.3
            *_, beat = boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))
            assert isinstance(beat, ms.NodeBeat)
            echo_s = beat.sent_s - late_s
            link.send(ms.LeaderBeat(echo_s=echo_s, now_s=1.0, lease_s=60.0, peer_stage=stage))
            return beat

        beat = answer_next(saving)
        assert (beat.epoch, beat.stage) == (None, None), "nothing runs"
        link.send(ms.Launch(epoch=EPOCH, node_rank=0, nodes=2, host="127.0.0.1", port=1))
        node.launched(Running(epoch=EPOCH, folder=tmp_path, shim_pid=os.getpid()))
        until(lambda: answer_next(None).epoch == EPOCH, "a beat of the launch")
        assert answer_next(None).stage == saving
        assert daemon.peer_stages == []
        answer_next(saving, late_s=PEERS_FRESH_S + 0.1)
        answer_next(None)
        assert daemon.peer_stages == [], "an answer to a beat of long ago says what was"
        answer_next(saving)
        until(lambda: daemon.peer_stages == [saving], "the stage")
    finally:
        node.end()


def test_a_warning_is_sent_to_a_leader_that_takes_it_until_that_has_it_and_to_each_that_comes_before(
    boss: Boss,
) -> None:
    elapsed_s, daemon = [0.0], Daemon()
    node = begin(boss, daemon, lambda: Moment(monotonic_s=1000.0 + elapsed_s[0], unix_s=0.0))

    def accept() -> Connection:
        accepted = boss.accept()
        boss.take_until(accepted, lambda message: isinstance(message, ms.Joined))
        return accepted

    link = accept()

    def answer_next(warned: int | None) -> list[tuple[int, float]]:
        elapsed_s[0] += 0.25
        *_, beat = boss.take_until(link, lambda message: isinstance(message, ms.NodeBeat))
        assert isinstance(beat, ms.NodeBeat)
        link.send(ms.LeaderBeat(echo_s=beat.sent_s, now_s=1.0, lease_s=60.0, warned=warned))
        return [(warning.number, round(beat.sent_s - warning.ago_s)) for warning in beat.warnings]

    def link_again() -> Connection:
        until(lambda: node.problem is None, "the last answer")
        link.close()
        until(lambda: node.problem is not None, "the end of the link to be noticed")
        elapsed_s[0] += 1.0
        return accept()

    try:
        node.warned(EPOCH, "storage_wait", "process 7 waits", Moment(monotonic_s=999.0, unix_s=0.0))
        node.warned(EPOCH, "disk_low", "no room", Moment(monotonic_s=1000.0, unix_s=0.0))
        assert [answer_next(None) for _ in range(4)] == [[]] * 4, "a leader of a version that takes none"
        link = link_again()
        assert answer_next(0) == [], "which of them is not known yet"
        both = [(1, 999), (2, 1000)]
        until(lambda: answer_next(0) == both, "both, and when each was given")
        assert answer_next(0) == both
        until(lambda: answer_next(1) == both[1:], "what the leader does not have")
        link = link_again()
        until(lambda: answer_next(0) == both[1:], "a leader that is new is sent what none before it had")
        until(lambda: answer_next(2) == [], "nothing more")
    finally:
        node.end()
