"""Trainings that are well, as the daemon sees them: streams of events with all that looks like a fault and is none.

    for event, flags in play(Healthy(Habits(hours=2)).events(), rules):
        ...

A stream is made by a seed and by nothing else; no clock is read. What may happen to a training is in `Habits`: first
batches that search for kernels, validations, checkpoints on a slow disk, waits for data, new shapes, a laptop that
sleeps, a wall clock that jumps, a machine that gasps for memory, a daemon that is held up and learns of the steps
late. `Healthy.events` ends with a training that still steps: append a fault of your own to see when it is found.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.judge import judge
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading, ProcessReading, Stage, StepRecord
from supervisor.core.rules import Rule

JOB = "well"
GPU = "0000:0a:00.0"
PID = 4242
START = Moment(5000.0, 1_763_000_000.0)
TRAINER: dict[str, object] = {
    "framework": "ultralytics",
    "adjusts": ["batch_factor", "image_factor", "skip_batches"],
    "saves_each_epoch": True,
}
PLAN: dict[str, object] = {**TRAINER, "epochs": 10_000, "batches_per_epoch": 50_000}
READ_WHILE_STEPPING_S = 5.0
REPORTED_AFTER_S = 3.0
"""A wait for data that is shorter is no stage, as in the daemon's `attempt_watch`."""

Span = tuple[float, float]
"""Shortest and longest, evenly likely; seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What one healthy training does, how long it takes, and how often it comes on average; None: never."""

    name: str = "18 batches a second"
    seed: int = 1
    hours: float = 1.0
    every_s: float = 1 / 18
    """Between two steps."""
    stages_complete: bool = True
    """Whether its agent tells every stage there is; if not, what lies inside a step is not told."""
    first_batch_s: Span = (5, 500)
    epoch_s: float = 3600.0
    validate_s: Span = (300, 900)
    save_s: Span = (1, 100)
    pause_every_s: float | None = 600
    pause_s: Span = (0.5, 5)
    wait_every_s: float | None = 1200
    wait_s: Span = (0.6, 45)
    shape_every_s: float | None = 7200
    search_s: Span = (5, 400)
    sleep_every_s: float | None = 20_000
    sleep_s: Span = (60, 40_000)
    wake_s: Span = (0, 25)
    clock_every_s: float | None = 30_000
    gasp_every_s: float | None = 15_000
    gasp_s: Span = (3, 40)
    held_up_every_s: float | None = 10_000
    held_up_s: Span = (5, 90)
    slower_after_s: float | None = None
    """From then on its images are larger and its steps take 2.5 times as long."""


