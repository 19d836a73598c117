"""Histories told as stories: each method lets something happen and time pass, and none of them reads a clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from typing_extensions import Self

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.apply_event import after_event, after_flags, after_silent_start
from supervisor.core.attempt.silences import Silences
from supervisor.core.checkpoints.checkpoint import (
    Checkpoint,
    Fingerprint,
    Verdict,
    before_fault,
    choose,
    of_this_training,
)
from supervisor.core.decide import decide
from supervisor.core.findings import About, FaultClass, FaultSeverity, KernelFinding, OutputFinding
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Attempt, Job, Limits, Phase
from supervisor.core.judge import judge
from supervisor.core.moments import Moment
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
    StorageWait,
)
from supervisor.core.remedies.context import RemedyContext
from supervisor.core.rules import RULES, Rule, flag_of
from tests.rigs.agreeing import agrees
from tests.rigs.declared import check_declared

JOB = "night"
GPU = "0000:0a:00.0"
OTHER_GPU = "0000:0b:00.0"
GB = 1_000_000_000
START = Moment(1000.0, 1_700_000_000.0)
TRAINER: dict[str, object] = {
    "framework": "ultralytics",
    "adjusts": ["batch_factor", "image_factor", "skip_batches"],
    "saves_each_epoch": True,
}
"""Of the plan that the hook of ultralytics reports."""
NAN = float("nan")
FREQUENT = (ev.Tick, ev.StepsMade, ev.GpusRead, ev.ProcessesRead, ev.HostRead, ev.RecorderIdle)
"""Events after which a job is looked at only where they lead to a decision."""


class Story:
    """The history of one attempt, launched at its first line."""

    def __init__(self, gpus_used: tuple[str, ...] = (GPU,)) -> None:
        self.now = START
        self.gpus_used = gpus_used
        self.findings = 1
        self.history = History(now=START, launched_at=START, gpus_used=gpus_used)

    @property
    def attempt(self) -> int:
        """Number of the attempt that events are about."""
        return 1

    def put(self, event: ev.Event) -> None:
        """Let an event reach whoever listens."""
        self.history.add(event)

    def check(self, rule: Rule) -> RedFlag | None:
        """Return the flag of a rule, whose gauges must be consistent for every history that is told."""
        agrees(rule, self.history)
        check_declared(self.history.reports)
        return flag_of(rule, self.history)

    def silence(self, seconds: float) -> Self:
        """Let time pass and nothing happen."""
        self.now = self.now.plus(seconds)
        self.put(ev.Tick(at=self.now))
        return self

    def away(self, seconds: float) -> Self:
        """The daemon does not run for so long; what it reads on its return is read at its end."""
        self.now = self.now.plus(seconds)
        self.put(ev.DaemonAway(at=self.now, away_s=seconds))
        return self

    def started(self, training_pid: int | None = 4242) -> Self:
        """The shim is up."""
        self.put(ev.Launched(at=self.now, job=JOB, attempt=self.attempt, shim_pid=4241, training_pid=training_pid))
        return self

    def stage(self, stage: Stage, *, stages_complete: bool = False) -> Self:
        """The training enters a stage; `whole` where its agent tells every stage there is."""
        self.put(
            ev.StageEntered(at=self.now, job=JOB, attempt=self.attempt, stage=stage, stages_complete=stages_complete)
        )
        return self

    def claimed(self, *pids: int) -> Self:
        """Processes claim the recorders of rank 0 and on: they are those that make steps."""
        for rank, pid in enumerate(pids):
            self.claims(rank, pid)
        return self

    def says(self, agent_event: ev.AgentEvent, **facts: object) -> Self:
        """The agent says something."""
        self.put(ev.AgentReported(at=self.now, job=JOB, attempt=self.attempt, agent_event=agent_event, facts=facts))
        return self

    def steps(
        self,
        first: int,
        last: int,
        every_s: float = 0.05,
        *,
        loss: float | None = 1.0,
        grad_norm: float | None = None,
        batches: int | None = None,
    ) -> Self:
        """Steps from `first` to `last`, each `every_s` after the one before."""
        for step in range(first, last + 1):
            self.now = self.now.plus(every_s)
            epoch = None if batches is None else (step - 1) // batches
            record = StepRecord(at=self.now, step=step, epoch=epoch, loss=loss, grad_norm=grad_norm)
            self.put(ev.StepsMade(at=self.now, job=JOB, attempt=self.attempt, records=(record,)))
        return self

    def rank_steps(self, rank: int, first: int, last: int, every_s: float = 0.05) -> Self:
        """Another rank than 0 makes the steps from `first` to `last`, each `every_s` after the one before."""
        for step in range(first, last + 1):
            self.now = self.now.plus(every_s)
            record = StepRecord(at=self.now, step=step)
            self.put(ev.StepsMade(at=self.now, job=JOB, attempt=self.attempt, records=(record,), rank=rank))
        return self

    def claims(self, rank: int, pid: int) -> Self:
        """A process claims the recorder of one rank, as where rank 0 is on another node."""
        claimed = ev.AgentEvent.CLAIMED
        self.put(
            ev.AgentReported(
                at=self.now, job=JOB, attempt=self.attempt, agent_event=claimed, rank=rank, pid=pid, facts={}
            )
        )
        return self

    def training(self, steps: int = 100, every_s: float = 0.05) -> Self:
        """An ordinary beginning: setup, warmup, then steps."""
        self.started().stage(Stage.SETUP).silence(20).stage(Stage.WARMUP).silence(5)
        self.steps(1, 1).stage(Stage.STEP)
        return self.steps(2, steps, every_s)

    def prints(self, line: str, fault: FaultClass | None = None) -> Self:
        """The training prints a line, which may mean something."""
        found = () if fault is None else (OutputFinding(at=self.now, fault=fault, line=line),)
        self.put(
            ev.OutputSeen(
                at=self.now, job=JOB, attempt=self.attempt, new_bytes=len(line), last_line=line, findings=found
            )
        )
        return self

    def kernel(
        self,
        fault: FaultClass,
        line: str = "amdgpu: ring gfx_0.0.0 timeout",
        *,
        fatal: bool = True,
        gpu: str | None = GPU,
        pid: int | None = None,
        ago_s: float = 0.0,
        about: About | None = None,
        remedy: str | None = None,
    ) -> Self:
        """The kernel's log says something, `ago_s` before now."""
        usual: About = "host" if fault is FaultClass.OOM_KILL else "gpu"
        finding = KernelFinding(
            at=self.now.plus(-ago_s),
            sequence=self.findings,
            fault=fault,
            severity=FaultSeverity.FATAL if fatal else FaultSeverity.WARN,
            gpu=gpu,
            line=line,
            pid=pid,
            about=about or usual,
            remedy=remedy,
            of_process=fault is FaultClass.PAGE_FAULT,
        )
        self.findings += 1
        self.put(ev.KernelReported(at=self.now, findings=(finding,), sequence=1))
        return self

    def gpu(
        self,
        seconds: float = 0.0,
        *,
        busy: float | None = None,
        used: int | None = None,
        total: int | None = 6 * GB,
        gpu: str = GPU,
        every_s: float = 1.0,
        status: str | None = None,
        gfx: str | None = None,
    ) -> Self:
        """A card is read once now, and then every `every_s` for `seconds`."""
        for count in range(round(seconds / every_s) + 1):
            if count:
                self.now = self.now.plus(every_s)
            reading = GpuReading(
                at=self.now,
                gpu=gpu,
                source="sysfs",
                gpu_busy_percent=busy,
                vram_used_bytes=used,
                vram_total_bytes=total,
                runtime_status=status,
                gfx_version=gfx,
            )
            self.put(ev.GpusRead(at=self.now, readings=(reading,)))
        return self

    def tree(
        self,
        seconds: float = 0.0,
        *,
        cpu: float | None = None,
        stuck: tuple[int, ...] = (),
        every_s: float = 1.0,
        waits: tuple[KernelWait, ...] = (),
        stopped: tuple[int, ...] = (),
        traced: tuple[int, ...] = (),
        on_terminal: tuple[int, ...] = (),
        frozen: tuple[int, ...] = (),
        runs: bool | None = False,
        switches: float | None = None,
        parents: tuple[tuple[int, int], ...] = (),
        served: tuple[int, ...] = (),
        storage: tuple[StorageWait, ...] = (),
        largest: tuple[ProcessUse, ...] = (),
        on_gpu: tuple[int, ...] = (),
        timed: tuple[int, ...] = (),
        asking: tuple[int, ...] = (),
    ) -> Self:
        """The job's processes are read for `seconds`; those that are `stuck` wait in the kernel, others are `stopped`.

        `runs` says whether one that is stuck runs between two readings; None where the kernel does not count.
        `switches` are the context switches a second of all threads, `parents` each process with its parent; those that
        are `traced` are held by a debugger, those `on_terminal` by the job control of their terminal, those
        that are `frozen` with their control group; those
        that are `served` wait for a file system's server. `storage` are threads that wait for a file system, `largest`
        the processes that use most of the processor, and those `on_gpu` wait in the driver of one. Those that are
        `timed` sleep by a timer, those that are `asking` wait for the answer of a peer that is none of the job's.
        """
        for count in range(round(seconds / every_s) + 1):
            if count:
                self.now = self.now.plus(every_s)
            count_of = None if runs is None else 9 + (round(self.now.monotonic_s) if runs else 0)
            stand = tuple(KernelWait(pid=pid, name="python", thread=pid, switches=count_of) for pid in stuck)
            reading = ProcessReading(
                at=self.now,
                processes=3,
                cpu_percent=cpu,
                uninterruptible_pids=stuck,
                served_pids=served,
                waits=waits or stand,
                stopped_pids=stopped + traced + on_terminal + frozen,
                traced_pids=traced,
                terminal_pids=on_terminal,
                frozen_pids=frozen,
                switches_per_s=switches,
                parents=parents,
                storage_waits=storage,
                largest=largest,
                gpu_wait_pids=on_gpu,
                timed_pids=timed,
                asking_pids=asking,
            )
            self.put(ev.ProcessesRead(at=self.now, job=JOB, attempt=self.attempt, reading=reading))
        return self

    def peers_wait(self, *nodes: str, words: str = "process 7 (python) waits for /data (nfs4)") -> Self:
        """The leader of the training reports which other nodes wait for a file system."""
        waits = tuple(PeerWait(node=node, words=words) for node in nodes)
        self.put(ev.PeerWaitsSeen(at=self.now, job=JOB, attempt=self.attempt, waits=waits))
        return self

    def peer_stage(self, stage: Stage, lasted_s: float, *, stepped: bool = False) -> Self:
        """The leader of the training reports the stage of rank 0, which is on another node."""
        seen = PeerStage(stage=stage, lasted_s=lasted_s, stepped=stepped)
        self.put(ev.PeerStageSeen(at=self.now, job=JOB, attempt=self.attempt, stage=seen))
        return self

    def looked(self, ago_s: float = 0.0) -> Self:
        """The recorder was read to its end, `ago_s` before now."""
        self.put(ev.RecorderIdle(at=self.now.plus(-ago_s), job=JOB, attempt=self.attempt))
        return self

    def memory(
        self,
        seconds: float = 0.0,
        *,
        available: int | None,
        total: int | None = 32 * GB,
        rss: int | None = None,
        every_s: float = 1.0,
    ) -> Self:
        """The machine's memory and the job's share of it are read for `seconds`."""
        for count in range(round(seconds / every_s) + 1):
            if count:
                self.now = self.now.plus(every_s)
            host = HostReading(at=self.now, memory_total_bytes=total, memory_available_bytes=available)
            self.put(ev.HostRead(at=self.now, reading=host))
            processes = ProcessReading(at=self.now, processes=5, rss_bytes=rss)
            self.put(ev.ProcessesRead(at=self.now, job=JOB, attempt=self.attempt, reading=processes))
        return self

    def disks(self, **free_bytes: int) -> Self:
        """Disks of 1 TB each are read, named by their path without slashes."""
        disks = tuple(
            DiskReading(path=f"/{name}", free_bytes=free, total_bytes=1000 * GB) for name, free in free_bytes.items()
        )
        self.put(ev.HostRead(at=self.now, reading=HostReading(at=self.now, disks=disks)))
        return self

    def exits(
        self,
        code: int | None = None,
        *,
        signal: int | None = None,
        error: str | None = None,
        in_background: int | None = None,
    ) -> Self:
        """Every process of the attempt is gone."""
        status = ExitStatus(at=self.now, code=code, signal=signal, error=error, in_background=in_background)
        self.put(ev.Exited(at=self.now, job=JOB, attempt=self.attempt, status=status))
        return self

    def lost(self, reason: str = "the machine was rebooted") -> Self:
        """The attempt ended without an exit record."""
        self.put(ev.HostLost(at=self.now, job=JOB, attempt=self.attempt, reason=reason))
        return self


