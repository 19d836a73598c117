"""The collector: saves are captured before they are overwritten, proven against earlier ones, and pruned last."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clocks_by_hand import until

from supervisor.config.settings import CheckpointSettings, JobSettings
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.job import Attempt, Job, Phase, StopOrder
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.candidates import Search, candidates, find, fingerprint
from supervisor.daemon.checkpoints.collector import SETTLED_AFTER_S, UNSETTLED_LOOKS, CollectorDeps, GenerationCollector
from supervisor.daemon.checkpoints.proof_queue import ProofQueue, Saved
from supervisor.daemon.clock import SystemClock
from supervisor.runner.generation_store import GenerationStore
from supervisor.runner.proving import Proof, Prover
from tests.rigs.small_disk import mounted

START = Moment(1000.0, 1_700_000_000.0)


@dataclass
class Place:
    """A job with an attempt that runs, its run folder, and the collector with the watch behind it."""

    runs: Path
    state: Path
    events: list[ev.Event] = field(default_factory=list)
    settings: JobSettings = field(
        default_factory=lambda: JobSettings(
            command=["train"], checkpoints=CheckpointSettings(keep_newest=2, keep_hourly=0, keep_best=0)
        )
    )
    job: Job = field(
        default_factory=lambda: Job(
            name="one", since=START, phase=Phase.RUNNING, attempt=Attempt(number=1, launched_at=START)
        )
    )
    reserve_bytes: int = 0
    examine: Callable[[Path], Proof] = field(default_factory=lambda: Prover().examine)
    collector: GenerationCollector = field(init=False)
    watch: ProofQueue = field(init=False)

    def __post_init__(self) -> None:
        """Make what the daemon's assembly makes."""
        (self.state / "jobs/one/1/run").mkdir(parents=True, exist_ok=True)
        (self.state / "jobs/one/1/run/shim.json").touch()
        world = CollectorDeps(
            clock=SystemClock(),
            put=self.events.append,
            state=self.state,
            settings=lambda _: self.settings,
            job=lambda _: self.job,
            examine=self.examine,
            reserve_bytes=self.reserve_bytes,
        )
        self.watch = ProofQueue(world.clock, self.events.append, self.swept)
        self.collector = GenerationCollector(world, self.watch)

    def swept(self, job: str) -> None:
        self.collector.sweep(job)

    def start(self) -> None:
        self.watch.start()
        self.collector.start()

    def end(self) -> None:
        for thread in (self.collector, self.watch):
            if thread.is_alive():
                thread.end()
                thread.join(120)

    def write(self, name: str, *values: float, shape: list[int] | None = None) -> Path:
        header = {"w": {"dtype": "F32", "shape": shape or [len(values)], "data_offsets": [0, 4 * len(values)]}}
        text = json.dumps(header).encode()
        path = self.runs / name
        path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values))
        return path

    def build_save(self, path: Path, step: int) -> tuple[Saved, Any]:
        seen = fingerprint(path)
        assert seen is not None
        return Saved(
            job="one", attempt=1, path=path, prove=partial(self.collector.proofs.prove, "one"), step=step
        ), seen

    def save(self, name: str, step: int, *values: float, shape: list[int] | None = None) -> Path:
        """Write a file in place, and say that it is whole."""
        path = self.write(name, *(values or (float(step), 1.0)), shape=shape)
        self.collector.saved(*self.build_save(path, step))
        return path

    def kept(self) -> dict[int | None, Checkpoint]:
        return {item.step: item for item in self.collector.store_of("one").all()}

    def seen(self) -> list[Checkpoint]:
        return [event.checkpoint for event in self.events if isinstance(event, ev.CheckpointSeen)]

    def missed(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, ev.CheckpointNotKept)]

    def search(self, **changes: Any) -> Search:
        shelf = self.collector.store_of("one")
        known = {entry.key: entry for entry in self.seen()}
        base = Search(
            known=tuple(known.values()), globs=("*",), cwd=str(self.runs), fault_unix_s=None, fault_step=None,
            batches_per_epoch=None, generations=shelf.all(), generations_folder=str(shelf.folder),
        )  # fmt: skip
        return replace(base, **changes)

    def resume(self, **changes: Any) -> Checkpoint | None:
        return find(self.search(**changes), partial(self.collector.proofs.prove, "one"), self.pass_on).checkpoint

    def pass_on(self, checkpoint: Checkpoint) -> None:
        self.collector.proofs.judge("one", checkpoint)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(**changes: Any) -> Place:
        (tmp_path / "runs").mkdir(exist_ok=True)
        made.append(Place(runs=tmp_path / "runs", state=tmp_path / "state", **changes))
        return made[-1]

    yield make
    for item in made:
        item.end()