class Healthy:
    """One such training."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.now = START
        self.step = 0
        self._chance = random.Random(habits.seed)
        self._every_s = habits.every_s
        self._read_at = START
        self._due = {
            name: START.plus(self._chance.expovariate(1 / every_s))
            for name in ("pause", "wait", "shape", "sleep", "clock", "gasp", "held_up")
            if (every_s := getattr(habits, f"{name}_every_s")) is not None
        }
        self._epoch_ends = START.plus(habits.epoch_s)

    def events(self) -> Iterator[ev.Event]:
        """Tell the whole training, from its launch on."""
        yield from self._start()
        end = START.plus(self.habits.hours * 3600)
        while self.now.seconds_since(end) < 0:
            yield from self._second()
            slower_s = self.habits.slower_after_s
            if slower_s is not None and self.now.seconds_since(START) > slower_s:
                self._every_s = 2.5 * self.habits.every_s
            for name, due in list(self._due.items()):
                if self.now.seconds_since(due) >= 0:
                    every_s = getattr(self.habits, f"{name}_every_s")
                    yield from getattr(self, f"_{name}")()
                    self._due[name] = self.now.plus(self._chance.expovariate(1 / every_s))
            if self.now.seconds_since(self._epoch_ends) >= 0:
                yield from self._epoch_end()
                self._epoch_ends = self.now.plus(self.habits.epoch_s)

    # --- what a fault needs ---------------------------------------------------------------------------------------

    def silence(
        self,
        seconds: float,
        *,
        busy: float | None = 95.0,
        cpu: float | None = 100.0,
        stuck: Sequence[int] = (),
        gasps: float = 0.0,
        every_s: float = 1.0,
    ) -> Iterator[ev.Event]:
        """Let time go by without a step; the recorder is read all the while, and so are the sensors."""
        end = self.now.plus(seconds - 0.001)
        while (left_s := end.seconds_since(self.now)) > 0:
            self.now = self.now.plus(min(every_s, left_s))
            yield ev.RecorderIdle(at=self.now, job=JOB, attempt=1)
            yield from self._read(busy, cpu, stuck, gasps)

    def steps(self, took_s: Sequence[float], *, loss: float = 1.0, wait_s: float = 0.0) -> ev.StepsMade:
        """Make steps of these lengths, the first of which waited for its data so long."""
        records = []
        for took in took_s:
            self.now = self.now.plus(took)
            self.step += 1
            records.append(StepRecord(at=self.now, step=self.step, loss=loss, grad_norm=1.0, data_wait_s=wait_s))
            wait_s = 0.0005
        return ev.StepsMade(at=self.now, job=JOB, attempt=1, records=tuple(records))

    def enters(self, stage: Stage) -> ev.StageEntered:
        """Enter a stage now."""
        return ev.StageEntered(
            at=self.now, job=JOB, attempt=1, stage=stage, stages_complete=self.habits.stages_complete
        )

    # --- what is well ---------------------------------------------------------------------------------------------

    def _start(self) -> Iterator[ev.Event]:
        yield ev.Launched(at=self.now, job=JOB, attempt=1, shim_pid=PID - 1, training_pid=PID)
        yield self.enters(Stage.SETUP)
        yield from self.silence(self._between((5, 200)), busy=0.0)
        yield ev.AgentReported(at=self.now, job=JOB, attempt=1, agent_event=ev.AgentEvent.PLAN, facts=PLAN)
        yield self.enters(Stage.WARMUP)
        yield from self.silence(self._between(self.habits.first_batch_s), busy=99.0)
        yield self.steps([0.01])
        yield self.enters(Stage.STEP)

    def _second(self) -> Iterator[ev.Event]:
        """One second of steps, or one step where that takes longer."""
        chance, every_s = self._chance, self._every_s
        count = max(1, round(1 / every_s))
        yield self.steps([every_s * (0.85 + 0.3 * chance.random() ** 3) for _ in range(count)], wait_s=0.0005)
        if self.now.seconds_since(self._read_at) >= READ_WHILE_STEPPING_S:
            yield from self._read(chance.uniform(80, 99), 110.0, (), 0.0)

    def _pause(self) -> Iterator[ev.Event]:
        """A step that takes its time: garbage is collected, a log is flushed, somebody else has the processor."""
        yield from self._long_step(self._between(self.habits.pause_s), busy=0.0, cpu=100.0)

    def _wait(self) -> Iterator[ev.Event]:
        """The storage is slow to deliver a batch."""
        seconds = self._between(self.habits.wait_s)
        yield from self.silence(min(seconds, REPORTED_AFTER_S), busy=0.0, cpu=8.0, stuck=(PID + 1,))
        if self.habits.stages_complete and seconds > REPORTED_AFTER_S:
            yield ev.StageEntered(
                at=self.now.plus(-REPORTED_AFTER_S), job=JOB, attempt=1, stage=Stage.DATA_WAIT, stages_complete=True
            )
        yield from self.silence(seconds - REPORTED_AFTER_S, busy=0.0, cpu=8.0, stuck=(PID + 1,))
        yield self.steps([self._every_s], wait_s=seconds)
        if self.habits.stages_complete and seconds > REPORTED_AFTER_S:
            yield self.enters(Stage.STEP)

    def _shape(self) -> Iterator[ev.Event]:
        """A batch of a new size: kernels are searched for."""
        seconds = self._between(self.habits.search_s)
        yield from self.silence(min(seconds, REPORTED_AFTER_S), busy=99.0, cpu=100.0)
        if self.habits.stages_complete and seconds > REPORTED_AFTER_S:
            yield ev.StageEntered(
                at=self.now.plus(-REPORTED_AFTER_S), job=JOB, attempt=1, stage=Stage.COMPILE, stages_complete=True
            )
        yield from self.silence(seconds - REPORTED_AFTER_S, busy=99.0, cpu=100.0)
        yield self.steps([self._every_s])
        if self.habits.stages_complete and seconds > REPORTED_AFTER_S:
            yield self.enters(Stage.STEP)

    def _sleep(self) -> Iterator[ev.Event]:
        """The laptop is closed: the monotonic clock stands still, the other one does not; then disk and card wake."""
        slept_s = self._between(self.habits.sleep_s)
        self.now = Moment(self.now.monotonic_s + 0.3, self.now.unix_s + slept_s)
        yield ev.Tick(at=self.now)
        yield ev.ClockStepped(at=self.now, by_s=slept_s)
        yield from self._long_step(self._between(self.habits.wake_s), busy=0.0, cpu=20.0)

    def _clock(self) -> Iterator[ev.Event]:
        """Somebody sets the clock."""
        by_s = self._chance.choice([-7200.0, -30.0, 45.0, 5_184_000.0])
        self.now = Moment(self.now.monotonic_s, self.now.unix_s + by_s)
        yield ev.Tick(at=self.now)
        yield ev.ClockStepped(at=self.now, by_s=by_s)

    def _gasp(self) -> Iterator[ev.Event]:
        """The machine swaps, and everything on it stands still for a while."""
        yield from self._read(50.0, 20.0, (), 70.0)
        yield from self._long_step(self._between(self.habits.gasp_s), busy=0.0, cpu=5.0, gasps=70.0)
        yield from self._read(90.0, 100.0, (), 0.0)

    def _held_up(self) -> Iterator[ev.Event]:
        """The daemon stands still while the training does not: it learns of the steps after its clock has ticked."""
        seconds = self._between(self.habits.held_up_s)
        made = self.steps([self._every_s] * max(1, int(seconds / self._every_s)))
        yield ev.Tick(at=self.now)
        yield made

    def _epoch_end(self) -> Iterator[ev.Event]:
        yield self.enters(Stage.VALIDATE)
        yield from self.silence(self._between(self.habits.validate_s), busy=60.0)
        yield self.enters(Stage.CHECKPOINT)
        yield from self.silence(self._between(self.habits.save_s), busy=0.0, cpu=3.0, stuck=(PID,))
        yield self.enters(Stage.VALIDATE)
        yield self.enters(Stage.STEP)
        yield from self._long_step(self._between((0, 2)), busy=0.0, cpu=100.0)

    def _long_step(self, seconds: float, *, busy: float, cpu: float, gasps: float = 0.0) -> Iterator[ev.Event]:
        yield from self.silence(seconds, busy=busy, cpu=cpu, gasps=gasps)
        yield self.steps([self._every_s])

    def _between(self, span: Span) -> float:
        return self._chance.uniform(*span)

    def _read(self, busy: float | None, cpu: float | None, stuck: Sequence[int], gasps: float) -> Iterator[ev.Event]:
        at = self._read_at = self.now
        card = GpuReading(
            at=at, gpu=GPU, source="sysfs", gpu_busy_percent=busy, vram_used_bytes=4 * 10**9, vram_total_bytes=6 * 10**9
        )
        yield ev.GpusRead(at=at, readings=(card,))
        tree = ProcessReading(
            at=at, processes=3, rss_bytes=4 * 10**9, cpu_percent=cpu, uninterruptible_pids=tuple(stuck)
        )
        yield ev.ProcessesRead(at=at, job=JOB, attempt=1, reading=tree)
        host = HostReading(
            at=at,
            memory_total_bytes=32 * 10**9,
            memory_available_bytes=20 * 10**9,
            memory_stall_percent=gasps,
        )
        yield ev.HostRead(at=at, reading=host)


def play(
    events: Iterable[ev.Event], rules: Sequence[Rule], history: History | None = None
) -> Iterator[tuple[ev.Event, tuple[RedFlag, ...]]]:
    """Put a stream through a history and the rules as the daemon's loop does, and yield what stands after each event.

    Readings alone are judged with the next other event, as in the loop.
    """
    window = history or History(now=START, launched_at=START, gpus_used=(GPU,))
    flags: tuple[RedFlag, ...] = ()
    for event in events:
        window.add(event)
        if not isinstance(event, ev.GpusRead | ev.HostRead | ev.ProcessesRead):
            flags = judge(rules, window)
            window.flagged = any(flag.severity is Severity.CRITICAL for flag in flags)
        yield event, flags


NIGHTS: tuple[Habits, ...] = (
    Habits(name="18 batches a second", seed=1),
    Habits(name="the owner's 2.3 batches a second", seed=2, every_s=1 / 2.3),
    Habits(name="a starved loader: one batch in 5 s", seed=3, every_s=5.3, pause_s=(1, 12), wait_every_s=300),
    Habits(name="a laptop that sleeps every hour", seed=4, sleep_every_s=3600),
    Habits(name="larger images after an hour, new shapes all along", seed=5, slower_after_s=3600, shape_every_s=900),
    Habits(name="a clock that somebody sets all the time", seed=6, clock_every_s=600, every_s=1 / 9),
    Habits(name="short epochs and a slow disk", seed=7, epoch_s=600, validate_s=(20, 90), save_s=(20, 200)),
    Habits(name="a machine that swaps, a daemon held up", seed=8, gasp_every_s=1200, held_up_every_s=900),
    Habits(
        name="a script that only torch's hooks follow",
        seed=9,
        stages_complete=False,
        pause_s=(0.5, 50),
        wait_s=(0.6, 25),
        search_s=(5, 50),
        save_s=(1, 100),
    ),
    Habits(name="validations of an hour, kept short by no limit", seed=10, validate_s=(2000, 3300), epoch_s=9000),
)
"""The nights of the benchmark, with their hours left open."""
