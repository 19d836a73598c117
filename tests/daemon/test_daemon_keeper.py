"""The keeper: what is saved is taken before it can be overwritten, proven beside what came before, and let go last."""

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
from supervisor.core.checkpoints import Checkpoint, Verdict
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoint_watch import CheckpointWatch, Saved
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.keeper import SETTLED_AFTER_S, Keeper, World
from supervisor.daemon.resume import Search, candidates, find, fingerprint
from supervisor.runner.proving import Prover
from tests.rigs.small_disk import mounted

START = Moment(1000.0, 1_700_000_000.0)


@dataclass
class Place:
    """A job with an attempt that runs, its run folder, and the keeper with the watch behind it."""

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
    keeper: Keeper = field(init=False)
    watch: CheckpointWatch = field(init=False)

    def __post_init__(self) -> None:
        """Make what the daemon's assembly makes."""
        (self.state / "jobs/one/1").mkdir(parents=True, exist_ok=True)
        (self.state / "jobs/one/1/shim.json").touch()
        world = World(
            clock=SystemClock(),
            put=self.events.append,
            state=self.state,
            settings=lambda _: self.settings,
            job=lambda _: self.job,
            examine=Prover().examine,
            reserve_bytes=self.reserve_bytes,
        )
        self.watch = CheckpointWatch(world.clock, self.events.append, self.swept)
        self.keeper = Keeper(world, self.watch)

    def swept(self, job: str) -> None:
        self.keeper.sweep(job)

    def start(self) -> None:
        self.watch.start()
        self.keeper.start()

    def end(self) -> None:
        for thread in (self.keeper, self.watch):
            if thread.is_alive():
                thread.end()
                thread.join(20)

    def write(self, name: str, *values: float, shape: list[int] | None = None) -> Path:
        header = {"w": {"dtype": "F32", "shape": shape or [len(values)], "data_offsets": [0, 4 * len(values)]}}
        text = json.dumps(header).encode()
        path = self.runs / name
        path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values))
        return path

    def said(self, path: Path, step: int) -> tuple[Saved, Any]:
        seen = fingerprint(path)
        assert seen is not None
        return Saved(job="one", attempt=1, path=path, prove=partial(self.keeper.proofs.prove, "one"), step=step), seen

    def save(self, name: str, step: int, *values: float, shape: list[int] | None = None) -> Path:
        """Write a file in place, and say that it is whole."""
        path = self.write(name, *(values or (float(step), 1.0)), shape=shape)
        self.keeper.saved(*self.said(path, step))
        return path

    def kept(self) -> dict[int | None, Checkpoint]:
        return {one.step: one for one in self.keeper.shelf("one").all()}

    def seen(self) -> list[Checkpoint]:
        return [one.checkpoint for one in self.events if isinstance(one, ev.CheckpointSeen)]

    def missed(self) -> list[str]:
        return [one.reason for one in self.events if isinstance(one, ev.CheckpointNotKept)]

    def search(self, **changes: Any) -> Search:
        shelf = self.keeper.shelf("one")
        known = {one.key: one for one in self.seen()}
        base = Search(
            known=tuple(known.values()), globs=("*",), cwd=str(self.runs), trouble_unix_s=None, trouble_step=None,
            batches_per_epoch=None, generations=shelf.all(), shelf=str(shelf.folder),
        )  # fmt: skip
        return replace(base, **changes)

    def resume(self, **changes: Any) -> Checkpoint | None:
        return find(self.search(**changes), partial(self.keeper.proofs.prove, "one"), self.told).checkpoint

    def told(self, checkpoint: Checkpoint) -> None:
        self.keeper.proofs.judge("one", checkpoint)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(**changes: Any) -> Place:
        (tmp_path / "runs").mkdir(exist_ok=True)
        made.append(Place(runs=tmp_path / "runs", state=tmp_path / "state", **changes))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def place(make: Callable[..., Place]) -> Place:
    one = make()
    one.start()
    return one


def test_each_save_over_the_same_file_is_a_generation_and_the_newest_are_kept(place: Place) -> None:
    for step in range(1, 4):
        place.save("last.st", step)
        until(lambda step=step: step in place.kept(), f"step {step} to be taken")  # type: ignore[misc]  # bound here
    until(lambda: [one.kept_by for one in place.kept().values()] == ["newest"] * 2, "the proofs", 60)
    assert set(place.kept()) == {2, 3}
    assert {one.step for one in place.seen() if one.kept_by == ""} == {1}


def test_a_resume_takes_the_generation_where_the_file_itself_was_torn(place: Place) -> None:
    path = place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    path.write_bytes(path.read_bytes()[:-3])
    chosen = place.resume()
    assert chosen is not None
    assert (chosen.step, chosen.source) == (10, str(path))
    assert place.keeper.shelf("one").holds(chosen)


def test_the_same_save_under_two_names_is_one_generation(place: Place) -> None:
    place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    place.save("best.st", 10)
    place.save("last.st", 20)
    until(lambda: 20 in place.kept(), "the next to be taken")
    assert len(place.keeper.shelf("one").all()) == 2


