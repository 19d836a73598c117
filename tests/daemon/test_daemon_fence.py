"""What fails for one job is named for that job, passed by, and noticed by no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from clocks_by_hand import START, HandClock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.gauge import Gauge, Group
from supervisor.core.history import History
from supervisor.core.job import DEGRADED, Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, HostReading, Stage, StepRecord
from supervisor.core.rules import RULES, Rule
from supervisor.core.rules.stall import Stall
from supervisor.core.stats.learned_limits import Learned
from supervisor.daemon.fence import describe_error
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.job_state import JobState
from supervisor.daemon.loop import Loop
from supervisor.daemon.status import bounded, job_status
from tests.examples import at_least

ALL_RULES: tuple[Rule, ...] = tuple(rule() for rule in RULES)
SILLY = 10**400


class PlantedError(Exception):
    """What is planted to be raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A rule that raises whenever it is asked."""

    name: ClassVar[str] = "planted"
    group: ClassVar[Group] = "process"
    enabled: bool = True

    def may_flag(self, history: History) -> bool:
        raise PlantedError(f"asked at {history.now.monotonic_s}")

    def measure(self, history: History) -> tuple[Gauge, ...]:
        raise PlantedError("watched")


class FragileHistory(History):
    """Cannot take in what the agent says, nor any step whose loss is 13."""

    def add(self, event: ev.Event) -> None:
        if isinstance(event, ev.AgentReported):
            raise PlantedError("a word")
        if isinstance(event, ev.StepsMade) and any(record.loss == 13.0 for record in event.records):
            raise PlantedError("a step")
        History.add(self, event)


class World:
    """A loop with a job that is `ill` and one that is `well`; whatever is named in `broken` raises for the ill one."""

    def __init__(self, *names: str, broken: frozenset[str] = frozenset()) -> None:
        self.clock, self.inbox = HandClock(), Inbox()
        self.broken = broken
        self.lines: list[str] = []
        self.degraded: list[ev.SupervisionChanged] = []
        self.loop = Loop(self.clock, self.inbox, self, self)
        for name in names or ("ill", "well"):
            self.loop.job_states[name] = JobState(job=Job(name=name, since=START), rules=ALL_RULES)

    unsettled_turn = None

    def is_settled(self, turn: int, now: Moment) -> bool:
        return True

    def _do(self, what: str, job: str, line: str) -> None:
        if what in self.broken and job == "ill":
            raise PlantedError(what)
        self.lines.append(f"{job}: {line}")

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        if isinstance(event, ev.SupervisionChanged):
            self.degraded.append(event)
        self._do("event", job_state.job.name if job_state else "machine", type(event).__name__)

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        self._do("decision", after.name, f"{type(decision).__name__} {_subject(decision)}")

    def job(self, before: Job, after: Job, event: ev.Event) -> None:
        self._do("job", after.name, f"job by {type(event).__name__}")

    def learned(self, job: str, setting: str) -> Learned:
        self._do("learned", job, "learned")
        return Learned()

    def keep_learned(self, job: str, setting: str, learned: Learned) -> None:
        self._do("learned", job, "keep learned")

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        if "turn" in self.broken:
            raise PlantedError("no turn can begin")
        yield
        if "commit" in self.broken:
            raise PlantedError("commit")

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        if "room" in self.broken:
            raise RuntimeError("can't start new thread")
        self._do("act", job.name, f"act {type(decision).__name__}")

    def search(self, job: Job, history: History | None) -> None:
        self._do("search", job.name, "search")

    def noticed(self, event: ev.Event, job: Job) -> None:
        self._do("noticed", job.name, f"noticed {type(event).__name__}")

    def turn_of(self, *events: ev.Event) -> None:
        for event in events:
            self.loop.turn(event)

    def tick(self) -> None:
        self.clock.sleep(0.25)
        self.loop.turn(ev.Tick(at=self.clock.now()))

    def step(self, job: str, step: int, loss: float = 1.0) -> None:
        at = self.clock.now()
        records = (StepRecord(at=at, step=step, loss=loss),)
        self.loop.turn(ev.StepsMade(at=at, job=job, attempt=1, records=records, cursor=step))

    def report(self, job: str, agent_event: ev.AgentEvent, offset: int, **facts: object) -> None:
        output = ev.AgentReported(
            at=self.clock.now(), job=job, attempt=1, agent_event=agent_event, facts=facts, offset=offset
        )
        self.loop.turn(output)

    def ill(self) -> JobState:
        return self.loop.job_states["ill"]

    def of(self, job: str) -> list[str]:
        return [line for line in self.lines if line.startswith(f"{job}:")]


def _subject(decision: de.Decision) -> str:
    return f"{decision.flag.rule} {decision.flag.subject}" if isinstance(decision, de.Warn) else ""


def running(*names: str, broken: frozenset[str] = frozenset(), rules: tuple[Rule, ...] = ALL_RULES) -> World:
    """Return a world in which every job makes steps; the ill one has these rules, and breaks from here on."""
    world = World(*names)
    world.tick()
    for name in world.loop.job_states:
        world.step(name, 1)
    world.lines.clear()
    world.broken = broken
    if "ill" in world.loop.job_states:
        world.ill().rules = rules
    return world


def test_a_rule_that_raises_is_switched_off_named_and_reported_once() -> None:
    world = running(rules=(Planted(), *ALL_RULES))
    for _ in range(5):
        world.tick()
    assert world.of("ill").count(f"ill: Warn {DEGRADED} rule planted") == 1
    assert [item.place for item in world.degraded] == ["rule planted"]
    assert "PlantedError: asked at 1000.5" in world.degraded[0].error
    status = job_status(world.ill(), world.clock.now())
    assert status.degraded[0].startswith("rule planted: PlantedError")
    planted = next(gauge for gauge in status.watched if gauge.rule == "planted")
    assert planted.not_watched is not None
    assert planted.not_watched.startswith("it failed: PlantedError: watched")
    assert set(world.of("well")) == {"well: noticed Tick"}


def test_the_other_rules_of_that_job_go_on() -> None:
    stall = Stall(limit_s=60.0)
    world = running(rules=(Planted(), stall))
    world.turn_of(ev.StageEntered(at=world.clock.now(), job="ill", attempt=1, stage=Stage.STEP, stages_complete=True))
    world.clock.sleep(3600)
    world.turn_of(ev.RecorderIdle(at=world.clock.now(), job="ill", attempt=1))
    world.tick()
    assert "ill: act Stop" in world.lines


def test_a_rule_that_raised_is_asked_again_in_the_next_attempt() -> None:
    world = running(rules=(Planted(), *ALL_RULES))
    world.tick()
    at = world.clock.now()
    assert len(world.degraded) == 1
    world.turn_of(ev.UserRequest(at=at, job="ill", ask=ev.Ask.RESTART, by="me"))
    world.turn_of(ev.Exited(at=at, job="ill", attempt=1, status=ExitStatus(at=at, code=0)))
    assert world.ill().job.phase is Phase.BACKOFF
    world.turn_of(ev.UserRequest(at=at, job="ill", ask=ev.Ask.START, by="me", fresh=True))
    assert [item.attempt for item in world.degraded] == [1, 2]


def test_a_report_that_cannot_be_applied_is_named_with_its_place_and_the_next_is_applied() -> None:
    world = running()
    allocator = {"reserved_bytes": SILLY, "allocated_bytes": SILLY, "rank": 0}
    world.report("ill", ev.AgentEvent.ALLOCATOR, 100, **allocator)
    world.report("ill", ev.AgentEvent.TRAIN_END, 200)
    attempt = world.ill().job.attempt
    assert attempt is not None
    assert attempt.train_ended
    for item in world.degraded:  # none where the word is bounded before it comes here
        assert (item.place, item.kind, item.offset) == ("history", "agent_reported", 100)


def test_steps_that_cannot_be_taken_in_are_no_standstill() -> None:
    world = running(rules=(Stall(limit_s=60.0),))
    job_state = world.ill()
    job_state.history = FragileHistory(now=world.clock.now(), launched_at=START)
    world.turn_of(ev.StageEntered(at=world.clock.now(), job="ill", attempt=1, stage=Stage.STEP, stages_complete=True))
    for number in range(2, 200):
        world.clock.sleep(30)
        world.step("ill", number, loss=13.0)
        world.turn_of(ev.RecorderIdle(at=world.clock.now(), job="ill", attempt=1))
        world.tick()
    assert "ill: act Stop" not in world.lines
    assert job_state.job.attempt is not None
    assert job_state.job.attempt.last_step == 199
    assert len(world.degraded) <= 20, "a place that fails at each event is recorded a few times"
    world.clock.sleep(3600)
    world.turn_of(ev.RecorderIdle(at=world.clock.now(), job="ill", attempt=1))
    world.tick()
    assert "ill: act Stop" in world.lines


def test_an_event_that_an_earlier_daemon_could_not_take_is_passed_by_where_it_failed() -> None:
    world = running()
    job_state = world.ill()
    job_state.history = FragileHistory(now=world.clock.now(), launched_at=START)
    world.report("ill", ev.AgentEvent.HOOK_FAILED, 300)
    (kept,) = world.degraded
    after = running()
    after.ill().history = FragileHistory(now=after.clock.now(), launched_at=START)
    after.loop.fences.mark(after.ill(), kept)
    after.report("ill", ev.AgentEvent.HOOK_FAILED, 300)
    assert after.degraded == []
    after.report("ill", ev.AgentEvent.HOOK_FAILED, 400)
    assert [item.offset for item in after.degraded] == [400]


def test_a_job_known_to_be_degraded_is_not_reported_again_after_a_restart() -> None:
    world = running(rules=(Planted(),))
    world.tick()
    after = running()
    after.ill().job = world.ill().job
    after.loop.fences.mark(after.ill(), world.degraded[0])
    assert after.lines == []
    assert list(after.ill().degraded) == ["rule planted"]


@pytest.mark.parametrize("broken", ["event", "job", "decision", "act", "noticed", "learned"])
def test_whatever_fails_for_one_job_the_process_end_is_still_seen(broken: str) -> None:
    world = running(broken=frozenset({broken}))
    at = world.clock.now()
    world.report("ill", ev.AgentEvent.PLAN, 1, framework="own", epochs=3, batches_per_epoch=100)
    world.turn_of(ev.Exited(at=at, job="ill", attempt=1, status=ExitStatus(at=at, signal=9)))
    assert world.ill().job.phase is Phase.BACKOFF
    world.step("well", 2)
    world.tick()
    assert world.ill().degraded, broken
    assert not world.loop.job_states["well"].degraded


def test_an_exit_that_cannot_be_taken_in_is_an_end_all_the_same() -> None:
    class Exit(ExitStatus):
        @property
        def ok(self) -> bool:
            raise PlantedError("exit")

    world = running()
    at = world.clock.now()
    job_state = world.ill()
    broken = ev.Exited(at=at, job="ill", attempt=1, status=Exit(at=at, code=0))
    before = job_state.job
    world.loop._apply_to_job(job_state, replace(broken, attempt=_Unequal(1)))
    assert job_state.job != before
    assert job_state.job.attempt is not None
    assert job_state.job.attempt.host_lost is not None
    assert "PlantedError" in job_state.job.attempt.host_lost


class _Unequal(int):
    """A number that cannot be compared the first time."""

    asked = 0

    def __ne__(self, other: object) -> bool:
        self.asked += 1
        if self.asked == 1:
            raise PlantedError("compared")
        return int(self) != other

    __hash__ = int.__hash__


def test_a_launch_that_raises_is_a_launch_that_failed() -> None:
    world = World(broken=frozenset({"act"}))
    world.tick()
    failed = world.inbox.get(0.0)
    assert isinstance(failed, ev.LaunchFailed)
    assert (failed.job, failed.attempt) == ("ill", 1)
    assert "PlantedError" in failed.error
    assert world.of("well") == ["well: Launch ", "well: act Launch", "well: noticed Tick"]


def test_a_search_that_raises_is_tried_again_after_a_while_and_not_at_every_tick() -> None:
    world = running("ill", broken=frozenset({"search"}))
    at = world.clock.now()
    world.turn_of(ev.Exited(at=at, job="ill", attempt=1, status=ExitStatus(at=at, signal=9)))
    asked = 0
    for _ in range(44):  # 11 s
        while not world.inbox.empty():
            entry = world.inbox.get(0.0)
            asked += 1
            world.loop._answer_inquiry(entry)  # type: ignore[arg-type]  # an inquiry: nothing else is put in here
        world.tick()
    assert asked == 2


@pytest.mark.parametrize("broken", ["turn", "commit"])
def test_a_record_that_fails_altogether_stops_no_supervision(broken: str) -> None:
    world = running(broken=frozenset({broken}))
    at = world.clock.now()
    world.turn_of(ev.UserRequest(at=at, job="well", ask=ev.Ask.STOP, by="me"))
    assert "well: act Stop" in world.lines
    assert "PlantedError" in world.loop.fences.failures["record"]


def test_what_is_done_after_each_turn_fails_alone() -> None:
    world, done = running(), []

    def fails(_event: ev.Event, _now: Moment) -> None:
        raise PlantedError("after")

    world.loop.each_turn += [fails, lambda event, _: done.append(event)]
    world.tick()
    assert len(done) == 1
    assert [trouble for trouble in world.loop.fences.failures if trouble.endswith("fails")]


def test_a_part_that_works_again_is_no_longer_named() -> None:
    world = running()
    at = world.clock.now()
    hung = ev.SupervisionChanged(at=at, job="ill", attempt=1, place="checkpoints", error="no answer", persistent=True)
    world.turn_of(hung)
    assert list(world.ill().degraded) == ["checkpoints"]
    world.turn_of(replace(hung, recovered=True))
    assert world.ill().degraded == {}


def test_a_stop_for_which_there_was_no_thread_is_no_longer_named_once_it_was_carried_out() -> None:
    world = running(broken=frozenset({"room"}))
    ask = ev.UserRequest(at=world.clock.now(), job="ill", ask=ev.Ask.STOP, by="user", fresh=False)
    world.turn_of(ask)
    assert list(world.ill().degraded) == ["stop"]
    assert "can't start new thread" in world.ill().degraded["stop"].error
    world.broken = frozenset()
    world.tick()
    assert world.of("ill").count("ill: act Stop") == 1
    assert world.ill().degraded == {}
    assert [item.recovered for item in world.degraded] == [False, True]


def test_an_error_whose_text_cannot_be_had_is_described() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise PlantedError("no text")

    assert describe_error(MuteError()) == "MuteError: its text cannot be had"
    assert len(describe_error(ValueError("x" * 10_000))) < 400


def test_a_status_holds_neither_endless_texts_nor_numbers_beyond_64_bits() -> None:
    world = running()
    job_state = world.ill()
    assert job_state.job.attempt is not None
    attempt = replace(job_state.job.attempt, last_step=SILLY)
    job_state.job = replace(job_state.job, reason="x" * 1_000_000, attempt=attempt)
    status = job_status(job_state, world.clock.now())
    assert status.step is None
    assert status.reason is not None
    assert len(status.reason) == 1000
    assert bounded(status) == status


def test_a_status_that_cannot_be_reckoned_is_reported_as_far_as_it_goes() -> None:
    world = running(rules=())
    job_state = world.ill()
    assert job_state.history is not None
    job_state.history.steps = None  # type: ignore[assignment]  # as a fold that failed half way might leave it
    status = job_status(job_state, world.clock.now())
    assert (status.name, status.phase, status.attempt) == ("ill", "running", 1)
    assert status.degraded[-1].startswith("status: ")


# --- law 13: nothing that one job does can stop, delay or blind the supervision of another --------------------------

HOSTILE: st.SearchStrategy[object] = st.one_of(
    st.sampled_from([SILLY, -SILLY, float("nan"), float("inf"), -1, 0, None, "", "x" * 5000, [], {}, True]),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
)
FACTS = st.dictionaries(
    st.sampled_from(
        [
            "epoch",
            "epochs",
            "batches_per_epoch",
            "step",
            "allocated_bytes",
            "reserved_bytes",
            "paths",
            "pids",
            "fitness",
            "metrics",
            "framework",
            "kind",
            "rank",
            "loader",
            "workers",
            "user_request",
            "used",
            "retries",
            "start_epoch",
        ]
    ),
    HOSTILE,
)
BROKEN = st.frozensets(st.sampled_from(["event", "job", "decision", "act", "noticed", "learned", "search"]))


@dataclass
class Actions:
    """What the ill job does between two events of the other."""

    agent_event: ev.AgentEvent
    facts: dict[str, object]
    step: object
    loss: object
    broken: frozenset[str] = field(default_factory=frozenset)
    exits: bool = False


ACTIONS = st.lists(
    st.builds(
        Actions,
        agent_event=st.sampled_from(list(ev.AgentEvent)),
        facts=FACTS,
        step=HOSTILE,
        loss=HOSTILE,
        broken=BROKEN,
        exits=st.booleans(),
    ),
    max_size=12,
)


def well_story(world: World) -> Iterator[Callable[[], None]]:
    """Yield what happens to the job that is well, one thing after the other: it trains, crashes, waits."""
    at = world.clock.now

    def story(number: int) -> None:
        world.clock.sleep(1.0)
        world.step("well", 2 + number, loss=1.0 / (2 + number))
        world.tick()

    for number in range(6):
        yield lambda number=number: story(number)  # type: ignore[misc]  # the number of this round
    yield lambda: world.turn_of(ev.HostRead(at=at(), reading=HostReading(at=at(), disks=())))
    yield lambda: world.turn_of(
        ev.Exited(at=at(), job="well", attempt=1, status=ExitStatus(at=at(), signal=11)), ev.Tick(at=at())
    )
    yield world.tick


def hurt(world: World, actions: Actions, number: int) -> None:
    """Do to the ill job what nobody should."""
    world.broken = actions.broken
    at, attempt = world.clock.now(), world.ill().job.number
    world.turn_of(
        ev.AgentReported(
            at=at,
            job="ill",
            attempt=attempt,
            agent_event=actions.agent_event,
            facts=actions.facts,
            offset=number,
            pid=1,
            rank=0,
        ),
        ev.StepsMade(
            at=at,
            job="ill",
            attempt=attempt,
            records=(StepRecord(at=at, step=actions.step, loss=actions.loss),),  # type: ignore[arg-type]  # on purpose
            cursor=number,
        ),
    )
    if actions.exits:
        status = ExitStatus(at=at, code=actions.step, max_rss_bytes=actions.loss)  # type: ignore[arg-type]  # on purpose
        world.turn_of(ev.Exited(at=at, job="ill", attempt=attempt, status=status))
        world.turn_of(ev.Tick(at=at))


def reported_of_well(actions: list[Actions] | None) -> list[str]:
    """Return what came of the job that is well: alone, or beside one that is hurt before each of its events."""
    world = running(*(("well",) if actions is None else ("ill", "well")))
    if actions is not None:
        world.ill().rules = (Planted(), *ALL_RULES)
    reported = []
    for number, happens in enumerate(well_story(world)):
        if actions and number < len(actions):
            hurt(world, actions[number], number)
        happens()
        job_state = world.loop.job_states["well"]
        reported.append(
            f"{job_state.job.phase.value} {job_state.job.number} {job_state.history and job_state.history.last_step_at}"
        )
    return [*reported, *(line for line in world.of("well") if not line.startswith("well: noticed"))]


@settings(deadline=None, max_examples=at_least(150), suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS)
def test_law_13_nothing_that_one_job_does_reaches_the_supervision_of_another(actions: list[Actions]) -> None:
    assert reported_of_well(actions) == reported_of_well(None)


def test_the_flag_of_a_degraded_job_is_a_warning_and_stops_nothing() -> None:
    world = running(rules=(Planted(),))
    world.tick()
    assert world.ill().job.phase is Phase.RUNNING
    ((_rule, subject, severity),) = world.ill().job.open_flags
    assert (subject, severity) == ("rule planted", Severity.WARNING)
