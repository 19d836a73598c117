"""The end of an attempt is told last, and only when nothing of it runs any more."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clocks_by_hand import until

from supervisor.children.file_asks import FileServer
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage
from supervisor.daemon.attempt_reader import (
    GIVEN_UP_AT_MOST,
    HUNG_S,
    RANKS_LIMIT,
    WAITING_LIMIT,
    AttemptReader,
    FollowedAttempt,
)
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.inbox import Inbox
from supervisor.sources.attempt.output import OutputPage, OutputReader
from supervisor.sources.attempt.recorder import RecorderPage, RecorderReader
from tests.rigs.hanging_fs import hanging
from tests.sources.recorder_by_hand import Writer


class Leftovers:
    """What a dead shim left running, until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.none = True

    def __call__(self, job: str, folder: Path, has_exit_record: bool) -> bool:
        self.asked += 1
        return self.none


@pytest.fixture
def events() -> list[ev.Event]:
    return []


@pytest.fixture
def leftovers() -> Leftovers:
    return Leftovers()


@pytest.fixture
def watch(events: list[ev.Event], leftovers: Leftovers) -> Iterator[AttemptReader]:
    item = AttemptReader(SystemClock(), events.append, leftovers)
    item.start()
    yield item
    item.end()
    item.join(120)
    assert not item.is_alive()


def has_event(events: list[ev.Event], kind: type[ev.Event]) -> Callable[[], bool]:
    return lambda: any(isinstance(event, kind) for event in events)


def followed(folder: Path) -> FollowedAttempt:
    (folder / fo.RUN).mkdir(parents=True, exist_ok=True)
    return FollowedAttempt(job="one", attempt=1, folder=folder, output_limit_bytes=1_000_000)


def test_everything_an_attempt_left_is_reported_before_its_end(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    watch.follow(followed(tmp_path))
    words = {"event": "train_end", "pid": 1, "rank": 0, "monotonic_ns": 1, "unix_s": 1.0, "epoch": 1, "step": 9}
    (tmp_path / fo.AGENT).write_text(json.dumps(words) + "\n")
    (tmp_path / fo.OUTPUT).write_text("the last line\nand half a one")
    (tmp_path / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 0, "signal": None}))
    watch.gone("one", 1)
    until(has_event(events, ev.Exited), "the end")
    kinds = [type(event) for event in events]
    assert kinds[-1] is ev.Exited
    assert {ev.AgentReported, ev.OutputSeen} <= set(kinds)
    last = [event for event in events if isinstance(event, ev.OutputSeen)][-1]
    assert last.last_line == "and half a one"


def test_an_attempt_without_a_last_word_is_lost(watch: AttemptReader, events: list[ev.Event], tmp_path: Path) -> None:
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(has_event(events, ev.HostLost), "the loss")


def test_an_attempt_of_an_earlier_boot_went_down_with_the_machine(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    item = followed(tmp_path)
    item.other_boot = True
    watch.follow(item)
    watch.gone("one", 1)
    until(has_event(events, ev.HostLost), "the loss")
    (lost,) = [event for event in events if isinstance(event, ev.HostLost)]
    assert lost.reason.startswith("the machine went down while it ran")


@pytest.mark.parametrize(("forged", "end"), [(False, ev.HostLost), (True, ev.Exited)])
def test_an_attempt_is_not_over_while_what_its_dead_shim_left_still_runs(
    watch: AttemptReader,
    events: list[ev.Event],
    leftovers: Leftovers,
    tmp_path: Path,
    end: type[ev.Event],
    *,
    forged: bool,
) -> None:
    """Not even where the training has written how it ended."""
    leftovers.none = False
    watch.follow(followed(tmp_path))
    if forged:
        (tmp_path / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 0, "signal": None}))
    watch.gone("one", 1)
    until(lambda: leftovers.asked >= 3, "several looks")
    assert not has_event(events, end)()
    leftovers.none = True
    until(has_event(events, end), "the end")
    assert sum(isinstance(event, ev.HostLost | ev.Exited) for event in events) == 1


