"""Applies a changed configuration to the running daemon, and keeps the last good one for a start with a broken file.

A mistake in the file must not end the supervision of trainings that run: systemd restarts a daemon that crashed, and a
machine boots, at any time after it was edited.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from supervisor.children.shared_files import replace_file
from supervisor.config.derive import expectation_of, limits_of, rules_of
from supervisor.config.difference import Difference
from supervisor.config.load import Checked, check_alone
from supervisor.config.problems import Level
from supervisor.config.read_apart import read_apart
from supervisor.config.settings import JobSettings, Settings
from supervisor.control import types
from supervisor.core import events as ev
from supervisor.core.flags import Act
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule, act_of
from supervisor.daemon.alerts.alerting import ReadReceivers, read_receivers
from supervisor.daemon.job_state import JobState
from supervisor.daemon.process import logging_setup
from supervisor.daemon.process.removed_jobs import is_alive
from supervisor.daemon.process.systemd import Notifier
from supervisor.daemon.wiring import Assembly
from supervisor.own_places import make_way

log = logging.getLogger(__name__)

NAME = "last-good.toml"
LARGEST_KEPT_BYTES = 64 << 20
"""Many files of `conf.d` make one text, which may be larger than one of them."""
BUSY_LIMIT_S = 2.0
"""How long a reload waits for the one before it; the client waits for both."""
IN_PROGRESS = (
    "another reload is still reading the configuration; where that lasts, the file system of a file that it names does "
    "not answer: reload again once it does"
)


def keep(state: Path, text: str | None) -> None:
    """Keep the text of the configuration in force, merged with `conf.d`, in the state directory.

    What goes wrong is logged: the daemon runs without the copy.
    """
    if text is None:
        return
    try:
        make_way(state / NAME)
        replace_file(state / NAME, text.encode(), 0o600)
    except OSError as error:
        log.warning("config.not_kept", extra={"fields": {"error": str(error)}})


def find(environ: Mapping[str, str]) -> tuple[Path, Checked] | None:
    """Return the kept configuration of the state directory that systemd names; None where none can be used.

    The wrong file cannot be asked for its state directory: without a configured one the daemon has no fallback.
    """
    named = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if not named:
        return None
    kept = Path(named) / NAME
    checked = check_alone(kept, LARGEST_KEPT_BYTES)
    # One that was moved here from another state directory would take up the trainings of that one.
    if checked.settings is None or Path(checked.settings.supervisor.state_dir) != Path(named):
        return None
    return kept, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A configuration that can be applied."""

    settings: Settings
    text: str | None
    receivers: ReadReceivers
    changes: Difference
    """How the settings differ from those that were in force when it was read."""


