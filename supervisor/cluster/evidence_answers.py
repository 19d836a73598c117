"""The evidence that a node gives of its ranks when its leader asks: of those that run, and of those that have ended.

A leader that takes up the incident of one before it has the same answer, with the times by its own clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supervisor.children.files_apart import apart
from supervisor.children.prompt_thread import PromptThread
from supervisor.cluster import ranks as ra
from supervisor.cluster.node_host import Host, Running
from supervisor.cluster.rank_evidence import Taken, collect_ranks, read_launcher_report, read_waits, shift_end
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.core.fleet.epoch import Epoch

log = logging.getLogger(__name__)

EVIDENCE_SLACK_S = 0.05
"""Of the time for evidence, for its way to the leader."""
WAIT_LEAST_S = 0.4
"""How long a rank has to be in state D without running once to be taken for stuck."""


class EvidenceAnswers:
    """Of one node; its methods are called in the node's thread, and collecting is done in threads of its own."""

    def __init__(
        self,
        node: str,
        host: Host,
        clock: Callable[[], float],
        call: Callable[[Callable[[], None]], None],
        send: Callable[[ms.Message], None],
    ) -> None:
        """`call` has work done in the node's thread, where `send` sends the leader an answer."""
        self._node, self._host, self._clock, self._call, self._send = node, host, clock, call, send
        self.offset = ClockOffset()
        """What the clock of the present leader has more than this node's."""
        self._launch: Epoch | None = None
        self._remains: tuple[Running, list[ra.RankProcess]] | None = None
        """A launch that ended by itself, and its ranks, of which the leader may still ask for evidence."""
        self._taken: tuple[ms.EvidenceTaken, float] | None = None
        """The evidence of that launch as it was sent, and the offset of the leader's clock that its times have."""

    def begin_launch(self, epoch: Epoch) -> None:
        """Take in that a launch was ordered: of earlier ones no answer is kept any more."""
        self._launch, self._taken = epoch, None

    def note_end(self, running: Running, ranks: list[ra.RankProcess]) -> None:
        """Take in that a launch has ended by itself, and which ranks it had."""
        self._remains = running, ranks

    def collect(self, order: ms.Collect, running: Running | None, ranks: list[ra.RankProcess]) -> None:
        """Answer the leader, of the ranks of the launch that runs or of one that has ended."""
        if running is not None and order.epoch == running.epoch:
            if not any(rank.is_unread for rank in ranks):
                ra.freeze(ranks)
            PromptThread(partial(self._collect, order, running, ranks), "cluster-evidence").start()
        elif self._taken is not None and order.epoch == self._taken[0].epoch:
            answer, offset_s = self._taken  # times as the clock of the leader of that time had them
            shifted = tuple(shift_end(rank, self.offset.seconds - offset_s) for rank in answer.ranks)
            self._send(ms.EvidenceTaken(epoch=order.epoch, took_s=0.0, ranks=shifted))
        elif self._remains is not None and order.epoch == self._remains[0].epoch:
            PromptThread(partial(self._collect_remains, *self._remains), "cluster-evidence").start()
        else:
            self._send(ms.EvidenceTaken(epoch=order.epoch, took_s=0.0, ranks=()))

    def _collect(self, order: ms.Collect, running: Running, known: list[ra.RankProcess]) -> None:
        began_s = self._clock()
        ranks = list(known)
        waited = read_waits(rank.process.pid for rank in ranks) if order.waits_count else {}
        try:
            ra.await_reports(ranks, partial(apart, read_launcher_report, running.folder), time.sleep)
            left_s = order.limit_s - EVIDENCE_SLACK_S - (self._clock() - began_s)
            folder = self._host.take_evidence(running, order.incident, left_s)
            ranks += _take_report(running, ranks)
            if waited:
                time.sleep(max(0.0, WAIT_LEAST_S - (self._clock() - began_s)))
            taken = Taken(folder=running.folder, stacks=folder, waited=waited)
            found = apart(collect_ranks, self._node, taken, ranks, self._offset_now())
        except Exception:
            log.exception("cluster.evidence_failed")
            folder, found = running.folder, ()
        answer = ms.EvidenceTaken(epoch=order.epoch, took_s=self._clock() - began_s, ranks=found, folder=str(folder))
        self._call(lambda: self._answer_with(answer))

    def _answer_with(self, answer: ms.EvidenceTaken) -> None:
        """Send evidence, and keep it for a leader that takes up the incident after this one."""
        if answer.epoch == self._launch:
            self._taken = answer, self.offset.seconds
        self._send(answer)

    def _offset_now(self) -> ClockOffset:
        """Return the leader's clock against this node's, with the error that it has by now."""
        return replace(self.offset, error_s=self.offset.error_at(self._clock()))

    def _collect_remains(self, running: Running, ranks: list[ra.RankProcess]) -> None:
        """Report what is known of the ranks of a launch that has ended already."""
        try:
            ended = _take_report(running, ranks)
            taken = Taken(folder=running.folder, stacks=running.folder, waited={})
            found = apart(collect_ranks, self._node, taken, [*ranks, *ended], self._offset_now())
        except Exception:
            log.exception("cluster.evidence_failed")
            found = ()
        answer = ms.EvidenceTaken(epoch=running.epoch, took_s=0.0, ranks=found)
        self._call(lambda: self._send(answer))


def _take_report(running: Running, ranks: list[ra.RankProcess]) -> list[ra.RankProcess]:
    """Take the statuses that the launcher reports; return a rank that had ended before it was found."""
    codes = apart(read_launcher_report, running.folder)
    ra.note_report(ranks, codes)
    return ra.find_ended(ranks, codes)
