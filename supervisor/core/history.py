"""What is known about one attempt: it takes in events and answers the questions of the rules.

A new attempt gets a new history: nothing that a rule could remember crosses a restart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.attempt.absences import Absences
from supervisor.core.attempt.agent_reports import AgentReports
from supervisor.core.attempt.files_read import FilesRead
from supervisor.core.attempt.kernel_log import KernelLog
from supervisor.core.attempt.plan import Plan
from supervisor.core.attempt.saves import Saves
from supervisor.core.attempt.silences import Silences
from supervisor.core.checkpoints.loss_curve import Resumed
from supervisor.core.findings import KernelFinding, OutputFinding
from supervisor.core.gpu_facts import GpuFacts
from supervisor.core.moments import Moment
from supervisor.core.peers import StageElsewhere
from supervisor.core.rank_failure import Raised
from supervisor.core.readings import ExitStatus, GpuReading, HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.scale import Scale
from supervisor.core.stats.holds import R
from supervisor.core.stats.learned_limits import Learned
from supervisor.core.stats.losses import Losses
from supervisor.core.stats.pace import Pace
from supervisor.core.stats.storage_waits import StorageWaits, find_explaining, has_other_cause
from supervisor.core.stats.trend import Trend

STEPS_KEPT = 2048
RAISED_KEPT = 64
READINGS_KEPT = 600
RANKS_KEPT = 64
BARS_KEPT = 64
GPU_WORKS_PERCENT = 90.0
STORAGE_DISTURBS_S = 30.0
"""A step in which a file system was waited for so long teaches nothing; a shorter wait is usual where much is read."""
SWITCH_STEPS = 8
"""Steps after a tune's switch within which the first use of new kernels and workers is expected."""
PAUSING = frozenset({Stage.SETUP, Stage.WARMUP, Stage.VALIDATE, Stage.CHECKPOINT, Stage.ENDED, Stage.EXITING})
"""Time spent in these is no time of stepping."""
ATTEMPT_ENDED = "the attempt has ended"
"""Why something about it cannot be measured."""


