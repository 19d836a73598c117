"""Each job's collector and proof queue last as long as the job is configured, and rest for those that have work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clocks_by_hand import until

from supervisor.config.settings import CheckpointSettings, JobSettings
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.daemon.checkpoints.candidates import fingerprint
from supervisor.daemon.checkpoints.collector import CollectorDeps
from supervisor.daemon.checkpoints.per_job import JobCollectors
from supervisor.daemon.checkpoints.proof_queue import PROVEN_KEPT, REST_FACTOR, ProofQueue, Saved
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.fence import SEARCH
from supervisor.daemon.threads import Threads
from supervisor.runner.proving import Proof

JOBS = ("one", "two", "three")
NAMES = {"collector", "checkpoint-watch"}


def count_threads() -> int:
    return sum(thread.name in NAMES for thread in threading.enumerate())


class Place:
    """Collectors over an empty state; no generation is kept, so that a save goes on to its proof."""

    def __init__(self, state: Path) -> None:
        self.state, self.events = state, list[ev.Event]()
        self.threads = Threads(SystemClock(), self.events.append)
        settings = JobSettings(command=["train"], checkpoints=CheckpointSettings(keep=False))
        deps = CollectorDeps(
            clock=SystemClock(),
            put=self.events.append,
            state=state,
            settings=lambda _: settings,
            job=lambda name: Job(name=name, since=Moment(0.0, 0.0)),
            examine=self.examine,
        )
        self.collectors = JobCollectors(deps, self.threads)
        self.go = threading.Event()
        self.answer: Callable[[Path], Proof] | None = None

    def examine(self, path: Path) -> Proof:
        assert self.answer is not None, f"{path} is proven by the fixture"
        return self.answer(path)

    def save(self, job: str) -> None:
        """Have a file of a job proven; its proof waits for `go`."""
        path = self.state / f"{job}.st"
        path.write_bytes(b"state")
        stat = fingerprint(path)
        assert stat is not None
        found = Checkpoint(path=str(path), fingerprint=stat)

        def prove(_: Path) -> Checkpoint:
            assert self.go.wait(120)
            return found

        self.collectors.saved(Saved(job=job, attempt=1, path=path, prove=prove), stat)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    item = Place(tmp_path)
    yield item
    item.go.set()
    item.collectors.end()
    item.threads.end()


def test_the_threads_of_jobs_that_left_the_configuration_end(place: Place) -> None:
    before = count_threads()
    for job in JOBS:
        place.collectors.of(job)
    posts = len(place.threads.posts())
    place.collectors.end_gone(["two"])
    until(lambda: count_threads() == before + 2, "the threads of two jobs to end")
    assert len(place.threads.posts()) == posts - 4
    place.collectors.of("one")
    assert count_threads() == before + 4, "one that comes back has its own again"


def test_what_a_job_still_has_to_do_is_done_first(place: Place) -> None:
    collector = place.collectors.of("one")
    place.save("one")
    until(lambda: any((post.at or "").startswith("proving") for post in place.threads.posts()), "its proof to begin")
    place.collectors.end_gone([])
    assert place.collectors.of("one") is collector
    place.go.set()
    until(lambda: bool(place.events), "its proof")


def test_only_jobs_with_work_share_the_processor_time_of_proofs(place: Place) -> None:
    for job in JOBS:
        place.collectors.of(job)
    assert place.collectors.rest_factor() == REST_FACTOR
    for job in JOBS[:2]:
        place.save(job)
    until(lambda: place.collectors.rest_factor() == 2 * (REST_FACTOR + 1) - 1, "two proofs to begin")


def test_a_large_checkpoint_is_proven_without_a_report_that_its_search_does_not_answer(place: Place) -> None:
    path, limit_s = place.state / "big.st", 60.0
    with path.open("wb") as file:
        file.truncate(84_000_000_000)
    threads, found = place.threads, list[float | None]()
    post = threads.post("resume search one", job="one")

    def examine(path: Path) -> Proof:
        found.append(post.limit_s)
        return Proof(
            checkpoint=Checkpoint(
                path=str(path), fingerprint=Fingerprint(size_bytes=1, modified_ns=2, inode=3), verdict=Verdict.REJECTED
            )
        )

    place.answer = examine
    with threads.working(post, SEARCH, limit_s):
        place.collectors.prove("one", path)
    assert found == [limit_s + 8400]


def test_a_training_that_saves_each_state_under_a_new_name_leaves_no_trace_of_each(tmp_path: Path) -> None:
    seen: list[ev.CheckpointSeen] = []
    asked: list[str] = []

    def prove(path: Path) -> Checkpoint:
        asked.append(path.name)
        stat = fingerprint(path)
        assert stat is not None
        return Checkpoint(path=str(path), fingerprint=stat)

    queue = ProofQueue(SystemClock(), seen.append, rest_factor=lambda: 0.0)
    paths = [tmp_path / f"{number}.pt" for number in range(PROVEN_KEPT + 2)]
    for path in paths:
        path.write_bytes(b"state")
        queue.saved(Saved(job="one", attempt=1, path=path, prove=prove))
    queue.start()
    until(lambda: len(asked) == len(paths), "all proofs")
    for path in (paths[-1], paths[0]):
        queue.saved(Saved(job="one", attempt=1, path=path, prove=prove))
    until(lambda: len(asked) > len(paths), "what is no longer remembered to be proven again")
    assert asked[len(paths) :] == ["0.pt"]
    queue.end()
    queue.join(120)
