"""Throughput drop: slower than its own usual pace, or than its owner wants.

Only time spent stepping counts: validations, checkpoints and the gaps between epochs do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, TypeAlias

from supervisor.core.flags import Act, Diagnosis, Severity
from supervisor.core.gauge import Gauge, Group, Observation, beyond, not_applicable
from supervisor.core.history import History
from supervisor.core.remedies import causes
from supervisor.core.stats.holds import FRESH_S
from supervisor.core.stats.pace import Stretch, Usual, covered_s, step_s_of, wait_share_of

Recent: TypeAlias = tuple[Stretch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputDrop:
    """The newest `window_s` of stepping are below `at_least_per_s`, or `drop_fraction` below the attempt's median.

    Against its own pace only after `min_stretches` half minutes before these, and only where it is also slower than the
    slowest tenth of them: image sizes that change all the time are usual then. It warns by default: slow is not stuck.
    """

    name: ClassVar[str] = "throughput_drop"
    group: ClassVar[Group] = "pace"
    cause: ClassVar[str] = causes.CRASH
    enabled: bool = True
    act: Act = False
    window_s: float = 300.0
    drop_fraction: float = 0.4
    min_stretches: int = 20
    at_least_per_s: float | None = None
    """None: what [jobs.NAME.expect] says, if anything."""

    def may_flag(self, history: History) -> bool:
        """Whether the newest stretch is slower than one of its limits."""
        if history.over or history.train_ended:
            return False
        recent, usual = history.pace.recent(self.window_s, history.now), history.pace.usual()
        if not recent or usual is None:
            return False
        per_s = 1 / step_s_of(recent)
        if self.at_least_per_s is not None and beyond(per_s, self.at_least_per_s, below=True, strict=True):
            return True
        before = self._find_usual(history, recent)
        return before is not None and beyond(per_s, self._limit_per_s(before), below=True, strict=True)

    def measure(self, history: History) -> tuple[Gauge, ...]:
        """Return its pace, against what is wanted and what is usual."""
        recent, usual = history.pace.recent(self.window_s, history.now), history.pace.usual()
        why = history.why_not_stepping()
        if why is not None or not recent or usual is None:
            return not_applicable("steps a second", why or "it has not stepped for long enough")
        own = self._measure_usual(history, recent)
        if self.at_least_per_s is None:
            return (own,)
        limit = f"{self.at_least_per_s:g} are wanted"
        wanted = Gauge(
            what="steps a second, against what is wanted",
            now=own.now,
            limit=self.at_least_per_s,
            below=True,
            strict=True,
            severity=own.severity,
            observe=partial(_observe_pace, history, recent, usual, limit, "wanted"),
        )
        return wanted, own

    def _measure_usual(self, history: History, recent: Recent) -> Gauge:
        own = Gauge(
            what="steps a second, against what is usual here",
            now=1 / step_s_of(recent),
            below=True,
            strict=True,
            severity=Severity.acting(act=self.act),
        )
        before = self._find_usual(history, recent)
        if before is None:
            return replace(own, not_watched="what is usual is not known yet")
        limit_per_s = self._limit_per_s(before)
        text = f"{1 / before.step_s:.3g} are usual here (limit {limit_per_s:.3g})"
        return replace(
            own,
            limit=limit_per_s,
            rest=1 / before.step_s,
            learned=True,
            lacks=_find_lack(recent, before),
            observe=partial(_observe_pace, history, recent, before, text, "usual"),
        )

    def _find_usual(self, history: History, recent: Recent) -> Usual | None:
        """Return what was usual before; the slow ones would be the slowest tenth of a short training themselves."""
        before = history.pace.usual(without=len(recent))
        return None if before is None or before.stretches < self.min_stretches else before

    def _limit_per_s(self, before: Usual) -> float:
        return (1 - self.drop_fraction) / before.step_s


def _observe_pace(history: History, recent: Recent, usual: Usual, limit: str, subject: str) -> Observation:
    return Observation(
        message=f"{1 / step_s_of(recent):.3g} steps/s over {covered_s(recent):.0f} s of stepping; {limit}",
        can_save=True,
        subject=subject,
        diagnosis=_diagnose(history, recent, usual),
    )


def _find_lack(recent: Recent, before: Usual) -> str | None:
    """Return what a slow stretch lacks to be unusual; None where nothing."""
    slower = step_s_of(recent) > 1.2 * before.slow_step_s
    return None if slower else "that it is slower than the slowest tenth before"


def _diagnose(history: History, recent: Recent, usual: Usual) -> Diagnosis:
    likely: list[str] = []
    ruled_out = ["not a stall: steps are made", "not validation or saving: their time is not counted"]
    share = wait_share_of(recent)
    if share is not None:
        text = f"{share:.0%} of the time goes into waiting for data"
        (likely if share > 0.3 else ruled_out).append(text if share > 0.3 else f"not the loader: {text}")
    for gpu, readings in history.readings_by_gpu().items():
        newest = readings[-1]
        if history.now.seconds_since(newest.at) <= FRESH_S and newest.throttled_by:
            likely.append(f"{gpu} holds its clocks down: {', '.join(newest.throttled_by)}")
    host = history.host[-1] if history.host else None
    if host is not None and host.io_stall_percent is not None and host.io_stall_percent > 20:
        likely.append(
            f"storage is slow: something waited for it {host.io_stall_percent:.0f} % of the time [kernel, PSI]"
        )
    if host is not None and host.memory_stall_percent is not None and host.memory_stall_percent > 10:
        likely.append(f"memory is short: {host.memory_stall_percent:.0f} % of the time something waited for it")
    likely.append("another program on the same GPU or processor [supervisorctl gpus shows a GPU's processes]")
    if usual.stretches < 4:
        likely.append(
            "a layer benchmark promised more than a whole model can do "
            "[robust-thermal-image-object-detection, 12 November 2025]"
        )
    return Diagnosis(
        ruled_out=tuple(ruled_out),
        causes=tuple(likely),
        advice=("compare supervisorctl gpus --watch with an hour ago: clocks, heat, other processes",),
    )
