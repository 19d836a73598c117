"""The end of an attempt is told last, and only when nothing of it runs any more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clocks_by_hand import until

from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.readings import Stage
from supervisor.daemon.attempt_watch import AttemptWatch, Followed
from supervisor.daemon.clock import SystemClock


class Leftovers:
    """What a dead shim left running, until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.none = True

    def __call__(self, job: str, folder: Path) -> bool:
        self.asked += 1
        return self.none


@pytest.fixture
def events() -> list[ev.Event]:
    return []


@pytest.fixture
def leftovers() -> Leftovers:
    return Leftovers()


@pytest.fixture
def watch(events: list[ev.Event], leftovers: Leftovers) -> Iterator[AttemptWatch]:
    one = AttemptWatch(SystemClock(), events.append, leftovers)
    one.start()
    yield one
    one.end()
    one.join(10)
    assert not one.is_alive()


def told(events: list[ev.Event], kind: type[ev.Event]) -> Callable[[], bool]:
    return lambda: any(isinstance(one, kind) for one in events)


def followed(folder: Path) -> Followed:
    return Followed(job="one", attempt=1, folder=folder, output_limit_bytes=1_000_000)


def test_everything_an_attempt_left_is_told_before_its_end(
    watch: AttemptWatch, events: list[ev.Event], tmp_path: Path
) -> None:
    watch.follow(followed(tmp_path))
    words = {"event": "train_end", "pid": 1, "rank": 0, "monotonic_ns": 1, "unix_s": 1.0, "epoch": 1, "step": 9}
    (tmp_path / fo.AGENT).write_text(json.dumps(words) + "\n")
    (tmp_path / fo.OUTPUT).write_text("the last line\nand half a one")
    (tmp_path / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 0, "signal": None}))
    watch.gone("one", 1)
    until(told(events, ev.Exited), "the end")
    kinds = [type(one) for one in events]
    assert kinds[-1] is ev.Exited
    assert {ev.AgentSaid, ev.OutputSeen} <= set(kinds)
    last = [one for one in events if isinstance(one, ev.OutputSeen)][-1]
    assert last.last_line == "and half a one"


def test_an_attempt_without_a_last_word_is_lost(watch: AttemptWatch, events: list[ev.Event], tmp_path: Path) -> None:
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(told(events, ev.HostLost), "the loss")


def test_an_attempt_of_an_earlier_boot_went_down_with_the_machine(
    watch: AttemptWatch, events: list[ev.Event], tmp_path: Path
) -> None:
    one = followed(tmp_path)
    one.other_boot = True
    watch.follow(one)
    watch.gone("one", 1)
    until(told(events, ev.HostLost), "the loss")
    (lost,) = [event for event in events if isinstance(event, ev.HostLost)]
    assert lost.reason.startswith("the machine went down while it ran")


def test_an_attempt_is_not_over_while_what_its_dead_shim_left_still_runs(
    watch: AttemptWatch, events: list[ev.Event], leftovers: Leftovers, tmp_path: Path
) -> None:
    leftovers.none = False
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(lambda: leftovers.asked >= 3, "several looks")
    assert not told(events, ev.HostLost)()
    leftovers.none = True
    until(told(events, ev.HostLost), "the loss")
    assert sum(isinstance(one, ev.HostLost) for one in events) == 1


def test_the_end_of_an_unknown_attempt_is_nobodys(watch: AttemptWatch, events: list[ev.Event], tmp_path: Path) -> None:
    watch.gone("one", 7)
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(told(events, ev.HostLost), "the loss of the known one")
    assert len([one for one in events if isinstance(one, ev.HostLost)]) == 1


def test_damaged_files_are_survived_and_what_follows_is_read(
    watch: AttemptWatch, events: list[ev.Event], tmp_path: Path
) -> None:
    (tmp_path / fo.RECORDER).write_bytes(b"\xff" * 5000)
    (tmp_path / fo.AGENT).write_bytes(b"\xff{no json\n")
    (tmp_path / fo.OUTPUT).mkdir()
    watch.follow(followed(tmp_path))
    sound = tmp_path / "sound"
    sound.mkdir()
    (sound / fo.OUTPUT).write_text("all is well\n")
    watch.follow(Followed(job="two", attempt=1, folder=sound, output_limit_bytes=1_000_000))
    until(told(events, ev.OutputSeen), "the other attempt's output")
    assert watch.is_alive()


def test_a_wait_that_lasts_is_a_stage_and_a_short_one_is_none(
    watch: AttemptWatch, events: list[ev.Event], tmp_path: Path
) -> None:
    def put(offset: int, content: bytes) -> None:
        with (tmp_path / fo.RECORDER).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    def stages() -> list[Stage]:
        return [one.stage for one in events if isinstance(one, ev.StageEntered)]

    identity = fo.IDENTITY.pack(fo.MAGIC, fo.HEADER_BYTES, fo.RECORD.size, 8, 0)
    (tmp_path / fo.RECORDER).write_bytes(identity.ljust(fo.HEADER_BYTES + 8 * fo.RECORD.size, b"\0"))
    began_ns = time.monotonic_ns()
    put(fo.STAGE_OFFSET, fo.STAGE.pack(fo.STAGES.index("step"), 0, began_ns))
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(fo.ASIDES.index("data_wait"), 1, time.monotonic_ns() + 10**12))
    watch.follow(followed(tmp_path))
    until(lambda: stages() == [Stage.STEP], "the stage around it")
    until(lambda: sum(isinstance(one, ev.Looked) for one in events) >= 2, "word that there was no step")
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(fo.ASIDES.index("data_wait"), 1, began_ns - 10**10))
    until(lambda: stages() == [Stage.STEP, Stage.DATA_WAIT], "the wait")
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(0, 1, time.monotonic_ns()))
    until(lambda: stages() == [Stage.STEP, Stage.DATA_WAIT, Stage.STEP], "the end of the wait")
    entered = [one for one in events if isinstance(one, ev.StageEntered)]
    assert entered[1].at.monotonic_s == pytest.approx(began_ns / 1e9 - 10)
    assert entered[2].at.monotonic_s > began_ns / 1e9, "not since the stage around it began"
    assert all(one.whole for one in entered)
