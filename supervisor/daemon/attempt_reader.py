"""Reads the files of live attempts (recorder, agent log, output, exit record) and turns them into events.

A thread for each attempt reads five times a second. When a shim has ended, all that its attempt wrote is read before
the end is reported: the last step comes before the exit. A file that cannot be read, or whose reading does not return,
is reported and left out; the others are still read. Where a node's own may hang, another process reads them.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

from supervisor import untrusted_files
from supervisor.children.files_apart import Look, here, read_with
from supervisor.children.prompt_thread import PromptThread
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, Stage, StepRecord
from supervisor.core.stats.rate_limit import Allowance
from supervisor.daemon.clock import Clock, begin_limit
from supervisor.daemon.fence import describe_error
from supervisor.daemon.inner_pids import InnerPids
from supervisor.daemon.threads import Post, Threads
from supervisor.runner.attempt_folder import read_exit, read_shim
from supervisor.sources.attempt.agent_log import AgentLogReader
from supervisor.sources.attempt.output import OutputPage, OutputReader
from supervisor.sources.attempt.recorder import RecorderPage, RecorderReader

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

Cleared = Callable[[str, Path, bool], bool]
"""Ends what a shim left running (job, folder of the attempt, whether it has an exit record); whether none is left."""

LOOK_EVERY_S = 0.2
LOOK_BEHIND_EVERY_S = 0.1
"""While a recorder holds more than one look reads."""
ASIDE_AFTER_S = 3.0
"""A wait for data, or a compilation, is a stage from here on: there may be many short ones in every second."""
QUIET_EVERY_S = 0.25
NO_EXIT_RECORD = "the shim ended without an exit record: it was killed, or the machine went down"
OTHER_BOOT = "the machine went down while it ran (frozen, without power, or restarted) and has booted since"
UNREAD = "the shim ended, and its exit record cannot be read"
UNSEEN = "until it can be read its steps are not seen, and none is missed"
OUTPUT_EVERY_LOOKS = 2
RANKS_EVERY_LOOKS = 25
RANKS_LIMIT = 64
"""Recorders that are followed; more belong to no training of one machine."""
WORDS_PER_S, WORDS_AT_ONCE = 50.0, 2000
"""Reports of all agents of an attempt together. 64 ranks whose allocators change steadily write 32 a second."""
WAITING_LIMIT = 200
"""Weight of a job's queued events above which its files are not read on, so that other jobs are not delayed."""
RANK_RECORDER = re.compile(r"recorder\.rank([1-9][0-9]{0,5})\.bin", re.ASCII)
"""`str.isdigit` would let through digits that are no number, such as a superscript."""
HUNG_S = 5.0
"""Time limit of one read; a read that takes longer is abandoned to its thread, and another thread reads the rest."""
GIVEN_UP_AT_MOST = 5
"""Threads that hang in reading the attempts of one job and were replaced; one more is waited for."""
CATCH_UP_LIMIT_S = 10.0
"""How long a start waits until what was written without a daemon is read."""


@dataclass(slots=True, kw_only=True)
class FollowedAttempt:
    """One attempt under observation, and how far each of its files was read."""

    job: str
    attempt: int
    folder: Path
    output_limit_bytes: int
    cursors: dict[int, int] = field(default_factory=dict)
    output_offset: int = 0
    other_boot: bool = False
    """Whether it ran in an earlier boot of the machine, so that nothing of it can be left."""
    recorders: dict[int, RecorderReader] = field(init=False, default_factory=dict)
    agent: AgentLogReader = field(init=False)
    inner_pids: InnerPids = field(init=False)
    output: OutputReader = field(init=False)
    stage: Stage | None = field(init=False, default=None)
    stage_complete: bool = field(init=False, default=False)
    reported_at: Moment | None = field(init=False, default=None)
    """When rank 0's recorder last gave a step, or word that there was none."""
    problems: set[str] = field(init=False, default_factory=set)
    post: Post = field(init=False)
    thread: int = field(init=False, default=0)
    """Number of the thread that follows it; one before it may still hang in a reading."""
    blocked: set[str] = field(init=False, default_factory=set)
    """Parts whose reading has not come back."""
    failed: set[str] = field(init=False, default_factory=set)
    """Parts whose reading raised when it was last tried."""
    looks: int = field(init=False, default=0)
    behind: bool = field(init=False, default=False)
    """Whether a recorder held more than the last look read."""
    gone: bool = field(init=False, default=False)
    over: bool = field(init=False, default=False)
    cleared: bool = field(init=False, default=False)
    """Whether nothing of it runs any more, which stays so: a thread that was replaced may have found it out."""
    patient: bool = field(init=False, default=False)
    """Whether the next look reads all there is, however much that may be."""
    caught_up: threading.Event = field(init=False, default_factory=threading.Event)
    wake: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        # The agent log is read from the start each time: a new daemon needs the plan again.
        self.agent = AgentLogReader(self.folder, allowance=Allowance(WORDS_PER_S, WORDS_AT_ONCE))
        self.inner_pids = InnerPids(self.folder)
        self.output = OutputReader(self.folder, self.output_limit_bytes, offset=self.output_offset)
        self.recorders[0] = RecorderReader(self.folder)

    def find_ranks(self, look: Look = here) -> None:
        """Look for recorders of ranks that came up later."""
        try:
            found = look(untrusted_files.list_names, self.folder, fo.RUN)
        except OSError:
            return
        for rank, name in parse_ranks(found.names):
            if rank not in self.recorders and len(self.recorders) < RANKS_LIMIT:
                # Opened for each read: a training with many ranks takes one descriptor.
                self.recorders[rank] = RecorderReader(self.folder, f"{fo.RUN}/{name}", keep_open=False)

    def close(self) -> None:
        """Close its files; nothing of the attempt is read any more."""
        for reader in self.recorders.values():
            reader.close()
        self.output.close()