@pytest.fixture
def place(make: Callable[..., Place]) -> Place:
    item = make()
    item.start()
    return item


def test_each_save_over_the_same_file_is_a_generation_and_the_newest_are_kept(place: Place) -> None:
    for step in range(1, 4):
        place.save("last.st", step)
        until(lambda step=step: step in place.kept(), f"step {step} to be taken")  # type: ignore[misc]  # bound here
    until(lambda: [entry.kept_by for entry in place.kept().values()] == ["newest"] * 2, "the proofs", 300)
    assert set(place.kept()) == {2, 3}
    until(lambda: {entry.step for entry in place.seen() if entry.kept_by == ""} == {1}, "the first to be let go")


def test_a_resume_takes_the_generation_where_the_file_itself_was_torn(place: Place) -> None:
    path = place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    path.write_bytes(path.read_bytes()[:-3])
    chosen = place.resume()
    assert chosen is not None
    assert (chosen.step, chosen.source) == (10, str(path))
    assert place.collector.store_of("one").holds(chosen)


def test_the_same_save_under_two_names_is_one_generation(place: Place) -> None:
    place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    place.save("best.st", 10)
    place.save("last.st", 20)
    until(lambda: 20 in place.kept(), "the next to be taken")
    assert len(place.collector.store_of("one").all()) == 2


def test_a_file_and_the_link_to_it_are_one_generation(place: Place) -> None:
    """Lightning's `save_last="link"` tells of both at each save."""
    for step in (10, 20):
        path = place.write(f"step={step}.st", float(step), 1.0)
        link = place.runs / "last.st"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        place.collector.saved(*place.build_save(path, step))
        place.collector.saved(*place.build_save(link, step))
        until(lambda: step in place.kept(), "it to be taken")  # noqa: B023 - of this round
    place.save("after.st", 30)
    until(lambda: 30 in place.kept(), "what came after")
    kept = [Path(item.path) for item in place.collector.store_of("one").all()]
    assert kept[-1].parent.name == "000003", "three saves, whatever was let go since"
    assert not any(path.is_symlink() for path in kept)


def test_a_save_that_is_reported_twice_is_captured_once(place: Place) -> None:
    path = place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    place.collector.saved(*place.build_save(path, 10))
    place.save("other.st", 11)
    until(lambda: 11 in place.kept(), "another to be taken")
    assert len(place.collector.store_of("one").all()) == 2


def test_what_the_daemon_took_and_did_not_record_is_found_on_the_shelf(make: Callable[..., Place]) -> None:
    """It died between the copy and the record: the next one knows of no row, and finds the folder."""
    first = make()
    first.collector.start()
    path = first.save("last.st", 10)
    until(lambda: 10 in first.kept(), "it to be taken")
    first.end()
    path.unlink()
    second = make()
    chosen = second.resume()
    assert chosen is not None
    assert (chosen.step, chosen.verdict) == (10, Verdict.PROVEN)
    assert second.kept()[10].verdict is Verdict.PROVEN


def test_a_draft_that_a_dead_daemon_left_is_cleared_away(make: Callable[..., Place]) -> None:
    item = make()
    draft = item.state / "jobs/one/generations/.taking-000001"
    draft.mkdir(parents=True)
    (draft / "last.st").write_bytes(b"half")
    assert item.collector.store_of("one").all() == ()
    assert not draft.exists()


