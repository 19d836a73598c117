"""Every thread of the daemon by name: what it is doing, since when, and how often it was restarted.

Nothing waits for a thread that exceeds its time limit; it is reported as a standing problem of its job.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor.children.prompt_thread import PromptThread
from supervisor.children.worker_threads import WorkerThreads
from supervisor.core import events as ev
from supervisor.core.attempt.absences import moved_on
from supervisor.core.moments import Moment
from supervisor.daemon.clock import Clock
from supervisor.daemon.fence import describe_error

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
WAITING_AT_MOST = 500
ACTS_AT_ONCE = 3
"""Of one kind for one job; what comes beyond them waits its turn."""
WAITS_S = 1.0
"""What takes longer at the end of the daemon is named there."""
LIMIT_S = 10.0
"""Default limit of one piece of work that may block."""


@dataclass(slots=True, kw_only=True)
class Post:
    """One thread's place of work."""

    name: str
    job: str | None = None
    limit_s: float | None = LIMIT_S
    """Time limit of one piece of work; None: no limit."""
    at: str | None = None
    """What it is doing; None while it is idle."""
    since: Moment | None = None
    thread: threading.Thread | None = None
    restarts: int = 0
    error: str | None = None
    """What it last died of."""
    unstarted: str | None = None
    """Why no thread could be started for the work that waits."""
    reported: bool = field(default=False)

    def age_s(self, now: Moment) -> float | None:
        """Return for how long it has been doing its present work; None while it is idle."""
        since = self.since
        return None if self.at is None or since is None else now.seconds_since(since)

    def overdue(self, now: Moment) -> bool:
        """Whether its present work exceeds the time limit."""
        age_s = self.age_s(now)
        return age_s is not None and self.limit_s is not None and age_s > self.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    what: str
    do: Callable[[], object]
    limit_s: float


class Lane:
    """A queue that one thread at a time works off, oldest first; of work with the same key only the latest waits."""

    def __init__(self, threads: Threads, post: Post, kind: str) -> None:
        self._threads = threads
        self._post = post
        self._kind = kind
        self._waiting: dict[Hashable, _Work] = {}
        self._running = False
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether it is working or has work queued."""
        return self._post.at is not None or bool(self._waiting)

    def do(self, what: str, work: Callable[[], object], *, key: Hashable = None, limit_s: float = LIMIT_S) -> None:
        """Queue work; with a key it replaces what is queued under that key."""
        with self._lock:
            self._waiting[object() if key is None else key] = _Work(what=what, do=work, limit_s=limit_s)
            while len(self._waiting) > WAITING_AT_MOST:
                dropped = self._waiting.pop(next(iter(self._waiting)))
                log.error("work.dropped", extra={"fields": {"thread": self._post.name, "what": dropped.what}})
            self._begin()

    def resume(self) -> None:
        """Take a thread again where work is queued and none does it."""
        with self._lock:
            if self._waiting:
                self._begin()

    def _begin(self) -> None:
        """Take a thread unless one works; where the machine has no room for one, the work waits for `resume`."""
        if self._running:
            return
        try:
            self._threads.workers.do(self._run, self._post.name)
        except (RuntimeError, MemoryError) as error:
            self._post.unstarted = describe_error(error)
        else:
            self._running, self._post.unstarted = True, None

    def _run(self) -> None:
        while (work := self._take_next()) is not None:
            try:
                with self._threads.working(self._post, work.what, work.limit_s):
                    work.do()
            except Exception as error:
                self._threads.failed(self._post, self._kind, error)

    def _take_next(self) -> _Work | None:
        with self._lock:
            if not self._waiting:
                self._running = False
                return None
            return self._waiting.pop(next(iter(self._waiting)))


class _Acts:
    """What is begun of one kind for one job."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.threads = 0