def story(gpus_used: tuple[str, ...] = (GPU,)) -> Story:
    """Begin a story of one attempt on one card."""
    return Story(gpus_used)


class Life(Story):
    """A whole job: every event goes through follow, judge and decide, as in the daemon's loop."""

    def __init__(self, rules: Iterable[Rule] | None = None, limits: Limits | None = None) -> None:
        super().__init__()
        self.rules = tuple(rule() for rule in RULES) if rules is None else tuple(rules)
        self.job = Job(name=JOB, since=START, limits=limits or Limits())
        self.saved: list[Checkpoint] = []
        self.decisions: list[de.Decision] = []
        self.launch_allowed = True
        self.context = RemedyContext()
        self._checked: dict[int, object] = {}

    @property
    def attempt(self) -> int:
        """Number of the present attempt."""
        return self.job.number

    def put(self, event: ev.Event) -> None:
        """Apply an event, then decide until nothing is left to decide."""
        self.job = after_event(self.job, event)
        self.history.add(event)
        if isinstance(event, ev.ProcessesRead) and not self.history.hooked:
            self.job = after_silent_start(self.job, event.at, self.history.output_known_s(self.history.launched_at))
        for _ in range(20):
            decision = self.next_decision()
            if decision is not None or not isinstance(event, FREQUENT):
                check_declared(self.job, self._checked)
            if decision is None:
                return
            self._check_decision(decision)
            self.job = after_decision(self.job, decision)
            self.decisions.append(decision)
            if isinstance(decision, de.Launch):
                silences = Silences(steps=self.job.course.list_silent_steps())
                self.history = History(now=self.now, launched_at=self.now, gpus_used=self.gpus_used, silences=silences)
        raise AssertionError(f"no end of decisions: {self.decisions[-3:]}")

    def next_decision(self) -> de.Decision | None:
        """Ask for the next decision and carry nothing out."""
        flags = judge(self.rules, self.history) if self.job.phase in ALIVE else ()
        self.history.flagged = any(flag.severity is Severity.CRITICAL for flag in flags)
        self.job = after_flags(self.job, flags)
        return decide(self.job, flags, self.now, launch_allowed=self.launch_allowed, context=self.context)

    def _check_decision(self, decision: de.Decision) -> None:
        """Fail where a decision does not name its job, its attempt or its time."""
        check_declared(decision, self._checked)
        number = self.job.next_number if isinstance(decision, de.Launch) else self.job.number
        assert (decision.at, decision.job, decision.attempt) == (self.now, JOB, number), decision

    def asks(self, ask: ev.Ask, *, fresh: bool = False) -> Self:
        """A person asks something of the job."""
        self.put(ev.UserRequest(at=self.now, job=JOB, ask=ask, by="uid 1000", fresh=fresh))
        return self

    def saves(self, path: str, step: int, verdict: Verdict | None = Verdict.PROVEN, reason: str | None = None) -> Self:
        """A checkpoint is saved now."""
        fingerprint = Fingerprint(size_bytes=1, modified_ns=round(self.now.unix_s * 1e9), inode=len(self.saved))
        self.saved.append(Checkpoint(path=path, fingerprint=fingerprint, step=step, verdict=verdict, reason=reason))
        return self

    def looks(self, *, loads_itself: bool = False) -> Self:
        """Somebody looks for the resume point, and condemns for good what was saved after the fault began."""
        plan = self.job.retry
        assert self.job.phase is Phase.BACKOFF
        assert plan is not None
        mine = of_this_training(self.saved, self.job.began_unix_s)
        sound = {item.key for item in before_fault(mine, plan.fault_unix_s, plan.fault_step)}
        rejected = {item.key for item in mine} - sound
        self.saved = [
            replace(checkpoint, verdict=Verdict.REJECTED, reason="saved after the fault began")
            if checkpoint.key in rejected
            else checkpoint
            for checkpoint in self.saved
        ]
        point = choose(
            self.saved,
            plan.fault_unix_s,
            plan.fault_step,
            began_unix_s=self.job.began_unix_s,
            older_than=plan.older_than,
            loads_itself=loads_itself,
        )
        self.put(ev.ResumePointFound(at=self.now, job=JOB, attempt=self.attempt, point=point))
        return self

    def signalled(self) -> Self:
        """The evidence is taken and the training is asked to end."""
        self.put(ev.Signalled(at=self.now, job=JOB, attempt=self.attempt))
        return self

    def fails_to_launch(
        self, error: str = "systemctl: unit rocm-run@night.service not found", shortage: str | None = None
    ) -> Self:
        """No shim comes up."""
        self.put(ev.LaunchFailed(at=self.now, job=JOB, attempt=self.attempt, error=error, shortage=shortage))
        return self

    def read_decisions(self) -> list[str]:
        """Return the names of the decisions made since this was last asked, oldest first."""
        names = [type(decision).__name__ for decision in self.decisions]
        self.decisions.clear()
        return names

    def phase(self) -> Phase:
        """Return where the job stands now."""
        return self.job.phase

    def present(self) -> Attempt:
        """Return the present or last attempt."""
        assert self.job.attempt is not None
        return self.job.attempt

    @property
    def last(self) -> de.Decision:
        """The newest decision."""
        return self.decisions[-1]


def life(rules: Iterable[Rule] | None = None, limits: Limits | None = None) -> Life:
    """Begin the life of a job: its first attempt is launched."""
    item = Life(rules, limits)
    item.silence(0)
    return item
