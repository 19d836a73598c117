"""The window of what is known about one attempt, and what can be asked of it; it draws no conclusion.

`history.History` fills it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.card_facts import CardFacts
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.curve import Resumed
from supervisor.core.findings import KernelFinding, OutputFinding
from supervisor.core.limits import Learned
from supervisor.core.losses import Losses
from supervisor.core.moments import Moment
from supervisor.core.pace import Pace
from supervisor.core.readings import ExitStatus, GpuReading, HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.told import Told
from supervisor.core.trend import Trend

STEPS_KEPT = 2048
READINGS_KEPT = 600


@dataclass(slots=True, kw_only=True)
class Window:
    """Facts of one attempt, newest last, bounded; `now` is the time of the newest of them."""

    now: Moment
    launched_at: Moment
    gpus_used: tuple[str, ...] = ()
    """PCI addresses that the job runs on; empty: any card of the machine may be its."""
    resumed: Resumed | None = None
    """What the attempt goes on from; a fact about its beginning, nothing that a rule remembers."""
    stage: Stage | None = None
    stage_since: Moment | None = None
    whole: bool = False
    """Whether the agent tells every stage there is, so that a long step is nothing else."""
    looked_at: Moment | None = None
    """Up to when the recorder was read; None where nobody tells, and then silence is judged by `now`."""
    clock_stepped_at: Moment | None = None
    """When the wall clock last jumped, as it does when a machine wakes up."""
    learned: Learned = field(default_factory=Learned)
    """How long things took in this set-up, earlier attempts included."""
    troubled: bool = False
    """Whether a critical flag stands, acting or in shadow: nothing is learned meanwhile."""
    agent_alive: bool = False
    """Whether the agent was loaded into some process of the attempt."""
    claimed: bool = False
    """Whether a training reports its steps; without it the step counter says nothing."""
    planned: bool = False
    """Whether a framework that the agent knows said what it is going to train."""
    patched: bool = False
    """Whether the agent met torch and replaced its Conv2d."""
    hook_failed_at: Moment | None = None
    """When a hook of the agent last failed: if no step came after that, it may be the hook that is at fault."""
    not_kept: ev.CheckpointNotKept | None = None
    """The newest checkpoint of which no generation was kept, with the reason."""
    save_requested: bool = False
    """Whether the newest checkpoint was saved on request: the training may have ended because it was asked to."""
    device: str | None = None
    """What the framework trains on, in its own words (`cpu`, `cuda:0`)."""
    training_pid: int | None = None
    first_step_at: Moment | None = None
    last_step_at: Moment | None = None
    batches_per_epoch: int | None = None
    epochs: int | None = None
    train_ended: bool = False
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    non_finite: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    gpus: dict[str, deque[GpuReading]] = field(default_factory=dict)
    host: deque[HostReading] = field(default_factory=lambda: deque(maxlen=READINGS_KEPT))
    processes: deque[ProcessReading] = field(default_factory=lambda: deque(maxlen=READINGS_KEPT))
    kernel: deque[KernelFinding] = field(default_factory=lambda: deque(maxlen=200))
    output: deque[OutputFinding] = field(default_factory=lambda: deque(maxlen=200))
    last_line: str = ""
    output_at: Moment | None = None
    output_step: int | None = None
    """The step that the newest progress bar showed."""
    output_step_at: Moment | None = None
    """When that number last changed."""
    exception: dict[str, object] | None = None
    exception_at: Moment | None = None
    exit: ExitStatus | None = None
    host_lost: str | None = None
    launch_error: str | None = None
    paused: bool = False
    """Whether anything but stepping was done since the last step, as far as stages tell."""
    pace: Pace = field(default_factory=Pace)
    losses: Losses = field(default_factory=Losses)
    told: Told = field(default_factory=Told)
    cards: dict[str, CardFacts] = field(default_factory=dict)
    gpus_read_at: Moment | None = None
    rss: Trend = field(default_factory=Trend)
    """Memory of the process tree."""
    disks_used: dict[str, Trend] = field(default_factory=dict)
    saved: deque[tuple[Moment, int | None]] = field(default_factory=lambda: deque(maxlen=200))
    """When a checkpoint was saved, and how many steps had been made by then."""
    saving_step: int | None = None
    """The last step that had been made when the training last went to save something."""
    saved_unix_s: float | None = None
    """When the newest checkpoint file that was seen was written."""
    proofs: dict[str, deque[Checkpoint]] = field(default_factory=dict)
    """What proving said of the newest checkpoints of each path."""
    ranks: dict[int, Pace] = field(default_factory=dict)
    """Of the ranks beside 0."""

    @property
    def over(self) -> bool:
        """Whether nothing of the attempt runs any more."""
        return self.exit is not None or self.host_lost is not None or self.launch_error is not None

    @property
    def hooked(self) -> bool:
        """Whether the agent follows this training, so that the absence of steps says something."""
        failed, step = self.hook_failed_at, self.last_step_at
        if failed is not None and (step is None or step.seconds_since(failed) <= 0):
            return False
        return self.claimed or self.planned or self.stage is not None

    @property
    def starting(self) -> bool:
        """Whether the training still has to make its first step, or the first of a further training in one process."""
        if self.last_step_at is None:
            return True
        if self.stage not in (Stage.SETUP, Stage.WARMUP) or self.stage_since is None:
            return False
        return self.stage_since.seconds_since(self.last_step_at) > 0

    @property
    def known_until(self) -> Moment:
        """Up to when the absence of a step is known: the daemon may have been held up, and steps may wait unread."""
        looked = self.looked_at
        return self.now if looked is None or looked.monotonic_s > self.now.monotonic_s else looked

    @property
    def quiet_s(self) -> float | None:
        """Seconds that are known to have gone without a step or a new stage; None before the first of both."""
        since = self.quiet_since()
        return None if since is None else max(0.0, self.known_until.seconds_since(since))

    def learned_limit_s(self, cap_s: float) -> float | None:
        """Return the limit that was learned for the present stage; None where too little is known.

        Nor does one hold where the clock has jumped since the last step: the machine has just woken up.
        """
        since, jumped = self.quiet_since(), self.clock_stepped_at
        if since is None or (jumped is not None and jumped.seconds_since(since) >= 0):
            return None
        return self.learned.limit_s(self.stage, cap_s)

    def uses(self, gpu: str | None) -> bool:
        """Whether a finding or reading about `gpu` concerns this job; one that names no card concerns all.

        A training on the CPU is concerned by none.
        """
        if self.device == "cpu":
            return False
        return gpu is None or not self.gpus_used or gpu in self.gpus_used

    def concerns(self, finding: KernelFinding) -> bool:
        """Whether a finding of the kernel is about a card that this job runs on.

        An error of the bus names any device: it counts only where that is known to be a card.
        """
        match finding.about:
            case "card":
                return self.uses(finding.gpu)
            case "pci":
                known = finding.gpu in self.gpus_used or finding.gpu in self.gpus
                return known and self.uses(finding.gpu)
            case "disk" | "host" | "none":
                return False

    def is_anothers(self, pid: int | None) -> bool:
        """Whether a process surely is none of this attempt's: its whole tree was seen twice, and never with it."""
        trees = [one for one in self.processes if one.processes]
        if pid in (None, self.training_pid) or len(trees) < 2:
            return False
        whole = all(len(one.largest) == one.processes for one in trees)
        return whole and all(pid != use.pid for one in trees for use in one.largest)

    def readings_by_gpu(self) -> dict[str, deque[GpuReading]]:
        """Return the readings of the cards that the job runs on."""
        return {gpu: readings for gpu, readings in self.gpus.items() if self.uses(gpu)}

    def quiet_since(self) -> Moment | None:
        """Return when the step counter last moved or its stage began, whichever is later; None before both."""
        moments = [one for one in (self.last_step_at, self.stage_since) if one is not None]
        return max(moments, key=lambda one: one.monotonic_s) if moments else None
