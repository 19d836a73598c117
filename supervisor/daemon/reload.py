"""Applies a changed configuration to the running daemon as far as that can be, and says what has to wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.alerts.sink import Sink, SinkError
from supervisor.config.derive import expectation_of, limits_of, rules_of
from supervisor.config.difference import difference
from supervisor.config.load import check
from supervisor.config.settings import JobSettings, Settings
from supervisor.control import types
from supervisor.core import events as ev
from supervisor.core.job import ALIVE
from supervisor.core.moments import Moment
from supervisor.core.rules import Rule
from supervisor.daemon import logs
from supervisor.daemon.assembly import Assembly
from supervisor.daemon.notify import Notifier

log = logging.getLogger(__name__)


class Reloading:
    """Reads the file again; with any error in it nothing is applied and the daemon goes on as before."""

    def __init__(
        self,
        parts: Assembly,
        config: Path,
        notifier: Notifier,
        schedule: Callable[[Settings], None],
    ) -> None:
        self._parts = parts
        self._config = config
        self._notifier = notifier
        self._schedule = schedule
        self._removed: set[str] = set()
        self.refused: str | None = None
        """Why the file as it stands was not applied; None where it was."""
        parts.on_turn(self._forget_removed)

    def reload(self) -> types.ReloadReport:
        """Read and apply; called in the deciding thread."""
        self._notifier.reloading(int(self._parts.clock.now().monotonic_s * 1e6))
        report = self._reloaded()
        for key in ("applied", "needs_restart", "problems"):
            for text in getattr(report, key):
                level = logging.ERROR if key == "problems" else logging.INFO
                log.log(level, "reload.%s", key, extra={"fields": {"change": text}})
        self.refused = f"reload refused: {report.problems[0]}" if report.problems else None
        self._notifier.ready()
        return report

    def _reloaded(self) -> types.ReloadReport:
        checked = check(self._config)
        if checked.settings is None:
            return types.ReloadReport(problems=[str(one) for one in checked.problems])
        try:
            sinks = {name: Sink.from_settings(name, one) for name, one in checked.settings.alerts.items()}
        except SinkError as error:
            return types.ReloadReport(problems=[str(error)])
        changed = difference(self._parts.settings, checked.settings)
        kept = self._still_running(checked.settings)
        self._apply(checked.settings, sinks)
        return types.ReloadReport(applied=list(changed.applied), needs_restart=[*changed.needs_restart, *kept])

    def _still_running(self, new: Settings) -> list[str]:
        gone = self._parts.settings.jobs.keys() - new.jobs.keys()
        return [f"jobs.{name}: removed; it is being stopped first" for name in sorted(gone) if self._alive(name)]

    def _alive(self, name: str) -> bool:
        dossier = self._parts.loop.dossiers.get(name)
        return dossier is not None and (dossier.job.phase in ALIVE or dossier.job.replaying)

    def _apply(self, new: Settings, sinks: dict[str, Sink]) -> None:
        parts, old = self._parts, self._parts.settings
        now = parts.clock.now()
        # A job that runs keeps its settings until it has ended: ending it needs them.
        kept = {name: job for name, job in old.jobs.items() if name not in new.jobs and self._alive(name)}
        parts.settings = _with_jobs(new, kept)
        for name, job in new.jobs.items():
            if name in parts.loop.dossiers:
                dossier = parts.loop.dossiers[name]
                rules, dossier.rules = dossier.rules, rules_of(job)
                self._tell_promotions(name, rules, dossier.rules, now)
                dossier.expected = expectation_of(job)
                dossier.gpus_used = parts.cards.used_by(job)
                dossier.job = replace(dossier.job, limits=limits_of(job))
            else:
                known = {one.name: one for one in parts.store.load_jobs(now)}
                parts.add(name, job, known.get(name), now)
        for name in old.jobs.keys() - new.jobs.keys():
            if name in kept:
                parts.inbox.put(ev.Asked(at=now, job=name, ask=ev.Ask.STOP, by="reload"))
            else:
                del parts.loop.dossiers[name]
        parts.replace_sinks(sinks)
        self._removed = set(kept)
        logs.set_level(new.supervisor.log_level)
        self._schedule(parts.settings)

    def _tell_promotions(self, job: str, before: Iterable[Rule], after: Iterable[Rule], now: Moment) -> None:
        """Record for which rules it changed what they may do; one that leaves its probation is said aloud."""
        acted = {rule.name: rule.act for rule in before}
        for rule in after:
            was = acted.get(rule.name, rule.act)
            if was == rule.act:
                continue
            changed = ev.RuleChanged(at=now, job=job, rule=rule.name, before=was, after=rule.act)
            self._parts.inbox.put(changed)
            fields = {"job": job, "rule": rule.name, "before": was, "after": rule.act}
            log.warning("rule.promoted" if changed.promoted else "rule.changed", extra={"fields": fields})

    def _forget_removed(self, _event: ev.Event, _now: Moment) -> None:
        """Let go of the removed jobs that have ended by now."""
        for name in [one for one in self._removed if not self._alive(one)]:
            self._removed.discard(name)
            del self._parts.loop.dossiers[name]
            left = {one: job for one, job in self._parts.settings.jobs.items() if one != name}
            self._parts.settings = msgspec.structs.replace(self._parts.settings, jobs=left)
            log.info("reload.removed", extra={"fields": {"job": name}})


def _with_jobs(settings: Settings, more: dict[str, JobSettings]) -> Settings:
    return msgspec.structs.replace(settings, jobs={**settings.jobs, **more})
