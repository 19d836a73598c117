"""The deciding loop: first the record, then the act, and nobody's questions hold it up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from clocks_by_hand import START, HandClock, until

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import ResumePoint
from supervisor.core.history import History
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, HostReading, Stage, StepRecord
from supervisor.core.remedies.trials import Course, Trial
from supervisor.core.rules import RULES
from supervisor.core.stats.learned_limits import Learned
from supervisor.daemon.clock import Presence, SystemClock
from supervisor.daemon.fence import SEARCH
from supervisor.daemon.inbox import Inbox, Inquiry
from supervisor.daemon.job_state import JobState, begin_history, seed_history
from supervisor.daemon.loop import SEARCH_AGAIN_S, TICK_S, Loop


class Reported:
    """What reached record and hands, in the order in which it did."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.kept: dict[str, dict[str, dict[str, int]]] = {}

    unsettled_turn = None

    def is_settled(self, turn: int, now: Moment) -> bool:
        return True

    def event(self, event: ev.Event, job_state: JobState | None) -> None:
        self.lines.append(f"event {type(event).__name__} of {job_state.job.name if job_state else 'nobody'}")

    def decision(self, before: Job, after: Job, decision: de.Decision) -> None:
        self.lines.append(f"recorded {type(decision).__name__}: {before.phase.value} to {after.phase.value}")

    def job(self, before: Job, after: Job, event: ev.Event) -> None:
        self.lines.append(f"job by {type(event).__name__}")

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        yield
        self.lines.append("committed")

    def learned(self, job: str, setting: str) -> Learned:
        return Learned.of_plain(self.kept.get(f"{job} {setting}"))

    def keep_learned(self, job: str, setting: str, learned: Learned) -> None:
        self.kept[f"{job} {setting}"] = learned.plain()

    def act(self, decision: de.Decision, job: Job, history: History | None) -> None:
        self.lines.append(f"acted {type(decision).__name__}")

    def search(self, job: Job, history: History | None) -> None:
        self.lines.append("searched")

    def noticed(self, event: ev.Event, job: Job) -> None:
        if isinstance(event, ev.AgentReported):
            self.lines.append("noticed")

    def count(self, line: str) -> int:
        return self.lines.count(line)


class World:
    """A loop over fakes, with one job that was not started yet."""

    def __init__(self, *names: str) -> None:
        self.clock = HandClock()
        self.inbox = Inbox()
        self.reported = Reported()
        self.loop = Loop(self.clock, self.inbox, self.reported, self.reported)
        rules = tuple(rule() for rule in RULES)
        for name in names or ("one",):
            self.loop.job_states[name] = JobState(job=Job(name=name, since=START), rules=rules)

    def tick(self) -> None:
        self.loop.turn(ev.Tick(at=self.clock.now()))

    def steps(self, *steps: int) -> None:
        at = self.clock.now()
        records = tuple(StepRecord(at=at, step=step, loss=1.0) for step in steps)
        self.loop.turn(ev.StepsMade(at=at, job="one", attempt=1, records=records))

    def crash(self) -> None:
        at = self.clock.now()
        self.loop.turn(ev.Exited(at=at, job="one", attempt=1, status=ExitStatus(at=at, signal=9)))

    def empty_inbox(self) -> None:
        """Have done what is in the inbox by now."""
        for _ in range(self.inbox._queue.qsize()):
            entry = self.inbox.get(0.0)
            if isinstance(entry, Inquiry):
                self.loop._answer_inquiry(entry)
            elif entry is not None:
                self.loop.turn(entry)

    @property
    def job(self) -> Job:
        return self.loop.job_states["one"].job


def test_a_decision_is_recorded_and_committed_before_it_is_acted_on() -> None:
    world = World()
    world.tick()
    assert world.reported.lines == [
        "event Tick of nobody",
        "recorded Launch: pending to starting",
        "committed",
        "acted Launch",
    ]


def test_the_next_tick_does_not_decide_the_same_again() -> None:
    world = World()
    world.tick()
    world.tick()
    assert world.reported.count("acted Launch") == 1


def test_an_event_about_one_job_is_shown_to_no_other() -> None:
    world = World("one", "two")
    world.loop.turn(ev.UserRequest(at=START, job="one", ask=ev.Ask.STOP, by="uid 0"))
    assert (world.job.phase, world.loop.job_states["two"].job.phase) == (Phase.STOPPED, Phase.PENDING)


