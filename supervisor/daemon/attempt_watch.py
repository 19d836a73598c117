"""Follows the live attempts: recorder, agent words, output and processes become events; nothing is concluded here.

One thread looks ten times a second, so that a step is known a tenth of a second after it was made. When a shim is
gone, everything that its attempt left is read before the end is told: the last step comes before the exit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.moments import Moment
from supervisor.core.readings import Stage, StepRecord
from supervisor.runner.attempt import read_exit
from supervisor.sources.agent_log import AgentLogReader
from supervisor.sources.output import OutputPage, OutputReader
from supervisor.sources.recorder import RecorderPage, RecorderReader

log = logging.getLogger(__name__)

Cleared = Callable[[str, Path], bool]
"""Ends what a shim that was killed left running of an attempt (its job and folder); whether nothing is left."""

LOOK_EVERY_S = 0.1
ASIDE_AFTER_S = 3.0
"""A wait for data, or a compilation, is a stage from here on: there may be many short ones in every second."""
QUIET_EVERY_S = 0.25
NO_WORD = "its shim is gone and left no exit status: it was killed, or the machine went down"
OTHER_BOOT = "the machine went down while it ran (frozen, without power, or restarted) and has booted since"
OUTPUT_EVERY_LOOKS = 3
RANKS_EVERY_LOOKS = 50


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> Moment:
        """Return the present moment."""
        ...


@dataclass(slots=True, kw_only=True)
class Followed:
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
    output: OutputReader = field(init=False)
    stage: Stage | None = field(init=False, default=None)
    whole: bool = field(init=False, default=False)
    told_at: Moment | None = field(init=False, default=None)
    """When rank 0's recorder last gave a step, or word that there was none."""
    problems: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        # The words of the agent are read from the start each time: a new daemon has to know the plan again.
        self.agent = AgentLogReader(self.folder / fo.AGENT)
        self.output = OutputReader(self.folder, self.output_limit_bytes, offset=self.output_offset)
        self.recorders[0] = RecorderReader(self.folder / fo.RECORDER)

    def find_ranks(self) -> None:
        """Look for recorders of ranks that came up later."""
        for path in self.folder.glob("recorder.rank*.bin"):
            number = path.name.removeprefix("recorder.rank").removesuffix(".bin")
            if number.isdigit():
                self.recorders.setdefault(int(number), RecorderReader(path))