def test_a_word_that_is_heard_twice_takes_once(place: Place) -> None:
    path = place.save("last.st", 10)
    until(lambda: 10 in place.kept(), "it to be taken")
    place.keeper.saved(*place.said(path, 10))
    place.save("other.st", 11)
    until(lambda: 11 in place.kept(), "another to be taken")
    assert len(place.keeper.shelf("one").all()) == 2


def test_what_the_daemon_took_and_did_not_record_is_found_on_the_shelf(make: Callable[..., Place]) -> None:
    """It died between the copy and the record: the next one knows of no row, and finds the folder."""
    first = make()
    first.keeper.start()
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
    one = make()
    draft = one.state / "jobs/one/generations/.taking-000001"
    draft.mkdir(parents=True)
    (draft / "last.st").write_bytes(b"half")
    assert one.keeper.shelf("one").all() == ()
    assert not draft.exists()


def test_a_poisoned_save_gives_way_to_the_one_before(place: Place) -> None:
    place.save("last.st", 10, 1.0, 2.0)
    until(lambda: 10 in place.kept() and place.kept()[10].verdict is not None, "the first proof")
    path = place.save("last.st", 20, float("nan"), 2.0)
    until(lambda: any(one.step == 20 and one.verdict for one in place.seen()), "the second proof", 60)
    until(lambda: 20 not in place.kept(), "it to be let go")
    chosen = place.resume()
    assert chosen is not None
    assert chosen.step == 10
    assert path.exists(), "the training's own file is not touched"


def test_a_model_of_another_shape_is_rejected_beside_the_one_before(place: Place) -> None:
    place.save("last.st", 10, *[1.0] * 4)
    until(lambda: 10 in place.kept() and place.kept()[10].verdict is not None, "the first proof")
    place.save("last.st", 20, *[1.0] * 6)
    until(lambda: any(one.step == 20 and one.verdict for one in place.seen()), "the second proof", 60)
    rejected = next(one for one in place.seen() if one.step == 20 and one.verdict)
    assert rejected.verdict is Verdict.REJECTED
    assert "wrong architecture" in str(rejected.reason)


def matrix(seed: int) -> list[float]:
    return [1.0 if (n * n * 7 + n * seed) % 11 < 5 else -1.0 for n in range(256)]


def test_a_new_course_is_believed_only_when_it_has_lasted(make: Callable[..., Place]) -> None:
    one = make()
    one.job = replace(one.job, phase=Phase.BACKOFF)  # nothing is let go
    for step, seed in ((10, 1), (20, 1), (30, 5), (40, 5), (50, 5)):
        path = one.write(f"{step}.st", *matrix(seed), shape=[16, 16])
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
        one.keeper._take(*one.said(path, step))
    generations = sorted(one.kept().values(), key=lambda generation: generation.step or 0)
    verdicts = [one.keeper.proofs.prove("one", Path(generation.path)).verdict for generation in generations]
    assert verdicts == [Verdict.PROVEN] * 2 + [Verdict.REJECTED] * 2 + [Verdict.PROVEN]


def five(one: Place) -> Place:
    """Have five files taken while nothing may be let go."""
    one.job = replace(one.job, phase=Phase.BACKOFF)
    one.keeper.start()
    for step in range(1, 6):
        one.save(f"{step}.st", step)
    until(lambda: len(one.kept()) == 5, "all to be taken")
    return one


def test_checkpoints_that_agree_with_each_other_alone_are_not_believed_by_a_search(make: Callable[..., Place]) -> None:
    """It goes back in time: what it meets there is older than the doubt, and shows no new course that lasts."""
    one = make()
    one.job = replace(one.job, phase=Phase.BACKOFF)
    for step, seed in ((10, 1), (20, 5), (30, 5), (40, 5), (50, 5)):
        path = one.write(f"{step}.st", *matrix(seed), shape=[16, 16])
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
        one.keeper._take(*one.said(path, step))
        if step == 10:
            one.keeper.proofs.prove("one", Path(one.kept()[10].path))
    chosen = one.resume()
    assert chosen is not None
    assert chosen.step == 10


def test_what_an_earlier_daemon_took_and_did_not_prove_is_proven(make: Callable[..., Place]) -> None:
    first = make()
    first.keeper.start()
    first.save("last.st", 10)
    until(lambda: 10 in first.kept(), "it to be taken")
    first.end()
    second = make()
    second.start()
    second.keeper.shelf("one")
    until(lambda: second.kept()[10].verdict is Verdict.PROVEN, "its proof")


def test_nothing_is_let_go_while_a_job_looks_for_where_to_resume(make: Callable[..., Place]) -> None:
    one = five(make())
    for generation in one.kept().values():
        one.keeper.proofs.prove("one", Path(generation.path))
    one.keeper.sweep("one")
    assert len(one.kept()) == 5
    one.job = replace(one.job, phase=Phase.RUNNING)
    one.keeper.sweep("one")
    assert set(one.kept()) == {4, 5}


