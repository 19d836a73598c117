"""What all nodes can resume from, asked of them again and again until they have proven the same state."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.resume import AskAgain, NoneProven, Resume, choose_resume
from supervisor.core.fleet.training import LeaderLimits


class ResumeQuestion:
    """The question that is open and its answers; an answer to an earlier question counts for nothing."""

    def __init__(self, limits: LeaderLimits, now_s: float) -> None:
        self._limits = limits
        self.number = 0
        self._rejected: frozenset[str] = frozenset()
        self._answers: dict[str, ms.ResumeOffers] = {}
        self._again_at_s = now_s
        """When it may be asked again of nodes that could not look."""

    def ask(
        self, nodes: Sequence[str], rejected: frozenset[str], passed_over: frozenset[str], since_unix_s: float
    ) -> dict[str, ms.FindResume]:
        """Return the next question, for each node with its share."""
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

    def judge(
        self, nodes: Sequence[str], passed_over: frozenset[str], since_s: float, now_s: float
    ) -> Resume | AskAgain | NoneProven | None:
        """Return what follows from the answers, None while some are missing; unknown is not "nothing saved".

        `since_s` is when the nodes began to look.
        """
        waits = [node for node in nodes if node not in self._answers]
        problems = [(node, text) for node, found in self._answers.items() if (text := found.problem) is not None]
        if now_s - since_s >= self._limits.choose_s and (waits or problems):
            node, why = problems[0] if problems else (waits[0], f"no answer within {self._limits.choose_s:.0f} s")
            return NoneProven(reason=f"what to resume from is not known: {node}: {why}")
        if waits or (problems and now_s < self._again_at_s):
            return None
        self._again_at_s = now_s + self._limits.ask_again_s
        if problems:
            return AskAgain(rejected=self._rejected)
        return choose_resume({node: found.offers for node, found in self._answers.items()}, self._rejected, passed_over)