class Reloading:
    """Reads the file again; with any error in it nothing is applied and the daemon goes on as before."""

    def __init__(
        self,
        parts: Assembly,
        adopt: Callable[[JobState], None],
        config: Path,
        notifier: Notifier,
        schedule: Callable[[Settings], None],
    ) -> None:
        self._parts = parts
        self._adopt = adopt
        self._config = config
        self._notifier = notifier
        self._schedule = schedule
        self._reading = threading.Lock()
        """Held from reading to keeping: what was read later is applied later."""
        self.refused: str | None = None
        """Why the current file was not applied; None where it was."""
        parts.on_turn(self._forget_removed)

    def reload(self) -> types.ReloadReport:
        """Read and apply; not called in the deciding thread, which goes on while a large file or a slow disk is read.

        Raises TimeoutError where the deciding thread does not answer.
        """
        if not self._reading.acquire(timeout=BUSY_LIMIT_S):
            return types.ReloadReport(problems=[IN_PROGRESS])
        try:
            self._notifier.reloading(int(self._parts.clock.now().monotonic_s * 1e6))
            try:
                report = self._read_and_apply()
            finally:
                self._notifier.ready()
        finally:
            self._reading.release()
        for key in ("applied", "needs_restart", "problems"):
            for text in getattr(report, key):
                level = logging.ERROR if key == "problems" else logging.INFO
                log.log(level, "reload.%s", key, extra={"fields": {"change": text}})
        self.refused = f"reload refused: {report.problems[0]}" if report.problems else None
        return report

    def preview(self) -> types.ReloadReport:
        """Return what `reload` would report, and change nothing; not called in the deciding thread."""
        read = self._read()
        return read if isinstance(read, types.ReloadReport) else self._parts.inbox.ask(lambda: self._report(read))

    def _read_and_apply(self) -> types.ReloadReport:
        read = self._read()
        if isinstance(read, types.ReloadReport):
            return read

        def apply() -> types.ReloadReport:
            report = self._report(read)
            self._apply_settings(read.settings, read.receivers)
            return report

        report = self._parts.inbox.ask(apply)
        for name in sorted(self._parts.removed):  # a daemon that is killed from here on has its successor stop them
            self._parts.requests.keep(_ask_stop(name, self._parts.clock.now()))
        keep(self._parts.state, read.text)
        return report

    def _read(self) -> Usable | types.ReloadReport:
        """Return what is to be applied, or the report of why the file as it is, is refused."""
        checked, changes = read_apart(self._config, self._parts.settings)
        if checked.settings is None:
            errors = [str(problem) for problem in checked.problems if problem.level is Level.ERROR]
            return types.ReloadReport(problems=errors)
        # At a reload a user is there to correct it: a receiver that cannot be read is refused, at a start lived with.
        receivers = read_receivers(checked.settings.alerts)
        if receivers.problems:
            return types.ReloadReport(problems=list(receivers.problems.values()))
        return Usable(settings=checked.settings, text=checked.text, receivers=receivers, changes=changes)

    def _report(self, read: Usable) -> types.ReloadReport:
        """Return what of the settings is applied, and what is not; called in the deciding thread."""
        waiting = [*read.changes.needs_restart, *self._still_running(read.settings)]
        return types.ReloadReport(applied=list(read.changes.applied), needs_restart=waiting)

    def _still_running(self, new: Settings) -> list[str]:
        gone = self._parts.settings.jobs.keys() - new.jobs.keys()
        return [f"jobs.{name}: removed; it is being stopped first" for name in sorted(gone) if self._is_alive(name)]

    def _is_alive(self, name: str) -> bool:
        job_state = self._parts.loop.job_states.get(name)
        return job_state is not None and is_alive(job_state.job)

    def _apply_settings(self, new: Settings, receivers: ReadReceivers) -> None:
        parts, old = self._parts, self._parts.settings
        now = parts.clock.now()
        # A job that runs keeps its settings until it has ended: ending it needs them.
        kept = {name: job for name, job in old.jobs.items() if name not in new.jobs and self._is_alive(name)}
        parts.settings = _with_jobs(new, kept)
        for name, job in new.jobs.items():
            if name in parts.loop.job_states:
                job_state = parts.loop.job_states[name]
                rules, job_state.rules = job_state.rules, rules_of(job)
                self._record_rule_changes(name, rules, job_state.rules, now)
                job_state.expected = expectation_of(job)
                job_state.gpus_used = parts.job_gpus.used_by(job)
                job_state.disks = parts.find_disks(job)
                job_state.job = replace(job_state.job, limits=limits_of(job))
            else:
                known = {item.name: item for item in parts.store.load_jobs(now)}
                job_state = parts.add(name, job, known.get(name), now)
                parts.left_running.discard(name)
                if is_alive(job_state.job):
                    self._adopt(job_state)  # left out of the configuration of a start, it ran on
        for name in old.jobs.keys() - new.jobs.keys():
            if name in kept:
                parts.inbox.put(_ask_stop(name, now))
            else:
                del parts.loop.job_states[name]
        parts.receivers.replace(new.alerts, receivers)
        parts.removed = set(kept)
        logging_setup.set_level(new.supervisor.log_level)
        self._schedule(parts.settings)

    def _record_rule_changes(self, job: str, before: Iterable[Rule], after: Iterable[Rule], now: Moment) -> None:
        """Record for which rules it changed what they may do; one that leaves the shadow is logged as promoted."""
        for rule, was, act in list_changed_acts(before, after):
            changed = ev.RuleChanged(at=now, job=job, rule=rule, before=was, after=act)
            self._parts.inbox.put(changed)
            fields = {"job": job, "rule": rule, "before": was, "after": act}
            log.warning("rule.promoted" if changed.promoted else "rule.changed", extra={"fields": fields})

    def _forget_removed(self, _event: ev.Event, _now: Moment) -> None:
        """Forget the removed jobs that have ended."""
        for name in [text for text in self._parts.removed if not self._is_alive(text)]:
            self._parts.removed.discard(name)
            del self._parts.loop.job_states[name]
            left = {text: job for text, job in self._parts.settings.jobs.items() if text != name}
            self._parts.settings = msgspec.structs.replace(self._parts.settings, jobs=left)
            log.info("reload.removed", extra={"fields": {"job": name}})


def _ask_stop(job: str, now: Moment) -> ev.UserRequest:
    return ev.UserRequest(at=now, job=job, ask=ev.Ask.STOP, by="reload")


def _with_jobs(settings: Settings, more: dict[str, JobSettings]) -> Settings:
    return msgspec.structs.replace(settings, jobs={**settings.jobs, **more})


def list_changed_acts(before: Iterable[Rule], after: Iterable[Rule]) -> list[tuple[str, Act, Act]]:
    """Return the rules whose setting `act` is another: name, before, after. False is a setting, None is none."""
    acted = {rule.name: act_of(rule) for rule in before}
    found = ((rule.name, acted.get(rule.name), act_of(rule)) for rule in after)
    return [(name, was, act) for name, was, act in found if was is not None and act is not None and was != act]