def test_a_poisoned_save_gives_way_to_the_one_before(place: Place) -> None:
    place.save("last.st", 10, 1.0, 2.0)
    until(lambda: 10 in place.kept() and place.kept()[10].verdict is not None, "the first proof")
    path = place.save("last.st", 20, float("nan"), 2.0)
    until(lambda: any(entry.step == 20 and entry.verdict for entry in place.seen()), "the second proof", 300)
    until(lambda: 20 not in place.kept(), "it to be let go")
    chosen = place.resume()
    assert chosen is not None
    assert chosen.step == 10
    assert path.exists(), "the training's own file is not touched"


def test_a_model_of_another_shape_is_rejected_next_to_the_one_before(place: Place) -> None:
    place.save("last.st", 10, *[1.0] * 4)
    until(lambda: 10 in place.kept() and place.kept()[10].verdict is not None, "the first proof")
    place.save("last.st", 20, *[1.0] * 6)
    until(lambda: any(entry.step == 20 and entry.verdict for entry in place.seen()), "the second proof", 300)
    rejected = next(entry for entry in place.seen() if entry.step == 20 and entry.verdict)
    assert rejected.verdict is Verdict.REJECTED
    assert "wrong architecture" in str(rejected.reason)


def matrix(seed: int) -> list[float]:
    return [1.0 if (n * n * 7 + n * seed) % 11 < 5 else -1.0 for n in range(256)]


def test_a_new_course_is_believed_only_when_it_has_lasted(make: Callable[..., Place]) -> None:
    item = make()
    item.job = replace(item.job, phase=Phase.BACKOFF)  # nothing is let go
    for step, seed in ((10, 1), (20, 1), (30, 5), (40, 5), (50, 5)):
        path = item.write(f"{step}.st", *matrix(seed), shape=[16, 16])
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
        item.collector._capture_once(*item.build_save(path, step))
    generations = sorted(item.kept().values(), key=lambda generation: generation.step or 0)
    verdicts = [item.collector.proofs.prove("one", Path(generation.path)).verdict for generation in generations]
    assert verdicts == [Verdict.PROVEN] * 2 + [Verdict.REJECTED] * 2 + [Verdict.PROVEN]


def prove_in_order(item: Place, *saves: tuple[str, int, list[float], list[int]]) -> list[Checkpoint]:
    """Have each file (name, step, values, shape) taken and proven, a minute of its clock a step."""
    item.job = replace(item.job, phase=Phase.BACKOFF)  # nothing is let go
    proven = []
    for number, (name, step, values, shape) in enumerate(saves):
        path = item.write(name, *values, shape=shape)
        os.utime(path, (1_700_000_000 + 60 * step + number, 1_700_000_000 + 60 * step + number))
        item.collector._capture_once(*item.build_save(path, step))
        held = next(kept for kept in item.collector.store_of("one").all() if kept.source == str(path))
        proven.append(item.collector.proofs.prove("one", Path(held.path)))
    return proven


@pytest.mark.parametrize(
    ("critic", "shape"), [(matrix(5), [16, 16]), (matrix(5)[:64], [8, 8])], ids=["of the same shape", "of another"]
)
def test_two_networks_that_are_saved_in_turn_are_each_compared_with_their_own(
    make: Callable[..., Place], critic: list[float], shape: list[int]
) -> None:
    networks = (("netG", matrix(1), [16, 16]), ("netD", critic, shape))
    saves = [(f"{name}_epoch_{n}.st", n, values, size) for n in (1, 2, 3) for name, values, size in networks]
    ruined = ("netD_epoch_4.st", 4, [-value for value in critic], shape)
    other = ("netG_epoch_4.st", 4, [1.0] * 36, [6, 6])
    verdicts = [(found.verdict, str(found.reason)) for found in prove_in_order(make(), *saves, ruined, other)]
    assert [verdict for verdict, _ in verdicts] == [Verdict.PROVEN] * 6 + [Verdict.REJECTED] * 2
    assert "does not continue the previous generation" in verdicts[-2][1]
    assert "wrong architecture" in verdicts[-1][1]


def test_a_file_of_another_name_with_the_same_tensors_has_to_continue_the_newest(make: Callable[..., Place]) -> None:
    saves = [("last.st", 1, matrix(1), [16, 16]), ("best.st", 2, matrix(5), [16, 16])]
    assert [found.verdict for found in prove_in_order(make(), *saves)] == [Verdict.PROVEN, Verdict.REJECTED]


