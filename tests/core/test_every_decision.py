"""Whole lives of a job, word for word: each decision, and what each event and decision changed in the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from typing_extensions import Self

from supervisor.core import events as ev
from supervisor.core.apply_event import after_first_losses
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.core.checkpoints.loss_curve import curve_of
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag
from supervisor.core.job import Limits, Phase
from supervisor.core.readings import Stage
from supervisor.core.remedies.budget import Budget
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.remedies.last_resorts import Resort
from supervisor.core.remedies.settings import Remedies
from supervisor.core.triage.finding import Finding

from .stories import JOB, NAN, OTHER_GPU, START, TRAINER, Life
from .transcripts import read, show

QUIET = (ev.Tick, ev.StepsMade, ev.GpusRead, ev.ProcessesRead, ev.HostRead, ev.KernelReported)
"""Events that come many times a second: only what is decided of them is written."""
NESTED = ("attempt", "incident", "ledger", "retry", "triage", "stop", "course")
NO_WAIT = Limits(budget=Budget(backoff_s=(0.0,), jitter_fraction=0.0))
HALF_A_SECOND = Limits(budget=Budget(backoff_s=(0.5,), jitter_fraction=0.0))
TRIAGED = replace(NO_WAIT, triage_s=600.0)
RESORTS = RemedyContext(
    resorts=(
        Resort(kind="reset_gpu", command=("amd-smi", "reset"), on=True),
        Resort(kind="reboot", command=("systemctl", "reboot"), on=True),
    )
)
WITH_SPARE = RemedyContext(free_gpus=(OTHER_GPU,), answering_s=((OTHER_GPU, 9999.0),), cpu_profile=True)
DATA = Finding(verdict="data", words="img is not finite", files=("3.png",), speaks_for=("skip_data",))
HARDWARE = Finding(verdict="hardware", words="not on the CPU", speaks_for=("other_gpu", "cpu_profile"))


class WrittenLife(Life):
    """A life that is written down."""

    def __init__(self, limits: Limits, context: RemedyContext) -> None:
        super().__init__(limits=limits)
        self.context = context
        self.lines: list[str] = []
        self.seen = dict(flatten(self.job))

    def put(self, event: ev.Event) -> None:
        """Apply an event and write it down with what followed."""
        made = len(self.decisions)
        super().put(event)
        if isinstance(event, QUIET) and len(self.decisions) == made:
            return
        name = event.agent_event.value if isinstance(event, ev.AgentReported) else type(event).__name__
        self.write_changes(name, *map(show_decision, self.decisions[made:]))

    def write_changes(self, name: str, *decisions: str) -> None:
        """Write what happened, what was decided of it, and what has changed in the job since this was last asked."""
        now = dict(flatten(self.job))
        groups: dict[str, list[str]] = defaultdict(list)
        for path in {**self.seen, **now}:
            if now.get(path) != self.seen.get(path):
                part, _, field = path.rpartition(".")
                groups[part].append(f"{field} {now.get(path, 'cleared')}")
        self.lines += [f"{show(self.now)}: {name}", *(f"  {decision}" for decision in decisions)]
        self.lines += [f"    {part or 'job'}: {', '.join(changes)}" for part, changes in groups.items()]
        self.seen = now

    def begins_here(self) -> Self:
        """Leave out what was written so far: it is another life's."""
        self.lines.clear()
        return self

    def after_losses(self, loss: float) -> Self:
        """The first losses of the attempt are known."""
        self.job = after_first_losses(self.job, [loss] * 30)
        self.write_changes("first losses")
        return self


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field of a job that says something, those of its parts by their path."""
    for field in fields(value):
        item = getattr(value, field.name)
        if field.name == "limits" or item is None or item is False or item in ((), "", frozenset()):
            continue
        if field.name in NESTED and is_dataclass(item):
            yield from flatten(item, f"{prefix}{field.name}.")
        elif isinstance(item, frozenset):
            yield prefix + field.name, show(sorted(item))
        elif isinstance(item, RedFlag):
            yield prefix + field.name, f"{item.severity.label} {item.rule} since {show(item.since)}"
        elif field.name.endswith("unix_s"):
            yield prefix + field.name, show_unix(item)
        elif field.name == "trials":
            yield from ((f"{prefix}trial of {trial.attempt}", show(trial)) for trial in item)
        else:
            yield prefix + field.name, show(item)


def show_unix(item: Any) -> str:
    """Return a time or several of the system's clock in seconds since the story began."""
    return show(tuple(value - START.unix_s for value in item) if isinstance(item, tuple) else item - START.unix_s)


