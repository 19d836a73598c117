"""Which remedy comes next, from what was tried and what the machine offers.

What has not helped at the same place will not help there: the data or the code is at fault, so the next remedy is
taken, and where none is left, that is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supervisor.core.remedies.context import Ended, RemedyContext, Situation
from supervisor.core.remedies.fitting import SHRINKING, Fitting, fit_order
from supervisor.core.remedies.last_resorts import RESORTS, would_help
from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.table import BY_NAME, describe_remedy
from supervisor.core.remedies.trials import Course, Outcome, Trial
from supervisor.core.scale import on_training, same_place
from supervisor.core.triage.finding import Finding

PLAIN_TRIES = 2
"""How often a remedy that changes nothing may fail at different places of one episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The next remedy, or None where none is left, and why."""

    remedy: str | None
    reason: str
    gpu: str | None = None
    environment: str | None = None
    times: int | None = None
    """How often the factor of the remedy is applied at once; None: once."""


def choose(course: Course, remedies: Remedies, ended: Ended, context: RemedyContext) -> Choice:
    """Return the remedy for an attempt that ended; `course` contains its outcome already."""
    if not remedies.enabled:
        return Choice(remedy="restart", reason="remedies are disabled")
    listed = course.episode(ended.cause)
    past = tuple(trial for trial in listed if trial.outcome is not Outcome.SKIPPED)
    again = next((trial for trial in reversed(past) if _is_again(trial, ended, remedies)), None)
    reasons = [] if again is None else _explain_again(again, ended)
    order, notes = _order_ladder(remedies, ended, context)
    reasons += notes
    held = tuple(remedy.remedy for remedy in course.in_force)
    context = replace(context, environments=_list_untried(context, course, listed))
    situation = Situation(
        ended=ended,
        context=context,
        on_cpu="cpu_profile" in held,
        earlier_steps=tuple(trial.step for trial in past),
    )
    left = tuple(
        remedy
        for remedy in order
        if remedies.allows(remedy) and BY_NAME[remedy].is_available(situation)
        if not _is_used_up(remedy, past, held, remedies, ended)
    )
    if left:
        fitting = fit_order(left, ended, context, course.in_force, remedies.batch_factor)
        return _take(fitting, [*reasons, *filter(None, [fitting.note])], context)
    in_vain = ended.finding.in_vain if ended.finding is not None else ()
    if again is None and remedies.allows("restart") and "restart" not in in_vain:
        place = "the step of the fault is not known" if ended.step is None else "it failed at another step"
        why = f"no remedy is left, and {place}: " if past else "no remedy applies: "
        return Choice(remedy="restart", reason="; ".join([*reasons, why + BY_NAME["restart"].words]))
    return Choice(remedy=None, reason="; ".join([*reasons, f"no remedy is left for {ended.cause}"]))


def _take(fitting: Fitting, reasons: list[str], context: RemedyContext) -> Choice:
    """Return the choice of the first remedy of an order that is not empty."""
    remedy = fitting.order[0]
    gpu = context.free_gpus[0] if remedy == "other_gpu" else None
    environment = context.environments[0] if remedy == "other_environment" else None
    times = fitting.times if remedy == SHRINKING else None
    words = describe_remedy(remedy, times) + (f": {environment}" if environment is not None else "")
    reason = "; ".join([*reasons, words])
    return Choice(remedy=remedy, reason=reason, gpu=gpu, environment=environment, times=times)


def _list_untried(context: RemedyContext, course: Course, past: Sequence[Trial]) -> tuple[str, ...]:
    """Return the environments that were not tried in this episode and that the job is not in."""
    tried = {course.environment, *(trial.environment for trial in past)}
    return tuple(name for name in context.environments if name not in tried)


def _explain_again(again: Trial, ended: Ended) -> list[str]:
    return [
        f"the same {ended.cause} at the same place (step {ended.step}, before it step {again.step})",
        f"{again.remedy} did not help: the data or the code is at fault",
    ]


def help_against(cause: str, remedies: Remedies, context: RemedyContext, taken: Iterable[str]) -> str:
    """Return a hint at the last resorts that a person has against a cause, empty where they would not help."""
    return would_help([resort for resort in context.resorts if resort.kind in remedies.ladder(cause)], taken)


def _order_ladder(remedies: Remedies, ended: Ended, context: RemedyContext) -> tuple[tuple[str, ...], list[str]]:
    """Return the ladder in the order that experience and a triage give it, and the reasons for that order."""
    order, notes = _order_by_experience(remedies, ended.cause, context)
    if ended.finding is None:
        return order, notes
    order, note = _order_by_finding(order, ended.finding)
    return order, [note, *notes]


def _order_by_experience(remedies: Remedies, cause: str, context: RemedyContext) -> tuple[tuple[str, ...], list[str]]:
    """Return the ladder in the order that experience gives it, and the reasons for that order."""
    ladder: tuple[str, ...] = remedies.ladder(cause)
    if not remedies.learn:
        return ladder, []
    known = {experience.remedy: experience for experience in context.experience if experience.cause == cause}
    least = remedies.give_up_after_failures
    hopeless = [
        name
        for name in dict.fromkeys(ladder)
        if name in known and known[name].helped == 0 and known[name].failed >= least and BY_NAME[name].lasts
    ]
    good = [
        name
        for name in dict.fromkeys(ladder)
        if name in known and known[name].helped > known[name].failed and not BY_NAME[name].costly
    ]
    good.sort(key=lambda name: known[name].helped - known[name].failed, reverse=True)
    notes = [f"{name} skipped: failed {known[name].failed} times on this machine" for name in hopeless]
    if good and good[0] != ladder[0]:
        notes.append(f"{good[0]} first: helped {known[good[0]].helped} times on this machine")
    ordered = [*good, *_without_first(ladder, good)]
    return tuple(entry for entry in ordered if entry not in hopeless), notes


def _order_by_finding(order: tuple[str, ...], finding: Finding) -> tuple[tuple[str, ...], str]:
    """Return the order as a triage's finding changes it: what it supports first, without what would be in vain."""
    first = [text for text in finding.speaks_for if text in order]
    rest = [text for text in _without_first(order, first) if text not in finding.in_vain]
    return (*first, *rest), f"triage: {finding.verdict.replace('_', ' ')}: {finding.words}"