def five(value: Place) -> Place:
    """Have five files taken while nothing may be let go."""
    value.job = replace(value.job, phase=Phase.BACKOFF)
    value.collector.start()
    for step in range(1, 6):
        value.save(f"{step}.st", step)
    until(lambda: len(value.kept()) == 5, "all to be taken")
    return value


def test_checkpoints_that_agree_with_each_other_alone_are_not_believed_by_a_search(make: Callable[..., Place]) -> None:
    """It goes back in time: what it meets there is older than the doubt, and shows no new course that lasts."""
    item = make()
    item.job = replace(item.job, phase=Phase.BACKOFF)
    for step, seed in ((10, 1), (20, 5), (30, 5), (40, 5), (50, 5)):
        path = item.write(f"{step}.st", *matrix(seed), shape=[16, 16])
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
        item.collector._capture_once(*item.build_save(path, step))
        if step == 10:
            item.collector.proofs.prove("one", Path(item.kept()[10].path))
    chosen = item.resume()
    assert chosen is not None
    assert chosen.step == 10


def test_what_an_earlier_daemon_took_and_did_not_prove_is_proven(make: Callable[..., Place]) -> None:
    first = make()
    first.collector.start()
    first.save("last.st", 10)
    until(lambda: 10 in first.kept(), "it to be taken")
    first.end()
    second = make()
    second.start()
    second.collector.store_of("one")
    until(lambda: second.kept()[10].verdict is Verdict.PROVEN, "its proof")


def test_what_is_being_proven_is_not_pruned_for_saves_that_come_faster_than_proofs(make: Callable[..., Place]) -> None:
    began, go, prover = threading.Event(), threading.Event(), Prover()

    def examine(path: Path) -> Proof:
        began.set()
        assert go.wait(120)
        return prover.examine(path)

    item = make(examine=examine)
    item.start()
    try:
        item.save("last.st", 1)
        until(began.is_set, "the proof of the first to begin")
        for step in range(2, 6):
            item.save("last.st", step)
            until(lambda step=step: step in item.kept(), f"step {step} to be taken")  # type: ignore[misc]  # bound here
        until(lambda: item.collector.is_idle, "the older ones to be pruned")
        assert set(item.kept()) == {1, 4, 5}
    finally:
        go.set()
    until(lambda: item.kept()[1].verdict is Verdict.PROVEN, "its proof", 300)


def test_nothing_is_pruned_while_a_job_looks_for_where_to_resume(make: Callable[..., Place]) -> None:
    item = five(make())
    for generation in item.kept().values():
        item.collector.proofs.prove("one", Path(generation.path))
    item.collector.sweep("one")
    assert len(item.kept()) == 5
    item.job = replace(item.job, phase=Phase.RUNNING)
    item.collector.sweep("one")
    assert set(item.kept()) == {4, 5}


def test_what_a_training_saves_while_it_is_ended_for_a_fault_pushes_out_nothing_from_before_it(
    make: Callable[..., Place],
) -> None:
    item = five(make())
    flag = RedFlag(rule="non_finite_loss", severity=Severity.CRITICAL, at=START, message="loss nan at step 3")
    stop = StopOrder(at=START, reason=flag.message, save=False, flag=flag)
    item.job = replace(item.job, phase=Phase.STOPPING, stop=stop)
    item.collector.sweep("one")
    assert set(item.kept()) == {1, 2, 3, 4, 5}
    item.collector.sweep("one", room=False)
    assert set(item.kept()) == {5}, "without it on the disk"


def test_the_generation_that_an_attempt_was_resumed_from_stays_for_as_long(make: Callable[..., Place]) -> None:
    item = five(make())
    proven = [item.collector.proofs.prove("one", Path(generation.path)) for generation in item.kept().values()]
    first = min(proven, key=lambda generation: generation.step or 0)
    attempt = Attempt(number=2, launched_at=START, resume_from=first)
    item.job = replace(item.job, phase=Phase.RUNNING, attempt=attempt)
    item.collector.sweep("one")
    assert {step: generation.kept_by for step, generation in item.kept().items()} == {
        1: "resumed from", 4: "newest", 5: "newest",
    }  # fmt: skip


