"""The laws of the design, as far as the pure room can break them, over histories that nobody thought of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.attempt.silences import Silences
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict, choose
from supervisor.core.findings import FaultClass
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.incident import Incident
from supervisor.core.job import ALIVE, DesiredState, Job, Limits, Phase
from supervisor.core.judge import judge
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading, ProcessReading, Stage
from supervisor.core.remedies.budget import Budget, Ledger
from supervisor.core.rules import RULES, flag_of
from supervisor.core.rules.gpu_idle import GpuIdle
from supervisor.core.rules.non_finite_loss import NonFiniteLoss
from supervisor.core.rules.stall import Stall
from supervisor.core.rules.start_timeout import StartTimeout
from supervisor.core.scale import Place
from tests.examples import at_least

from .stories import GB, GPU, JOB, NAN, START, Life, Story, life, story

INF = float("inf")
ALL_RULES = tuple(item() for item in RULES)
LINES = st.sampled_from(["heartbeat", "", "step 99999/99999", "loss: 0.1", "100%|##########|"])


def critical(timeline: Story) -> list[str]:
    return [flag.rule for flag in judge(ALL_RULES, timeline.history) if flag.severity is Severity.CRITICAL]


# --- 2: no detector state survives a restart boundary ---------------------------------------------------------------


@given(
    stage=st.sampled_from(list(Stage)),
    silence_s=st.floats(0, 5000),
    losses=st.lists(st.sampled_from([1.0, NAN, INF]), max_size=10),
    code=st.sampled_from([0, 1]),
)
def test_law_2_a_new_attempt_remembers_nothing(stage: Stage, silence_s: float, losses: list[float], code: int) -> None:
    timeline = life().training(5).stage(stage)
    for number, loss in enumerate(losses):
        timeline.steps(6 + number, 6 + number, loss=loss)
    timeline.kernel(FaultClass.GPU_HANG, fatal=False).gpu(5, busy=0.0).silence(silence_s).exits(code)
    if timeline.phase() is Phase.BACKOFF:
        timeline.silence(600).looks()
    if timeline.job.number == 2:
        # Where the first one was stopped for silence is a fact of the job, by which a limit can only be longer.
        silences = Silences(steps=timeline.job.course.list_silent_steps())
        assert timeline.history == History(
            now=timeline.now, launched_at=timeline.now, gpus_used=(GPU,), silences=silences
        )
        assert timeline.job.open_flags == frozenset()
        assert timeline.job.stop is None
        assert timeline.phase() is Phase.STARTING


def test_law_2_a_checkpoint_begun_in_one_attempt_is_not_waited_for_in_the_next() -> None:
    timeline = life().training().stage(Stage.CHECKPOINT).silence(900).silence(40).exits(signal=9).looks()
    timeline.read_decisions()
    timeline.training(steps=5)
    for step in range(6, 2000):
        timeline.steps(step, step, 1.0)
    assert timeline.read_decisions() == []


# --- 3: a hang is judged by step numbers ----------------------------------------------------------------------------


@given(
    no_step_s=st.integers(0, 120),
    lines=st.lists(st.tuples(st.integers(0, 119), LINES), max_size=40),
    busy=st.sampled_from([None, 50.0, 99.0, 100.0]),
    stage=st.sampled_from([Stage.STEP, Stage.VALIDATE, Stage.CHECKPOINT]),
)
def test_law_3_output_changes_no_verdict_about_a_hang(
    no_step_s: int, lines: list[tuple[int, str]], busy: float | None, stage: Stage
) -> None:
    silent, chatty = story().training(20).stage(stage), story().training(20).stage(stage)
    for second in range(no_step_s):
        for at, line in lines:
            if at == second:
                chatty.prints(line)
        silent.silence(1)
        chatty.silence(0.5).gpu(busy=busy).silence(0.5)
    for item in (Stall(limit_s=60, validate_limit_s=90, checkpoint_limit_s=75), StartTimeout()):
        verdicts = [
            None if flag is None else (flag.severity, flag.subject)
            for flag in (flag_of(item, timeline.history) for timeline in (silent, chatty))
        ]
        assert verdicts[0] == verdicts[1]


@given(lines=st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_law_3_output_saves_no_training_that_never_starts(lines: list[int]) -> None:
    timeline = story().started().stage(Stage.WARMUP)
    for wait_s in lines:
        timeline.silence(wait_s).prints("still compiling")
    flagged = timeline.check(StartTimeout())
    assert (flagged is not None) == (sum(lines) >= 600)


# --- 4: NaN fails closed --------------------------------------------------------------------------------------------


@given(
    losses=st.lists(st.sampled_from([0.5, 1e30, -1.0, NAN, INF, -INF, None]), min_size=1, max_size=60),
    tolerated=st.integers(0, 5),
    window=st.integers(1, 80),
)
def test_law_4_no_mixture_of_losses_hides_a_nan(losses: list[float | None], tolerated: int, window: int) -> None:
    timeline = story().started()
    for number, loss in enumerate(losses, 1):
        timeline.steps(number, number, loss=loss)
    bad = [number for number, loss in enumerate(losses, 1) if loss is not None and not math.isfinite(loss)]
    flag = timeline.check(NonFiniteLoss(tolerated=tolerated, window_steps=window))
    if not bad or len(losses) - bad[-1] >= window:
        assert flag is None
        return
    inside = [number for number in bad if bad[-1] - number < window]
    assert flag is not None
    if len(inside) > tolerated:
        assert (flag.severity, flag.since_step, flag.can_save) == (Severity.CRITICAL, inside[0], False)
    else:
        assert flag.severity is Severity.WARNING


@given(trouble=st.sampled_from([NAN, -INF]), times=st.lists(st.integers(0, 100), max_size=5))
def test_law_4_a_trouble_at_an_unknowable_time_spoils_every_checkpoint(trouble: float, times: list[int]) -> None:
    saved = [checkpoint(number, at, Verdict.PROVEN, None) for number, at in enumerate(times)]
    assert choose(saved, trouble).checkpoint is None


# --- 5: never resume from what was not proven, or was saved after the trouble ---------------------------------------


def checkpoint(number: int, at_s: float, verdict: Verdict | None, step: int | None) -> Checkpoint:
    fingerprint = Fingerprint(size_bytes=1, modified_ns=round(at_s * 1e9), inode=number)
    return Checkpoint(path=f"{number}.pt", fingerprint=fingerprint, step=step, verdict=verdict)


CHECKPOINTS = st.lists(
    st.tuples(st.floats(0, 100), st.sampled_from([*Verdict, None]), st.one_of(st.none(), st.integers(0, 100))),
    max_size=8,
).map(lambda many: [checkpoint(number, *item) for number, item in enumerate(many)])


@given(
    saved=CHECKPOINTS,
    trouble_s=st.one_of(st.none(), st.floats(0, 100)),
    fault_step=st.one_of(st.none(), st.integers(0, 100)),
    began_s=st.one_of(st.none(), st.floats(0, 100)),
)
def test_law_5_only_a_proven_checkpoint_from_before_the_trouble_is_resumed_from(
    saved: list[Checkpoint], trouble_s: float | None, fault_step: int | None, began_s: float | None
) -> None:
    point = choose(saved, trouble_s, fault_step, began_unix_s=began_s)
    mine = [item for item in saved if began_s is None or item.saved_unix_s >= began_s]
    good = [
        item
        for item in mine
        if item.verdict is Verdict.PROVEN
        and (trouble_s is None or item.saved_unix_s < trouble_s)
        and (fault_step is None or item.step is None or item.step < fault_step)
    ]
    if good:
        assert point.possible
        assert point.checkpoint in good
    else:
        assert point.checkpoint is None
        assert point.possible == (not mine)
        assert point.possible or "none of the saved checkpoints is proven" in point.reason


@given(moves=st.lists(st.sampled_from(["steps", "nan", "save", "crash", "stall", "restart"]), min_size=1, max_size=40))
def test_law_5_no_life_resumes_from_what_a_nan_spoilt(moves: list[str]) -> None:
    timeline = Life((NonFiniteLoss(tolerated=0), Stall(), ALL_RULES[0]), Limits(budget=Budget(restarts=1000)))
    timeline.silence(1)
    spoilt: set[str] = set()
    step, poisoned, saves = 0, False, 0
    for move in moves:
        if timeline.phase() not in (Phase.STARTING, Phase.RUNNING):
            break
        if move in ("steps", "nan"):
            poisoned = poisoned or move == "nan"
            timeline.steps(step + 1, step + 1, 1.0, loss=NAN if poisoned else 1.0)
            step += 1
        elif move == "save":
            saves += 1
            timeline.silence(1).saves(f"{saves}.pt", step)
        else:
            _end(timeline, move)
        if timeline.phase() is Phase.STOPPING:
            saves += 1
            timeline.silence(1).saves(f"{saves}.pt", step)
            if poisoned:
                spoilt.add(f"{saves}.pt")
            timeline.exits(signal=15)
        if timeline.phase() is Phase.BACKOFF:
            timeline.silence(601).looks()
        start = timeline.present().resume_from if timeline.job.attempt else None
        assert start is None or start.path not in spoilt
        if not timeline.history.steps:
            step, poisoned = (start.step or 0) if start else 0, False


def _end(timeline: Life, move: str) -> None:
    match move:
        case "crash":
            timeline.exits(signal=11)
        case "stall":
            timeline.silence(60)
        case _:
            timeline.asks(ev.Ask.RESTART)


# --- 8: budgets are cleared by progress -----------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.integers(0, 30), st.floats(0, 1e9)), max_size=40))
def test_law_8_only_a_step_further_than_ever_clears_the_restarts_in_a_row(happenings: list[int | float | None]) -> None:
    ledger, now, in_a_row, furthest = Ledger(), START, 0, None
    budget = Budget()
    for happening in happenings:
        if happening is None:
            ledger, in_a_row = ledger.restarted(now, budget, progress_known=True), in_a_row + 1
        elif isinstance(happening, int):
            if furthest is None or happening > furthest:
                furthest, in_a_row = happening, 0
            ledger = ledger.stepped(Place(happening))
        else:
            now = now.plus(happening)
        assert ledger.in_a_row == in_a_row
        assert (ledger.spent(now, budget, "crash") is not None) >= (in_a_row >= budget.restarts)


# --- 9: nothing acts on one ambiguous signal ------------------------------------------------------------------------


@given(
    busy=st.lists(st.sampled_from([0.0, 0.5, 1.0, 99.0, 100.0]), min_size=5, max_size=80),
    every_s=st.sampled_from([1, 5, 29]),
)
def test_law_9_no_gpu_use_is_a_hang_while_steps_advance(busy: list[float], every_s: int) -> None:
    timeline = story().training(5)
    for number, percent in enumerate(busy):
        timeline.gpu(every_s, busy=percent, used=GB).steps(6 + number, 6 + number)
        assert critical(timeline) == []


@given(busy=st.lists(st.sampled_from([0.0, 1.0]), min_size=40, max_size=59))
def test_law_9_an_idle_gpu_acts_only_together_with_missing_steps(busy: list[float]) -> None:
    stepping, still = story().training(5), story().training(5)
    for number, percent in enumerate(busy):
        stepping.gpu(1, busy=percent).steps(6 + number, 6 + number)
        still.gpu(1, busy=percent)
    assert stepping.check(GpuIdle()) is None
    assert still.check(GpuIdle()) is not None


def test_law_9_a_busy_gpu_without_a_step_is_a_hang() -> None:
    timeline = story().training(5).gpu(60, busy=99.0)
    assert critical(timeline) == ["stall"]


# --- 12: unknown is None --------------------------------------------------------------------------------------------


@given(data=st.data())
def test_law_12_what_is_unknown_is_never_acted_on(data: st.DataObject) -> None:
    """Each reading lacks at least one of the facts that its rule needs; the others are as bad as can be."""
    timeline = story().training(20)
    for step in range(21, 60):
        timeline.steps(step, step, 1.0, loss=None, grad_norm=None)
        used = data.draw(st.sampled_from([None, 6 * GB]))
        available = data.draw(st.sampled_from([None, 0]))
        gpu = GpuReading(
            at=timeline.now, gpu=GPU, source="x", vram_used_bytes=used, vram_total_bytes=None if used else 6 * GB
        )
        host = HostReading(
            at=timeline.now, memory_available_bytes=available, memory_total_bytes=32 * GB if available is None else None
        )
        timeline.put(ev.GpusRead(at=timeline.now, readings=(gpu,)))
        timeline.put(ev.HostRead(at=timeline.now, reading=host))
        tree = ProcessReading(at=timeline.now, processes=1, rss_bytes=None)
        timeline.put(ev.ProcessesRead(at=timeline.now, job=JOB, attempt=1, reading=tree))
        assert judge(ALL_RULES, timeline.history) == ()


@given(no_step_s=st.integers(0, 59), status=st.sampled_from([None, "suspended"]), stage=st.sampled_from([None, *Stage]))
def test_law_12_an_unknown_gpu_use_is_not_idle(no_step_s: int, status: str | None, stage: Stage | None) -> None:
    timeline = story().started().steps(1, 5)
    if stage is not None:
        timeline.stage(stage)
    timeline.gpu(no_step_s, busy=0.0 if status else None, status=status)
    assert timeline.check(GpuIdle()) is None


@given(share=st.sampled_from([None, 0, 8 * GB - 1]))
def test_law_12_memory_that_nobody_can_assign_stops_no_job(share: int | None) -> None:
    timeline = story().training().memory(55, available=0, rss=share)
    assert critical(timeline) == []


def test_law_12_an_unknown_end_is_no_clean_end() -> None:
    assert critical(story().training().exits()) == ["crash"]


# --- 7, 11, and decide as a whole: any order of events --------------------------------------------------------------


class AnyLife(RuleBasedStateMachine):
    """Whatever happens in whatever order: no impossible move, one process at a time, and the user's word holds."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = Life(limits=Limits(budget=Budget(restarts=3, settle_s=60.0)))
        self.step = 0
        self.gone: set[int] = set()
        self.asked_to_run = True

    def happens(self) -> None:
        """Look at every decision that the last event led to."""
        for decision in self.timeline.decisions:
            if isinstance(decision, de.Launch):
                earlier = set(range(1, decision.attempt))
                assert earlier <= self.gone, "launched while an attempt was not over"
                assert self.asked_to_run, "launched against the user's word"
                start = decision.resume_from
                assert start is None or start.verdict is Verdict.PROVEN
                self.step = (start.step or 0) if start else 0
        names = [type(item) for item in self.timeline.decisions]
        assert names.count(de.Launch) <= 1
        assert names.count(de.Stop) <= 1
        assert names.count(de.Kill) <= 1
        self.timeline.decisions.clear()

    @initialize()
    def launched(self) -> None:
        self.timeline.silence(0)
        self.happens()

    @property
    def alive(self) -> bool:
        return self.timeline.phase() in ALIVE and not self.timeline.present().over

    @rule(seconds=st.sampled_from([0.25, 1.0, 9.0, 31.0, 61.0, 700.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.timeline.silence(seconds)
        self.happens()

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 20), loss=st.sampled_from([1.0, 1.0, 1.0, NAN]))
    def it_steps(self, count: int, loss: float) -> None:
        for _ in range(count):
            self.step += 1
            self.timeline.steps(self.step, self.step, loss=loss)
        self.happens()

    @precondition(lambda self: self.alive)
    @rule(stage=st.sampled_from(list(Stage)))
    def it_enters(self, stage: Stage) -> None:
        self.timeline.stage(stage)
        self.happens()

    @precondition(lambda self: self.alive)
    @rule(agent_event=st.sampled_from(list(ev.AgentEvent)))
    def it_says(self, agent_event: ev.AgentEvent) -> None:
        self.timeline.says(agent_event, epochs=2, batches_per_epoch=10, requested=True, type="ValueError", message="x")
        self.happens()

    @precondition(lambda self: self.alive)
    @rule(verdict=st.sampled_from([*Verdict, None]))
    def it_saves(self, verdict: Verdict | None) -> None:
        self.timeline.silence(0.01).saves(f"{len(self.timeline.saved)}.pt", self.step, verdict)
        self.happens()

    @precondition(lambda self: self.alive)
    @rule(end=st.sampled_from(["finish", "crash", "killed", "lost", "not launched"]))
    def it_ends(self, end: str) -> None:
        self.gone.add(self.timeline.job.number)
        match end:
            case "finish":
                self.timeline.exits(0)
            case "crash":
                self.timeline.exits(1)
            case "killed":
                self.timeline.exits(signal=9)
            case "lost":
                self.timeline.lost()
            case _:
                self.timeline.fails_to_launch()
        self.happens()

    @rule(fault=st.sampled_from(list(FaultClass)), fatal=st.booleans())
    def the_kernel_says(self, fault: FaultClass, *, fatal: bool) -> None:
        self.timeline.kernel(fault, fatal=fatal)
        self.happens()

    @rule(busy=st.sampled_from([None, 0.0, 99.0]), used=st.sampled_from([None, GB, 5 * GB, 6 * GB]))
    def the_card_is_read(self, busy: float | None, used: int | None) -> None:
        self.timeline.gpu(12, busy=busy, used=used, every_s=4)
        self.happens()

    @rule(free=st.sampled_from([1, GB, 900 * GB]))
    def the_disk_is_read(self, free: int) -> None:
        self.timeline.disks(runs=free)
        self.happens()

    @rule(ask=st.sampled_from(list(ev.Ask)), fresh=st.booleans())
    def somebody_asks(self, ask: ev.Ask, *, fresh: bool) -> None:
        if ask in (ev.Ask.START, ev.Ask.RESTART):
            self.asked_to_run = True
        elif ask is ev.Ask.STOP:
            self.asked_to_run = False
        self.timeline.asks(ask, fresh=fresh)
        self.happens()

    @rule(allowed=st.booleans())
    def launching_is_allowed(self, *, allowed: bool) -> None:
        self.timeline.launch_allowed = allowed
        self.timeline.silence(0)
        self.happens()

    @precondition(lambda self: self.alive)
    @rule()
    def it_is_signalled(self) -> None:
        self.timeline.signalled()
        self.happens()

    @precondition(lambda self: self.timeline.phase() is Phase.BACKOFF)
    @rule()
    def the_checkpoints_are_looked_through(self) -> None:
        self.timeline.looks()
        self.happens()

    @rule(by_s=st.sampled_from([-86400.0, -1.0, 1.0, 86400.0]))
    def the_wall_clock_jumps(self, by_s: float) -> None:
        self.timeline.now = Moment(self.timeline.now.monotonic_s, self.timeline.now.unix_s + by_s)
        self.timeline.put(ev.ClockStepped(at=self.timeline.now, by_s=by_s))
        self.happens()

    @rule(away_s=st.floats(1, 100_000))
    def the_daemon_was_away(self, away_s: float) -> None:
        decided = len(self.timeline.decisions)
        self.timeline.away(away_s)
        stopped = [
            decision for decision in self.timeline.decisions[decided:] if isinstance(decision, de.Stop | de.Kill)
        ]
        assert not stopped, "what happened while nobody looked is judged by what is seen after it"
        self.happens()

    @invariant()
    def every_decision_was_taken_in(self) -> None:
        assert self.timeline.next_decision() is None

    @invariant()
    def a_phase_has_what_belongs_to_it(self) -> None:
        job = self.timeline.job
        assert (job.stop is not None) == (job.phase in (Phase.STOPPING, Phase.KILLING))
        assert job.phase is not Phase.BACKOFF or job.retry is not None
        assert not job.unkillable or job.phase is Phase.KILLING
        assert job.phase not in (Phase.STARTING, Phase.RUNNING) or self.asked_to_run

    @invariant()
    def what_the_user_stopped_rests_once_nothing_runs(self) -> None:
        job = self.timeline.job
        if job.desired_state is DesiredState.STOP:
            assert job.phase in (Phase.STOPPING, Phase.KILLING, Phase.STOPPED, Phase.FINISHED, Phase.FAILED)


AnyLife.TestCase.settings = settings(max_examples=at_least(150), stateful_step_count=40)
TestLaws7And11InAnyLife = AnyLife.TestCase


def test_the_daemons_end_launches_nothing() -> None:
    timeline = life().training().exits(1).asks(ev.Ask.SHUT_DOWN).looks().silence(9999)
    assert timeline.read_decisions() == ["Launch", "Retry"]


@pytest.mark.parametrize("fact", [Job, Incident, RedFlag, History, DiskReading])
def test_facts_are_kept_without_a_dict_of_their_own(fact: type) -> None:
    assert hasattr(fact, "__slots__")