def show_decision(decision: Any) -> str:
    """Return a decision in one line, its flag by rule and words."""
    parts = []
    for field in fields(decision):
        item = getattr(decision, field.name)
        if field.name in ("at", "job") or item is None or item is False or item in ((), ""):
            continue
        words = f"({item.severity.label} {item.rule}: {item.message})" if isinstance(item, RedFlag) else show(item)
        parts.append(f"{field.name} {words}")
    return f"{type(decision).__name__.upper()} {', '.join(parts)}"


def life(limits: Limits = NO_WAIT, context: RemedyContext | None = None) -> WrittenLife:
    """Begin a life."""
    return WrittenLife(limits, context or RemedyContext())


def trainee(limits: Limits = NO_WAIT, context: RemedyContext | None = None) -> WrittenLife:
    """A training of ultralytics that has saved twice."""
    timeline = life(limits, context)
    timeline.training(20).says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100, epochs=3)
    timeline.says(ev.AgentEvent.CLAIMED, torch="2.12").saves("a.pt", 10).silence(1).saves("b.pt", 20)
    return timeline.steps(21, 40).begins_here()


def trained(limits: Limits = NO_WAIT, context: RemedyContext | None = None) -> WrittenLife:
    """A training of which nothing but its steps and stages is known."""
    return life(limits, context).training().begins_here()


def poisoned(timeline: WrittenLife, first: int = 41) -> WrittenLife:
    """Its losses cease to be numbers, and it is ended for that."""
    return timeline.steps(first, first + 2, loss=NAN).signalled().exits(signal=15)


def examined(finding: Finding, context: RemedyContext | None = None) -> WrittenLife:
    """The step is replayed, with this finding."""
    timeline = poisoned(trainee(TRIAGED, context)).looks().silence(30)
    state = timeline.job.triage
    assert state is not None
    began = state.began_at or state.at
    timeline.put(ev.TriageEnded(at=timeline.now, job=JOB, attempt=1, finding=finding, began_at=began))
    return timeline


def seen(timeline: WrittenLife, step: int | None, verdict: Verdict = Verdict.PROVEN) -> WrittenLife:
    """The newest checkpoint is looked at."""
    newest = replace(timeline.saved[-1], step=step, verdict=verdict)
    timeline.put(ev.CheckpointSeen(at=timeline.now, job=JOB, attempt=timeline.attempt, checkpoint=newest))
    return timeline


def died(timeline: WrittenLife, times: int = 1) -> WrittenLife:
    """It ends with status 1 and is started again, so many times."""
    for _ in range(times):
        timeline.silence(1).exits(1).looks().started()
    return timeline


def resorted(timeline: WrittenLife, *, done: bool, report: str = "") -> WrittenLife:
    """The command of a last resort has ended."""
    kind = timeline.job.resorts[-1].kind
    timeline.put(
        ev.ResortEnded(at=timeline.now, job=JOB, attempt=timeline.attempt, kind=kind, done=done, output=report)
    )
    return timeline


def lost(timeline: WrittenLife) -> WrittenLife:
    """The GPU falls off the bus and the training ends of it."""
    return timeline.kernel(FaultClass.GPU_LOST).silence(1).exits(signal=9)


def relaunched(loss: float) -> WrittenLife:
    """A training whose loss fell from 10 to 1 is relaunched; its losses tell how it began."""
    timeline = life().started().steps(1, 30, loss=10.0).after_losses(10.0)
    timeline.steps(31, 300, loss=1.0).saves("a.pt", 250)
    died(timeline)
    timeline.job = replace(timeline.job, attempt=replace(timeline.present(), resume_curve=curve_of([1.0] * 200)))
    timeline.says(ev.AgentEvent.COUNTING, scale="training", first=251).steps(251, 280, loss=loss)
    return timeline.after_losses(loss)


