"""Dead worker: gone, not let go, and nothing steps."""

from __future__ import annotations

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.readings import Stage
from supervisor.core.rules.dead_worker import DeadWorker

from .long_stories import LongStory, trained

RULE = DeadWorker()
PARENT = 4242


def loading(*, ended: bool = False, iterable: bool = False) -> LongStory:
    """A training with two loader workers."""
    timeline = trained().rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[51, 52], training=True, iterable=iterable)
    timeline.alive(5, 1, PARENT, 51, 52)
    if ended:
        timeline.rank_says(ev.AgentEvent.WORKERS, loader=1, pids=[], ended=True)
    return timeline.silence(1)


def test_a_worker_gone_while_nothing_steps_acts() -> None:
    flag = loading().alive(20, 1, PARENT, 52).check(RULE)
    assert flag is not None
    assert flag.severity is Severity.CRITICAL
    assert flag.message.startswith("a data loader worker (pid 51) is gone for 20 s and no step was made for ")


def test_a_second_short_is_none() -> None:
    assert loading().alive(19, 1, PARENT, 52).check(RULE) is None


def test_a_step_interrupts() -> None:
    assert loading().alive(15, 1, PARENT, 52).steps(101, 101).alive(15, 1, PARENT, 52).check(RULE) is None


def test_a_tree_that_is_not_listed_or_not_read_says_nothing() -> None:
    assert loading().alive(30, 1, PARENT, listed=False).check(RULE) is None
    assert loading().alive(30, 1, PARENT, 52).silence(61).check(RULE) is None
    assert loading().silence(61).check(RULE) is None


def test_a_worker_that_was_released_or_had_its_own_end_is_not_missed() -> None:
    assert loading(ended=True).alive(60, 1, PARENT).check(RULE) is None
    assert loading(iterable=True).alive(60, 1, PARENT, 52).check(RULE) is None


def test_the_workers_of_a_process_that_is_gone_are_not_missed() -> None:
    assert loading().alive(60, 1).check(RULE) is None


def test_during_validation_nothing_is_missed() -> None:
    assert loading().stage(Stage.VALIDATE).alive(60, 1, PARENT, 52).check(RULE) is None


def test_a_worker_that_began_after_the_newest_reading_of_the_tree_is_not_missing() -> None:
    timeline = trained().alive(30, 1, PARENT)
    timeline.rank_says(ev.AgentEvent.WORKERS, loader=2, pids=[61], training=True)
    assert timeline.check(RULE) is None
    [gauge] = RULE.measure(timeline.history)
    assert (gauge.now, gauge.lacks) == (0.0, "one that is gone")
    assert timeline.silence(1).alive(19, 1, PARENT).check(RULE) is None
    flag = timeline.alive(2, 1, PARENT).check(RULE)
    assert flag is not None
    assert flag.message.startswith("a data loader worker (pid 61) is gone for 21 s ")


def test_a_rank_that_is_gone_is_reported() -> None:
    timeline = trained()
    for rank in (0, 1):
        timeline.rank_says(ev.AgentEvent.CLAIMED, rank=rank, pid=PARENT + rank)
    flag = timeline.alive(3, PARENT, PARENT + 1).silence(1).alive(25, PARENT).check(RULE)
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "rank 1")
    assert timeline.alive(25, 7).check(RULE) is None


def test_a_worker_that_went_with_the_exception_that_ends_its_training_is_not_missed() -> None:
    raised = loading().rank_says(ev.AgentEvent.EXCEPTION, type="OutOfMemoryError", message="CUDA out of memory.")
    assert raised.alive(60, 1, PARENT, 52).check(RULE) is None


def test_an_exception_that_the_training_outlived_excuses_no_worker() -> None:
    timeline = loading().rank_says(ev.AgentEvent.EXCEPTION, type="ValueError", message="of a thread").steps(101, 101)
    assert timeline.alive(21, 1, PARENT, 52).check(RULE) is not None