@dataclass(slots=True, kw_only=True)
class History:
    """Facts of one attempt, newest last, bounded; each event is added, and `now` is the time of the newest."""

    now: Moment
    launched_at: Moment
    gpus_used: tuple[str, ...] = ()  # PCI addresses that the job runs on; empty: it may use any GPU of the machine
    disks: frozenset[str] | None = None  # the paths by which those are read that it writes to; None: all
    resumed: Resumed | None = None
    """What the attempt resumed from: a fact about its start, no state of a rule."""
    scale: Scale | None = None
    """What the steps of the attempt count; None before the first."""
    first_step: int | None = None
    """Number of the attempt's first step; None where none was made, or the first ones were never read."""
    stage: Stage | None = None
    stage_since: Moment | None = None
    stages_complete: bool = False
    """Whether the agent reports every stage that there is, so that a long step is nothing else."""
    elsewhere: StageElsewhere = field(default_factory=StageElsewhere)
    """The stage of rank 0 where that is on another node: `stage` is None then."""
    replaced_stage: tuple[Stage | None, Moment | None, bool] | None = None
    """The stage, as reported last, of a process that is gone while its program starts again; None else."""
    files_read: FilesRead = field(default_factory=FilesRead)
    clock_stepped_at: Moment | None = None
    """When the wall clock last jumped, as it does when a machine wakes up."""
    absences: Absences = field(default_factory=Absences)
    """When the daemon did not run: no limit on silence counts that time."""
    away_until: Moment | None = None
    """The end of the newest absence."""
    storage: StorageWaits = field(default_factory=StorageWaits)
    """When the training was seen to wait for a file system."""
    storage_excused: bool = True  # no limit on silence counts that time: what the rule `storage_wait` is set to
    peers_excused_s: float = 14400.0
    """How much of it after a step that other nodes alone waited, as they report: the limit of that rule."""
    learned: Learned = field(default_factory=Learned)
    """How long things took in this set-up, earlier attempts included."""
    silences: Silences = field(default_factory=Silences)
    flagged: bool = False
    """Whether a critical flag is raised, acting or in shadow: nothing is learned meanwhile."""
    claimed: bool = False
    """Whether a training reports its steps; without it the step counter has no meaning."""
    patched: bool = False
    """Whether the agent met torch and replaced its Conv2d."""
    hook_failed_at: Moment | None = None
    """When a hook of the agent last failed: if no step came after that, it may be the hook that is at fault."""
    device: str | None = None
    """What the framework trains on, as it names it (`cpu`, `cuda:0`)."""
    plan: Plan = field(default_factory=Plan)
    training_pid: int | None = None
    first_step_at: Moment | None = None
    last_step_at: Moment | None = None
    train_ended: bool = False
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    non_finite: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    gpus: dict[str, deque[GpuReading]] = field(default_factory=dict)
    host: deque[HostReading] = field(default_factory=lambda: deque(maxlen=READINGS_KEPT))
    processes: deque[ProcessReading] = field(default_factory=lambda: deque(maxlen=READINGS_KEPT))
    kernel: KernelLog = field(default_factory=KernelLog)
    output: deque[OutputFinding] = field(default_factory=lambda: deque(maxlen=200))
    last_line: str = ""
    output_at: Moment | None = None
    output_step: int | None = None
    """The step that the newest progress bar showed."""
    output_step_at: Moment | None = None  # when that number last changed
    output_stepped: bool = False  # a bar is drawn at 0 before anything was done
    output_bar_ended: bool = False
    """Whether it is the end of a bar of a length that was not seen to end before: no epoch, as far as is known."""
    _ended_bars: set[int] = field(default_factory=set)  # the lengths of those, the first ones
    raised: deque[Raised] = field(default_factory=lambda: deque(maxlen=RAISED_KEPT))
    """Exceptions that ended processes of the attempt: its ranks, its launcher, programs that it ran."""
    exit: ExitStatus | None = None
    host_lost: str | None = None
    launch_error: str | None = None
    paused_at: Moment | None = None
    """When it was last seen to do anything but stepping, or not seen: a step of any rank around that tells no pace."""
    pace: Pace = field(default_factory=Pace)
    losses: Losses = field(default_factory=Losses)
    reports: AgentReports = field(default_factory=AgentReports)
    gpu_facts: dict[str, GpuFacts] = field(default_factory=dict)
    gpus_read_at: Moment | None = None
    rss: Trend = field(default_factory=Trend)
    """Memory of the process tree."""
    disks_used: dict[str, Trend] = field(default_factory=dict)
    saves: Saves = field(default_factory=Saves)
    ranks: dict[int, Pace] = field(default_factory=dict)
    """Of the ranks other than 0."""
    stopped_at: Moment | None = None
    """The newest reading in which the training's first process, or one that makes steps, was stopped."""
    continued_at: Moment | None = None
    """When its stopped processes were sent SIGCONT."""
    tuning: bool = False
    """Whether a tune lends the training settings, as its agent reported last."""
    left_tuning: bool = False
    """Whether the newest step was made under a tune: the time up to the next one is not the owner's pace."""
    measured: bool = False
    """Whether a tune measures the attempt itself, by what it was started with."""
    steps_since_switch: int = 0
    """Made under a tune since its settings were switched last."""

    @property
    def last_step(self) -> StepRecord | None:
        """The newest step of this attempt."""
        return self.steps[-1] if self.steps else None

    @property
    def newest_processes(self) -> ProcessReading | None:
        """The newest reading of its processes, however old it is."""
        return self.processes[-1] if self.processes else None

    @property
    def without_step_s(self) -> float:
        """As `no_step_s`; 0 before the first step and the first stage."""
        return self.no_step_s or 0.0

    @property
    def made_here(self) -> int | None:
        """How many steps this attempt made by itself; None where that is not known."""
        if not self.steps or self.first_step is None:
            return None
        return self.steps[-1].step - self.first_step + 1

    @property
    def over(self) -> bool:
        """Whether nothing of the attempt runs any more."""
        return self.exit is not None or self.host_lost is not None or self.launch_error is not None

    @property
    def hooked(self) -> bool:
        """Whether the agent follows this training, so that the absence of steps has a meaning."""
        failed, step = self.hook_failed_at, self.last_step_at
        if failed is not None and (step is None or step.seconds_since(failed) <= 0):
            return False
        return self.claimed or self.plan.planned or self.stage is not None

    @property
    def starting(self) -> bool:
        """Whether the training still has to make its first step, or the first of a further training in one process.

        Of a training on several nodes rank 0 may be on another one: then no stage is reported here, and the first step
        of any rank is the training's, as is that of rank 0 there.
        """
        if self.last_step_at is None:
            has_begun = self.last_rank_step_at is not None or self.elsewhere.stepped
            return self.stage is not None or not has_begun
        if self.stage not in (Stage.SETUP, Stage.WARMUP) or self.stage_since is None:
            return False
        return self.stage_since.seconds_since(self.last_step_at) > 0

    @property
    def training_stage(self) -> Stage | None:
        """The stage of the training: of its rank 0, which may be on another node; None where it is not known."""
        return self.stage or self.elsewhere.find(self.now)

    @property
    def last_rank_step_at(self) -> Moment | None:
        """When a rank other than 0 made its newest step; None before the first."""
        made = [pace.last.at for pace in self.ranks.values() if pace.last is not None]
        return max(made, key=lambda moment: moment.monotonic_s, default=None)

    @property
    def switching(self) -> bool:
        """Whether a tune has just switched settings: kernels may be searched for, and workers start."""
        return self.tuning and self.steps_since_switch < SWITCH_STEPS

    @property
    def no_step_s(self) -> float | None:
        """Seconds that are known to have gone without a step or a new stage; None before the first of both."""
        since = self.no_step_since()
        return None if since is None else max(0.0, self.known_s(since))

    def known_s(self, since: Moment) -> float:
        """Return the seconds from a moment in which a step would have been seen, had there been one."""
        return self._count_seconds(since, self.files_read.steps_known_until(self.now))

    def output_known_s(self, since: Moment) -> float:
        """Return the seconds from a moment in which output would have been seen, had there been any."""
        return self._count_seconds(since, self.files_read.output_known_until(self.now))

    def _count_seconds(self, since: Moment, until: Moment) -> float:
        """Return the seconds in which the daemon ran and no file system was seen to be waited for."""
        return self.absences.seconds(since, until) - self.excused_s(since, until)

    def excused_s(self, since: Moment, until: Moment) -> float:
        """Return the seconds between two moments that no limit on silence counts, as a file system was waited for."""
        if not (self.storage_excused and self.storage.has_waited):
            return 0.0
        return self.storage.excused_s(since, until, self.peers_excused_s)

    @property
    def unread_ranks(self) -> set[int]:
        """The ranks whose recorders cannot be read at present."""
        return self.files_read.find_unread((0, *self.ranks))

    def seconds_since(self, since: Moment) -> float:
        """Return the seconds from a moment to now in which the daemon ran: what a limit on silence counts."""
        return self.absences.seconds(since, self.now)

    def lasted_s(self, run: Sequence[R]) -> float:
        """Return the seconds that a run of readings covers, without those in which the daemon did not run."""
        return self.absences.seconds(run[0].at, run[-1].at) if run else 0.0

    def has_lasted(self, run: Sequence[R], hold_s: float, least: int = 2) -> bool:
        """Whether a run of at least `least` readings covers `hold_s` in which the daemon ran."""
        return len(run) >= least and self.lasted_s(run) >= hold_s

    def learned_limit_s(self, cap_s: float) -> float | None:
        """Return the limit that was learned for the present stage; None where too little is known.

        Nor does one hold where the clock has jumped since the last step, for the machine has just woken up, or while a
        tune tries settings under which nothing was learned.
        """
        since, jumped = self.no_step_since(), self.clock_stepped_at
        if self.tuning or self.measured or since is None or (jumped is not None and jumped.seconds_since(since) >= 0):
            return None
        return self.learned.limit_s(self.stage, cap_s)

    def uses(self, gpu: str | None) -> bool:
        """Whether a finding or reading about `gpu` concerns this job; one that names no GPU concerns all.

        A training on the CPU is concerned by none.
        """
        if self.device == "cpu":
            return False
        return gpu is None or not self.gpus_used or gpu in self.gpus_used

    def concerns(self, finding: KernelFinding) -> bool:
        """Whether a finding of the kernel is about a GPU that this job runs on.

        A bus error may name any device: it counts only where that device is known to be a GPU.
        """
        match finding.about:
            case "gpu":
                return self.uses(finding.gpu)
            case "pci":
                known = finding.gpu in self.gpus_used or finding.gpu in self.gpus
                return known and self.uses(finding.gpu)
            case "disk" | "host" | "none":
                return False

    def is_anothers(self, pid: int | None) -> bool:
        """Whether a process certainly is not this attempt's: two complete readings of its tree lack it."""
        trees = [process for process in self.processes if process.processes]
        if pid in (None, self.training_pid) or len(trees) < 2:
            return False
        complete = all(len(process.largest) == process.processes for process in trees)
        return complete and all(pid != use.pid for process in trees for use in process.largest)

    def readings_by_gpu(self) -> dict[str, deque[GpuReading]]:
        """Return the readings of the GPUs that the job runs on."""
        return {gpu: readings for gpu, readings in self.gpus.items() if self.uses(gpu)}

    def newest_by_gpu(self) -> dict[str, GpuReading]:
        """Return the newest reading of each GPU that the job runs on, however old it is."""
        return {gpu: readings[-1] for gpu, readings in self.readings_by_gpu().items()}

    @property
    def has_unread_gpus(self) -> bool:
        """Whether a GPU that it trains on was never read; none where it trains on the CPU."""
        return self.device != "cpu" and not self.gpus.keys() >= set(self.gpus_used)

    def why_not_stepping(self) -> str | None:
        """Return why no step is expected; None where one is."""
        if self.over:
            return ATTEMPT_ENDED
        return "the training has finished" if self.train_ended else None

    def why_no_gpu_readings(self) -> str | None:
        """Return why nothing is known of the job's GPUs; None where something is."""
        if self.over:
            return ATTEMPT_ENDED
        if self.device == "cpu":
            return "it trains on the CPU"
        return None if any(self.uses(gpu) for gpu in self.gpus) else "no reading of its GPUs"

    def no_step_since(self) -> Moment | None:
        """Return when the step counter last moved or its stage began, whichever is later; None before both."""
        moments = [moment for moment in (self.last_step_at, self.stage_since) if moment is not None]
        return max(moments, key=lambda moment: moment.monotonic_s) if moments else None

    def add(self, event: ev.Event) -> None:
        """Take in one event; events of other attempts must not be handed in."""
        if event.at.monotonic_s > self.now.monotonic_s:
            self.now = event.at
        if isinstance(event, ev.AttemptEvent):
            self._add_of_attempt(event)
        else:
            self._add_of_machine(event)

    def add_barely(self, event: ev.Event) -> None:
        """Take in, of an event that `add` could not take, no more than that the training moved.

        Lost records must not look like a standstill.
        """
        if event.at.monotonic_s > self.now.monotonic_s:
            self.now = event.at
        if isinstance(event, ev.StepsMade) and event.rank == 0 and event.records:
            self.claimed = True
            self.first_step_at = self.first_step_at or event.records[0].at
            self.last_step_at = event.records[-1].at
            self.files_read.mark(event.at, only_where_read=True)
        elif isinstance(event, ev.StageEntered):
            self.stage, self.stage_since, self.stages_complete = event.stage, event.at, event.stages_complete
        elif isinstance(event, ev.Exited):
            self.host_lost = self.host_lost or "its exit record could not be processed"

    def _add_of_attempt(self, event: ev.AttemptEvent) -> None:
        match event:
            case ev.StepsMade():
                self._add_steps(event)
            case ev.RecorderIdle() | ev.SupervisionChanged():
                self.files_read.add(event, self.last_step_at or self.launched_at)
            case ev.StageEntered():
                self._add_stage(event)
            case ev.AgentReported():
                self._add_report(event)
            case ev.OutputSeen():
                self._add_output(event)
            case ev.ProcessesRead():
                self._add_processes(event)
            case ev.PeerWaitsSeen() | ev.PeerStageSeen():
                self._add_of_peers(event)
            case ev.Launched() | ev.LaunchFailed() | ev.Continued() | ev.Exited() | ev.HostLost():
                self._add_lifecycle(event)
            case ev.CheckpointSeen() | ev.CheckpointNotKept() | ev.CheckpointsClosed() | ev.ExistingFound():
                self.saves.add(event)
            case _:
                pass

    def _add_output(self, event: ev.OutputSeen) -> None:
        self.last_line, self.output_at = event.last_line or self.last_line, event.at
        self.output.extend(event.findings)
        if event.progress_step is not None and event.progress_step != self.output_step:
            self.output_step, self.output_step_at = event.progress_step, event.at
            self.output_stepped |= event.progress_step > 0
            ended = event.bar_steps is not None and event.progress_step >= event.bar_steps
            self.output_bar_ended = ended and event.bar_steps not in self._ended_bars
            if ended and len(self._ended_bars) < BARS_KEPT:
                self._ended_bars.add(event.bar_steps or 0)

    def _add_lifecycle(self, event: ev.Launched | ev.LaunchFailed | ev.Continued | ev.Exited | ev.HostLost) -> None:
        match event:
            case ev.Continued():
                self.continued_at = event.at
            case ev.Launched():
                self.training_pid = event.training_pid
            case ev.LaunchFailed():
                self.launch_error = event.error
            case ev.Exited():
                self.exit = event.status
            case ev.HostLost():
                self.host_lost = event.reason

    def _add_of_machine(self, event: ev.UserRequest | ev.MachineEvent) -> None:
        match event:
            case ev.GpusRead():
                self.gpus_read_at = event.at
                for reading in event.readings:
                    self.gpus.setdefault(reading.gpu, deque(maxlen=READINGS_KEPT)).append(reading)
                    self.gpu_facts.setdefault(reading.gpu, GpuFacts(reading.at)).add(reading)
            case ev.HostRead():
                self.host.append(event.reading.of_disks(self.disks))
                for disk in self.host[-1].disks:
                    self.disks_used.setdefault(disk.path, Trend()).add(event.reading.at, disk.used_bytes)
            case ev.KernelReported():
                self.kernel.add(event.findings)
            case ev.ClockStepped():
                self.clock_stepped_at = event.at
            case ev.DaemonAway():
                self._add_absence(event)
            case _:
                pass

    def _add_absence(self, event: ev.DaemonAway) -> None:
        """Take in a period without readings; how fast the training stepped in it is not known."""
        self.absences.add(event)
        self.storage.interrupt()
        self.elsewhere.interrupt()
        self.away_until, self.paused_at = event.at, event.at.plus(-event.away_s)

    def _add_stage(self, event: ev.StageEntered) -> None:
        if event.stage is not self.stage:
            self._learn_stage(event.at)
        self.stages_complete, self.replaced_stage = event.stages_complete, None
        self.stage, self.stage_since = event.stage, event.at
        self.paused_at = event.at if event.stage in PAUSING else self.paused_at
        if event.stage is Stage.CHECKPOINT and self.steps:
            self.saves.saving_step = self.steps[-1].step
        if event.stage in (Stage.SETUP, Stage.WARMUP) or event.ends_training:
            self.train_ended = event.ends_training

    def _add_next_start(self) -> None:
        """Take in that the process that made steps is gone and another begins: it sets up, as an attempt does.

        So does `torchrun --max-restarts`, or a loop in a shell. The recorder has the stage of the one that is gone
        until the next claims it, and the limit of a step is none for imports and data. Where a step comes before a
        stage (one that is there although no reading shows it) the reported stage was right.
        """
        reading, last = self.newest_processes, self.last_step_at
        came_to_its_end = self.train_ended or self.stage in (Stage.ENDED, Stage.EXITING)  # another program may follow
        if reading is None or reading.pids is None or last is None or self.starting or came_to_its_end:
            return
        began_at = self.reports.find_next_start(reading.pids)
        if began_at is not None and min(began_at.seconds_since(last), reading.at.seconds_since(last)) > 0:
            self.replaced_stage = (self.stage, self.stage_since, self.stages_complete)
            self.stage, self.stage_since, self.stages_complete = Stage.SETUP, began_at, False

    def _add_step(self, record: StepRecord) -> None:
        self.claimed = True
        if self.replaced_stage is not None:
            (self.stage, self.stage_since, self.stages_complete), self.replaced_stage = self.replaced_stage, None
        self.silences.add_pause(self.last_step_at, record.at, self.stage_since)
        tuned = record.tuning or self.tuning or self.measured
        if tuned:
            self.steps_since_switch += 1
        else:
            self._learn_step(record)
            self.losses.add(record)
        self._add_to_pace(self.pace, record, lent=tuned or self.left_tuning)
        self.left_tuning = tuned
        self.steps.append(record)
        self.last_step_at = record.at
        self.first_step_at = self.first_step_at or record.at
        if any(value is not None and not math.isfinite(value) for value in (record.loss, record.grad_norm)):
            self.non_finite.append(record)

    def _add_steps(self, event: ev.StepsMade) -> None:
        if event.rank == 0:
            # No further than these steps: others may wait behind them, and a reader that is held up reads them later.
            newest = event.records[-1].at if event.records else event.at
            self.files_read.mark(min(newest, event.at, key=lambda at: at.monotonic_s), only_where_read=True)
            for record in event.records:
                self._add_step(record)
        elif event.rank in self.ranks or len(self.ranks) < RANKS_KEPT:
            pace = self.ranks.setdefault(event.rank, Pace())
            for record in event.records:
                self._add_to_pace(pace, record)

    def _add_to_pace(self, pace: Pace, record: StepRecord, *, lent: bool = False) -> None:
        """Take a step of a rank for stepping, but for one with a pause or long waits in it, or with settings `lent`."""
        last, paused_at = pace.last, self.paused_at
        if last is None or lent:
            pace.add(record, stepping=not lent)
            return
        paused = paused_at is not None and last.at.monotonic_s <= paused_at.monotonic_s <= record.at.monotonic_s
        waits = self.storage.has_waited and self.storage.seconds(last.at, record.at) >= STORAGE_DISTURBS_S
        pace.add(record, stepping=not (paused or waits))

    def _add_of_peers(self, event: ev.PeerWaitsSeen | ev.PeerStageSeen) -> None:
        """Take in what the leader reports of other nodes."""
        if isinstance(event, ev.PeerWaitsSeen):
            self._add_peer_waits(event)
        else:
            self.elsewhere.add(event.at, event.stage)

    def _add_processes(self, event: ev.ProcessesRead) -> None:
        """Take in what the processes of the job do."""
        reading = event.reading
        self.processes.append(reading)
        self._add_next_start()
        if reading.storage_waits or self.storage.own:
            self._add_storage_waits(reading)
        if set(reading.stopped_pids) & {self.training_pid, *self.reports.rank_pids.values()}:
            self.stopped_at = self.paused_at = reading.at
        if reading.rss_bytes is not None:
            self.rss.add(reading.at, float(reading.rss_bytes))

    def _list_trainers(self) -> set[int]:
        """Return the processes that make steps; while none has reported that, the one that was launched."""
        known = set(self.reports.rank_pids.values())
        return known or ({self.training_pid} if self.training_pid is not None else set())

    def _add_storage_waits(self, reading: ProcessReading) -> None:
        trainers = self._list_trainers()
        in_step = self.stages_complete and self.stage in (Stage.STEP, Stage.COMPILE, Stage.LOOP)
        of_rank_0 = self.reports.rank_pids.get(0)
        computing = (trainers if of_rank_0 is None else {of_rank_0}) if in_step else set[int]()
        busy = [newest.gpu_busy_percent for newest in self.newest_by_gpu().values()]
        gpus_work = bool(busy) and all(percent is not None and percent >= GPU_WORKS_PERCENT for percent in busy)
        waits = find_explaining(reading, trainers, computing=computing, gpus_work=gpus_work)
        self.storage.add(reading.at, waits)

    def _add_peer_waits(self, event: ev.PeerWaitsSeen) -> None:
        """Take in that the ranks of other nodes wait, which explains nothing while something else is seen here."""
        newest = self.newest_processes
        explains = newest is None or not has_other_cause(newest, self._list_trainers())
        self.storage.add_peers(event.at, event.waits if explains else ())

    def _learn_stage(self, ended_at: Moment) -> None:
        since = self.stage_since
        if self.stage in (Stage.VALIDATE, Stage.CHECKPOINT) and since is not None and not self._was_disturbed(since):
            self.learned.add(self.stage, ended_at.seconds_since(since))

    def _learn_step(self, record: StepRecord) -> None:
        """Learn how long a step took, and its wait for data, from the step before it, if nothing came in between."""
        last, wait_s = self.last_step_at, record.data_wait_s
        if last is None or self.starting or self._was_disturbed(last):
            return
        if wait_s is not None:
            self.learned.add(Stage.DATA_WAIT, wait_s)
        if self.stage_since is None or self.stage_since.seconds_since(last) <= 0:
            stage = Stage.LOOP if self.stage is Stage.LOOP else Stage.STEP
            self.learned.add(stage, record.at.seconds_since(last) - (wait_s or 0.0))

    def _was_disturbed(self, since: Moment) -> bool:
        breaks = (self.clock_stepped_at, self.away_until, self.stopped_at)
        broke = any(at is not None and at.seconds_since(since) >= 0 for at in breaks)
        if self.flagged or broke:
            return True
        return self.storage.has_waited and self.storage.seconds(since, self.now) >= STORAGE_DISTURBS_S

    def _add_report(self, event: ev.AgentReported) -> None:
        self.reports.add(event)
        match event.agent_event:
            case ev.AgentEvent.ALIVE:
                self._add_next_start()
            case ev.AgentEvent.CLAIMED:
                self.claimed = True
            case ev.AgentEvent.PATCHED:
                self.patched = True
            case ev.AgentEvent.PLAN:
                self._add_plan(event.facts)
            case ev.AgentEvent.LOOPS if event.rank in (None, 0):
                self.plan.add_loops(event.facts)
            case ev.AgentEvent.CHECKPOINT_SAVED:
                self.saves.add_report(event, None if self.last_step is None else self.last_step.step)
            case ev.AgentEvent.HOOK_FAILED:
                self.hook_failed_at = event.at
            case ev.AgentEvent.EXCEPTION:
                self.raised.append(Raised(at=event.at, facts=event.facts, pid=event.pid, rank=event.rank))
            case _:
                self._add_course(event)

    def _add_course(self, event: ev.AgentReported) -> None:
        match event.agent_event:
            case ev.AgentEvent.TRAIN_END:
                self.train_ended = True
            case ev.AgentEvent.DEVICE if not self.plan.planned:
                device = event.facts.get("device")
                self.device = device if isinstance(device, str) else None
            case ev.AgentEvent.TUNING:
                self.tuning, self.steps_since_switch = event.facts.get("lent") is True, 0
            case _:
                pass

    def _add_plan(self, facts: dict[str, object]) -> None:
        self.plan.add_plan(facts)
        self.train_ended = False
        device = facts.get("device")
        self.device = device if isinstance(device, str) else None