def test_the_generation_that_an_attempt_was_resumed_from_stays_for_as_long(make: Callable[..., Place]) -> None:
    one = five(make())
    proven = [one.keeper.proofs.prove("one", Path(generation.path)) for generation in one.kept().values()]
    first = min(proven, key=lambda generation: generation.step or 0)
    attempt = Attempt(number=2, launched_at=START, resume_from=first)
    one.job = replace(one.job, phase=Phase.RUNNING, attempt=attempt)
    one.keeper.sweep("one")
    assert {step: generation.kept_by for step, generation in one.kept().items()} == {
        1: "resumed from", 4: "newest", 5: "newest",
    }  # fmt: skip


def test_a_disk_without_room_is_told_and_the_file_itself_is_proven(make: Callable[..., Place]) -> None:
    one = make(reserve_bytes=1 << 60)
    one.start()
    path = one.save("last.st", 10)
    until(lambda: any(found.verdict for found in one.seen()), "the proof")
    if one.kept():  # a file system that shares blocks needs no room for it
        notes = [json.loads(note.read_text()) for note in one.keeper.shelf("one").folder.glob("*/generation.json")]
        assert [note["how"] for note in notes] == ["reflink"]
        return
    assert len(one.missed()) == 1
    assert "free" in one.missed()[0]
    chosen = one.resume()
    assert chosen is not None
    assert (chosen.path, chosen.source) == (str(path), None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "state", megabytes=4) as small:
        yield small


@pytest.mark.usefixtures("small_disk")
def test_on_a_full_disk_older_ones_give_way_to_the_newest_and_it_is_told(make: Callable[..., Place]) -> None:
    one = make()
    one.settings = msgspec.structs.replace(one.settings, checkpoints=CheckpointSettings(keep_newest=9))
    one.keeper.start()  # without the watch: what a prover holds open frees no room
    for step in range(1, 7):  # a megabyte each
        one.save("last.st", step, *[float(step)] * (1 << 18))
        until(lambda step=step: step in one.kept(), f"step {step} to be taken", 30)  # type: ignore[misc]  # bound here
        newest = one.kept()[step]
        one.keeper.proofs.prove("one", Path(newest.path))
    assert any("older ones were let go for it" in reason for reason in one.missed())
    assert {6} <= set(one.kept()) < {1, 2, 3, 4, 5, 6}
    one.end()


def test_generations_that_nobody_wants_are_not_taken(make: Callable[..., Place]) -> None:
    one = make()
    one.settings = msgspec.structs.replace(one.settings, checkpoints=CheckpointSettings(keep=False))
    one.start()
    one.save("last.st", 10)
    until(lambda: any(found.verdict for found in one.seen()), "the proof of the file itself")
    assert (one.kept(), one.missed()) == ({}, [])


def test_a_file_that_nobody_told_of_is_taken_once_it_is_settled(place: Place) -> None:
    path = place.write("found.st", 1.0, 2.0)
    saved, seen = place.said(path, 3)
    written = seen.modified_ns / 1e9
    place.keeper.looked(saved, Moment(0.0, written + SETTLED_AFTER_S / 2))
    place.save("other.st", 4)
    until(lambda: 4 in place.kept(), "another to be taken")
    assert 3 not in place.kept()
    for _ in range(2):
        place.keeper.looked(saved, Moment(0.0, written + SETTLED_AFTER_S + 1))
    until(lambda: 3 in place.kept(), "it to be taken")


def test_a_condemned_generation_stays_condemned_whatever_lies_on_the_shelf(make: Callable[..., Place]) -> None:
    place = make()
    place.job = replace(place.job, phase=Phase.BACKOFF)  # as in every search: nothing is let go
    place.start()
    for step in (10, 20):
        place.save("last.st", step)
        until(lambda step=step: step in place.kept(), f"step {step} to be taken")  # type: ignore[misc]  # bound here
    first = place.resume()
    assert first is not None
    assert first.step == 20
    why = "condemned: the losses jumped"
    second = place.resume(trouble_unix_s=first.saved_unix_s + 60, trouble_step=20, condemned=why)
    assert second is not None
    assert second.step == 10
    assert place.kept()[20].reason == why
    assert [one.verdict for one in candidates(place.search()) if one.step == 20] == [Verdict.REJECTED]
    assert place.keeper.proofs.prove("one", Path(first.path)).verdict is Verdict.REJECTED
    again = place.resume()
    assert again is not None
    assert again.step == 10


def test_a_file_that_is_gone_before_its_turn_ends_nothing(place: Place) -> None:
    path = place.write("gone.st", 1.0)
    saved, seen = place.said(path, 1)
    path.unlink()
    place.keeper.saved(saved, seen)
    place.save("last.st", 2)
    until(lambda: 2 in place.kept(), "the next to be taken")
    assert threading.active_count() > 2
