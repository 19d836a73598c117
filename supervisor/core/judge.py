"""When the rules are asked about an attempt, their flags, and which of them counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import SHADOW, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule, act_of, flag_of
from supervisor.core.rules.stopped_process import StoppedProcess
from supervisor.core.rules.storage_wait import StorageWait

HELD_WHILE_TUNING = frozenset(
    {
        "fragmentation",
        "gpu_idle",
        "host_memory",
        "host_memory_slope",
        "loss_plateau_or_divergence",
        "loss_spike",
        "resumed_loss",
        "throughput_drop",
        "vram_high",
        "vram_leak",
    }
)
"""Acting rules on what a setting under trial can bring about: pace, memory, an idle GPU, the losses' course.

A crash, a stall, a hang, a loss that is no number and a fault of the hardware act at once, whoever tunes.
"""
EXPLAINED_BY_A_STOP = frozenset({"busy_without_progress", "gpu_idle", "idle_job", "start_timeout", "throughput_drop"})
"""Rules that see what a stopped process brings about; `stopped_process` tells it, and saves before it kills."""
STOPS_TRAININGS = frozenset({"stopped_process", "stall"})
"""Rules that act on a stopped process."""
LEFT_STOPPED = EXPLAINED_BY_A_STOP | {"hang", "stall"}
"""Rules that wait for a step, which a training that its owner has stopped does not make."""


def judge(rules: Iterable[Rule], history: History) -> tuple[RedFlag, ...]:
    """Return what the rules conclude, the worst first; what a rule in shadow would act on is marked so."""
    asked = list_applicable(rules, history)
    return rank_flags((flag for rule in asked if (flag := conclude_rule(rule, history)) is not None), asked, history)


def rank_flags(flags: Iterable[RedFlag], asked: Iterable[Rule], history: History) -> tuple[RedFlag, ...]:
    """Return the flags of the rules that were asked, the worst first, with the stopped processes that explain them."""
    found = worst_first(flags)
    stopped = next((rule for rule in asked if isinstance(rule, StoppedProcess)), None)
    pids = () if stopped is None or not found else stopped.list_continuable(history)
    if not pids:
        return found
    return tuple(replace(flag, stopped_pids=pids) if _comes_of_a_stop(flag) else flag for flag in found)


def _comes_of_a_stop(flag: RedFlag) -> bool:
    """Whether a flag may be the work of a stopped process: a stall of one that had stood before cannot be saved."""
    return flag.rule in STOPS_TRAININGS and flag.can_save and flag.severity is Severity.CRITICAL and not flag.shadow


def list_applicable(rules: Iterable[Rule], history: History) -> list[Rule]:
    """Return the enabled rules that are to be asked: of a stopped training not those that see what that brings about.

    Where it is to be left alone, none that waits for a step is asked. No limit on silence counts the waits for file
    systems from then on, if `storage_wait` looks after these.
    """
    enabled = [rule for rule in rules if rule.enabled]
    looks_after = next((rule for rule in enabled if isinstance(rule, StorageWait) and rule.act != SHADOW), None)
    history.storage_excused = looks_after is not None
    history.peers_excused_s = 0.0 if looks_after is None else looks_after.limit_s
    stopped = next((rule for rule in enabled if isinstance(rule, StoppedProcess)), None)
    if stopped is None or history.stopped_at is None or stopped.act == SHADOW:
        return enabled
    held = EXPLAINED_BY_A_STOP if history.stopped_at == history.processes[-1].at else frozenset[str]()
    waits = stopped.leaves_alone(history) or stopped.goes_on(history) or stopped.is_held(history)
    held = LEFT_STOPPED if waits else held
    return [rule for rule in enabled if rule.name not in held]


def worst_first(flags: Iterable[RedFlag]) -> tuple[RedFlag, ...]:
    """Return flags by severity; of equal ones, the first rule's first."""
    return tuple(sorted(flags, key=lambda flag: flag.severity, reverse=True))


def conclude_rule(rule: Rule, history: History) -> RedFlag | None:
    """Return what one rule concludes; what it would act on in shadow is marked so.

    While a tune lends settings, or measures what an attempt was started with, what that can bring about is in shadow as
    well: the tuner ends the tune on it, and the rule acts if it is still reached with the owner's settings.
    """
    flag = flag_of(rule, history)
    held = (history.tuning or history.measured) and rule.name in HELD_WHILE_TUNING
    if flag is None or flag.severity is not Severity.CRITICAL:
        return None if held else flag
    return replace(flag, shadow=True) if held or act_of(rule) == SHADOW else flag


def merge_critical(flags: Iterable[RedFlag | None]) -> RedFlag | None:
    """Return the first critical flag, with the earliest beginning of them all and `can_save` only where all allow it.

    Shadow flags do not count. A crash after a non-finite loss is reported as the crash, yet what was saved since the
    loss became non-finite must not be resumed from.
    """
    critical = [item for item in flags if item is not None and item.severity is Severity.CRITICAL and not item.shadow]
    if not critical:
        return None
    beginnings = [flag.since for flag in critical if flag.since is not None]
    steps = [flag.since_step for flag in critical if flag.since_step is not None]
    return replace(
        critical[0],
        since=min(beginnings, key=lambda moment: moment.monotonic_s, default=None),
        since_step=min(steps, default=None),
        can_save=all(flag.can_save for flag in critical),
    )


def merge_spoiling(flags: Iterable[RedFlag]) -> RedFlag | None:
    """Return the worst flag that makes checkpoints unusable; the way a stopped process ended is not one."""
    return merge_critical(flag for flag in flags if flag.since is not None)


def decide_on_unreported(job: Job, flags: Iterable[RedFlag], now: Moment) -> de.Warn | de.Note | None:
    """Return the decision on the first flag not reported in this attempt; a shadow flag is recorded only."""
    for flag in flags:
        if flag.shadow:
            if flag.key not in job.shadows:
                return de.Note(at=now, job=job.name, attempt=job.number, flag=flag)
        elif flag.severity is not Severity.CRITICAL and flag.key not in job.open_flags:
            return de.Warn(at=now, job=job.name, attempt=job.number, flag=flag)
    return None


def can_wait(event: ev.Event) -> bool:
    """Whether the next tick is soon enough to judge by: readings and steps that are as they should be."""
    match event:
        case ev.StepsMade():
            return all(_is_finite(record.loss) and _is_finite(record.grad_norm) for record in event.records)
        case ev.GpusRead() | ev.HostRead() | ev.ProcessesRead() | ev.PeerWaitsSeen() | ev.PeerStageSeen():
            return True
        case ev.AlertTried() | ev.CheckpointSeen() | ev.CheckpointNotKept():
            return True
        case ev.OutputSeen() | ev.KernelReported():
            return not event.findings
        case _:
            return False


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