def test_an_event_about_an_unknown_job_is_recorded_and_moves_nobody() -> None:
    world = World()
    world.loop.turn(ev.UserRequest(at=START, job="gone", ask=ev.Ask.STOP, by="uid 0"))
    assert world.reported.lines == ["event UserRequest of nobody", "committed"]


def test_nothing_is_launched_on_a_machine_in_no_state_for_it() -> None:
    world = World()
    world.loop.may_launch = lambda _: False
    world.tick()
    assert world.job.phase is Phase.PENDING


def test_the_report_of_the_last_checkpoint_is_read_before_the_search_for_it() -> None:
    """It can lie in the inbox behind the exit when the daemon learns of both at once."""
    world = World()
    world.tick()
    world.steps(1, 2)
    output = ev.AgentReported(at=START, job="one", attempt=1, agent_event=ev.AgentEvent.CHECKPOINT_SAVED, facts={})
    world.inbox.put(output)
    world.crash()
    world.empty_inbox()
    assert world.job.phase is Phase.BACKOFF
    assert world.reported.lines.index("noticed") < world.reported.lines.index("searched")


def test_a_decision_has_the_same_name_in_the_log_as_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.tick()
    world.crash()
    world.tick()
    world.clock.sleep(1)
    point = ResumePoint(checkpoint=None, possible=False, reason="none is proven")
    world.loop.turn(ev.ResumePointFound(at=world.clock.now(), job="one", attempt=1, point=point))
    assert caplog.messages[-1] == "decision.give_up"


def test_one_search_is_under_way_at_a_time_and_its_answer_launches() -> None:
    world = World()
    world.tick()
    world.crash()
    world.tick()
    world.empty_inbox()
    world.tick()
    assert world.reported.count("searched") == 1
    point = ResumePoint(checkpoint=None, possible=True, reason="nothing was saved")
    world.clock.sleep(1)
    world.loop.turn(ev.ResumePointFound(at=world.clock.now(), job="one", attempt=1, point=point))
    assert world.reported.count("acted Launch") == 2


def test_what_happened_without_a_daemon_is_known_before_anything_is_decided() -> None:
    """The last step that the record knows is an hour old; the training made its last one and ended meanwhile."""
    world = World()
    world.tick()
    world.steps(*range(1, 10))
    world.clock.sleep(3600)
    at = world.clock.now()
    last = StepRecord(at=at, step=500, loss=1.0)
    world.inbox.put(ev.AgentReported(at=at, job="one", attempt=1, agent_event=ev.AgentEvent.TRAIN_END, facts={}))
    world.inbox.put(ev.StepsMade(at=at, job="one", attempt=1, records=(last,)))
    world.inbox.put(ev.Exited(at=at, job="one", attempt=1, status=ExitStatus(at=at, code=0)))
    world.loop.run(world.inbox.empty)
    assert world.reported.count("acted Stop") == 0
    assert world.job.phase is Phase.FINISHED


def test_a_search_that_failed_is_begun_again_later() -> None:
    world = World()
    world.tick()
    world.crash()
    world.empty_inbox()
    error = "StoreError: the record cannot be read"
    world.loop.turn(ev.SupervisionChanged(at=world.clock.now(), job="one", attempt=1, place=SEARCH, error=error))
    world.tick()
    world.empty_inbox()
    assert world.reported.count("searched") == 1, "it is not tried again at once"
    world.clock.sleep(SEARCH_AGAIN_S)
    world.tick()
    world.empty_inbox()
    assert world.reported.count("searched") == 2


def test_a_job_that_moved_on_is_not_searched_for() -> None:
    world = World()
    world.tick()
    world.crash()
    world.loop.turn(ev.UserRequest(at=START, job="one", ask=ev.Ask.STOP, by="uid 0"))
    world.empty_inbox()
    assert world.job.phase is Phase.STOPPED
    assert world.reported.count("searched") == 0


def test_a_wall_clock_that_jumps_is_reported_and_moves_no_deadline() -> None:
    world = World()
    world.tick()
    world.steps(1)
    world.clock.step_wall(50 * 365 * 86400)
    world.tick()
    stepped = world.inbox.get(0)
    assert isinstance(stepped, ev.ClockStepped)
    assert stepped.by_s == pytest.approx(50 * 365 * 86400)
    assert world.job.phase is Phase.RUNNING


