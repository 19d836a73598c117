"""Makes the triage that a retry waits for, one replay after the other, each started as an attempt is; decides nothing.

All that it knows lies in the folders of the replays, so that the next daemon goes on where one died. It answers once,
when nothing of its replays runs any more, and whatever happens: without an answer the job would wait for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.config.settings import JobSettings
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core import folder as fo
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.examination import UNWANTED, Examination
from supervisor.core.job import Job, Wish
from supervisor.core.moments import Moment
from supervisor.core.secrets import without_secrets
from supervisor.core.triage import FINDING_FILES, Finding, Replay, conclude, needed, unsaid
from supervisor.daemon.attempt_watch import Clock
from supervisor.daemon.killing import kill_until_gone
from supervisor.daemon.old_curve import old_losses
from supervisor.daemon.treated import command_of
from supervisor.runner import evidence
from supervisor.runner.attempt import lay_out, make_current, read_exit
from supervisor.runner.launcher import Launcher, LaunchError
from supervisor.runner.triage import SAID, Case, keep, launch_of, read, read_launch, remedies_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
MEASURE_EVERY_S = 2.0
KILL_AGAIN_S = 0.5
LAST_WORDS_S = 2.0
FOLDER_LIMIT_BYTES = 2_000_000_000
"""What one replay may write: as much as its training saves at the end of an epoch, and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examiner:
    """Works in the thread of whoever calls."""

    clock: Clock
    put: Callable[[ev.Event], None]
    state: Path
    launcher: Launcher
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    exact: Callable[[Job, int], Checkpoint | None]
    """Returns a state from which the steps up to one are made again as they were; None without one."""
    group: int | None
    folder_limit_bytes: int = FOLDER_LIMIT_BYTES

    def examine(self, decision: de.Triage, job: Job) -> None:
        """Replay until there is something to say, and say it by TriageEnded, once nothing of it is left."""
        one, attempt = job.examination, self.state / "jobs" / job.name / str(decision.attempt)
        began_at = one.began_at if one is not None and one.began_at is not None else decision.at
        try:
            finding = self._found(decision, job, began_at)
        except Exception as error:  # a fence: a job whose triage never answers is never retried
            log.exception("triage.failed", extra={"fields": {"job": job.name}})
            finding = unsaid(f"the triage failed: {type(error).__name__}: {error}")
        for folder in attempt.parent.glob(f"{fo.TRIAGE}-{decision.attempt}-*"):
            kill_until_gone(self.launcher, job.name, folder, KILL_AGAIN_S)
        with contextlib.suppress(OSError):
            make_current(attempt)
        fields = {"job": job.name, "attempt": decision.attempt, "verdict": finding.verdict, "words": finding.words}
        log.warning("triage.ended", extra={"fields": fields})
        told = replace(finding, words=without_secrets(finding.words), files=finding.files[:FINDING_FILES])
        now = self.clock.now()
        self.put(ev.TriageEnded(at=now, job=job.name, attempt=decision.attempt, finding=told, began_at=began_at))

    def _found(self, decision: de.Triage, job: Job, began_at: Moment) -> Finding:
        limit_s = self.settings(job.name).triage_limit_s
        case, deadline = self._case(decision, job, limit_s), began_at.plus(limit_s)
        done: tuple[Replay, ...] = ()
        while (name := needed(done)) is not None and self._wanted(job.name, decision.attempt):
            log.info("triage.replays", extra={"fields": {"job": job.name, "replay": name}})
            done = (*done, self._replayed(case, job, name, deadline))
        if not self._wanted(job.name, decision.attempt):
            return unsaid(UNWANTED)
        finding = conclude(done)
        self._keep(case, finding, done, job)
        return finding

    def _wanted(self, name: str, attempt: int) -> bool:
        """Whether the job still waits for it: its user may have stopped it, and the daemon may be ending."""
        job = self.job(name)
        one: Examination | None = job.examination if job is not None else None
        if job is None or one is None or one.attempt != attempt or not one.replaying:
            return False
        return job.wish is Wish.RUN and not one.unwanted and not job.shutting_down

    def _case(self, decision: de.Triage, job: Job, limit_s: float) -> Case:
        settings, folders = self.settings(job.name), self.state / "jobs" / job.name
        checkpoint = self.exact(job, decision.step) or decision.resume_from
        incident = job.incident.id if job.incident is not None else "triage"
        attempt = folders / str(decision.attempt)
        made = [folders / str(number) for number in range(decision.attempt, 0, -1)]
        return Case(
            attempt=attempt,
            step=decision.step,
            looked_for=decision.looked_for,
            checkpoint=Path(checkpoint.path) if checkpoint is not None else None,
            argv=command_of(settings, checkpoint, settings.profiles.cpu if job.on_cpu else None),
            target=evidence.place(attempt, incident) / fo.TRIAGE,
            losses=old_losses(made, decision.step, self.clock.now()),
            limit_s=limit_s,
        )

    # --- one replay -------------------------------------------------------------------------------------------------

    def _replayed(self, case: Case, job: Job, name: str, deadline: Moment) -> Replay:
        """Return what a replay said: one that runs already is waited for, one that is over is read."""
        folder = case.attempt.parent / f"{fo.TRIAGE}-{case.attempt.name}-{name}"
        problem = None
        if not (folder / fo.SHIM).exists() and not (folder / fo.EXIT).exists():
            problem = self._launch(case, job, name, folder)
        problem = problem or self._waited(case, job, folder, deadline)
        kill_until_gone(self.launcher, job.name, folder, KILL_AGAIN_S)
        return read(case, name, folder, problem or self._ending(folder))

    def _launch(self, case: Case, job: Job, name: str, folder: Path) -> str | None:
        """Start it as an attempt of the job is started; return why it could not be."""
        if self.launcher.alive(job.name, folder):
            return None  # by the daemon before this one, and its shim has not left word yet
        launch = {**launch_of(case, read_launch(case), folder, name), "attempt": int(case.attempt.name)}
        try:
            lay_out(folder, launch, self.group, remedies_of(case, name))
            self.launcher.launch(job.name, folder)
        except LaunchError as error:
            return None if self.launcher.alive(job.name, folder) else f"it could not be started: {error}"
        except OSError as error:
            return f"it could not be started: {error}"
        return None

    def _waited(self, case: Case, job: Job, folder: Path, deadline: Moment) -> str | None:
        """Wait until nothing of it runs, or it has said all it can; return why it has to be ended before that."""
        measured, said_at = self.clock.now(), None
        while self.launcher.alive(job.name, folder):
            now = self.clock.now()
            if said_at is None and (folder / SAID).exists():
                said_at = now
            if said_at is not None and now.seconds_since(said_at) >= LAST_WORDS_S:
                return None  # other processes of it wait for the one that has ended: they have nothing to add
            if now.seconds_since(deadline) >= 0:
                return f"it did not get to the step within the {case.limit_s:.0f} s of the triage"
            if not self._wanted(job.name, int(case.attempt.name)):
                return UNWANTED
            if now.seconds_since(measured) >= MEASURE_EVERY_S:
                measured = now
                if _size_bytes(folder) > self.folder_limit_bytes:
                    return f"it wrote more than {self.folder_limit_bytes // 1_000_000} MB"
            time.sleep(LOOK_EVERY_S)
        return None

    def _ending(self, folder: Path) -> str:
        status = read_exit(folder, self.clock.now())
        return f"it {status.words} before the step" if status is not None else "it ended without a word"

    def _keep(self, case: Case, finding: Finding, done: tuple[Replay, ...], job: Job) -> None:
        """Put the report beside the evidence, and of each replay what it printed last."""
        try:
            keep(case, finding, done)
            for one in done:
                folder = case.attempt.parent / f"{fo.TRIAGE}-{case.attempt.name}-{one.name}"
                text = without_secrets(evidence.read_output_tail(folder))
                (case.target / f"{one.name}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            log.warning("triage.not_kept", extra={"fields": {"job": job.name, "why": str(error)}})


def _size_bytes(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 - thousands of files
    return total