def parse_ranks(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the ranks whose recorders are among the names of files, in their order; other names are no recorders."""
    found = (RANK_RECORDER.fullmatch(name) for name in names)
    return sorted((int(match[1]), match[0]) for match in found if match is not None)


class AttemptReader:
    """Follows all live attempts, each in a thread of its own."""

    def __init__(
        self,
        clock: Clock,
        put: Callable[[ev.Event], None],
        cleared: Cleared,
        waiting: Callable[[str], int] = lambda job: 0,
        threads: Threads | None = None,
    ) -> None:
        """`waiting(job)` is how many events of a job wait to be decided on."""
        self.look: Look = here
        """How files are read; `apart` where their file system may hang."""
        self.find_stop: Callable[[str, int], None] = lambda job, attempt: None
        """Asks for a stop of an attempt where that was noted; called before its end is reported."""
        self._clock = clock
        self._put = put
        self._cleared = cleared
        self._waiting = waiting
        self._threads = threads or Threads(clock, put)
        self._followed: dict[tuple[str, int], FollowedAttempt] = {}
        self._given_up: dict[str, list[threading.Thread]] = {}
        """The threads of each job that were replaced while they hung."""
        self._lock = threading.Lock()
        self._started = False
        self._ended = False

    def follow(self, followed: FollowedAttempt) -> None:
        """Begin to follow an attempt."""
        key = (followed.job, followed.attempt)
        if self.look is not here:
            # A descriptor of another process cannot be kept.
            followed.recorders[0] = RecorderReader(followed.folder, keep_open=False)
            followed.output = OutputReader(
                followed.folder, followed.output_limit_bytes, offset=followed.output_offset, keep_open=False
            )
        followed.post = self._threads.post(f"following {followed.job} {followed.attempt}", limit_s=None)
        with self._lock:
            self._followed[key] = followed
            if self._started:
                self._start_thread(followed)

    def gone(self, job: str, attempt: int) -> None:
        """Mark the shim of an attempt as ended; the remaining data is read at once."""
        with self._lock:
            followed = self._followed.get((job, attempt))
        if followed is not None:
            followed.gone = True
            followed.wake.set()

    def start(self) -> None:
        """Begin to read."""
        with self._lock:
            if not self._started:
                self._started = True
                for followed in self._followed.values():
                    self._start_thread(followed)

    def end(self) -> None:
        """Stop following; the trainings are not touched."""
        self._ended = True
        for followed in self._list_followed():
            followed.wake.set()

    def join(self, limit_s: float) -> None:
        """Wait until nothing is read any more, at most so long for each thread."""
        for followed in self._list_followed():
            if followed.post.thread is not None:
                followed.post.thread.join(limit_s)

    def is_alive(self) -> bool:
        """Whether anything is still read."""
        return any(
            followed.post.thread is not None and followed.post.thread.is_alive() for followed in self._list_followed()
        )

    def list_blocked(self) -> list[str]:
        """Return which parts of attempts have not come back from being read."""
        return [
            f"{followed.job}: {at} is not answered" for followed in self._list_followed() for at in followed.blocked
        ]

    def catch_up(self, limit_s: float = CATCH_UP_LIMIT_S) -> None:
        """Start, and wait until all that was written while no daemon ran is read; a hanging read is not waited for."""
        for followed in self._list_followed():
            followed.patient = True
        self.start()
        limit = begin_limit(self._clock, limit_s)
        for followed in self._list_followed():
            if not limit.wait_for(followed.caught_up.wait):
                log.error("attempt.not_caught_up", extra={"fields": {"job": followed.job, "at": followed.post.at}})

    def check(self, now: Moment) -> None:
        """Start another thread where one has died or hangs; called about once a second."""
        for followed in self._list_followed():
            thread, at, age_s = followed.post.thread, followed.post.at, followed.post.age_s(now)
            if thread is None or followed.over or self._ended:
                continue
            hangs = at is not None and age_s is not None and age_s > HUNG_S
            if at is not None and hangs and at not in followed.blocked:
                followed.blocked.add(at)
                self._report_degraded(followed, at, f"has not been read for {age_s:.0f} s")
            if thread.is_alive() and not (hangs and self._may_give_up(followed.job, thread)):
                continue
            followed.post.restarts += 1
            fields = {"job": followed.job, "attempt": followed.attempt, "at": at, "alive": thread.is_alive()}
            log.error("attempt.thread_replaced", extra={"fields": fields})
            self._start_thread(followed)

    def _list_followed(self) -> list[FollowedAttempt]:
        with self._lock:
            return list(self._followed.values())

    def _may_give_up(self, job: str, hung: threading.Thread) -> bool:
        """Whether a thread may be replaced; then it counts as one that was, until it has ended."""
        given_up = [thread for thread in self._given_up.get(job, ()) if thread.is_alive()]
        may = len(given_up) < GIVEN_UP_AT_MOST
        self._given_up[job] = [*given_up, hung] if may else given_up
        return may

    def _start_thread(self, followed: FollowedAttempt) -> None:
        """Start a new thread for an attempt; a thread that still hangs in a read ends when the read returns."""
        followed.thread += 1
        followed.post.at = None
        read = partial(self._read_until_end, followed, followed.thread)
        followed.post.thread = PromptThread(read, f"follow-{followed.job}")
        followed.post.thread.start()

    def _read_until_end(self, followed: FollowedAttempt, thread: int) -> None:
        """Read all parts again and again until the end of the attempt is reported."""
        patient = followed.patient
        while not self._ended and followed.thread == thread:
            followed.wake.clear()
            followed.behind = False
            final = followed.gone
            self._read_all_parts(followed, thread, final=final, patient=patient)
            patient = followed.patient = False
            over = final and followed.thread == thread and self._report_end(followed, thread)
            if over or not final:
                # Until the end is reported, the missing steps would look like a stall.
                followed.caught_up.set()
            if over:
                return
            followed.wake.wait(LOOK_BEHIND_EVERY_S if followed.behind else LOOK_EVERY_S)

    def _read_part(self, followed: FollowedAttempt, thread: int, name: str, read: Callable[[], None]) -> None:
        """Read one part behind a fence; if the thread was replaced meanwhile, report that the read returned."""
        if followed.thread != thread or name in followed.blocked:
            return
        followed.post.since, followed.post.at = self._clock.now(), name
        try:
            read()
        except Exception as error:
            if name not in followed.failed:
                followed.failed.add(name)
                log.exception("source.failed", extra={"fields": {"source": name, "job": followed.job}})
                self._report_degraded(followed, name, describe_error(error))
        else:
            if name in followed.failed:
                followed.failed.discard(name)
                self._report_degraded(followed, name, "", recovered=True)
        if followed.thread == thread:
            followed.post.at = None
        if name in followed.blocked:
            followed.blocked.discard(name)
            self._report_degraded(followed, name, "", recovered=True)

    def _use(self, reader: R, read: Callable[[R], T]) -> tuple[R, T]:
        """Return a reader as it is after reading, and what it has read."""
        return self.look(read_with, reader, read)

    def _report_degraded(self, followed: FollowedAttempt, part: str, error: str, *, recovered: bool = False) -> None:
        self._put(
            ev.SupervisionChanged(
                at=self._clock.now(),
                job=followed.job,
                attempt=followed.attempt,
                place=ev.reading_place(part),
                error=error,
                recovered=recovered,
            )
        )

    def _read_all_parts(self, followed: FollowedAttempt, thread: int, *, final: bool, patient: bool) -> None:
        now, looks = self._clock.now(), followed.looks
        followed.looks += 1
        if final or looks % RANKS_EVERY_LOOKS == 0:
            self._read_part(followed, thread, "the list of ranks", partial(followed.find_ranks, self.look))
            stopped = partial(self.find_stop, followed.job, followed.attempt)
            self._read_part(followed, thread, "stops of its unit", stopped)
        if not (final or patient) and self._waiting(followed.job) >= WAITING_LIMIT:
            return
        self._read_part(followed, thread, fo.AGENT, lambda: self._read_agent(followed, now, final=final))
        for rank, reader in list(followed.recorders.items()):
            read = partial(self._read_recorders, followed, rank, reader, now, final or patient)
            self._read_part(followed, thread, fo.recorder_part(rank), read)
        if final or looks % OUTPUT_EVERY_LOOKS == 0:
            self._read_part(followed, thread, fo.OUTPUT, lambda: self._read_output(followed, now, final=final))

    def _read_recorders(
        self,
        followed: FollowedAttempt,
        rank: int,
        reader: RecorderReader,
        now: Moment,
        to_its_end: bool,  # noqa: FBT001 - given by place, through `partial`
    ) -> None:
        while self._read_recorder(followed, rank, reader, now) and to_its_end:
            reader, followed.post.since = followed.recorders[rank], self._clock.now()

    def _read_recorder(self, followed: FollowedAttempt, rank: int, reader: RecorderReader, now: Moment) -> bool:
        """Read what one rank's recorder holds; return whether reading again gives more."""
        page: RecorderPage
        followed.recorders[rank], page = self._use(reader, methodcaller("read", followed.cursors.get(rank, 0), now))
        if page.problem is not None and page.problem not in followed.problems:
            followed.problems.add(page.problem)
            log.warning("recorder.damaged", extra={"fields": {"job": followed.job, "problem": page.problem}})
        if page.unreadable is not None:
            # Reported by the fence; without RecorderIdle the rules know of no time without a step.
            raise _with_consequence(page.unreadable)
        if rank == 0 and page.problem is not None and (unmade := self._find_unmade(followed)) is not None:
            raise _with_consequence(ValueError(unmade))
        if page.cursor != followed.cursors.get(rank, 0):
            self._report_steps(followed, rank, page, now)
        if rank == 0:
            self._report_stage(followed, page, now)
            self._report_idle(followed, page, now)
        followed.behind |= page.behind > 0
        return page.behind > 0

    def _find_unmade(self, followed: FollowedAttempt) -> str | None:
        """Return why the shim could not make the recorder, which the training does once there is room for it.

        None once the shim has ended: of an attempt that is over nothing is missed, and its job is not degraded for it.
        """
        note = None if followed.gone else self.look(read_shim, followed.folder)
        return None if note is None else note.problem

    def _report_steps(self, followed: FollowedAttempt, rank: int, page: RecorderPage, now: Moment) -> None:
        job, attempt = followed.job, followed.attempt
        if rank == 0 and followed.reported_at is None:
            # Without it the steps' silence would count to now, also while this reader is held up after them.
            self._put(ev.RecorderIdle(at=page.records[0].at if page.records else now, job=job, attempt=attempt))
        followed.cursors[rank] = page.cursor
        self._put(
            ev.StepsMade(
                at=now,
                job=job,
                attempt=attempt,
                records=page.records,
                rank=rank,
                cursor=page.cursor,
                lost=page.lost,
            )
        )
        followed.reported_at = now if rank == 0 else followed.reported_at

    def _report_stage(self, followed: FollowedAttempt, page: RecorderPage, now: Moment) -> None:
        stage, since = _stage_of(page, now)
        if stage is None or (stage, page.stages_complete) == (followed.stage, followed.stage_complete):
            return
        if followed.stage in (Stage.DATA_WAIT, Stage.COMPILE):
            since = now  # the header tells when the stage around it began
        followed.stage, followed.stage_complete = stage, page.stages_complete
        entered = ev.StageEntered(
            at=since or now,
            job=followed.job,
            attempt=followed.attempt,
            stage=stage,
            stages_complete=page.stages_complete,
        )
        self._put(entered)

    def _report_idle(self, followed: FollowedAttempt, page: RecorderPage, now: Moment) -> None:
        if page.behind:
            return
        if followed.reported_at is None or now.seconds_since(followed.reported_at) >= QUIET_EVERY_S:
            followed.reported_at = now
            self._put(ev.RecorderIdle(at=now, job=followed.job, attempt=followed.attempt))

    def _read_agent(self, followed: FollowedAttempt, now: Moment, *, final: bool) -> None:
        skipped_bytes = followed.agent.skipped_bytes
        if final:
            followed.agent, facts = self._use(followed.agent, methodcaller("finish", now))
        else:
            followed.agent, facts = self._use(followed.agent, methodcaller("read", now, WAITING_LIMIT))
        if facts:
            followed.inner_pids.look()
        for fact in facts:
            self._put(
                ev.AgentReported(
                    at=fact.at,
                    job=followed.job,
                    attempt=followed.attempt,
                    agent_event=fact.agent_event,
                    facts=followed.inner_pids.replace_in(fact.facts),
                    offset=fact.offset,
                    pid=followed.inner_pids.find(fact.pid),
                    rank=fact.rank,
                )
            )
        if followed.agent.skipped_bytes > skipped_bytes:
            fields = {
                "job": followed.job,
                "attempt": followed.attempt,
                "bytes": followed.agent.skipped_bytes - skipped_bytes,
            }
            log.warning("agent_log.flooded", extra={"fields": fields})

    def _read_output(self, followed: FollowedAttempt, now: Moment, *, final: bool) -> None:
        followed.output, page = self._use(followed.output, methodcaller("read", now))
        self._report_output(followed, page, now)
        while final and page.behind_bytes:
            followed.post.since = self._clock.now()
            followed.output, page = self._use(followed.output, methodcaller("read", now))
            self._report_output(followed, page, now)
        unreadable = page.unreadable
        if final:
            followed.output, page = self._use(followed.output, methodcaller("finish", now))
            self._report_output(followed, page, now)
        if unreadable is not None and not final:
            # Reported by the fence; no rule judges the silence of what is not seen.
            raise unreadable

    def _report_output(self, followed: FollowedAttempt, page: OutputPage, now: Moment) -> None:
        if page.new_bytes or page.findings:
            self._put(
                ev.OutputSeen(
                    at=now,
                    job=followed.job,
                    attempt=followed.attempt,
                    new_bytes=page.new_bytes,
                    last_line=page.last_line,
                    findings=page.findings,
                    progress_step=None if page.progress is None else page.progress.place,
                    bar_steps=None if page.progress is None else page.progress.bar_steps,
                    offset=followed.output.offset,
                )
            )

    def _clear(self, followed: FollowedAttempt, *, has_exit_record: bool) -> None:
        if self._cleared(followed.job, followed.folder, has_exit_record):
            followed.cleared = True

    def _report_end(self, followed: FollowedAttempt, thread: int) -> bool:
        """Report the end of an attempt whose shim has ended; return False while processes of it still run."""
        now = self._clock.now()
        found: list[ExitStatus] = []
        self._read_part(
            followed, thread, fo.EXIT, lambda: found.extend(filter(None, [self.look(read_exit, followed.folder, now)]))
        )
        if not followed.cleared:
            self._read_part(
                followed, thread, "what is left of it", partial(self._clear, followed, has_exit_record=bool(found))
            )
        if not followed.cleared:
            # A training without its shim is not supervised; until it ends, nothing else may start on its GPU.
            # An exit record is no proof that it has ended: the training can write it.
            return False
        if followed.thread != thread:
            return False
        followed.over = True
        with self._lock:
            del self._followed[(followed.job, followed.attempt)]
        self._threads.leave(followed.post.name)
        if not followed.blocked:
            followed.close()
        if found:
            self._put(ev.Exited(at=now, job=followed.job, attempt=followed.attempt, status=found[0]))
        else:
            unread = fo.EXIT in followed.blocked | followed.failed
            reason = UNREAD if unread else OTHER_BOOT if followed.other_boot else NO_EXIT_RECORD
            self._put(ev.HostLost(at=now, job=followed.job, attempt=followed.attempt, reason=reason))
        return True


def _with_consequence(error: OSError | ValueError) -> OSError | ValueError:
    """Return why a recorder cannot be read, with what follows from it."""
    if isinstance(error, OSError):
        return OSError(error.errno, f"{error.strerror}; {UNSEEN}: check that disk", error.filename)
    return ValueError(f"{error}; {UNSEEN}")


def _stage_of(page: RecorderPage, now: Moment) -> tuple[Stage | None, Moment | None]:
    """Return the stage of the training and since when; a stage within a step counts after ASIDE_AFTER_S."""
    since = page.aside_since
    if page.stage is Stage.STEP and since is not None and now.seconds_since(since) >= ASIDE_AFTER_S:
        return page.aside, since
    return page.stage, page.stage_since


def read_last_steps(folder: Path, cursor: int, kept: int, now: Moment) -> Iterable[StepRecord]:
    """Return the newest records that were read before `cursor`, so that a new daemon's rules know the past."""
    if cursor <= 0:
        return ()
    with RecorderReader(folder) as reader:
        page = reader.read(max(0, cursor - kept), now)
    return page.records[: len(page.records) - max(0, page.cursor - cursor)]