def test_time_in_which_the_daemon_did_not_run_is_no_silence_of_a_training() -> None:
    """Both were stopped together: the reader's first word after it is that there is no new step."""
    world = World()
    presence = Presence(world.clock)
    world.loop.absences = presence.taken
    world.tick()
    world.steps(1, 2)
    world.clock.sleep(600)
    looked = ev.RecorderIdle(at=world.clock.now(), job="one", attempt=1)
    world.loop.turn(looked)
    world.tick()
    assert world.reported.count("acted Stop") == 0
    assert world.reported.count("event DaemonAway of nobody") == 1
    for _ in range(200):
        world.clock.sleep(0.5)
        presence.look()
        world.loop.turn(ev.RecorderIdle(at=world.clock.now(), job="one", attempt=1))
        world.tick()
    assert world.reported.count("acted Stop") == 1, "one that really hung is found once its limit has run out"


def test_an_event_of_an_earlier_attempt_touches_neither_job_nor_history() -> None:
    world = World()
    world.tick()
    at = world.clock.now()
    record = StepRecord(at=at, step=7, loss=1.0)
    world.loop.turn(ev.StepsMade(at=at, job="one", attempt=0, records=(record,)))
    history = world.loop.job_states["one"].history
    assert history is not None
    assert (len(history.steps), world.job.phase) == (0, Phase.STARTING)


def test_a_re_adopted_attempt_has_its_last_steps_again() -> None:
    world = World()
    world.tick()
    world.steps(1, 2, 3)
    again = JobState(job=world.job, rules=())
    records = tuple(StepRecord(at=START, step=step, loss=1.0) for step in (1, 2, 3))
    seed_history(again, records, START)
    assert again.history is not None
    assert [item.step for item in again.history.steps] == [1, 2, 3]
    assert again.history.last_step_at == START


def test_work_after_each_turn_sees_the_event() -> None:
    world = World()
    seen: list[ev.Event] = []
    world.loop.each_turn.append(lambda event, now: seen.append(event))
    world.tick()
    assert [type(entry) for entry in seen] == [ev.Tick]


def test_a_tick_judges_by_all_that_was_made_before_it() -> None:
    world, seen = World("one", "two", "three"), []

    def take(event: ev.Event, _: Moment) -> None:
        seen.append(type(event))
        if seen == [ev.Tick]:
            for job in ("one", "two", "three"):
                record = StepRecord(at=world.clock.now(), step=1, loss=1.0)
                world.inbox.put(ev.StepsMade(at=record.at, job=job, attempt=1, records=(record,)))
            world.clock.sleep(TICK_S)

    world.loop.each_turn.append(take)
    world.loop.run(lambda: seen.count(ev.Tick) == 2)
    assert seen == [ev.Tick, ev.StepsMade, ev.StepsMade, ev.StepsMade, ev.Tick]


@contextmanager
def running(loop: Loop) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=lambda: loop.run(end.is_set))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(120)
        assert not thread.is_alive()


def live_loop(inbox: Inbox) -> tuple[Loop, Reported]:
    reported = Reported()
    return Loop(SystemClock(), inbox, reported, reported), reported


def test_somebody_who_keeps_asking_does_not_hold_up_time() -> None:
    inbox = Inbox()
    loop, reported = live_loop(inbox)

    def three_ticks() -> bool:
        return inbox.ask(lambda: reported.count("event Tick of nobody")) >= 3

    with running(loop):
        until(three_ticks, "three ticks between questions")


def test_an_error_belongs_to_whoever_asked() -> None:
    inbox = Inbox()
    loop, _ = live_loop(inbox)
    with running(loop):
        with pytest.raises(KeyError, match="nowhere"):
            inbox.ask(lambda: loop.job_states["nowhere"])
        assert inbox.ask(lambda: 42) == 42


def test_the_next_attempt_knows_what_this_one_learned_of_the_same_set_up_alone() -> None:
    def plan(batch: int) -> None:
        facts: dict[str, object] = {"framework": "ultralytics", "batch": batch}
        at = world.clock.now()
        attempt = world.job.number
        world.loop.turn(
            ev.AgentReported(at=at, job="one", attempt=attempt, agent_event=ev.AgentEvent.PLAN, facts=facts)
        )

    def limit_s() -> float | None:
        history = world.loop.job_states["one"].history
        assert history is not None
        return history.learned.limit_s(Stage.STEP, 60.0)

    world = World()
    world.tick()
    plan(4)
    assert limit_s() is None
    for step in range(1, 1200):
        world.clock.sleep(0.05)
        world.steps(step)
    assert limit_s() == 8.0
    world.crash()
    point = ResumePoint(checkpoint=None, possible=True, reason="from the beginning")
    world.loop.turn(ev.ResumePointFound(at=world.clock.now(), job="one", attempt=1, point=point))
    assert world.job.number == 2
    plan(4)
    assert limit_s() == 8.0
    plan(8)
    assert limit_s() is None