def _without_first(ladder: Iterable[str], taken: list[str]) -> Iterable[str]:
    """Yield a ladder without the first place of each remedy that was taken out of it."""
    left = list(taken)
    for text in ladder:
        if text in left:
            left.remove(text)
        else:
            yield text


def _is_again(trial: Trial, ended: Ended, remedies: Remedies) -> bool:
    """Whether an attempt ended as the one that a trial was made after: by no other fault, and at its place.

    Who kills a training at a step has nothing to do with what it raises at the next one.
    """
    is_other = None not in (trial.fault, ended.fault) and trial.fault != ended.fault
    return not is_other and same_place(on_training(trial.step), on_training(ended.step), remedies.same_place_steps)


def _is_used_up(remedy: str, past: Sequence[Trial], held: Sequence[str], remedies: Remedies, ended: Ended) -> bool:
    tried = [trial for trial in past if trial.remedy == remedy]
    if remedy in RESORTS:
        return bool(tried)
    if remedy == "other_environment":
        return False  # each environment is tried once, and those that were are none of the context's
    if not BY_NAME[remedy].lasts:
        here = any(_is_again(trial, ended, remedies) for trial in tried)
        return here or len(tried) >= PLAIN_TRIES
    listed = remedies.ladder(ended.cause).count(remedy)
    return max(len(tried), held.count(remedy)) >= listed


def back_to(course: Course, remedies: Remedies, context: RemedyContext, running_s: float) -> str | None:
    """Return the GPU to which a training on the CPU goes back, since it answers again; None: it stays."""
    lost = next(
        (remedy for remedy in course.in_force if remedy.remedy == "cpu_profile" and remedy.cause == "gpu_lost"), None
    )
    if lost is None or course.returns >= remedies.max_returns or running_s < remedies.back_after_s:
        return None
    answering = dict(context.answering_s)
    gpus = [lost.gpu] if lost.gpu is not None else list(answering)
    well = [gpu for gpu in gpus if answering.get(gpu, 0.0) >= remedies.back_after_s]
    return well[0] if well else None


def put_back_first(choice: Choice, context: RemedyContext) -> Choice:
    """Return the choice after a start that failed from a generation: the same one in its own place, then an older one.

    Its program was to find it elsewhere, or has not looked for it at all.
    """
    if choice.remedy != "older_generation" or not context.is_put_back:
        return choice
    return Choice(remedy="restart", reason="restart with the same checkpoint, put into its own place")