def test_the_end_of_an_unknown_attempt_is_nobodys(watch: AttemptReader, events: list[ev.Event], tmp_path: Path) -> None:
    watch.gone("one", 7)
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(has_event(events, ev.HostLost), "the loss of the known one")
    assert len([event for event in events if isinstance(event, ev.HostLost)]) == 1


def test_damaged_files_are_survived_and_what_follows_is_read(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    (tmp_path / fo.RUN).mkdir()
    (tmp_path / fo.RECORDER).write_bytes(b"\xff" * 5000)
    (tmp_path / fo.AGENT).write_bytes(b"\xff{no json\n")
    (tmp_path / fo.OUTPUT).mkdir()
    watch.follow(followed(tmp_path))
    sound = tmp_path / "sound"
    (sound / fo.RUN).mkdir(parents=True)
    (sound / fo.OUTPUT).write_text("all is well\n")
    watch.follow(FollowedAttempt(job="two", attempt=1, folder=sound, output_limit_bytes=1_000_000))
    until(has_event(events, ev.OutputSeen), "the other attempt's output")
    assert watch.is_alive()
    assert not any(isinstance(event, ev.SupervisionChanged) and event.job == "two" for event in events)


def test_how_far_was_looked_is_known_from_the_first_step_on(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    (tmp_path / fo.RUN).mkdir()
    Writer(tmp_path / fo.RECORDER).write_and_close(1)
    watch.follow(followed(tmp_path))
    until(has_event(events, ev.StepsMade), "the step")
    kinds = [type(event) for event in events if isinstance(event, (ev.RecorderIdle, ev.StepsMade))]
    assert kinds[:2] == [ev.RecorderIdle, ev.StepsMade]


def test_a_wait_that_lasts_is_a_stage_and_a_short_one_is_none(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    def put(offset: int, content: bytes) -> None:
        with (tmp_path / fo.RECORDER).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    def stages() -> list[Stage]:
        return [event.stage for event in events if isinstance(event, ev.StageEntered)]

    (tmp_path / fo.RUN).mkdir()
    identity = fo.IDENTITY.pack(fo.MAGIC, fo.HEADER_BYTES, fo.RECORD.size, 8, 0)
    (tmp_path / fo.RECORDER).write_bytes(identity.ljust(fo.HEADER_BYTES + 8 * fo.RECORD.size, b"\0"))
    began_ns = time.monotonic_ns()
    put(fo.STAGE_OFFSET, fo.STAGE.pack(fo.STAGES.index("step"), 0, began_ns))
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(fo.ASIDES.index("data_wait"), 1, time.monotonic_ns() + 10**12))
    watch.follow(followed(tmp_path))
    until(lambda: stages() == [Stage.STEP], "the stage around it")
    until(lambda: sum(isinstance(event, ev.RecorderIdle) for event in events) >= 2, "word that there was no step")
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(fo.ASIDES.index("data_wait"), 1, began_ns - 10**10))
    until(lambda: stages() == [Stage.STEP, Stage.DATA_WAIT], "the wait")
    put(fo.ASIDE_OFFSET, fo.ASIDE.pack(0, 1, time.monotonic_ns()))
    until(lambda: stages() == [Stage.STEP, Stage.DATA_WAIT, Stage.STEP], "the end of the wait")
    entered = [event for event in events if isinstance(event, ev.StageEntered)]
    assert entered[1].at.monotonic_s == pytest.approx(began_ns / 1e9 - 10)
    assert entered[2].at.monotonic_s > began_ns / 1e9, "not since the stage around it began"
    assert all(item.stages_complete for item in entered)


def descriptors(folder: Path) -> int:
    """Return how many files of a folder this process holds open, whatever other threads have open elsewhere."""
    held = []
    for item in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed since it was listed
            held.append(item.readlink())
    return sum(path.is_relative_to(folder) for path in held)


def test_restarts_cost_no_descriptor(watch: AttemptReader, events: list[ev.Event], tmp_path: Path) -> None:
    """604 restarts once held 604 recorders open, and at 1,024 nothing could be launched."""
    before = descriptors(tmp_path)
    for number in range(1, 41):
        folder = tmp_path / str(number)
        (folder / fo.RUN).mkdir(parents=True)
        Writer(folder / fo.RECORDER).write_and_close(1)
        Writer(folder / fo.RUN / "recorder.rank1.bin").write_and_close(1)
        (folder / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 1, "signal": None}))
        watch.follow(FollowedAttempt(job="one", attempt=number, folder=folder, output_limit_bytes=1_000_000))
        watch.gone("one", number)
    until(lambda: sum(isinstance(event, ev.Exited) for event in events) == 40, "every end")
    assert sum(isinstance(event, ev.StepsMade) for event in events) == 80
    assert descriptors(tmp_path) <= before + 1