def oom(timeline: WrittenLife, times: int) -> WrittenLife:
    """The memory of its GPU does not suffice, again and again."""
    for _ in range(times):
        timeline.prints("CUDA out of memory", FaultClass.OOM_GPU).exits(1)
        if timeline.phase() is Phase.FAILED:
            break
        timeline.looks().started().says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=100, epochs=3).steps(21, 30)
    return timeline


def unkillable(context: RemedyContext | None = None) -> WrittenLife:
    """SIGKILL does not end it."""
    return trained(context=context).silence(60).silence(50).silence(10)


LIVES: dict[str, Callable[[], WrittenLife]] = {
    "finishes": lambda: life().training().exits(0),
    "stalls, is stopped, retried, resumed": lambda: (
        life(Limits())
        .training()
        .saves("a.pt", 60)
        .saves("b.pt", 90)
        .silence(60)
        .signalled()
        .silence(1)
        .exits(signal=15)
        .silence(5)
        .looks()
        .started()
        .stage(Stage.STEP)
        .steps(91, 110)
        .silence(1)
    ),
    "stalls and does not end": lambda: trained().silence(60).signalled().silence(29).silence(1).exits(signal=9),
    "cannot be killed": unkillable,
    "cannot be killed, resets": lambda: resorted(unkillable(RESORTS), done=True).silence(30).exits(signal=9),
    "crashes until its budget is spent": lambda: died(trainee(), 4).exits(1).silence(1),
    "makes progress between": lambda: died(died(trainee()).steps(21, 60)).steps(41, 80),
    "is not launched": lambda: life().fails_to_launch().silence(1).fails_to_launch("no memory", shortage="memory"),
    "host lost": lambda: trained().saves("a.pt", 80).lost().looks(),
    "no rule acts": lambda: trained().says(ev.AgentEvent.TRAIN_END).stage(Stage.ENDED).exits(signal=11),
    "asked to stop": lambda: trained().asks(ev.Ask.STOP).signalled().exits(signal=15).asks(ev.Ask.START),
    "asked to stop and does not": lambda: trained().asks(ev.Ask.STOP).signalled().silence(60).silence(20),
    "asked to stop when its losses are no numbers": lambda: (
        trainee().steps(41, 43, loss=NAN).asks(ev.Ask.STOP).signalled().exits(signal=15)
    ),
    "the daemon stops": lambda: trainee().asks(ev.Ask.SHUT_DOWN).signalled().exits(signal=15).silence(1),
    "remedies are off": lambda: died(trained(replace(NO_WAIT, remedies=Remedies(enabled=False)))),
    "dies at another place each time": lambda: died(died(died(trainee()).steps(21, 90)).steps(91, 200)).steps(201, 300),
    "fails before its first step from each checkpoint": lambda: fails_to_start(died(trainee())),
    "waits for half a second": lambda: trained(HALF_A_SECOND).exits(1).looks().silence(0.4).silence(0.1),
    "asked to stop before the launch": lambda: held().asks(ev.Ask.STOP).asks(ev.Ask.START, fresh=True),
    "asked to restart": lambda: trainee().asks(ev.Ask.RESTART).signalled().exits(signal=15).looks(),
    "asked to restart from the beginning": lambda: (
        trainee().asks(ev.Ask.RESTART, fresh=True).signalled().exits(signal=15).silence(1)
    ),
    "asked to stop in its wait": lambda: trained(Limits()).exits(1).asks(ev.Ask.STOP).asks(ev.Ask.START),
    "given up and started again": lambda: died(trainee(), 4).exits(1).asks(ev.Ask.START).looks(),
    "given up and started from the beginning": lambda: died(trainee(), 4).exits(1).asks(ev.Ask.START, fresh=True),
    "finished and started again": lambda: trained().exits(0).asks(ev.Ask.START),
    "no numbers": lambda: poisoned(trainee()).looks().started().steps(21, 60),
    "no numbers, twice at one step": lambda: poisoned(poisoned(trainee()).looks().started().steps(21, 40)).looks(),
    "no numbers, data": lambda: examined(DATA).looks().started(),
    "no numbers, hardware": lambda: examined(HARDWARE).looks(),
    "no numbers, asked to start": lambda: poisoned(trainee(TRIAGED)).looks().asks(ev.Ask.START),
    "no numbers, asked to stop": lambda: poisoned(trainee(TRIAGED)).looks().asks(ev.Ask.STOP),
    "no numbers, replay overdue": lambda: poisoned(trainee(TRIAGED)).looks().silence(631).silence(10),
    "out of memory again and again": lambda: oom(trainee(), 5),
    "lost GPU": lambda: resorted(lost(trained(context=RESORTS)), done=True).looks().training(),
    "lost GPU, reset fails": lambda: resorted(lost(trained(context=RESORTS)), done=False, report="no").looks(),
    "lost GPU, twice": lambda: lost(resorted(lost(trained(context=RESORTS)), done=True).looks().training()),
    "lost GPU, nothing allowed": lambda: lost(trained()).looks(),
    "MIOpen fails": lambda: (
        life().training(1).prints("miopenStatusUnknownError", FaultClass.MIOPEN).exits(1).looks().started()
    ),
    "began again": lambda: relaunched(10.0),
    "went on": lambda: relaunched(1.0),
    "began again with one": lambda: died(life().started().steps(1, 50).saves("a.pt", 40)).steps(1, 2),
    "counts for itself": lambda: counting("attempt").steps(1, 120),
    "counts the training": lambda: counting("training").steps(41, 60),
    "counts nonsense": lambda: counting("nonsense").steps(41, 60),
    "resumed by its own word": lambda: (
        died(trainee()).says(ev.AgentEvent.RESUMED, resumed=True, path="b.pt", step=20).steps(21, 30)
    ),
    "checkpoint proven": lambda: seen(died(trainee()).steps(21, 50).saves("c.pt", 50).silence(1), 50),
    "checkpoint proven, step unknown": lambda: seen(died(trainee()).steps(21, 50).saves("c.pt", 50).silence(1), None),
    "checkpoint rejected": lambda: seen(died(trainee()).steps(21, 50).saves("c.pt", 50), 50, Verdict.REJECTED),
    "settings of its hook": lambda: (
        trainee()
        .says(ev.AgentEvent.SETTING_ASKED, setting="batch_factor")
        .says(ev.AgentEvent.SETTING_ASKED, setting=7)
        .says(ev.AgentEvent.REMEDY_APPLIED, remedies=["lower_lr"], set="lr0 = 0.005")
        .says(ev.AgentEvent.LOOPS, loops=2)
        .says(ev.AgentEvent.PATCHED, conv2d="unfold")
        .says(ev.AgentEvent.FILE_SAVED, path="/x.pt")
        .says(ev.AgentEvent.PLAN, **TRAINER, batches_per_epoch=200, epochs=3)
    ),
    "warned once": lambda: trained().gpu(used=5_000_000_000).silence(1).gpu(used=5_100_000_000),
    "full GPU is saved": lambda: trained().gpu(10, used=5_900_000_000, busy=99.0).signalled().exits(0).looks(),
    "no checkpoint": lambda: trained().exits(1).looks(),
    "other GPU": lambda: poisoned(trainee(context=WITH_SPARE)).looks().started().steps(21, 40),
    "other GPU, after a replay": lambda: examined(HARDWARE, WITH_SPARE).looks(),
}


def fails_to_start(timeline: WrittenLife) -> WrittenLife:
    """Each further attempt raises the same before its first step, until the job is given up."""
    while timeline.phase() is not Phase.FAILED:
        timeline.says(ev.AgentEvent.EXCEPTION, type="KeyError", message="'epoch'").exits(1).silence(10)
        if timeline.phase() is Phase.BACKOFF:
            timeline.looks().started()
    return timeline


def held() -> WrittenLife:
    """No launch is allowed at present."""
    timeline = life()
    timeline.launch_allowed = False
    return timeline.silence(1)


def counting(what: str) -> WrittenLife:
    """A relaunched training reports what its steps count."""
    return died(trainee()).says(ev.AgentEvent.COUNTING, scale=what, first=1, resumed=True)


def tell_lives() -> str:
    """Return every life."""
    return "\n\n".join("\n".join([f"== {name}", *LIVES[name]().lines]) for name in LIVES) + "\n"


TRANSCRIPTS = {"lives": tell_lives}


def test_each_life_reads_as_it_was_reviewed() -> None:
    assert tell_lives() == read("lives")