class Threads:
    """Starts and lists threads. `check` is called in the deciding thread, the rest in any thread."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None]) -> None:
        self._clock = clock
        self._put = put
        self._posts: dict[str, Post] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._lanes: dict[str, Lane] = {}
        self._acts: dict[tuple[str, str], _Acts] = {}
        self.workers = WorkerThreads("worker")
        """For what a thread of its own is begun; a lane keeps none while it has nothing to do."""

    def post(self, name: str, *, job: str | None = None, limit_s: float | None = LIMIT_S) -> Post:
        """Return the post of that name; a new one where there is none."""
        with self._lock:
            return self._posts.setdefault(name, Post(name=name, job=job, limit_s=limit_s))

    def leave(self, name: str) -> None:
        """Remove a post whose work is finished; a problem reported for it is resolved."""
        with self._lock:
            post = self._posts.pop(name, None)
        if post is not None and post.reported:
            self._report_overdue(post, None, recovered=True)

    @contextmanager
    def working(self, post: Post, what: str, limit_s: float | None = LIMIT_S) -> Iterator[None]:
        """Mark the post as doing `what` within the context."""
        post.since, post.limit_s, post.at = self._clock.now(), limit_s, what
        try:
            yield
        finally:
            post.at = None

    def keep(self, name: str, work: Callable[[], None], *, job: str | None = None) -> Post:
        """Run `work` in a thread until the daemon ends; if it ends earlier it is started again."""
        post = self.post(name, job=job, limit_s=None)

        def kept() -> None:
            while not self._end.is_set():
                try:
                    work()
                    post.error = "its work ended unexpectedly"
                except Exception as error:
                    post.error = describe_error(error)
                    log.exception("thread.died", extra={"fields": {"thread": name}})
                if self._end.wait(RESTART_AFTER_S):
                    return
                post.restarts += 1

        post.thread = PromptThread(kept, name)
        post.thread.start()
        return post

    def begin(self, what: str, job: str, work: Callable[[], None], limit_s: float | None = None) -> None:
        """Run one piece of `work` in a thread of its own, see `ACTS_AT_ONCE`; an unexpected error is reported."""
        post = self.post(f"{what} {job} {id(work)}", job=job, limit_s=limit_s)

        def fenced() -> None:
            try:
                with self.working(post, what, limit_s):
                    work()
            except Exception as error:
                log.exception("act.failed", extra={"fields": {"act": what, "job": job}})
                self._put(self._degraded_event(job, what, describe_error(error)))
            finally:
                self.leave(post.name)

        try:
            self._take_up_act((what, job), fenced)
        except BaseException:
            self.leave(post.name)
            raise

    def allow_more(self, what: str, job: str, more_s: float) -> None:
        """Let pieces of work that were begun take so much longer before they are reported: they found more to do."""
        for post in self.posts():
            if post.at == what and post.job == job and post.limit_s is not None:
                post.limit_s += more_s

    def _take_up_act(self, kind: tuple[str, str], act: Callable[[], None]) -> None:
        """Give an act a thread, or let it wait where `ACTS_AT_ONCE` of its kind and job have one."""
        with self._lock:
            acts = self._acts.setdefault(kind, _Acts())
            acts.waiting.append(act)
            if acts.threads >= ACTS_AT_ONCE:
                return
            acts.threads += 1
        try:
            self.workers.do(lambda: self._do_acts(kind), "-".join(kind))
        except (RuntimeError, MemoryError):
            with self._lock:
                acts.threads -= 1
                if act not in acts.waiting:
                    return  # another thread of its kind took it
                acts.waiting.remove(act)
            raise

    def _do_acts(self, kind: tuple[str, str]) -> None:
        while (act := self._next_act(kind)) is not None:
            act()

    def _next_act(self, kind: tuple[str, str]) -> Callable[[], None] | None:
        with self._lock:
            acts = self._acts[kind]
            if acts.waiting:
                return acts.waiting.popleft()
            acts.threads -= 1
            if not acts.threads:
                del self._acts[kind]
            return None

    def lane(self, kind: str, name: str, *, of_job: bool = True) -> Lane:
        """Return the thread that does one kind of work for a job (or a path) alone."""
        post = self.post(f"{kind} {name}", job=name if of_job else None)
        with self._lock:
            return self._lanes.setdefault(post.name, Lane(self, post, kind))

    def failed(self, post: Post, place: str, error: Exception) -> None:
        """Report that a piece of work raised."""
        log.error("work.failed", extra={"fields": {"thread": post.name}}, exc_info=error)
        post.error = describe_error(error)
        if post.job is not None:
            self._put(self._degraded_event(post.job, place, post.error))

    def check(self, now: Moment) -> None:
        """Report posts whose work is overdue, and those that recovered; start threads for which there was no room."""
        with self._lock:
            lanes = tuple(self._lanes.values())
        for lane in lanes:
            lane.resume()
        for post in self.posts():
            overdue = post.overdue(now)
            if overdue == post.reported:
                continue
            post.reported = overdue
            fields = {"thread": post.name, "job": post.job, "at": post.at, "age_s": post.age_s(now)}
            log.log(logging.ERROR if overdue else logging.WARNING, "thread.overdue", extra={"fields": fields})
            self._report_overdue(post, post.age_s(now), recovered=not overdue)

    def move_on(self, away: ev.DaemonAway) -> None:
        """Leave an absence of the daemon out of the time that its threads took."""
        for post in self.posts():
            if post.at is not None and post.since is not None:
                post.since = moved_on(post.since, away)

    def posts(self) -> tuple[Post, ...]:
        """Return every post."""
        with self._lock:
            return tuple(self._posts.values())

    def list_waiting(self, now: Moment) -> list[str]:
        """Return what has not come to its end for long, most likely in a file system, and since when."""
        ages = ((post, post.age_s(now)) for post in self.posts())
        return [
            f"{post.job or post.name}: {post.at} for {age_s:.0f} s" for post, age_s in ages if age_s and age_s > WAITS_S
        ]

    def problem(self, now: Moment) -> str | None:
        """Return what is wrong with a thread that works for no job in particular; None where nothing is."""
        for post in self.posts():
            if post.unstarted is not None:
                return f"{post.name}: its work waits, no thread can be started: {post.unstarted}"
            if post.job is None and post.overdue(now):
                return f"{post.name}: {post.at} has not ended for {post.age_s(now):.0f} s"
            if post.thread is not None and not post.thread.is_alive() and not self._end.is_set():
                return f"{post.name}: its thread has ended"
        return None

    def end(self) -> None:
        """Restart no thread from now on."""
        self._end.set()

    def _report_overdue(self, post: Post, age_s: float | None, *, recovered: bool) -> None:
        if post.job is not None:
            age = f" for {age_s:.0f} s" if age_s is not None else ""
            place = post.name.removesuffix(f" {post.job}")
            self._put(
                self._degraded_event(
                    post.job, place, f"{post.at} has not answered{age}", recovered=recovered, persistent=True
                )
            )

    def _degraded_event(
        self, job: str, place: str, error: str, *, recovered: bool = False, persistent: bool = False
    ) -> ev.SupervisionChanged:
        return ev.SupervisionChanged(
            at=self._clock.now(),
            job=job,
            attempt=0,
            place=place,
            error=error,
            recovered=recovered,
            persistent=persistent,
        )