def test_files_that_call_themselves_recorders_cost_a_bounded_number_of_readers(tmp_path: Path) -> None:
    before = descriptors(tmp_path)
    (tmp_path / fo.RUN).mkdir()
    for number in range(1, 1500):
        (tmp_path / fo.RUN / f"recorder.rank{number}.bin").write_bytes(b"x" * 5000)
    item, now = followed(tmp_path), SystemClock().now()
    item.find_ranks()
    assert all(reader.read(0, now).problem for reader in item.recorders.values())
    assert len(item.recorders) <= RANKS_LIMIT
    assert descriptors(tmp_path) <= before
    item.close()


def test_a_job_whose_events_wait_is_not_read_on_until_they_are_taken(
    events: list[ev.Event], leftovers: Leftovers, tmp_path: Path
) -> None:
    waiting = [WAITING_LIMIT]
    watch = AttemptReader(SystemClock(), events.append, leftovers, lambda job: waiting[0] if job == "one" else 0)
    other = tmp_path / "other"
    for folder in (tmp_path, other):
        (folder / fo.RUN).mkdir(parents=True, exist_ok=True)
        Writer(folder / fo.RECORDER).write_and_close(7)
    watch.follow(followed(tmp_path))
    watch.follow(FollowedAttempt(job="two", attempt=1, folder=other, output_limit_bytes=1_000_000))
    watch.start()
    try:
        until(has_event(events, ev.StepsMade), "the other job's step")
        assert {event.job for event in events if isinstance(event, ev.StepsMade)} == {"two"}
        waiting[0] = 0
        until(
            lambda: {event.job for event in events if isinstance(event, ev.StepsMade)} == {"one", "two"}, "both steps"
        )
    finally:
        watch.end()
        watch.join(120)


class HangingOutput(OutputReader):
    """An output file on a file system that does not answer, until it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1_000_000)
        self.hangs, self.go = threading.Event(), threading.Event()

    def read(self, now: Moment) -> OutputPage:
        self.hangs.set()
        assert self.go.wait(120)
        return super().read(now)


class DyingOutput(OutputReader):
    """Ends the thread that reads it, the first time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1_000_000)
        self.died = False

    def read(self, now: Moment) -> OutputPage:
        if not self.died:
            self.died = True
            sys.exit("the thread ends here")
        return super().read(now)


def say(folder: Path, epoch: int) -> None:
    word = {"event": "train_end", "pid": 1, "rank": 0, "monotonic_ns": 1, "unix_s": 1.0, "epoch": epoch, "step": 9}
    with (folder / fo.AGENT).open("a") as log:
        log.write(json.dumps(word) + "\n")


def later(seconds: float) -> Moment:
    return SystemClock().now().plus(seconds)


def degraded(events: list[ev.Event]) -> list[tuple[str, str, bool]]:
    return [(event.job, event.place, event.recovered) for event in events if isinstance(event, ev.SupervisionChanged)]


