"""The end of an attempt in steps to which a tune had lent settings: what is on trial may be why, and ends with it.

The next attempt has the owner's settings, which are what the tune had lent others in place of. A fault that is the
training's own comes again there, and is judged as such then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from supervisor.core import decisions as de
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import Attempt, Job
from supervisor.core.judge import merge_critical
from supervisor.core.moments import Moment
from supervisor.core.rules.crash_diagnosis import is_killed_from_outside
from supervisor.core.tuning.ordered_starts import is_of_machine

ENDS_MAX = 3
"""How often a job is not charged for that. Tunes that begin by themselves are fewer, and a program may claim any."""


def end_lent_block(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Stop | None:
    """Return the decision to end an attempt of a fault, as of its numbers, with what is on trial."""
    flag = _find_fault(job, attempt, flags)
    if flag is None:
        return None
    return de.Stop(at=now, job=job.name, attempt=attempt.number, reason=flag.message, save=False, flag=flag)


def settle_lent_block(job: Job, attempt: Attempt, flags: Sequence[RedFlag], now: Moment) -> de.Retry | None:
    """Return the retry of an attempt that died, or was ended, in steps with settings on trial: it costs those alone."""
    ended = job.stop.flag if job.stop is not None else None
    if job.stop is not None and (ended is None or ended.severity is not Severity.WARNING):
        return None
    flag = ended or _find_fault(job, attempt, flags)
    if flag is None:
        return None
    return de.Retry(
        at=now,
        job=job.name,
        attempt=job.number,
        reason=flag.message,
        not_before=now,
        flag=flag,
        counts=False,
        ends_tune=True,
    )


def _find_fault(job: Job, attempt: Attempt, flags: Sequence[RedFlag]) -> RedFlag | None:
    """Return the fault that may be the work of what is on trial, as a warning: no incident is opened for it.

    It has the begin of the fault: what was saved since is not resumed from. A fault of the machine, and a SIGKILL from
    outside, is one whatever was lent.
    """
    flag = merge_critical(flags)
    if flag is None or not attempt.has_lent_block or job.tune_ends >= ENDS_MAX:
        return None
    if is_of_machine(flag) or is_killed_from_outside(flag):
        return None
    message = f"with settings that a tune had lent: {flag.message}; goes on with those of its owner"
    return replace(flag, severity=Severity.WARNING, message=message)
