"""What all nodes can resume from, asked of them again and again until they have proven the same state."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.resume import AskAgain, NoneProven, Resume, choose_resume
from supervisor.core.fleet.training import LeaderLimits
from supervisor.core.fleet.wall_clocks import WallClocks


class ResumeQuestion:
    """The question that is open and its answers; an answer to an earlier question counts for nothing."""

    def __init__(self, limits: LeaderLimits, now_s: float) -> None:
        self._limits = limits
        self.number = 0
        self._rejected: frozenset[str] = frozenset()
        self._answers: dict[str, ms.ResumeOffers] = {}
        self._problems: dict[str, str] = {}
        """Of nodes that could not look, until they can."""
        self._again_at_s = now_s
        """When it may be asked again where that would bring the same answers."""
        self.clocks = WallClocks()

    def ask(
        self, nodes: Sequence[str], rejected: frozenset[str], passed_over: frozenset[str], since_unix_s: float
    ) -> dict[str, ms.FindResume]:
        """Return the next question, for each node with its share; the training began at `since_unix_s` here."""
        since_unix_s = self.clocks.find_begin(since_unix_s, nodes[0])
        self.number, self._rejected, self._answers = self.number + 1, rejected, {}
        return {
            node: ms.FindResume(
                number=self.number,
                share=share,
                shares=len(nodes),
                rejected=tuple(sorted(rejected)),
                passed_over=tuple(sorted(passed_over)),
                since_unix_s=since_unix_s,
            )
            for share, node in enumerate(nodes)
        }

    def take(self, node: str, answer: ms.ResumeOffers) -> None:
        """Take a node's answer to the present question."""
        self._answers[node] = answer
        self._problems.pop(node, None)
        if answer.problem is not None:
            self._problems[node] = answer.problem

    def find_problem(self, nodes: Sequence[str]) -> str | None:
        """Return which of the nodes could not look when it was last asked, and why; None where all could."""
        known = [f"{node}: {self._problems[node]}" for node in nodes if node in self._problems]
        return "; ".join(known)[: ms.REASON_CHARS_MAX] or None

    def judge(
        self, nodes: Sequence[str], passed_over: frozenset[str], since_s: float, now_s: float
    ) -> Resume | AskAgain | NoneProven | None:
        """Return what follows from the answers, None while some are missing; unknown is not "nothing saved".

        `since_s` is when the nodes began to look.
        """
        waits = [node for node in nodes if node not in self._answers]
        problems = [(node, text) for node, found in self._answers.items() if (text := found.problem) is not None]
        problems += [(node, f"no answer within {self._limits.choose_s:.0f} s") for node in waits]
        chosen: Resume | AskAgain | NoneProven = AskAgain(rejected=self._rejected)
        if not problems:
            offers = {node: found.offers for node, found in self._answers.items()}
            chosen = choose_resume(offers, self._rejected, passed_over)
        same = isinstance(chosen, AskAgain) and chosen.rejected == self._rejected
        if same and now_s - since_s >= self._limits.choose_s:
            node, why = problems[0] if problems else (nodes[0], "the newest state is not proven yet")
            return NoneProven(reason=f"what to resume from is not known: {node}: {why}")
        if waits or (same and now_s < self._again_at_s):
            return None
        self._again_at_s = now_s + self._limits.ask_again_s
        return chosen
