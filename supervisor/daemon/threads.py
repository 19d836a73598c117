"""Every thread of the daemon by name: what it is at, since when, and what was done about one that died.

A thread that works for a job and does not come round in its time is a standing problem of that job, never waited for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from supervisor.core import events as ev
from supervisor.core.absences import moved_on
from supervisor.core.moments import Moment
from supervisor.daemon.clock import Clock
from supervisor.daemon.fence import describe_error

log = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
IDLE_S = 30.0
"""A thread with nothing to do for so long ends; the next work has a new one."""
WAITING_AT_MOST = 500
LIMIT_S = 10.0
"""How long one piece of work that may block takes at most, as long as all is well."""


@dataclass(slots=True, kw_only=True)
class Post:
    """One thread's place of work."""

    name: str
    job: str | None = None
    limit_s: float | None = LIMIT_S
    """How long it may be at one thing; None: as long as it likes."""
    at: str | None = None
    """What it is at; None while it waits for something to do."""
    since: Moment | None = None
    thread: threading.Thread | None = None
    restarts: int = 0
    error: str | None = None
    """What it last died of."""
    told: bool = field(default=False)

    def age_s(self, now: Moment) -> float | None:
        """Return for how long it has been at what it is at; None while it waits."""
        since = self.since
        return None if self.at is None or since is None else now.seconds_since(since)

    def overdue(self, now: Moment) -> bool:
        """Whether it has been at one thing for longer than that may take."""
        age_s = self.age_s(now)
        return age_s is not None and self.limit_s is not None and age_s > self.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    what: str
    do: Callable[[], None]
    limit_s: float


class Lane:
    """One thread and what waits for it, oldest first; work of one key waits once, as it was last asked for."""

    def __init__(self, threads: Threads, post: Post, kind: str) -> None:
        self._threads = threads
        self._post = post
        self._kind = kind
        self._waiting: dict[Hashable, _Work] = {}
        self._wake = threading.Condition()

    @property
    def busy(self) -> bool:
        """Whether it is at something."""
        return self._post.at is not None or bool(self._waiting)

    def do(self, what: str, work: Callable[[], None], *, key: Hashable = None, limit_s: float = LIMIT_S) -> None:
        """Have work done, after what waits already; with a key it takes the place of what waits under that key."""
        with self._wake:
            self._waiting[object() if key is None else key] = _Work(what=what, do=work, limit_s=limit_s)
            while len(self._waiting) > WAITING_AT_MOST:
                dropped = self._waiting.pop(next(iter(self._waiting)))
                log.error("work.dropped", extra={"fields": {"thread": self._post.name, "what": dropped.what}})
            thread = self._post.thread
            if thread is None or not thread.is_alive():
                self._post.thread = threading.Thread(target=self._run, name=self._post.name, daemon=True)
                self._post.thread.start()
            self._wake.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                with self._threads.working(self._post, work.what, work.limit_s):
                    work.do()
            except Exception as error:
                self._threads.failed(self._post, self._kind, error)

    def _next(self) -> _Work | None:
        with self._wake:
            if not self._waiting:
                self._wake.wait(IDLE_S)
            if not self._waiting:
                self._post.thread = None
                return None
            return self._waiting.pop(next(iter(self._waiting)))