def test_a_disk_without_room_is_reported_and_the_file_itself_is_proven(make: Callable[..., Place]) -> None:
    item = make(reserve_bytes=1 << 60)
    item.start()
    path = item.save("last.st", 10)
    until(lambda: any(found.verdict for found in item.seen()), "the proof")
    if item.kept():  # a file system that shares blocks needs no room for it
        notes = [
            json.loads(note.read_text()) for note in item.collector.store_of("one").folder.glob("*/generation.json")
        ]
        assert [note["how"] for note in notes] == ["reflink"]
        return
    assert len(item.missed()) == 1
    assert "free" in item.missed()[0]
    chosen = item.resume()
    assert chosen is not None
    assert (chosen.path, chosen.source) == (str(path), None)


def test_generations_are_asked_for_by_several_threads_at_once_and_taken_up_before_any_has_them(
    make: Callable[..., Place],
) -> None:
    """Taking up removes drafts: one that another thread had begun would go with them."""
    place = make()
    begun, go_on = threading.Event(), threading.Event()

    def job(_: str) -> Job:
        begun.set()
        assert go_on.wait(120)
        return place.job

    collector = GenerationCollector(replace(place.collector._world, job=job), place.watch)
    asked: list[GenerationStore] = []
    first, second = (threading.Thread(target=lambda: asked.append(collector.store_of("one"))) for _ in range(2))
    first.start()
    assert begun.wait(120)
    second.start()
    second.join(0.3)
    assert asked == []
    go_on.set()
    for thread in (first, second):
        thread.join(120)
    assert len(asked) == 2
    assert asked[0] is asked[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "state", megabytes=4) as small:
        yield small


@pytest.mark.usefixtures("small_disk")
def test_on_a_full_disk_older_ones_give_way_to_the_newest_and_it_is_reported(make: Callable[..., Place]) -> None:
    item = make()
    item.settings = msgspec.structs.replace(item.settings, checkpoints=CheckpointSettings(keep_newest=9))
    item.collector.start()  # without the watch: what a prover holds open frees no room
    for step in range(1, 7):  # a megabyte each
        item.save("last.st", step, *[float(step)] * (1 << 18))
        until(lambda step=step: step in item.kept(), f"step {step} to be taken", 30)  # type: ignore[misc]  # bound here
        newest = item.kept()[step]
        item.collector.proofs.prove("one", Path(newest.path))
    assert any("older generations were pruned to make room" in reason for reason in item.missed())
    assert {6} <= set(item.kept()) < {1, 2, 3, 4, 5, 6}
    item.end()


def test_generations_that_nobody_wants_are_not_taken(make: Callable[..., Place]) -> None:
    item = make()
    item.settings = msgspec.structs.replace(item.settings, checkpoints=CheckpointSettings(keep=False))
    item.start()
    item.save("last.st", 10)
    until(lambda: any(found.verdict for found in item.seen()), "the proof of the file itself")
    assert (item.kept(), item.missed()) == ({}, [])


def test_a_file_that_nobody_reported_is_taken_once_it_is_settled(place: Place) -> None:
    path = place.write("found.st", 1.0, 2.0)
    saved, seen = place.build_save(path, 3)
    written = seen.modified_ns / 1e9
    place.collector.offer_found(saved, Moment(0.0, written + SETTLED_AFTER_S / 2))
    place.save("other.st", 4)
    until(lambda: 4 in place.kept(), "another to be taken")
    assert 3 not in place.kept()
    for _ in range(2):
        place.collector.offer_found(saved, Moment(0.0, written + SETTLED_AFTER_S + 1))
    until(lambda: 3 in place.kept(), "it to be taken")