def test_an_attempt_is_known_after_which_steps_others_were_stopped_for_silence() -> None:
    trials = tuple(
        Trial(attempt=number, at=START, cause=cause, remedy="restart", step=step)
        for number, (cause, step) in enumerate(
            [("stall", 100), ("crash", 150), ("stall_data", 200), ("stall", None)], 2
        )
    )
    job = Job(name="one", since=START, course=Course(trials=trials))
    assert begin_history(JobState(job=job, rules=()), START, START).silences.steps == (100, 200)
    job = replace(job, course=job.course.forgiven(2))
    assert begin_history(JobState(job=job, rules=()), START, START).silences.steps == (200,)


def test_the_steps_made_while_no_daemon_was_there_are_not_missed() -> None:
    world = World()
    world.tick()
    world.steps(1, 2)
    world.clock.sleep(3600)
    job_state = world.loop.job_states["one"]
    seed_history(job_state, [StepRecord(at=START, step=2, loss=1.0)], world.clock.now())
    world.tick()
    assert world.job.phase is Phase.RUNNING
    world.steps(3, 4)
    phases = []
    for _ in range(2):
        world.clock.sleep(30)
        world.loop.turn(ev.RecorderIdle(at=world.clock.now(), job="one", attempt=1))
        phases.append(world.job.phase)
    assert phases == [Phase.RUNNING, Phase.STOPPING]


def test_what_happened_while_no_daemon_ran_is_recorded_in_few_commits() -> None:
    """A training that wrote thousands of lines meanwhile must not keep the first status waiting, a commit each."""
    world = World()
    world.tick()
    at, before = world.clock.now(), world.reported.count("committed")
    for number in range(3000):
        world.inbox.put(ev.OutputSeen(at=at, job="one", attempt=1, new_bytes=1, last_line="a line", offset=number))
    world.loop.run(lambda: True)
    assert world.reported.count("event OutputSeen of one") == 3000
    assert world.reported.count("committed") - before <= 5


class SlowRecord(Reported):
    """A record whose every commit takes half a minute, while the training's steps go on into the inbox."""

    COMMIT_S = 30.0

    def __init__(self, clock: HandClock, inbox: Inbox) -> None:
        super().__init__()
        self.clock, self.inbox, self.step = clock, inbox, 0

    @contextmanager
    def turn(self, now: Moment) -> Iterator[None]:
        yield
        self.lines.append("committed")
        for _ in range(int(self.COMMIT_S)):
            self.clock.sleep(1.0)
            self.put_readings()

    def put_readings(self) -> None:
        """Put what the readers see in a second: a step, a reading of the machine, and a line of output."""
        at, self.step = self.clock.now(), self.step + 1
        record = StepRecord(at=at, step=self.step, loss=1.0)
        self.inbox.put(ev.StepsMade(at=at, job="one", attempt=1, records=(record,), cursor=self.step))
        self.inbox.put(ev.HostRead(at=at, reading=HostReading(at=at)))
        self.inbox.put(ev.OutputSeen(at=at, job="one", attempt=1, new_bytes=1, last_line="a line", offset=self.step))


def test_a_record_that_is_written_slowly_makes_no_stall_of_a_training_that_steps() -> None:
    world = World()
    record = SlowRecord(world.clock, world.inbox)
    loop = Loop(world.clock, world.inbox, record, record)
    loop.job_states = world.loop.job_states
    loop.run(lambda: record.count("committed") >= 20)
    assert (world.job.phase, world.job.number) == (Phase.RUNNING, 1)
    assert [line for line in record.lines if line.startswith("acted")] == ["acted Launch"]
    last_step = world.job.attempt.last_step if world.job.attempt else None
    assert last_step is not None
    assert last_step >= 18 * SlowRecord.COMMIT_S, "what was put during a commit is known after the next"
