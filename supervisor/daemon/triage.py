"""Runs the triage that a retry waits for: replays one after another, each started as an attempt is.

Its state is in the folders of the replays, so that the next daemon continues where this one ended. It always answers,
once no process of a replay is left: without an answer the job would wait indefinitely.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.running_limit import RunningLimit
from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.job import DesiredState, Job
from supervisor.core.moments import Moment
from supervisor.core.sanitize import without_secrets
from supervisor.core.triage.finding import FINDING_FILES, Finding, Replay, conclude, inconclusive, needed
from supervisor.core.triage.state import UNWANTED, TriageState
from supervisor.daemon.checkpoints.past_losses import past_losses
from supervisor.daemon.clock import Clock, begin_limit
from supervisor.daemon.launch.launch_spec import command_of
from supervisor.runner import evidence
from supervisor.runner.attempt_folder import lay_out, point, read_exit
from supervisor.runner.code_copy import Code
from supervisor.runner.launcher import Launcher, LaunchError, kill_until_gone
from supervisor.runner.triage import REPLAY_REPORT, Case, keep, launch_of, read, read_launch, remedies_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
MEASURE_EVERY_S = 2.0
KILL_AGAIN_S = 0.5
REPORT_GRACE_S = 2.0
FOLDER_LIMIT_BYTES = 2_000_000_000
"""Limit of what one replay may write; above what a training saves at the end of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageRunner:
    """Works in the thread of its caller."""

    clock: Clock
    put: Callable[[ev.Event], None]
    state: Path
    launcher: Launcher
    settings: Callable[[str], JobSettings]
    job: Callable[[str], Job | None]
    exact: Callable[[Job, int], Checkpoint | None]
    """Returns a checkpoint from which the steps up to the given one can be repeated exactly; None if there is none."""
    group: int | None
    code: Callable[[], Code]
    """Returns what a replay that is launched now runs; raises OSError or ValueError where that cannot be had."""
    find_stop: Callable[[Path, str, int], bool]
    """See `UnitRequests.find_stop_at`: a replay runs in the unit of its job."""
    folder_limit_bytes: int = FOLDER_LIMIT_BYTES

    def examine(self, decision: de.Triage, job: Job) -> None:
        """Replay until there is a finding, and report it as TriageEnded once no process of a replay is left."""
        triage_state, attempt = job.triage, self.state / "jobs" / job.name / str(decision.attempt)
        began_at = (
            triage_state.began_at if triage_state is not None and triage_state.began_at is not None else decision.at
        )
        try:
            finding = self._replay_until_conclusive(decision, job, began_at)
        except Exception as error:  # a fence: a job whose triage never answers is never retried
            log.exception("triage.failed", extra={"fields": {"job": job.name}})
            finding = inconclusive(f"the triage failed: {type(error).__name__}: {error}")
        for folder in _list_replays(attempt):
            kill_until_gone(self.launcher, job.name, folder, KILL_AGAIN_S)
        with contextlib.suppress(OSError):
            point(attempt.parent, Path(attempt.name))
        fields = {"job": job.name, "attempt": decision.attempt, "verdict": finding.verdict, "words": finding.words}
        log.warning("triage.ended", extra={"fields": fields})
        shown = replace(finding, words=without_secrets(finding.words), files=finding.files[:FINDING_FILES])
        now = self.clock.now()
        self.put(ev.TriageEnded(at=now, job=job.name, attempt=decision.attempt, finding=shown, began_at=began_at))

    def _replay_until_conclusive(self, decision: de.Triage, job: Job, began_at: Moment) -> Finding:
        limit_s = self.settings(job.name).triage_limit_s
        case = self._build_case(decision, job, limit_s)
        limit = begin_limit(self.clock, limit_s - self.clock.now().seconds_since(began_at))
        done: tuple[Replay, ...] = ()
        while (name := needed(done)) is not None and self._is_wanted(job.name, decision.attempt):
            log.info("triage.replays", extra={"fields": {"job": job.name, "replay": name}})
            done = (*done, self._run_replay(case, job, name, limit))
            if self.find_stop(_folder_of(case, name), job.name, decision.attempt):
                return inconclusive(UNWANTED)
        if not self._is_wanted(job.name, decision.attempt):
            return inconclusive(UNWANTED)
        finding = conclude(done)
        self._write_report(case, finding, done, job)
        return finding

    def _is_wanted(self, name: str, attempt: int) -> bool:
        """Whether the job still waits for the triage: it may have been stopped, and the daemon may be ending."""
        job = self.job(name)
        triage_state: TriageState | None = job.triage if job is not None else None
        if job is None or triage_state is None or triage_state.attempt != attempt or not triage_state.replaying:
            return False
        return job.desired_state is DesiredState.RUN and not triage_state.unwanted and not job.shutting_down

    def _build_case(self, decision: de.Triage, job: Job, limit_s: float) -> Case:
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
            checkpoint_step=checkpoint.step if checkpoint is not None else None,
            argv=command_of(settings, checkpoint, settings.profiles.cpu if job.on_cpu else None),
            target=evidence.place(attempt, incident).below(fo.TRIAGE),
            losses=past_losses(made, decision.step, self.clock.now()),
            limit_s=limit_s,
        )

    # --- one replay -------------------------------------------------------------------------------------------------

    def _run_replay(self, case: Case, job: Job, name: str, limit: RunningLimit) -> Replay:
        """Return the result of a replay: a running one is waited for, a finished one is read."""
        folder, problem = _folder_of(case, name), None
        if not untrusted_files.exists(folder, fo.SHIM) and not untrusted_files.exists(folder, fo.EXIT):
            problem = self._launch_replay(case, job, name, folder)
        problem = problem or self._wait_for_replay(case, job, folder, limit)
        kill_until_gone(self.launcher, job.name, folder, KILL_AGAIN_S)
        return read(case, name, folder, problem or self._describe_ending(folder))

    def _launch_replay(self, case: Case, job: Job, name: str, folder: Path) -> str | None:
        """Start a replay as an attempt of the job is started; return why it could not be started, else None."""
        if self.launcher.alive(job.name, folder):
            return None  # started by the previous daemon; its shim has not written its record yet
        try:
            code = self.code()
            launch = launch_of(case, read_launch(case), folder, name, code)
            launch["attempt"] = int(case.attempt.name)
            lay_out(folder, launch, self.group, remedies_of(case, name), code)
            self.launcher.launch(job.name, folder)
        except LaunchError as error:
            return None if self.launcher.alive(job.name, folder) else f"it could not be started: {error}"
        except OSError as error:
            return f"it could not be started: {error}"
        return None

    def _wait_for_replay(self, case: Case, job: Job, folder: Path, limit: RunningLimit) -> str | None:
        """Wait until a replay has ended or written its result; return why it has to be ended before that, else None."""
        measured, reported_at = self.clock.now(), None
        while self.launcher.alive(job.name, folder):
            now = self.clock.now()
            if reported_at is None and untrusted_files.exists(folder, REPLAY_REPORT):
                reported_at = now
            if reported_at is not None and now.seconds_since(reported_at) >= REPORT_GRACE_S:
                return None  # its other processes wait for the one that has ended
            if limit.next_wait_s() == 0:
                return f"it did not get to the step within the {case.limit_s:.0f} s of the triage"
            if not self._is_wanted(job.name, int(case.attempt.name)):
                return UNWANTED
            if now.seconds_since(measured) >= MEASURE_EVERY_S:
                measured = now
                if untrusted_files.tree_bytes(folder, fo.RUN) > self.folder_limit_bytes:
                    return f"it wrote more than {self.folder_limit_bytes // 1_000_000} MB"
            time.sleep(LOOK_EVERY_S)
        return None

    def _describe_ending(self, folder: Path) -> str:
        status = read_exit(folder, self.clock.now())
        return f"it {status.words} before the step" if status is not None else "it ended without an exit record"

    def _write_report(self, case: Case, finding: Finding, done: tuple[Replay, ...], job: Job) -> None:
        """Write the report next to the evidence, with the last output of each replay."""
        try:
            keep(case, finding, done)
            for replay in done:
                text = without_secrets(evidence.read_output_tail(_folder_of(case, replay.name)))
                case.target.write(f"{replay.name}.txt", text)
        except OSError as error:
            log.warning("triage.not_kept", extra={"fields": {"job": job.name, "why": str(error)}})


def _folder_of(case: Case, name: str) -> Path:
    return case.attempt.parent / f"{fo.TRIAGE}-{case.attempt.name}-{name}"


def _list_replays(attempt: Path) -> list[Path]:
    """Return the folders of an attempt's replays; the job's folder is the daemon's own."""
    start, found = f"{fo.TRIAGE}-{attempt.name}-", untrusted_files.list_names(attempt.parent).names
    return [attempt.with_name(name) for name in found if name.startswith(start)]