def test_a_file_of_a_server_whose_clock_is_ahead_is_taken_once_it_stays_as_it_is(place: Place) -> None:
    saved, seen = place.build_save(place.write("found.st", 1.0, 2.0), 3)
    now = Moment(0.0, seen.modified_ns / 1e9 - 3600)
    for after_s in (0.0, SETTLED_AFTER_S / 2):
        place.collector.offer_found(saved, now.plus(after_s))
    place.save("other.st", 4)
    until(lambda: 4 in place.kept(), "another to be taken")
    assert 3 not in place.kept()
    place.collector.offer_found(saved, now.plus(SETTLED_AFTER_S))
    until(lambda: 3 in place.kept(), "it to be taken")


def test_a_file_that_is_replaced_every_second_is_taken_as_soon_as_it_has_its_name(place: Place) -> None:
    path = place.runs / "last.st"
    for step in (1, 2):
        part = place.write("last.part", float(step), 2.0)
        written_ns = part.stat().st_mtime_ns
        until(lambda: rename(part, path).st_ctime_ns > written_ns, "a time of the rename")  # noqa: B023 - run here
        saved, seen = place.build_save(path, step)
        place.collector.offer_found(saved, Moment(0.0, seen.modified_ns / 1e9))
        until(lambda: step in place.kept(), f"save {step} to be taken")  # noqa: B023 - run here
    assert place.missed() == []


def rename(part: Path, path: Path) -> os.stat_result:
    """Give a file its name, once more where the clock of the file system has not gone on since its last write."""
    (part if part.exists() else path).rename(path.with_suffix(".other"))
    return path.with_suffix(".other").rename(path).stat()


def test_a_file_that_is_overwritten_at_each_look_is_reported_once_with_what_to_do(place: Place) -> None:
    for number in range(2 * UNSETTLED_LOOKS):
        path = place.write("last.st", float(number), 2.0)
        saved, seen = place.build_save(path, number)
        place.collector.offer_found(saved, Moment(0.0, seen.modified_ns / 1e9))
    assert place.kept() == {}
    (missed,) = place.missed()
    assert "being written at each of 12 looks" in missed
    assert "rename it" in missed


def test_a_folder_with_a_link_in_it_is_reported_once(place: Place) -> None:
    """No generation can be taken of it, and nothing else would say that none is."""
    folder = place.write("state.st", 1.0, 2.0).with_name("state")
    folder.mkdir()
    (folder / "weights.pt").symlink_to("../state.st")
    saved, _ = place.build_save(folder.with_name("state.st"), 1)
    for second in range(3):
        place.collector.offer_found(replace(saved, path=folder), Moment(0.0, 2e9 + second))
        place.collector.offer_found(replace(saved, path=folder / "gone.pt"), Moment(0.0, 2e9 + second))
    (missed,) = place.missed()
    assert "weights.pt is a link" in missed


def test_a_rejected_generation_stays_rejected_whatever_lies_on_the_shelf(make: Callable[..., Place]) -> None:
    place = make()
    place.job = replace(place.job, phase=Phase.BACKOFF)  # as in every search: nothing is let go
    place.start()
    for step in (10, 20):
        place.save("last.st", step)
        until(lambda step=step: step in place.kept(), f"step {step} to be taken")  # type: ignore[misc]  # bound here
    first = place.resume()
    assert first is not None
    assert first.step == 20
    why = "rejected: the losses jumped"
    second = place.resume(fault_unix_s=first.saved_unix_s + 60, fault_step=20, rejected_because=why)
    assert second is not None
    assert second.step == 10
    assert place.kept()[20].reason == why
    assert [candidate.verdict for candidate in candidates(place.search()) if candidate.step == 20] == [Verdict.REJECTED]
    assert place.collector.proofs.prove("one", Path(first.path)).verdict is Verdict.REJECTED
    again = place.resume()
    assert again is not None
    assert again.step == 10


def test_a_file_that_is_gone_before_its_turn_ends_nothing(place: Place) -> None:
    path = place.write("gone.st", 1.0)
    saved, seen = place.build_save(path, 1)
    path.unlink()
    place.collector.saved(saved, seen)
    place.save("last.st", 2)
    until(lambda: 2 in place.kept(), "the next to be taken")
    assert threading.active_count() > 2
    assert place.missed() == [], "its training removed it: no file is there that the next save could replace"