class Threads:
    """Starts threads and knows them; `check` is called in the deciding thread, the rest in any."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None]) -> None:
        self._clock = clock
        self._put = put
        self._posts: dict[str, Post] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._lanes: dict[str, Lane] = {}

    def post(self, name: str, *, job: str | None = None, limit_s: float | None = LIMIT_S) -> Post:
        """Return the post of that name; a new one where there is none."""
        with self._lock:
            return self._posts.setdefault(name, Post(name=name, job=job, limit_s=limit_s))

    def leave(self, name: str) -> None:
        """Forget a post whose work is over for good; a problem that stood with it is mended."""
        with self._lock:
            post = self._posts.pop(name, None)
        if post is not None and post.told:
            self._tell(post, None, mended=True)

    @contextmanager
    def working(self, post: Post, what: str, limit_s: float | None = LIMIT_S) -> Iterator[None]:
        """Be at `what` within."""
        post.since, post.limit_s, post.at = self._clock.now(), limit_s, what
        try:
            yield
        finally:
            post.at = None

    def keep(self, name: str, work: Callable[[], None], *, job: str | None = None) -> Post:
        """Have a thread do `work`, which ends with the daemon; where it ends before that, it is begun again."""
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

        post.thread = threading.Thread(target=kept, name=name, daemon=True)
        post.thread.start()
        return post

    def begin(self, what: str, job: str, work: Callable[[], None], limit_s: float | None = None) -> None:
        """Run one piece of `work` in a thread of its own; an error that it did not expect is reported."""
        post = self.post(f"{what} {job} {id(work)}", job=job, limit_s=limit_s)

        def fenced() -> None:
            try:
                with self.working(post, what, limit_s):
                    work()
            except Exception as error:
                log.exception("act.failed", extra={"fields": {"act": what, "job": job}})
                self._put(self._degraded(job, what, describe_error(error)))
            finally:
                self.leave(post.name)

        post.thread = threading.Thread(target=fenced, name=f"{what}-{job}", daemon=True)
        post.thread.start()

    def lane(self, kind: str, name: str, *, of_job: bool = True) -> Lane:
        """Return the thread that does one kind of work for a job (or a path) alone."""
        post = self.post(f"{kind} {name}", job=name if of_job else None)
        with self._lock:
            return self._lanes.setdefault(post.name, Lane(self, post, kind))

    def failed(self, post: Post, place: str, error: Exception) -> None:
        """Tell that a piece of work raised."""
        log.error("work.failed", extra={"fields": {"thread": post.name}}, exc_info=error)
        post.error = describe_error(error)
        if post.job is not None:
            self._put(self._degraded(post.job, place, post.error))

    def check(self, now: Moment) -> None:
        """Report posts whose work is overdue, and those that recovered."""
        for post in self.posts():
            overdue = post.overdue(now)
            if overdue == post.told:
                continue
            post.told = overdue
            fields = {"thread": post.name, "job": post.job, "at": post.at, "age_s": post.age_s(now)}
            log.log(logging.ERROR if overdue else logging.WARNING, "thread.overdue", extra={"fields": fields})
            self._tell(post, post.age_s(now), mended=not overdue)

    def move_on(self, away: ev.DaemonAway) -> None:
        """Do not count an absence of the daemon as time in which its threads were at something."""
        for post in self.posts():
            if post.at is not None and post.since is not None:
                post.since = moved_on(post.since, away)

    def posts(self) -> tuple[Post, ...]:
        """Return every post."""
        with self._lock:
            return tuple(self._posts.values())

    def problem(self, now: Moment) -> str | None:
        """Return what is wrong with a thread that works for no job in particular; None where nothing is."""
        for post in self.posts():
            if post.job is None and post.overdue(now):
                return f"{post.name}: {post.at} has not ended for {post.age_s(now):.0f} s"
            if post.thread is not None and not post.thread.is_alive() and not self._end.is_set():
                return f"{post.name}: its thread has ended"
        return None

    def end(self) -> None:
        """Begin nothing again from here on."""
        self._end.set()

    def _tell(self, post: Post, age_s: float | None, *, mended: bool) -> None:
        if post.job is not None:
            age = f" for {age_s:.0f} s" if age_s is not None else ""
            place = post.name.removesuffix(f" {post.job}")
            self._put(self._degraded(post.job, place, f"{post.at} has not answered{age}", mended=mended, standing=True))

    def _degraded(
        self, job: str, place: str, error: str, *, mended: bool = False, standing: bool = False
    ) -> ev.SupervisionDegraded:
        return ev.SupervisionDegraded(
            at=self._clock.now(), job=job, attempt=0, place=place, error=error, mended=mended, standing=standing
        )
