"""Tables of the state machine, word for word: what each event and decision changes in a job, and in a history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.apply_event import after_event, after_first_losses, after_flags
from supervisor.core.attempt.agent_reports import ERROR_CHARACTERS, EVERY_MAX_S, METRICS_KEPT, RANKS_KEPT, AgentReports
from supervisor.core.attempt.files_read import FilesRead
from supervisor.core.attempt.kernel_log import KernelLog
from supervisor.core.attempt.plan import Plan
from supervisor.core.attempt.saves import Saves
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, ResumePoint, Verdict
from supervisor.core.checkpoints.loss_curve import curve_of
from supervisor.core.findings import FaultClass, FaultSeverity, KernelFinding, OutputFinding
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import ImpossibleMove, Job, Limits, RetryPlan
from supervisor.core.judge import can_wait
from supervisor.core.peers import PeerStage, PeerWait
from supervisor.core.readings import (
    DiskReading,
    ExitStatus,
    GpuReading,
    HostReading,
    KernelWait,
    ProcessReading,
    ProcessUse,
    Stage,
    StepRecord,
)
from supervisor.core.remedies.last_resorts import ResortTaken
from supervisor.core.stats.trend import Trend
from supervisor.core.triage.finding import Finding
from supervisor.core.triage.state import TriageState

from .stories import GPU, JOB, NAN, OTHER_GPU, START
from .test_every_decision import (
    RESORTS,
    TRIAGED,
    WrittenLife,
    died,
    flatten,
    held,
    life,
    lost,
    poisoned,
    relaunched,
    trained,
    trainee,
    unkillable,
)
from .transcripts import list_fields, read, show

LATE = START.plus(5000)
FOUND = Finding(verdict="data", words="img is not finite")


def replaying() -> WrittenLife:
    """The step at which the losses ceased to be numbers is replayed."""
    return poisoned(trainee(TRIAGED)).looks().silence(30)


JOBS: dict[str, Callable[[], WrittenLife]] = {
    "not launched": held,
    "starting": lambda: life().started(),
    "running": trainee,
    "running, nothing known": trained,
    "ended its training": lambda: trained().says(ev.AgentEvent.TRAIN_END),
    "stopping": lambda: trained().silence(60),
    "signalled": lambda: trained().silence(60).signalled(),
    "unkillable": unkillable,
    "waiting": lambda: trained(Limits()).exits(1),
    "to be examined": lambda: poisoned(trainee(TRIAGED)),
    "replaying": replaying,
    "resumed": lambda: died(trainee()),
    "resumed and stepping": lambda: died(trainee()).steps(21, 30),
    "began again": lambda: relaunched(10.0),
    "lost its GPU": lambda: lost(trained(context=RESORTS)),
    "failed": lambda: died(trainee(), 4).exits(1),
    "finished": lambda: trained().exits(0),
    "stopped": lambda: trained().asks(ev.Ask.STOP).signalled().exits(signal=15),
}
"""A job in each phase, with what it can hold there."""
FULL = ("running", "stopping", "to be examined", "resumed", "failed")
"""Of these there is a second one, with something in each field that its life left empty."""


def list_jobs() -> dict[str, Job]:
    """Return every job by its name."""
    jobs = {name: make().job for name, make in JOBS.items()}
    return {**jobs, **{f"{name}, with all it can hold": fill(jobs[name]) for name in FULL}}


def fill(job: Job) -> Job:
    """Return a job with something in each field."""
    triage = TriageState(
        attempt=job.number, at=START.plus(1), flag=flag("non_finite_loss"), cause="nan", step=9, looked_for="loss",
        began_at=START.plus(2),
    )  # fmt: skip
    reset = ResortTaken(kind="reset_gpu", command=("amd-smi", "reset"), at=START.plus(3), attempt=1)
    retry = RetryPlan(
        not_before=START, reason="as planned", fault_unix_s=START.unix_s, fault_step=7, resort="reset_gpu",
        older_than=checkpoint(5, Verdict.PROVEN, 1.0),
    )  # fmt: skip
    return replace(
        job, retry=job.retry or retry, triage=job.triage or triage, resorts=(reset,), unkillable=True,
        start_curve=curve_of([1.0] * 30), shadows=frozenset({flag("hang").key}), shadows_noted=3, miopen_failed=True,
        open_flags=frozenset({flag("thermal").key}), framework="keras", adjustable=("lr",), torch=True,
        batches_per_epoch=50, renumbered=True, began_unix_s=START.unix_s, highest_number=9, rebuilt="from its folders",
        shutting_down=True,
    )  # fmt: skip


def changes(before: Any, after: Any) -> str:
    """Return what differs between two jobs; "-" where nothing does."""
    old, new = dict(flatten(before)), dict(flatten(after))
    found = [f"{path} {new.get(path, 'cleared')}" for path in {**old, **new} if new.get(path) != old.get(path)]
    return ", ".join(found) or "-"


def checkpoint(step: int | None, verdict: Verdict | None, saved_at_s: float) -> Checkpoint:
    """Return a checkpoint that was saved so long after the story began."""
    fingerprint = Fingerprint(size_bytes=9, modified_ns=round((START.unix_s + saved_at_s) * 1e9), inode=7)
    return Checkpoint(path="z.pt", fingerprint=fingerprint, step=step, verdict=verdict)


def flag(rule: str = "stall", severity: Severity = Severity.CRITICAL, **more: Any) -> RedFlag:
    return RedFlag(rule=rule, at=LATE, severity=severity, message=f"{rule} is reached", **more)


def made(*steps: int, loss: float | None = 0.5, **more: Any) -> tuple[StepRecord, ...]:
    """Return steps a second apart."""
    return tuple(StepRecord(at=LATE.plus(step), step=step, loss=loss, **more) for step in steps)


def list_events(attempt: int, job: str = JOB) -> Iterator[tuple[str, ev.Event]]:
    """Yield each event of an attempt, and what it is called."""
    of: dict[str, Any] = {"at": LATE, "job": job, "attempt": attempt}
    reported: list[tuple[ev.AgentEvent, dict[str, object], int | None]] = [
        (ev.AgentEvent.CLAIMED, {"torch": "2.12"}, None),
        (ev.AgentEvent.CLAIMED, {"torch": None}, None),
        (ev.AgentEvent.PATCHED, {}, 1),
        (ev.AgentEvent.PLAN, {"framework": "keras", "adjusts": ["a", 3, "a", ""], "batches_per_epoch": 50}, None),
        (ev.AgentEvent.PLAN, {"framework": 3, "batches_per_epoch": True}, None),
        (ev.AgentEvent.PLAN, {"batches_per_epoch": 0}, None),
        (ev.AgentEvent.PLAN, {"batches_per_epoch": 1, "adjusts": [f"setting {n}" for n in range(30)]}, None),
        (ev.AgentEvent.COUNTING, {"scale": "attempt", "resumed": False}, None),
        (ev.AgentEvent.COUNTING, {"scale": "training", "resumed": True}, 0),
        (ev.AgentEvent.COUNTING, {"scale": "attempt", "resumed": True}, 1),
        (ev.AgentEvent.COUNTING, {"scale": "other", "resumed": True}, 0),
        (ev.AgentEvent.RESUMED, {}, None),
        (ev.AgentEvent.SETTING_ASKED, {"setting": "lr"}, None),
        (ev.AgentEvent.REMEDY_APPLIED, {"remedies": ["restart", 3], "set": "x" * 101}, None),
        (ev.AgentEvent.REMEDY_APPLIED, {"remedies": "restart"}, None),
        (ev.AgentEvent.TRAIN_END, {}, None),
        (ev.AgentEvent.ALIVE, {}, None),
    ]
    for word, facts, rank in reported:
        words = str({name: str(value)[:30] for name, value in facts.items()})
        yield f"{word.value} of rank {rank} {words}", ev.AgentReported(agent_event=word, facts=facts, rank=rank, **of)
    for stage in (Stage.SETUP, Stage.WARMUP, Stage.STEP, Stage.LOOP, Stage.ENDED):
        yield f"stage {stage.value}", ev.StageEntered(stage=stage, **of)
    yield "launched", ev.Launched(shim_pid=8, training_pid=9, **of)
    yield "launch failed", ev.LaunchFailed(error="no unit", shortage="memory", **of)
    yield "exited", ev.Exited(status=ExitStatus(at=LATE, code=3), **of)
    yield "host lost", ev.HostLost(reason="rebooted", **of)
    yield "signalled", ev.Signalled(**of)
    yield "evidence", ev.EvidenceTaken(folder="/evidence", took_s=1.0, **of)
    yield "resort ended", ev.ResortEnded(kind="reset_gpu", done=True, output="", **of)
    yield "resort failed", ev.ResortEnded(kind="reset_gpu", done=False, output="no", **of)
    yield "another resort ended", ev.ResortEnded(kind="reboot", done=True, output="", **of)
    yield "triage ended", ev.TriageEnded(finding=FOUND, began_at=START, **of)
    point = ResumePoint(checkpoint=checkpoint(20, Verdict.PROVEN, 1.0), possible=True, reason="the newest")
    yield "resume point", ev.ResumePointFound(point=point, **of)
    for step, verdict, saved_at_s in (
        (5000, Verdict.PROVEN, 6000.0),
        (None, Verdict.PROVEN, 6000.0),
        (5000, Verdict.REJECTED, 6000.0),
        (5000, Verdict.PROVEN, -1.0),
        (5000, Verdict.PROVEN, 0.0),
    ):
        item = checkpoint(step, verdict, saved_at_s)
        yield f"checkpoint {show(item)} {saved_at_s:g}", ev.CheckpointSeen(checkpoint=item, **of)
    yield "not kept", ev.CheckpointNotKept(path="a.pt", reason="no room", **of)
    yield "idle", ev.RecorderIdle(**of)
    yield "one step", ev.StepsMade(records=made(1), **of)
    yield "steps", ev.StepsMade(records=made(21, 22, 60, epoch=2), **of)
    yield "many steps", ev.StepsMade(records=made(9000, 9001, 8999, loss=None), **of)
    yield "steps, some lost", ev.StepsMade(records=made(41, 42), lost=3, **of)
    yield "steps of another rank", ev.StepsMade(records=made(41), rank=1, **of)
    yield "no steps", ev.StepsMade(records=(), **of)
    for fault in (FaultClass.MIOPEN, FaultClass.OOM_GPU):
        seen = OutputFinding(at=LATE, fault=fault, line="error")
        yield f"prints {fault.value}", ev.OutputSeen(new_bytes=5, last_line="error", findings=(seen,), **of)
    waits = (KernelWait(pid=9, name="python", thread=9, channel="amdgpu_fence"),)
    yield "processes", ev.ProcessesRead(reading=ProcessReading(at=LATE, processes=2, waits=waits), **of)
    peer = PeerWait(node="n1", words="process 7 waits")
    yield "another node waits", ev.PeerWaitsSeen(waits=(peer,), **of)
    for stage, stepped in ((Stage.WARMUP, False), (Stage.STEP, True), (Stage.LOOP, False)):
        elsewhere = PeerStage(stage=stage, lasted_s=2.0, stepped=stepped)
        yield f"{stage.value} on another node", ev.PeerStageSeen(stage=elsewhere, **of)
    yield "processes without waits", ev.ProcessesRead(reading=ProcessReading(at=LATE, processes=2), **of)


def list_requests() -> Iterator[tuple[str, ev.Event]]:
    """Yield what a user asks, and what happens to the machine."""
    for ask in ev.Ask:
        for fresh in (False, True):
            words = f"asks {ask.value}{' from the beginning' if fresh else ''}"
            yield words, ev.UserRequest(at=LATE, job=JOB, ask=ask, by="ann", fresh=fresh)
    yield "asks of another job", ev.UserRequest(at=LATE, job="other", ask=ev.Ask.STOP, by="ann")
    yield "clock back", ev.ClockStepped(at=LATE, by_s=-60.0)
    yield "clock ahead", ev.ClockStepped(at=LATE, by_s=60.0)
    yield "daemon away", ev.DaemonAway(at=LATE, away_s=4000.0)
    yield "tick", ev.Tick(at=LATE)


def list_readings() -> Iterator[tuple[str, ev.Event]]:
    """Yield what is read every second, as it should be and not."""
    of: dict[str, Any] = {"at": LATE, "job": JOB, "attempt": 1}
    yield "steps without a loss", ev.StepsMade(records=made(1, loss=None), **of)
    yield "no number of a loss", ev.StepsMade(records=(*made(1), *made(2, loss=NAN)), **of)
    yield "no number of a norm", ev.StepsMade(records=made(1, grad_norm=float("inf")), **of)
    yield "gpus", ev.GpusRead(readings=(), at=LATE)
    yield "host", ev.HostRead(at=LATE, reading=HostReading(at=LATE))
    yield "output", ev.OutputSeen(new_bytes=5, last_line="loss 1", **of)
    yield "kernel", ev.KernelReported(at=LATE, findings=(finding(1, fatal=False),))
    yield "kernel, nothing", ev.KernelReported(at=LATE, findings=())


def list_decisions(job: Job) -> Iterator[tuple[str, de.Decision]]:
    """Yield each decision about the present attempt of a job, and what it is called."""
    of: dict[str, Any] = {"at": LATE, "job": JOB, "attempt": job.number}
    because = {**of, "reason": "because"}
    since: dict[str, Any] = {"since": START.plus(3), "since_step": 17}
    proven = checkpoint(20, Verdict.PROVEN, 1.0)
    yield "launch", de.Launch(**{**because, "attempt": job.next_number}, resume_from=None)
    yield "launch from a checkpoint", de.Launch(**{**because, "attempt": job.next_number}, resume_from=proven)
    yield "warn", de.Warn(flag=flag("thermal", Severity.WARNING), **of)
    yield "warn that it cannot be killed", de.Warn(flag=flag("unkillable"), **of)
    yield "note", de.Note(flag=flag("thermal", shadow=True), **of)
    yield "stop", de.Stop(save=True, **because)
    yield "stop for a flag", de.Stop(save=False, flag=flag(**since), **because)
    yield "stop for a warning", de.Stop(save=True, flag=flag("vram_high", Severity.WARNING), **because)
    yield "stop to end a remedy", de.Stop(save=True, takes_back="restart", **because)
    yield "kill", de.Kill(**because)
    yield "last resort", de.LastResort(kind="reboot", command=("systemctl", "reboot"), **because)
    yield "triage", de.Triage(step=41, looked_for="loss", resume_from=proven, **because)
    started: dict[str, Any] = {"flag": flag(**since), "cause": "nan", "step": 41, "looked_for": "loss"}
    yield "start triage", de.StartTriage(**because, **started)
    for counts, cause, remedy in (
        (True, "stall", "restart"), (False, "nan", "older_generation"), (False, None, None), (True, None, "restart"),
        (True, "gpu_lost", "reset_gpu"), (True, "stall", None),
    ):  # fmt: skip
        retry = de.Retry(
            not_before=LATE.plus(9), flag=flag(**since), counts=counts, cause=cause, remedy=remedy, why="it may help",
            step=41, gpu=OTHER_GPU if remedy == "restart" else None, finding=FOUND, **because,
        )  # fmt: skip
        yield f"retry, counts {counts}, {cause}, {remedy}", retry
        yield f"retry without a flag, counts {counts}, {cause}", replace(retry, flag=None)
    yield "give up", de.GiveUp(**because)
    yield "give up for a crash", de.GiveUp(flag=flag("crash", **since), **because)
    yield "give up for a flag", de.GiveUp(flag=flag(**since), **because)
    yield "finish", de.Finish(**because)
    yield "finish for the user", de.Finish(by_user=True, flag=flag(**since), **because)


def tell_events() -> Iterator[str]:
    """Yield what each event changes in a job of each kind, and what the same event of an earlier attempt does."""
    for name, job in list_jobs().items():
        yield f"== {name}"
        for word, event in (*list_events(job.number), *list_requests()):
            yield f"{word}: {changes(job, after_event(job, event))}"
        others = (*list_events(job.number - 1), *list_events(job.number, "other"))
        strange = [(word, changes(job, after_event(job, event))) for word, event in others]
        yield from (f"not of this attempt: {word}: {found}" for word, found in strange if found != "-")
    yield "== of any job: the next tick is soon enough"
    for word, event in (*list_events(1), *list_requests(), *list_readings()):
        yield f"{word}: {can_wait(event)}"


def tell_decisions() -> Iterator[str]:
    """Yield what each decision changes in a job of each kind; jobs that have no such move are named together."""
    jobs = list_jobs()
    for word, _ in list_decisions(jobs["running"]):
        yield f"== {word}"
        refused: list[str] = []
        for name, job in jobs.items():
            decision = dict(list_decisions(job))[word]
            try:
                found = changes(job, after_decision(job, decision))
            except ImpossibleMove as error:
                refused.append(name)
                assert str(error).startswith(f"job {JOB}: ")  # noqa: PT017 - what it says belongs to the move
                continue
            asked = replace(job, fresh_asked=True, restart_asked=True)
            by_asking = changes(after_decision(job, decision), after_decision(asked, decision))
            yield f"{name}: {found}"
            yield from ([f"  asked for: {by_asking}"] if "fresh_asked" not in by_asking else [])
        yield f"no move: {', '.join(refused) or 'of none'}"


def tell_losses() -> Iterator[str]:
    """Yield what the first losses of an attempt show, and what flags that are cleared do."""
    for name, job in list_jobs().items():
        for losses in ([10.0] * 30, [1.0] * 30, [None] * 30, []):
            yield f"{name}, losses {losses[:1]}: {changes(job, after_first_losses(job, losses))}"
        shadowed = replace(job, shadows=frozenset({flag("thermal").key, flag("hang").key}))
        for flags in ([], [flag("hang", shadow=True)], [flag("hang")]):
            yield f"{name}, {len(flags)} flags: {changes(shadowed, after_flags(shadowed, flags))}"


HIDDEN = (
    "steps",
    "now",
    "learned",
    "reports",
    "losses",
    "ranks",
    "gpus",
    "host",
    "processes",
    "disks_used",
    "gpu_facts",
)
ASKED = ("made_here", "over", "hooked", "starting", "switching")


def show_held(item: Any) -> str:
    """Return what a field holds: what can be gone through as its items."""
    return show(tuple(item) if not isinstance(item, str | dict | tuple) and hasattr(item, "__iter__") else item)


def state_of(history: History) -> Iterator[tuple[str, str]]:
    """Yield what a history holds and what it answers."""
    for field in fields(history):
        item = getattr(history, field.name)
        if isinstance(item, FilesRead | KernelLog | Plan | Saves):
            prefix = "kernel_" if isinstance(item, KernelLog) else ""
            for part in fields(item):
                name = f"{prefix}{part.name}".replace("kernel_findings", "kernel")
                yield name, show_held(getattr(item, part.name))
            continue
        if field.name == "pace":
            item = (item.steps, item.idle_s, tuple(item.stretches), tuple(item.pauses))
        if isinstance(item, Trend):
            item = (item.newest, tuple(item.points))
        if field.name not in HIDDEN and not field.name.startswith("_"):
            yield field.name, show_held(item)
    yield from ((name, show(getattr(history, name))) for name in ASKED)
    yield "known_until", show(history.files_read.steps_known_until(history.now))
    yield "no_step_s", show(history.no_step_s)
    held = (history.steps, history.host, history.processes)
    yield "held", show(tuple(len(items) for items in held))
    yield "gpus", show({gpu: len(items) for gpu, items in history.gpus.items()})
    yield "of its own", show(sorted(history.readings_by_gpu()))
    yield "ranks", show({rank: pace.steps for rank, pace in history.ranks.items()})
    yield "disks", show({path: trend.newest for path, trend in history.disks_used.items()})
    yield "losses", show(tuple(history.losses.epochs))
    yield "learned", show({stage.value: history.learned.limit_s(stage, 1e6) for stage in Stage})
    yield "limit", show(history.learned_limit_s(1e6))
    yield "why", f"{history.why_not_stepping()}; {history.why_no_gpu_readings()}"
    yield "uses", show([history.uses(gpu) for gpu in (None, GPU, OTHER_GPU)])
    yield "another's", show([history.is_anothers(pid) for pid in (None, 9, 10, 77)])


def finding(sequence: int, *, fatal: bool, gpu: str | None = GPU, about: Any = "gpu") -> KernelFinding:
    return KernelFinding(
        at=LATE, sequence=sequence, fault=FaultClass.GPU_HANG, severity=list(FaultSeverity)[-1 if fatal else 0],
        gpu=gpu, line="amdgpu: ring gfx timeout", about=about,
    )  # fmt: skip


def list_history(at: Callable[[float], Any]) -> Iterator[tuple[str, ev.Event]]:  # noqa: PLR0915 - it is one list
    """Yield a night of events: (what it is called, the event)."""

    def of(at_s: float) -> dict[str, Any]:
        return {"at": at(at_s), "job": JOB, "attempt": 1}

    def steps(first: int, last: int, begin_s: float, every_s: float = 1.0, **more: Any) -> tuple[StepRecord, ...]:
        return tuple(
            StepRecord(at=at(begin_s + every_s * (n - first)), step=n, **{"loss": 1.0, **more})
            for n in range(first, last + 1)
        )

    def says(at_s: float, word: ev.AgentEvent, rank: int | None = None, **facts: object) -> tuple[str, ev.Event]:
        return f"{word.value} {facts}"[:90], ev.AgentReported(agent_event=word, facts=facts, rank=rank, **of(at_s))

    def stage(at_s: float, entered: Stage, *, complete: bool = True) -> tuple[str, ev.Event]:
        return f"stage {entered.value}", ev.StageEntered(stage=entered, stages_complete=complete, **of(at_s))

    def processes(
        at_s: float, *pids: int, stopped: tuple[int, ...] = (), rss: int | None = None
    ) -> tuple[str, ev.Event]:
        uses = tuple(ProcessUse(pid=pid, name="python", rss_bytes=1) for pid in pids)
        reading = ProcessReading(at=at(at_s), processes=2, largest=uses, stopped_pids=stopped, rss_bytes=rss)
        return f"processes {pids}", ev.ProcessesRead(reading=reading, **of(at_s))

    yield "launched", ev.Launched(shim_pid=8, training_pid=9, **of(0))
    yield stage(0, Stage.SETUP, complete=False)
    yield says(0.5, ev.AgentEvent.HOOK_FAILED)
    yield says(1, ev.AgentEvent.CLAIMED, torch="2.12")
    yield says(1, ev.AgentEvent.PATCHED)
    yield says(1, ev.AgentEvent.LOOPS, 1, epochs=2)
    yield says(1, ev.AgentEvent.LOOPS, 0, epochs=3, steps_per_epoch=10, total_steps=30)
    yield says(2, ev.AgentEvent.PLAN, saves_each_epoch=True, batches_per_epoch=50, epochs=4, device="cuda:0")
    yield says(2, ev.AgentEvent.LOOPS, epochs=9)
    yield "idle", ev.RecorderIdle(**of(3))
    yield stage(4, Stage.WARMUP)
    yield "idle, earlier", ev.RecorderIdle(**of(2))
    yield "steps", ev.StepsMade(records=steps(1, 5, 5.0), **of(10))
    yield stage(10, Stage.STEP)
    yield "steps with waits", ev.StepsMade(records=steps(6, 60, 11.0, data_wait_s=0.25, epoch=0), **of(66))
    yield "steps behind the clock", ev.StepsMade(records=steps(61, 62, 67.0), **of(67.5))
    yield "no steps", ev.StepsMade(records=(), **of(70))
    for rank in (1, 2):
        yield f"steps of rank {rank}", ev.StepsMade(records=steps(1, 60, 11.0), rank=rank, **of(70))
    yield stage(71, Stage.VALIDATE)
    yield stage(74, Stage.CHECKPOINT)
    yield says(75, ev.AgentEvent.CHECKPOINT_SAVED, path="a.pt", step=60)
    yield says(75, ev.AgentEvent.CHECKPOINT_SAVED, path="b.pt")
    yield says(75, ev.AgentEvent.CHECKPOINT_SAVED, path="c.pt", step=61, kind="snapshot")
    yield says(75, ev.AgentEvent.CHECKPOINT_SAVED, path="d.pt", step=62, requested=True)
    for step, verdict, saved_at_s in ((60, Verdict.PROVEN, 75.0), (60, Verdict.PROVEN, 75.0), (60, None, 90.0)):
        yield "checkpoint", ev.CheckpointSeen(checkpoint=checkpoint(step, verdict, saved_at_s), **of(76))
    yield "not kept", ev.CheckpointNotKept(path="a.pt", reason="no room", **of(76))
    yield "closed", ev.CheckpointsClosed(closed=("a", "b"), folders=("ck",), **of(76))
    yield "existing", ev.ExistingFound(count=3, kept=1, folder="/runs", **of(76))
    yield stage(77, Stage.STEP)
    yield "epoch 1", ev.StepsMade(records=steps(63, 65, 78.0, epoch=1), **of(80))
    yield "no numbers", ev.StepsMade(records=steps(66, 66, 81.0, loss=NAN, grad_norm=1.0), **of(81))
    yield "no number of a norm", ev.StepsMade(records=steps(67, 67, 82.0, grad_norm=float("inf")), **of(82))
    yield says(83, ev.AgentEvent.TUNING, lent=True)
    yield "steps under a tune", ev.StepsMade(records=steps(68, 71, 84.0), **of(87))
    yield says(88, ev.AgentEvent.TUNING, lent=1)
    yield "steps after it", ev.StepsMade(records=steps(72, 73, 89.0), **of(90))
    yield "a tuned step", ev.StepsMade(records=steps(74, 74, 91.0, tuning=True), **of(91))
    yield says(91, ev.AgentEvent.TUNING, lent=False)
    gpu = GpuReading(at=at(92), gpu=GPU, source="sysfs", vram_used_bytes=5)
    other = replace(gpu, gpu=OTHER_GPU)
    yield "gpus", ev.GpusRead(readings=(gpu, other), at=at(92))
    yield "gpus", ev.GpusRead(readings=(gpu,), at=at(93))
    disks = (DiskReading(path="/runs", free_bytes=30, total_bytes=100),)
    yield "host", ev.HostRead(at=at(93), reading=HostReading(at=at(93), disks=disks))
    yield processes(94, 9, 10, rss=7)
    yield processes(95, 9, 10, rss=9)
    yield processes(96, 9, 77, stopped=(5,))
    yield processes(97, 9, stopped=(9,))
    yield "steps after a stop", ev.StepsMade(records=steps(75, 76, 98.0), **of(99))
    printed = OutputFinding(at=at(100), fault=FaultClass.OOM_GPU, line="oom")
    yield "output", ev.OutputSeen(new_bytes=3, last_line="oom", findings=(printed,), progress_step=4, **of(100))
    yield "output, the same", ev.OutputSeen(new_bytes=3, last_line="", progress_step=4, **of(101))
    yield "output, no bar", ev.OutputSeen(new_bytes=3, last_line="x", **of(102))
    yield "kernel", ev.KernelReported(at=at(103), findings=(finding(1, fatal=True), finding(2, fatal=False)))
    yield "kernel again", ev.KernelReported(at=at(104), findings=(replace(finding(1, fatal=True), lines=4),))
    yield "kernel, over", ev.KernelReported(at=at(105), findings=(finding(1, fatal=False),))
    yield "kernel, back", ev.KernelReported(at=at(106), findings=(finding(1, fatal=True), finding(3, fatal=True)))
    yield says(107, ev.AgentEvent.EXCEPTION, 1, type="ValueError")
    yield "clock", ev.ClockStepped(at=at(108), by_s=5.0)
    yield "steps after the clock", ev.StepsMade(records=steps(77, 80, 109.0), **of(112))
    yield "away", ev.DaemonAway(at=at(200), away_s=80.0)
    yield "steps after the absence", ev.StepsMade(records=steps(81, 84, 201.0), **of(204))
    yield says(205, ev.AgentEvent.HOOK_FAILED)
    yield says(206, ev.AgentEvent.TRAIN_END)
    yield says(207, ev.AgentEvent.PLAN, batches_per_epoch="7", device=3, epochs=-1)
    yield says(208, ev.AgentEvent.PLAN, device="cpu")
    yield says(209, ev.AgentEvent.TRAIN_END)
    yield stage(210, Stage.SETUP)
    yield "tick", ev.Tick(at=at(300))
    yield "failed to launch", ev.LaunchFailed(error="no unit", **of(301))
    yield "exited", ev.Exited(status=ExitStatus(at=at(302), code=1), **of(302))
    yield "lost", ev.HostLost(reason="rebooted", **of(303))


def tell_history(add: Callable[[History, ev.Event], None], gpus_used: tuple[str, ...]) -> Iterator[str]:
    """Yield what each event of a night changes in a history."""
    history = History(now=START, launched_at=START, gpus_used=gpus_used)
    before = dict(state_of(history))
    for word, event in list_history(START.plus):
        add(history, event)
        after = dict(state_of(history))
        found = ", ".join(f"{name} {value}" for name, value in after.items() if before.get(name) != value)
        yield f"{word}: {found or '-'}"
        before = after
    yield from (
        f"concerned by {about} {gpu}: {history.concerns(finding(1, fatal=True, gpu=gpu, about=about))}"
        for about in ("gpu", "pci", "disk", "host", "none")
        for gpu in (GPU, OTHER_GPU, "0000:ff:00.0", None)
    )


def tell_histories() -> Iterator[str]:
    for gpus_used in ((GPU,), ()):
        yield f"== of {gpus_used}"
        yield from tell_history(History.add, gpus_used)
    yield "== barely"
    yield from tell_history(History.add_barely, (GPU,))


def list_reports() -> Iterator[tuple[ev.AgentEvent, dict[str, object], int | None, int | None]]:
    """Yield reports of an agent: the event, its facts, the rank and the process."""
    word = ev.AgentEvent
    full: dict[str, object] = {
        "reserved_bytes": 9,
        "allocated_bytes": 5,
        "inactive_split_bytes": 2,
        "retries": 1,
        "ooms": 2,
        "total_bytes": 12,
    }
    yield word.ALLOCATOR, full, None, 7
    yield word.ALLOCATOR, {"reserved_bytes": 3, "allocated_bytes": 5, "retries": "many", "ooms": -1}, 0, 7
    yield word.ALLOCATOR, {"reserved_bytes": 3}, 1, 7
    yield word.ALLOCATOR, {"allocated_bytes": 3}, 1, 7
    yield word.ALLOCATOR, {"reserved_bytes": 2**60, "allocated_bytes": 2**60}, 1, 7
    yield word.ALLOCATOR, {"reserved_bytes": 2**60 + 1, "allocated_bytes": 1}, 1, 7
    yield from ((word.ALLOCATOR, full, rank, 7) for rank in (RANKS_KEPT - 1, RANKS_KEPT))
    yield from ((word.ALLOCATOR, {**full, "gpu_index": index}, 0, 7) for index in (1, -1))
    yield (
        word.EPOCH_END,
        {"epoch": 0, "fitness": 0.5, "train_loss": 2.0, "val_loss": 3.0, "metrics": {"a": 1, "b": "x"}},
        0,
        7,
    )
    yield (
        word.EPOCH_END,
        {"epoch": 1, "fitness": None, "val_loss": None, "metrics": {"metrics/mAP50-95(B)": 0.25}},
        0,
        7,
    )
    yield word.EPOCH_END, {"epoch": "2"}, 0, 7
    yield word.EPOCH_END, {"epoch": 10**9, "metrics": {f"m{n}": n for n in range(METRICS_KEPT + 3)}}, 0, 7
    yield word.EPOCH_END, {"epoch": 10**9 + 1}, 0, 7
    yield word.WORKERS, {"loader": 1, "pids": [11, 12], "training": True}, 0, 7
    yield word.WORKERS, {"loader": 1, "pids": [13]}, 0, 8
    yield word.WORKERS, {"loader": 2, "pids": [14, 0, "x", 2**22, 2**22 + 1], "iterable": True, "training": 1}, 0, 7
    yield word.WORKERS, {"loader": 1, "pids": [11, 12], "ended": True, "training": True}, 0, 7
    yield word.WORKERS, {"loader": 1, "pids": [], "training": True}, 0, 8
    yield word.WORKERS, {"loader": None, "pids": [5]}, 0, 7
    yield word.WORKERS, {"loader": 3, "pids": 5}, 0, 7
    yield word.PRECISION, {"asked": "half", "used": "single", "why": "no scaler", "device": "cuda"}, 0, 7
    yield word.PRECISION, {"asked": "half", "used": "half", "why": 3, "device": 4}, 0, 7
    yield word.PRECISION, {"asked": "half"}, 0, 7
    yield word.PRECISION, {"used": "half"}, 0, 7
    yield from ((word.CLAIMED, {}, rank, pid) for rank, pid in ((0, 7), (1, 8), (None, 9), (2, None), (RANKS_KEPT, 10)))
    yield word.PLAN, {"start_epoch": 3}, 0, 7
    yield word.PLAN, {"start_epoch": "3"}, 0, 7
    yield word.SNAPSHOTS, {"every_s": 30.0}, 0, 7
    yield word.SNAPSHOTS, {"every_s": -1.0}, 0, 7
    yield word.SNAPSHOTS, {"every_s": EVERY_MAX_S}, 0, 7
    yield word.SNAPSHOTS, {"every_s": EVERY_MAX_S + 1}, 0, 7
    yield word.SAVE_FAILED, {"kind": "snapshot", "error": "disk full"}, 0, 7
    yield word.SAVE_FAILED, {"kind": "snapshot", "error": "x" * (ERROR_CHARACTERS + 1)}, 0, 7
    yield word.SAVE_FAILED, {"error": None}, 0, 7
    yield word.CHECKPOINT_SAVED, {"path": "a.pt"}, 0, 7
    yield word.SAVE_FAILED, {"error": "no room"}, 0, 7
    yield word.CHECKPOINT_SAVED, {"path": "b.pt", "kind": "snapshot"}, 0, 7
    yield word.ALIVE, {"start_epoch": 9}, 0, 7


def tell_reports() -> Iterator[str]:
    """Yield what each report of an agent adds to those before it."""
    reports = AgentReports()
    name = reports.name_holder
    before: dict[str, str] = {}
    for second, (word, facts, rank, pid) in enumerate(list_reports()):
        event = ev.AgentReported(
            at=START.plus(second), job=JOB, attempt=1, agent_event=word, facts=facts, rank=rank, pid=pid
        )
        reports.add(event)
        after = {
            **{f"allocations of {name(key)}": show(tuple(items)) for key, items in reports.allocations.items()},
            **{f"unused by {name(key)}": show(items[-1].unused_bytes) for key, items in reports.allocations.items()},
            **{f"allocated by {name(key)}": show(trend.newest) for key, trend in reports.allocated.items()},
            **{f"epoch {item.epoch}": f"{show(item)} merit {show(item.merit)}" for item in reports.epochs},
            **{f"loader {key}": show(item) for key, item in reports.loaders.items()},
            "workers": show(reports.workers),
            "precision": show(reports.precision),
            "rank_pids": show(reports.rank_pids),
            "start_epoch": show(reports.start_epoch),
            **{f"saving.{name.partition('=')[0]}": name.partition("=")[2] for name in list_fields(reports.saving)},
        }
        names = {**before, **after}
        found = [f"{name} {after.get(name, 'cleared')}" for name in names if before.get(name) != after.get(name)]
        yield f"{word.value} of {rank} {str(facts)[:100]}: {', '.join(found) or '-'}"
        before = after


TRANSCRIPTS: dict[str, Callable[[], str]] = {
    "events": lambda: "\n".join([*tell_events(), ""]),
    "decisions": lambda: "\n".join([*tell_decisions(), ""]),
    "first_losses": lambda: "\n".join([*tell_losses(), ""]),
    "agent_reports": lambda: "\n".join([*tell_reports(), ""]),
    "histories": lambda: "\n".join([*tell_histories(), ""]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_table_of_changes_reads_as_it_was_reviewed(name: str) -> None:
    assert TRANSCRIPTS[name]() == read(name)