def test_a_reading_that_hangs_is_named_and_left_out_and_everything_else_is_read(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    threads_before = threading.active_count()
    ill, well = tmp_path / "ill", tmp_path / "well"
    for place in (ill, well):
        (place / fo.RUN).mkdir(parents=True)
        (place / fo.OUTPUT).write_text(f"of {place.name}\n")
    hung = FollowedAttempt(job="ill", attempt=1, folder=ill, output_limit_bytes=1_000_000)
    hung.output = output = HangingOutput(ill)
    watch.follow(hung)
    assert output.hangs.wait(120)
    watch.follow(FollowedAttempt(job="well", attempt=1, folder=well, output_limit_bytes=1_000_000))
    until(
        lambda: any(isinstance(event, ev.OutputSeen) and event.job == "well" for event in events), "the other's output"
    )
    watch.check(later(HUNG_S - 1))
    assert degraded(events) == []
    watch.check(later(HUNG_S + 1))
    assert degraded(events) == [("ill", f"reading {fo.OUTPUT}", False)]
    say(ill, 1)
    until(has_event(events, ev.AgentReported), "a word of the attempt whose output hangs")
    output.go.set()
    until(lambda: ("ill", f"reading {fo.OUTPUT}", True) in degraded(events), "word that it reads again")
    assert any(isinstance(event, ev.OutputSeen) and event.last_line == "of ill" for event in events)
    with (ill / fo.OUTPUT).open("a") as file:
        file.write("and on\n")
    until(
        lambda: any(isinstance(event, ev.OutputSeen) and event.last_line == "and on" for event in events),
        "what follows",
    )
    watch.check(later(0))
    assert threading.active_count() - threads_before < 8


class HangingRecorder(RecorderReader):
    """A recorder on a file system that does not answer, until it is let."""

    hangs, go = threading.Semaphore(0), threading.Event()

    def read(self, *given: Any, **named: Any) -> RecorderPage:
        self.hangs.release()
        assert self.go.wait(120)
        return super().read(*given, **named)


def test_of_a_job_whose_files_all_hang_no_more_threads_are_given_up_than_it_may_have(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    (tmp_path / fo.RUN).mkdir(exist_ok=True)
    (tmp_path / fo.OUTPUT).write_text("a line\n")
    item = followed(tmp_path)
    item.recorders = {rank: HangingRecorder(tmp_path) for rank in range(2 * GIVEN_UP_AT_MOST)}
    watch.follow(item)
    for _ in range(GIVEN_UP_AT_MOST + 1):
        assert HangingRecorder.hangs.acquire(timeout=120)
        watch.check(later(HUNG_S + 1))
    for _ in range(3):
        watch.check(later(HUNG_S + 1))
    following = [thread for thread in threading.enumerate() if thread.name == f"follow-{item.job}"]
    assert len(following) == GIVEN_UP_AT_MOST + 1
    assert len(degraded(events)) == GIVEN_UP_AT_MOST + 1
    HangingRecorder.go.set()
    until(has_event(events, ev.OutputSeen), "the output, once they answer")
    until(lambda: not item.blocked, "word of each that it reads again")
    until(lambda: sum(thread.is_alive() for thread in following) <= 1, "those that were given up to end")


FOLLOWING = """
import sys
from pathlib import Path
from supervisor.children.files_apart import apart, keep_files_apart
from supervisor.daemon.attempt_reader import AttemptReader, FollowedAttempt
from supervisor.daemon.clock import SystemClock

keep_files_apart()
reader = AttemptReader(SystemClock(), lambda event: print(type(event).__name__, flush=True), lambda *attempt: True)
reader.look = apart
reader.follow(FollowedAttempt(job="one", attempt=1, folder=Path(sys.argv[1]), output_limit_bytes=1_000_000))
reader.start()
sys.stdin.read()
"""


@pytest.mark.mounts
def test_a_process_that_reads_apart_ends_although_sigkill_does_not_end_the_read(tmp_path: Path) -> None:
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        (far.at / fo.RUN).mkdir()
        say(far.at, 1)
        command = [sys.executable, "-c", FOLLOWING, str(far.at)]
        daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"AgentReported\n"
        held = far.held
        far.hang(beyond_sigkill=True)
        until(lambda: far.held > held, "a read that hangs")
        daemon.stdin.close()
        assert daemon.wait(60) == 0
        daemon.stdout.close()


@pytest.mark.mounts
@pytest.mark.parametrize("apart", [False, True])
def test_a_recorder_that_cannot_be_read_is_reported_and_not_taken_for_one_without_steps(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path, *, apart: bool
) -> None:
    """Read in another process, which opens it each time, as a node's daemon does; and here, where it was never open."""

    def idle() -> int:
        return sum(isinstance(event, ev.RecorderIdle) for event in events)

    def changed(*, recovered: bool) -> bool:
        place = ev.reading_place(fo.RECORDER)
        found = [event for event in events if isinstance(event, ev.SupervisionChanged) and event.place == place]
        return any(event.recovered == recovered for event in found)

    server = FileServer()
    watch.look = server.do if apart else watch.look
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        (far.at / fo.RUN).mkdir()
        Writer(far.at / fo.RECORDER).write_and_close(1)
        if apart:
            watch.follow(followed(far.at))
            until(lambda: idle() >= 2, "word that there is no further step")
        far.failure, far.all_fails = errno.EIO, True
        if not apart:
            watch.follow(FollowedAttempt(job="one", attempt=1, folder=far.at, output_limit_bytes=1_000_000))
        until(lambda: changed(recovered=False), "word that it cannot be read")
        before, looks = idle(), far.failed
        until(lambda: far.failed > looks + 20, "several looks")
        assert idle() == before
        far.failure, far.all_fails = None, False
        until(lambda: changed(recovered=True), "word that it can be read again")
        until(lambda: idle() > before, "word that there is no further step")
        watch.end()
        watch.join(120)
    if apart:
        os.kill(server.pid or 0, signal.SIGKILL)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_recorder_that_its_training_wrote_over_is_reported_and_not_taken_for_one_without_steps(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path, steps: int
) -> None:
    if steps:
        watch.follow(followed(tmp_path))
        Writer(tmp_path / fo.RECORDER).write_and_close(3)
        until(has_event(events, ev.StepsMade), "its steps")
    (tmp_path / fo.RUN).mkdir(exist_ok=True)
    (tmp_path / fo.RECORDER).write_bytes(b"x" * 8192)
    if not steps:
        watch.follow(followed(tmp_path))
    until(has_event(events, ev.SupervisionChanged), "word that it cannot be read")
    (changed,) = (event for event in events if isinstance(event, ev.SupervisionChanged))
    assert (changed.place, changed.recovered) == (ev.reading_place(fo.RECORDER), False)
    assert "wrong magic" in changed.error
    assert "none is missed" in changed.error
    idle = sum(isinstance(event, ev.RecorderIdle) for event in events)
    (tmp_path / fo.OUTPUT).write_text("looked again\n")
    until(has_event(events, ev.OutputSeen), "a later look")
    assert sum(isinstance(event, ev.RecorderIdle) for event in events) == idle


@pytest.mark.parametrize("is_over", [False, True])
def test_a_recorder_for_which_the_shim_had_no_room_is_named_until_the_training_makes_it_or_is_over(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path, *, is_over: bool
) -> None:
    def degraded() -> list[tuple[bool, str]]:
        found = [event for event in events if isinstance(event, ev.SupervisionChanged)]
        return [(event.recovered, event.error) for event in found if event.place == ev.reading_place(fo.RECORDER)]

    attempt = followed(tmp_path)
    note = {"pid": 7, "start_ticks": 1, "boot_id": "b", "problem": "recorder.bin: No space left on device"}
    (tmp_path / fo.SHIM).write_text(json.dumps(note))
    watch.follow(attempt)
    until(lambda: bool(degraded()), "word that there is none")
    assert degraded()[0][1].startswith("ValueError: recorder.bin: No space left on device; until it can be read")
    assert not has_event(events, ev.RecorderIdle)(), "no time without a step counts"
    if is_over:
        watch.gone("one", 1)
        until(lambda: [recovered for recovered, _ in degraded()] == [False, True], "word that none is missed any more")
        return
    Writer(tmp_path / fo.RECORDER).write_and_close(1)
    until(lambda: [recovered for recovered, _ in degraded()] == [False, True], "word that there is one")
    until(has_event(events, ev.StepsMade), "its step")


def test_what_is_read_apart_is_what_is_read_here(events: list[ev.Event], tmp_path: Path) -> None:
    server = FileServer()
    try:
        watch = AttemptReader(SystemClock(), events.append, Leftovers())
        watch.look = server.do
        watch.start()
        test_everything_an_attempt_left_is_reported_before_its_end(watch, events, tmp_path)
        watch.end()
        watch.join(120)
    finally:
        os.kill(server.pid or 0, signal.SIGKILL)


def test_output_that_is_not_to_be_found_after_a_restart_is_reported_once_and_means_no_silence(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    item = followed(tmp_path)
    (tmp_path / fo.OUTPUT).touch()
    item.output = OutputReader(tmp_path, 1_000_000, offset=100)
    watch.follow(item)
    until(has_event(events, ev.SupervisionChanged), "word of it")
    with (tmp_path / fo.OUTPUT).open("a") as file:
        file.write("of another program\n")
    until(has_event(events, ev.OutputSeen), "what is at the path")
    (changed,) = [event for event in events if isinstance(event, ev.SupervisionChanged)]
    assert (changed.place, changed.recovered) == (ev.reading_place(fo.OUTPUT), False)
    assert "was moved or removed while the training writes to it" in changed.error


def test_output_that_is_shorter_after_a_machine_went_down_is_no_warning_of_an_attempt_that_is_over(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    item = followed(tmp_path)
    (tmp_path / fo.OUTPUT).write_text("what reached the disk\n")
    item.output, item.gone, item.other_boot = OutputReader(tmp_path, 1_000_000, offset=100), True, True
    watch.follow(item)
    until(has_event(events, ev.HostLost), "the end")
    assert has_event(events, ev.OutputSeen)()
    assert not has_event(events, ev.SupervisionChanged)()


def test_an_end_is_reported_although_a_file_of_it_hangs(
    watch: AttemptReader, events: list[ev.Event], tmp_path: Path
) -> None:
    item = followed(tmp_path)
    item.output = output = HangingOutput(tmp_path)
    watch.follow(item)
    assert output.hangs.wait(120)
    (tmp_path / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 3, "signal": None}))
    watch.gone("one", 1)
    watch.check(later(HUNG_S + 1))
    until(has_event(events, ev.Exited), "the end")
    output.go.set()


@pytest.mark.alone(reason="compares a duration with a limit")
def test_what_hangs_while_it_is_caught_up_with_is_not_waited_for(events: list[ev.Event], tmp_path: Path) -> None:
    ill, well = tmp_path / "ill", tmp_path / "well"
    (ill / fo.RUN).mkdir(parents=True)
    (well / fo.RUN).mkdir(parents=True)
    say(well, 1)
    watch = AttemptReader(SystemClock(), events.append, Leftovers())
    hung = FollowedAttempt(job="ill", attempt=1, folder=ill, output_limit_bytes=1_000_000)
    hung.output = output = HangingOutput(ill)
    watch.follow(hung)
    watch.follow(FollowedAttempt(job="well", attempt=1, folder=well, output_limit_bytes=1_000_000))
    began = SystemClock().now()
    watch.catch_up(limit_s=0.5)
    assert SystemClock().now().seconds_since(began) < 5
    assert has_event(events, ev.AgentReported)(), "what the other one said is known before anything is decided"
    watch.end()
    output.go.set()
    watch.join(120)
    assert not watch.is_alive()


def test_an_end_that_takes_long_to_be_read_belongs_to_what_is_caught_up_with(
    events: list[ev.Event], tmp_path: Path
) -> None:
    """Its last step may be older than a stall may last: judged before its end is known it would be a stall."""
    asked, go_on = threading.Event(), threading.Event()

    def cleared(job: str, folder: Path, has_exit_record: bool) -> bool:
        asked.set()
        return go_on.wait(120)

    watch = AttemptReader(SystemClock(), events.append, cleared)
    ended = followed(tmp_path)
    watch.follow(ended)
    watch.gone("one", 1)
    starting = threading.Thread(target=watch.catch_up)
    starting.start()
    assert asked.wait(120)
    assert not ended.caught_up.is_set()
    assert starting.is_alive()
    go_on.set()
    starting.join(120)
    assert isinstance(events[-1], ev.HostLost)
    watch.end()
    watch.join(120)


@pytest.mark.alone(reason="compares a duration with a limit")
def test_leftovers_that_do_not_end_hold_up_a_start_for_a_bounded_time(tmp_path: Path) -> None:
    leftovers = Leftovers()
    leftovers.none = False
    watch = AttemptReader(SystemClock(), Inbox().put, leftovers)
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    began = SystemClock().now()
    watch.catch_up(limit_s=0.5)
    assert SystemClock().now().seconds_since(began) < 5
    assert leftovers.asked
    watch.end()
    watch.join(120)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced(watch: AttemptReader, events: list[ev.Event], tmp_path: Path) -> None:
    (tmp_path / fo.RUN).mkdir(exist_ok=True)
    (tmp_path / fo.OUTPUT).write_text("a line\n")
    item = followed(tmp_path)
    item.output = DyingOutput(tmp_path)
    watch.follow(item)
    until(lambda: item.post.thread is not None and not item.post.thread.is_alive(), "the thread to die")
    assert not has_event(events, ev.OutputSeen)()
    watch.check(later(0))
    until(has_event(events, ev.OutputSeen), "the output, read by another thread")
    assert item.post.restarts == 1


def test_leftovers_that_cannot_be_asked_for_are_asked_for_again(events: list[ev.Event], tmp_path: Path) -> None:
    asked: list[Path] = []

    def cleared(job: str, folder: Path, has_exit_record: bool) -> bool:
        asked.append(folder)
        if len(asked) < 3:
            raise ValueError("systemd says what nobody expects")
        return True

    watch = AttemptReader(SystemClock(), events.append, cleared)
    watch.start()
    watch.follow(followed(tmp_path))
    watch.gone("one", 1)
    until(has_event(events, ev.HostLost), "the loss")
    watch.end()
    watch.join(120)
    assert degraded(events) == [
        ("one", "reading what is left of it", False),
        ("one", "reading what is left of it", True),
    ]


def test_that_nothing_is_left_is_known_although_the_thread_that_found_it_was_replaced(
    events: list[ev.Event], tmp_path: Path
) -> None:
    """On a machine with thousands of processes each look may take longer than a thread is waited for."""
    asked, answered = threading.Event(), threading.Event()

    def look_slowly(job: str, folder: Path, has_exit_record: bool) -> bool:
        assert not asked.is_set(), "looked at again"
        asked.set()
        return answered.wait(120)

    watch = AttemptReader(SystemClock(), events.append, look_slowly)
    watch.start()
    item = followed(tmp_path)
    watch.follow(item)
    watch.gone("one", 1)
    assert asked.wait(120)
    watch.check(later(HUNG_S + 1))
    assert item.post.restarts == 1
    answered.set()
    until(has_event(events, ev.HostLost), "the end, reported by the other thread")
    watch.end()
    watch.join(120)


def test_a_flood_of_one_jobs_words_puts_off_no_neighbours_end(leftovers: Leftovers, tmp_path: Path) -> None:
    """1.2 million short words once put off a neighbour's crash by 143 seconds, and took 423 MB."""
    inbox = Inbox()
    watch = AttemptReader(SystemClock(), inbox.put, leftovers, inbox.waiting)
    item, two = tmp_path / "one", tmp_path / "two"
    for folder in (item, two):
        (folder / fo.RUN).mkdir(parents=True)
        (folder / fo.AGENT).touch()
    watch.follow(FollowedAttempt(job="one", attempt=1, folder=item, output_limit_bytes=1_000_000))
    watch.follow(FollowedAttempt(job="two", attempt=1, folder=two, output_limit_bytes=1_000_000))
    watch.start()
    try:
        until(lambda: inbox.waiting("one") > 0 and inbox.waiting("two") > 0, "the first looks")
        with (item / fo.AGENT).open("ab") as file:
            file.write(b'{"event":"alive","monotonic_ns":0}\n' * 1_200_000)
        looks = inbox.waiting("two")
        until(lambda: inbox.waiting("two") >= looks + 6, "many more looks")
        (two / fo.EXIT).write_text(json.dumps({"version": 1, "exit_code": 1, "signal": None}))
        watch.gone("two", 1)
        before = 0
        while not isinstance(event := inbox.get(120.0), ev.Exited):
            assert event is not None
            before += 1
        assert event.job == "two"
        assert before < 3 * WAITING_LIMIT
    finally:
        watch.end()
        watch.join(120)
