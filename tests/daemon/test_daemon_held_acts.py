"""What a turn decided waits for its commit: a stop or kill 1 s, a launch 20 s at most; a job's acts keep order."""

from __future__ import annotations

from dataclasses import replace

from clocks_by_hand import START

from supervisor.core import decisions as de
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.daemon.held_acts import ACT_ANYWAY_S, LAUNCH_ANYWAY_S, Act, HeldActs
from supervisor.daemon.job_state import JobState


class SlowRecord:
    """A record of which turns up to `settled` are in the file."""

    def __init__(self) -> None:
        self.turn, self.settled = 0, 0

    @property
    def unsettled_turn(self) -> int | None:
        return self.turn if self.settled < self.turn else None

    def is_settled(self, turn: int, now: Moment) -> bool:
        return self.settled >= turn


class World:
    """Decisions of two jobs, and what was carried out."""

    def __init__(self) -> None:
        self.record, self.done, self.unrecorded = SlowRecord(), list[str](), list[str]()
        self.acts = HeldActs(self.record, self.carry_out)
        self.states = {name: JobState(job=Job(name=name, since=START), rules=()) for name in ("one", "two")}

    def carry_out(self, act: Act) -> None:
        self.done.append(f"{type(act.decision).__name__} {act.job.name}")
        self.unrecorded += [] if act.recorded else self.done[-1:]

    def decide(self, *decisions: de.Decision, at_s: float = 0.0) -> None:
        """One turn at which these were decided."""
        self.record.turn += 1
        self.acts.take([(item, self.states[item.job]) for item in decisions], self.record.unsettled_turn, at(at_s))
        self.acts.release(at(at_s))

    def release(self, at_s: float) -> list[str]:
        self.acts.release(at(at_s))
        return self.done


def at(seconds: float) -> Moment:
    return START.plus(seconds)


def stop(job: str) -> de.Stop:
    return de.Stop(at=START, job=job, attempt=1, reason="stalled", save=True)


def kill(job: str) -> de.Kill:
    return de.Kill(at=START, job=job, attempt=1, reason="it did not end")


def launch(job: str) -> de.Launch:
    return de.Launch(at=START, job=job, attempt=2, resume_from=None, reason="start")


def test_nothing_is_acted_on_before_it_is_recorded() -> None:
    world = World()
    world.decide(stop("one"), launch("two"))
    assert world.release(ACT_ANYWAY_S - 0.01) == []
    assert world.acts.holding
    world.record.settled = 1
    assert world.release(ACT_ANYWAY_S - 0.01) == ["Stop one", "Launch two"]
    assert not world.acts.holding


def test_a_stop_and_a_kill_wait_a_second_for_a_slow_disk_and_a_launch_until_the_disk_counts_as_silent() -> None:
    world = World()
    world.decide(launch("two"), stop("one"))
    assert world.release(ACT_ANYWAY_S) == ["Stop one"]
    world.decide(kill("one"), at_s=3)
    assert world.release(3 + ACT_ANYWAY_S) == ["Stop one", "Kill one"]
    assert world.release(LAUNCH_ANYWAY_S - 0.01) == ["Stop one", "Kill one"]
    assert world.release(LAUNCH_ANYWAY_S)[-1] == "Launch two"
    assert world.unrecorded == ["Stop one", "Kill one", "Launch two"]


def test_a_last_resort_is_never_taken_before_it_is_recorded() -> None:
    world = World()
    world.decide(de.LastResort(at=START, job="one", attempt=1, reason="the gpu is lost", kind="reboot", command=("x",)))
    assert world.release(86_400) == []
    world.record.settled = 1
    assert world.release(86_400) == ["LastResort one"]
    assert world.unrecorded == []


def test_a_stop_does_not_overtake_the_launch_of_its_own_attempt() -> None:
    world = World()
    world.decide(launch("one"))
    world.decide(stop("one"), stop("two"), at_s=1)
    held = world.release(LAUNCH_ANYWAY_S - 0.01)
    assert held == ["Stop two"], "the launch would come after it, and nobody would stop that"
    world.record.settled = 2
    assert world.release(LAUNCH_ANYWAY_S - 0.01) == ["Stop two", "Launch one", "Stop one"]


def test_what_needs_no_commit_is_carried_out_at_once() -> None:
    world = World()
    world.record.settled = 9  # a record that cannot be written at all settles every turn
    world.decide(launch("one"))
    assert world.done == ["Launch one"]


def test_an_act_has_the_job_as_it_was_when_it_was_decided() -> None:
    world = World()
    seen: list[int] = []
    acts = HeldActs(world.record, lambda act: seen.append(len(act.job.reason or "")))
    world.record.turn = 1
    state = world.states["one"]
    acts.take([(stop("one"), state)], 1, START)
    state.job = replace(state.job, reason="moved on")
    world.record.settled = 1
    acts.release(START)
    assert seen == [0]


def test_an_act_for_which_there_was_no_room_is_tried_again_before_what_came_later() -> None:
    world = World()
    short = [True]

    def carry_out(act: Act) -> None:
        if isinstance(act.decision, de.Stop) and short:
            short.clear()
            acts.take_back(act)
        else:
            world.carry_out(act)

    acts = HeldActs(world.record, carry_out)
    acts.take([(stop("one"), world.states["one"])], None, START)
    acts.release(START)
    assert (world.done, acts.holding) == ([], True)
    acts.take([(kill("one"), world.states["one"])], None, START)
    acts.release(START)
    assert world.done == ["Stop one", "Kill one"]
