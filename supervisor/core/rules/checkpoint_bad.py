"""Checkpoint bad: a saved checkpoint failed verification. One is a warning; several in a row can act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from supervisor.core.checkpoints.checkpoint import NO_TENSORS, OTHER_FORMATS, Checkpoint, Verdict
from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, not_applicable
from supervisor.core.history import ATTEMPT_ENDED, History
from supervisor.core.remedies import causes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBad:
    """The newest checkpoint of a series was rejected; `limit` in a row act, where `act` is set.

    It warns by default: a save that was read halfway, or another kind of file under the same pattern, is rejected too.
    A series is one file, or the files whose names differ in a number.
    """

    name: ClassVar[str] = "checkpoint_bad"
    group: ClassVar[Group] = "storage"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    limit: int = 2

    def may_flag(self, history: History) -> bool:
        """Whether the newest checkpoint of a series was rejected."""
        return not history.over and any(
            proofs and proofs[-1].verdict is Verdict.REJECTED for proofs in history.saves.proofs.values()
        )

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return how many in a row were rejected, of the series that has most of them."""
        what = "checkpoints in a row that failed verification"
        if history.over or not history.saves.proofs:
            return not_applicable(what, ATTEMPT_ENDED if history.over else "none was proven yet")
        bad = self._find_worst(history)
        warns = Gauge(what=what, now=len(bad), limit=1, observe=partial(self._observe_rejected, history, bad))
        acts = replace(
            warns,
            limit=self.limit,
            lacks=None if _is_not_finite(bad) else "numbers in them that are not finite",
            severity=Severity.acting(act=self.act),
        )
        return warns, acts

    def _observe_rejected(self, history: History, bad: tuple[Checkpoint, ...]) -> Observation:
        newest = bad[-1]
        spoilt = len(bad) >= self.limit and _is_not_finite(bad)
        ago_s = history.now.unix_s - bad[0].saved_unix_s
        return Observation(
            message=f"{newest.title}: {newest.reason or 'rejected'}"
            + (f"; {len(bad)} in a row" if len(bad) > 1 else "")
            + ("" if newest.step is None else f", saved at step {newest.step}"),
            since=history.now.plus(-ago_s) if spoilt else None,
            since_step=bad[0].step if spoilt else None,
            subject=newest.series[1],
            diagnosis=OTHER_FORMAT if newest.reason in OTHER_FORMATS else BAD,
        )

    def _find_worst(self, history: History) -> tuple[Checkpoint, ...]:
        """Return the bad checkpoints in a row of the series that has most of them.

        A file without weights, such as a schedule's or one with settings, is not bad where it lies next to weights.
        Those may be proven after it: it takes more than one.
        """
        series = history.saves.proofs.values()
        any_proven = any(proof.verdict is Verdict.PROVEN for proofs in series for proof in proofs)
        rows = [_list_bad(proofs) for proofs in series]
        bad = (row for row in rows if not _is_empty(row) or (len(row) >= self.limit and not any_proven))
        return max(bad, key=len, default=())


def _is_empty(row: tuple[Checkpoint, ...]) -> bool:
    return all(checkpoint.reason == NO_TENSORS for checkpoint in row)


def _is_not_finite(bad: tuple[Checkpoint, ...]) -> bool:
    return any("finite" in (checkpoint.reason or "") or "NaN" in (checkpoint.reason or "") for checkpoint in bad)


def _list_bad(proofs: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    bad: list[Checkpoint] = []
    for checkpoint in reversed(proofs):
        if checkpoint.verdict is not Verdict.REJECTED:
            break
        bad.append(checkpoint)
    return tuple(reversed(bad))


BAD = Diagnosis(
    ruled_out=("not resumed from in any case: only proven checkpoints are",),
    causes=(
        "the weights hold numbers that are not finite, while losses still look well "
        "[robust-thermal-image-object-detection, 18 November 2025]",
        "the file was cut: ultralytics writes last.pt in place, and the disk or the process ended in between "
        "[Lightning-AI/pytorch-lightning#19970]",
    ),
    advice=("supervisorctl checkpoints JOB says which are proven; the next resume takes the newest of those",),
)
OTHER_FORMAT = Diagnosis(
    ruled_out=("no sign of damage: only the format is unknown",),
    causes=(
        "it is a checkpoint that its own framework alone reads (PaddlePaddle, XGBoost, JAX, NumPy)",
        "checkpoints.paths names files that are no checkpoints",
    ),
    advice=(
        "have the training load its own newest file when it starts, without [jobs.NAME.resume] or by a resume.command "
        "without {checkpoint}: it is started again after a fault",
        "with {checkpoint} in resume.command, or with resume.to, it is given up after a fault: only proven files are "
        "handed over",
    ),
)