class AttemptWatch(threading.Thread):
    """The thread that follows all live attempts."""

    def __init__(self, clock: Clock, put: Callable[[ev.Event], None], cleared: Cleared) -> None:
        super().__init__(name="attempt-watch", daemon=True)
        self._clock = clock
        self._put = put
        self._cleared = cleared
        self._lost: list[tuple[str, int]] = []
        self._followed: dict[tuple[str, int], Followed] = {}
        self._gone: list[tuple[str, int]] = []
        self._wake = threading.Condition()
        self._ended = False
        self._looks = 0
        self.looked_at = clock.now()

    def follow(self, followed: Followed) -> None:
        """Begin to follow an attempt."""
        with self._wake:
            self._followed[(followed.job, followed.attempt)] = followed

    def gone(self, job: str, attempt: int) -> None:
        """Be told that the shim of an attempt is gone; the rest is read at once."""
        with self._wake:
            self._gone.append((job, attempt))
            self._wake.notify()

    def end(self) -> None:
        """Stop following; the trainings are not touched."""
        with self._wake:
            self._ended = True
            self._wake.notify()

    def run(self) -> None:
        """Look, wait, look again, until the end."""
        while not self._ended:
            with self._wake:
                if not self._gone and not self._ended:
                    self._wake.wait(LOOK_EVERY_S)
            self._look_at_all()

    def catch_up(self) -> None:
        """Read, in the caller's thread and before `run`, all that happened while nobody followed."""
        self._look_at_all(patient=True)

    def _look_at_all(self, *, patient: bool = False) -> None:
        with self._wake:
            gone, self._gone, self._lost = [*self._gone, *self._lost], [], []
            followed = list(self._followed.values())
        self._looks += 1
        for one in followed:
            self._fenced(one, final=(one.job, one.attempt) in gone, patient=patient)
        for key in gone:
            self._finish(key)
        self.looked_at = self._clock.now()

    def _fenced(self, one: Followed, *, final: bool, patient: bool) -> None:
        try:
            self._look(one, final=final, patient=patient)
        except Exception:
            log.exception("source.failed", extra={"fields": {"source": "attempt", "job": one.job}})

    def _look(self, one: Followed, *, final: bool, patient: bool) -> None:
        now = self._clock.now()
        if final or self._looks % RANKS_EVERY_LOOKS == 0:
            one.find_ranks()
        self._read_agent(one, now)
        for rank, reader in one.recorders.items():
            while self._read_recorder(one, rank, reader, now) and (final or patient):
                pass
        if final or self._looks % OUTPUT_EVERY_LOOKS == 0:
            self._read_output(one, now, final=final)

    def _read_recorder(self, one: Followed, rank: int, reader: RecorderReader, now: Moment) -> bool:
        """Read what one rank's recorder holds; return whether reading again gives more."""
        page = reader.read(one.cursors.get(rank, 0), now)
        if page.problem is not None and page.problem not in one.problems:
            one.problems.add(page.problem)
            log.warning("recorder.damaged", extra={"fields": {"job": one.job, "problem": page.problem}})
        if page.cursor != one.cursors.get(rank, 0):
            one.cursors[rank] = page.cursor
            self._put(
                ev.StepsMade(
                    at=now,
                    job=one.job,
                    attempt=one.attempt,
                    records=page.records,
                    rank=rank,
                    cursor=page.cursor,
                    lost=page.lost,
                )
            )
            one.told_at = now if rank == 0 else one.told_at
        if rank == 0:
            self._tell_stage(one, page, now)
            self._tell_quiet(one, page, now)
        return page.behind > 0

    def _tell_stage(self, one: Followed, page: RecorderPage, now: Moment) -> None:
        stage, since = _stage_of(page, now)
        if stage is None or (stage, page.whole) == (one.stage, one.whole):
            return
        if one.stage in (Stage.DATA_WAIT, Stage.COMPILE):
            since = now  # the header tells when the stage around it began
        one.stage, one.whole = stage, page.whole
        entered = ev.StageEntered(at=since or now, job=one.job, attempt=one.attempt, stage=stage, whole=page.whole)
        self._put(entered)

    def _tell_quiet(self, one: Followed, page: RecorderPage, now: Moment) -> None:
        if page.behind:
            return
        if one.told_at is None or now.seconds_since(one.told_at) >= QUIET_EVERY_S:
            one.told_at = now
            self._put(ev.Looked(at=now, job=one.job, attempt=one.attempt))

    def _read_agent(self, one: Followed, now: Moment) -> None:
        for said in one.agent.read(now):
            self._put(
                ev.AgentSaid(
                    at=said.at,
                    job=one.job,
                    attempt=one.attempt,
                    word=said.word,
                    facts=said.facts,
                    offset=said.offset,
                    pid=said.pid,
                    rank=said.rank,
                )
            )

    def _read_output(self, one: Followed, now: Moment, *, final: bool) -> None:
        page = one.output.read(now)
        self._tell_output(one, page, now)
        while final and page.behind_bytes:
            page = one.output.read(now)
            self._tell_output(one, page, now)
        if final:
            self._tell_output(one, one.output.finish(now), now)

    def _tell_output(self, one: Followed, page: OutputPage, now: Moment) -> None:
        if page.new_bytes or page.findings:
            self._put(
                ev.OutputSeen(
                    at=now,
                    job=one.job,
                    attempt=one.attempt,
                    new_bytes=page.new_bytes,
                    last_line=page.last_line,
                    findings=page.findings,
                    progress_step=None if page.progress is None else page.progress.place,
                    offset=one.output.offset,
                )
            )

    def _finish(self, key: tuple[str, int]) -> None:
        one = self._followed.get(key)
        if one is None:
            return
        now = self._clock.now()
        status = read_exit(one.folder, now)
        if status is None and not self._cleared(one.job, one.folder):
            # A training without its shim is nobody's; while it is there, nothing else may start on its card.
            self._lost.append(key)
            return
        with self._wake:
            del self._followed[key]
        if status is None:
            reason = OTHER_BOOT if one.other_boot else NO_WORD
            self._put(ev.HostLost(at=now, job=one.job, attempt=one.attempt, reason=reason))
        else:
            self._put(ev.Exited(at=now, job=one.job, attempt=one.attempt, status=status))


def _stage_of(page: RecorderPage, now: Moment) -> tuple[Stage | None, Moment | None]:
    """Return where the training stands and since when: what lies inside a step counts once it lasts."""
    since = page.aside_since
    if page.stage is Stage.STEP and since is not None and now.seconds_since(since) >= ASIDE_AFTER_S:
        return page.aside, since
    return page.stage, page.stage_since


def seed_records(folder: Path, cursor: int, kept: int, now: Moment) -> Iterable[StepRecord]:
    """Return the newest records that were read before `cursor`, so that a new daemon's rules know the past."""
    if cursor <= 0:
        return ()
    page = RecorderReader(folder / fo.RECORDER).read(max(0, cursor - kept), now)
    return page.records[: len(page.records) - max(0, page.cursor - cursor)]
