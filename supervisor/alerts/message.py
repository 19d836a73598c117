"""The words of a notice for a person: what happened, since when, what was done, whether it runs again, what it cost.

The title begins with the training and its state, for a lock screen shows about forty characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, datetime, tzinfo
from enum import IntEnum
from typing import Any

from supervisor.alerts.channel import KeptNotice
from supervisor.core.flags import Severity
from supervisor.core.job import LAUNCH
from supervisor.core.sanitize import one_line

TITLE_LIMIT = 200
LINE_LIMIT = 700
LIST_LIMIT = 3
DIGEST = "digest"
"""Type of a message that stands for several notices."""
REMINDER = "job.gave_up reminder"
"""What a reminder of a training that stands given up is written as; its type is that of the first report."""
UNCONFIRMED = "job.finished unconfirmed"
"""What the end of a training is written as that may have saved spoilt weights last."""
NOT_LAUNCHED = "could not be launched"
DECISIONS = {
    "stop": "It is being stopped, then restarted.",
    "kill": "It is being killed, then restarted.",
    "retry": "Its process has ended; it is being restarted.",
    "give_up": "It is not restarted.",
}


class Urgency(IntEnum):
    """How much a message may disturb."""

    CALM = 0
    """Good news, or what can wait."""
    NORMAL = 1
    HIGH = 2
    """Something serious that is being handled."""
    URGENT = 3
    """A person is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notice in words; every text is free of control characters and on one line."""

    title: str
    lines: tuple[str, ...]
    urgency: Urgency

    @property
    def body(self) -> str:
        """The lines."""
        return "\n".join(self.lines)


def compose(notice: KeptNotice, zone: tzinfo | None = None) -> Message:
    """Return a notice in words; times are those of `zone`, or of this machine where it is None."""
    facts = _Facts(notice, zone)
    title, write = WORDS.get(_choose_kind(notice), ("{job}: {type}", _write_plain))
    return Message(
        title=_clean_line(title.format_map(facts.title_parts), TITLE_LIMIT) or notice.type,
        lines=tuple(line for line in (_clean_line(line) for line in write(facts)) if line),
        urgency=_rate_urgency(notice),
    )


def parse_time(text: str, zone: tzinfo | None) -> datetime | None:
    """Return an RFC 3339 time of a notice in a zone; None for any other text, and in the years 1 and 9999."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(zone) if MINYEAR < moment.year < MAXYEAR else None
    except (ValueError, OverflowError):
        return None


def _choose_kind(notice: KeptNotice) -> str:
    if notice.type == "job.gave_up" and "reminder" in notice.data:
        return REMINDER
    return UNCONFIRMED if notice.type == "job.finished" and "unconfirmed" in notice.data else notice.type


def _rate_urgency(notice: KeptNotice) -> Urgency:
    if _choose_kind(notice) == UNCONFIRMED:
        return Urgency.NORMAL
    match notice.type:
        case "job.gave_up" | "job.last_resort" | "flag.critical":
            return Urgency.URGENT
        case "incident.opened" | "incident.triaged":
            return Urgency.HIGH
        case "incident.resumed" | "job.finished" | "flag.info":
            return Urgency.CALM
        case "report":
            return Urgency.CALM if notice.severity is Severity.INFO else Urgency.NORMAL
        case "digest":
            return Urgency.HIGH if notice.severity is Severity.CRITICAL else Urgency.NORMAL
        case _:
            return Urgency.NORMAL


def _write_opened(facts: _Facts) -> Iterator[str]:
    yield facts.text("message")
    yield facts.since
    yield facts.decision
    yield from facts.advice
    yield facts.place


def _write_triaged(facts: _Facts) -> Iterator[str]:
    yield str(facts.triage.get("words", ""))
    files = facts.triage.get("files")
    if isinstance(files, list) and files:
        yield "Look at: " + ", ".join(str(file) for file in files[:LIST_LIMIT])
    yield facts.text("message")
    yield facts.since
    yield facts.place


def _write_resumed(facts: _Facts) -> Iterator[str]:
    yield facts.outcome + facts.cost
    yield "It was: " + facts.text("message") if facts.text("message") else ""
    yield facts.since
    yield facts.remedy
    yield facts.place


def _write_gave_up(facts: _Facts) -> Iterator[str]:
    yield from facts.reason_and_message
    yield facts.since
    yield facts.remedy
    yield str(facts.triage.get("words", ""))
    yield from facts.advice
    yield facts.place


def _write_reminder(facts: _Facts) -> Iterator[str]:
    yield facts.given_up
    yield from facts.reason_and_message
    yield from facts.advice
    yield facts.place
    yield facts.acknowledging


def _write_finished(facts: _Facts) -> Iterator[str]:
    yield facts.text("reason")
    yield facts.progress
    restarts = facts.data.get("restarts")
    yield "" if restarts is None else f"Restarts: {restarts}."
    yield facts.place


def _write_test(facts: _Facts) -> Iterator[str]:
    yield facts.text("message")


def _write_plain(facts: _Facts) -> Iterator[str]:
    yield facts.text("message") or facts.text("reason")
    yield facts.since
    yield from facts.advice
    yield facts.place


def _write_digest(facts: _Facts) -> Iterator[str]:
    alerts = facts.data.get("alerts")
    yield from (str(line) for line in alerts) if isinstance(alerts, list) else ()
    counts = facts.data.get("more")
    if isinstance(counts, Mapping) and counts:
        rest = ", ".join(f"{count} {_spell_name(str(name))}" for name, count in counts.items())
        yield f"and {sum(number for number in counts.values() if isinstance(number, int))} more: {rest}"


def _write_report(facts: _Facts) -> Iterator[str]:
    trainings, undelivered = facts.list_of("trainings"), facts.list_of("undelivered")
    for training in trainings:
        yield from _report_training(training)
    count = facts.data.get("count")
    if isinstance(count, int) and count > len(trainings):
        yield f"and {count - len(trainings)} more: supervisorctl status"
    for item in undelivered:
        yield f"Not delivered: {item.get('count')} alerts to {item.get('receiver')} ({item.get('error')})"
    yield f"The record could not be read: {facts.text('unreadable')}" if facts.text("unreadable") else ""


def _report_training(training: Mapping[str, Any]) -> Iterator[str]:
    parts = [
        f"{training.get('job')}: {'STOPPED, needs you' if training.get('phase') == 'failed' else training.get('phase')}"
    ]
    parts += _spell_change("epoch", training.get("epoch_before"), training.get("epoch"), "")
    parts += _spell_change("loss", training.get("loss_before"), training.get("loss"), ".4g")
    steps, reason = training.get("steps"), training.get("reason")
    parts += [f"{steps:,} steps"] if isinstance(steps, int) else []
    yield ", ".join(parts) + (f" ({reason})" if reason and training.get("phase") != "running" else "")
    effective, lost_s = training.get("effective"), training.get("lost_s")
    incidents, resumed = training.get("incidents"), training.get("resumed")
    spent = [f"{effective:.1%} effective"] if isinstance(effective, int | float) else []
    if isinstance(incidents, int) and incidents:
        spent += [f"incidents: {incidents}" + (f", resumed by itself: {resumed}" if isinstance(resumed, int) else "")]
        spent += [f"lost: {_spell_duration(lost_s)}"] if isinstance(lost_s, int | float) else []
    elif isinstance(incidents, int):
        spent += ["no incident"]
    yield "; ".join(spent)


def _spell_change(what: str, before: object, after: object, form: str) -> list[str]:
    """Return `epoch 29 -> 34`, as far as that is known."""
    known = [format(value, form) for value in (before, after) if isinstance(value, int | float)]
    return [f"{what} {' -> '.join(dict.fromkeys(known))}"] if known else []


WORDS: Mapping[str, tuple[str, Callable[[_Facts], Iterator[str]]]] = {
    "incident.opened": ("{job}: {rule}", _write_opened),
    "incident.triaged": ("{job}: cause found: {verdict}", _write_triaged),
    "incident.resumed": ("{job} is training again (nothing to do)", _write_resumed),
    "job.gave_up": ("{job} STOPPED, needs you: {rule}", _write_gave_up),
    REMINDER: ("{job} STILL STOPPED, needs you: {rule}", _write_reminder),
    "job.finished": ("{job} finished", _write_finished),
    UNCONFIRMED: ("{job} finished, its result needs a look", _write_finished),
    "job.last_resort": ("{job}: last resort: {kind}", _write_plain),
    "flag.critical": ("{job} needs you: {rule}", _write_plain),
    "flag.warning": ("{job}: {rule}", _write_plain),
    "flag.info": ("{job}: {rule}", _write_plain),
    "report": ("{report} ({host})", _write_report),
    "test": ("Test alert from {host}", _write_test),
    DIGEST: ("{count} alerts from {host}", _write_digest),
}
"""Title and lines of each type of notice."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """The data of a notice as parts of sentences; what is not known is an empty text."""

    notice: KeptNotice
    zone: tzinfo | None

    @property
    def data(self) -> Mapping[str, Any]:
        return self.notice.data

    def text(self, key: str) -> str:
        value = self.data.get(key)
        return "" if value is None else str(value)

    @property
    def title_parts(self) -> Mapping[str, str]:
        rule = _spell_name(self.text("rule") or self.text("cause") or "see below")
        rule = NOT_LAUNCHED if rule == LAUNCH else rule
        parts = {
            "job": self.text("job") or "a training",
            "rule": rule,
            "type": _spell_name(self.notice.type) or "alert",
        }
        texts = {"verdict": _spell_name(str(self.triage.get("verdict", ""))), "kind": _spell_name(self.text("kind"))}
        return {**parts, **texts, "host": self.text("host"), "count": self.text("count"), "report": self.report}

    @property
    def decision(self) -> str:
        """What was decided, as a sentence; nothing has ended where nothing was started."""
        decided = self.text("decision")
        if self.text("rule") == LAUNCH and decided == "retry":
            return "Nothing was started; it is tried again."
        return DECISIONS.get(decided, "")

    @property
    def reason_and_message(self) -> Iterator[str]:
        """Why it was given up, and what was observed last unless that is a part of it."""
        reason, message = self.text("reason"), self.text("message")
        yield reason
        yield "" if message in reason else message

    @property
    def triage(self) -> Mapping[str, Any]:
        value = self.data.get("triage")
        return value if isinstance(value, dict) else {}

    @property
    def since(self) -> str:
        began = self._local_time(self.text("since")) or self._local_time(self.notice.timestamp)
        step, epoch = self.data.get("step_before", self.data.get("last_step")), self.data.get("epoch")
        parts = [f"Since {began}"] if began else []
        parts += [f"step {step:,}"] if isinstance(step, int) else []
        parts += [f"epoch {epoch}"] if isinstance(epoch, int) else []
        return ", ".join(parts) + "." if parts else ""

    @property
    def report(self) -> str:
        """The state of all trainings, for the title of a report."""
        count, stopped, unresolved = (self.data.get(key) for key in ("count", "stopped", "unresolved"))
        if isinstance(stopped, int) and stopped:
            return f"Report: {stopped} of {count} STOPPED, needs you"
        if isinstance(unresolved, int) and unresolved:
            return f"Report: {unresolved} of {count} with an open incident"
        return f"Report: {'no problems, ' if self.data.get('well') is True else ''}trainings: {count}"

    def list_of(self, key: str) -> list[Mapping[str, Any]]:
        """Return the objects of a list."""
        value = self.data.get(key)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    @property
    def given_up(self) -> str:
        began = self._local_time(self.text("given_up_at"))
        return f"Given up at {began}; not started since." if began else ""

    @property
    def acknowledging(self) -> str:
        subject = self.text("incident") or self.text("job")
        return f"To stop these reminders: supervisorctl alerts ack {subject}" if subject else ""

    @property
    def progress(self) -> str:
        step, epoch, loss = (self.data.get(name) for name in ("last_step", "epoch", "loss"))
        parts = [f"Step {step:,}"] if isinstance(step, int) else []
        parts += [f"epoch {epoch}"] if isinstance(epoch, int) else []
        parts += [f"loss {loss:.4g}"] if isinstance(loss, int | float) else []
        return ", ".join(parts) + "." if parts else ""

    @property
    def outcome(self) -> str:
        step, epoch = self.data.get("resumed_step"), self.data.get("resumed_epoch")
        if self.text("outcome") == "restarted" and (own := self._describe_own_checkpoint()) is not None:
            return own
        if self.text("outcome") in ("restarted", "checkpoint_ignored"):
            return "It was restarted from the beginning."
        if own_file := self.text("own_file"):
            return f"It was relaunched to resume from {self.text('resumed_from')}, but loaded {own_file} by itself."
        if isinstance(step, int):
            return f"Resumed from step {step:,}.{self._aside}"
        return f"Resumed from epoch {epoch}.{self._aside}" if isinstance(epoch, int) else f"Resumed.{self._aside}"

    @property
    def _aside(self) -> str:
        paths = self.data.get("set_aside")
        names = ", ".join(map(str, paths)) if isinstance(paths, list) else ""
        return f" Newer checkpoints were moved aside: {names}." if names else ""

    def _describe_own_checkpoint(self) -> str | None:
        """Return where it went on without a checkpoint given to it; None where that was the beginning."""
        step = self.data.get("went_on_step")
        if isinstance(step, int) and step > 0:
            return f"It was restarted, and went on from step {step:,} by itself."
        if self.data.get("loads_itself") is True and step is None:
            return "It was restarted to load its own checkpoint; the step that it went on from is not known."
        return None

    @property
    def cost(self) -> str:
        down_s, steps = self.data.get("downtime_s"), self.data.get("lost_steps")
        parts = [f"{_spell_duration(down_s)} without a step"] if isinstance(down_s, int | float) else []
        parts += [f"{steps:,} steps to redo"] if isinstance(steps, int) else []
        return f" Cost: {', '.join(parts)}." if parts else ""

    @property
    def remedy(self) -> str:
        remedy, why = self.text("remedy"), self.text("remedy_why")
        return f"Remedy: {_spell_name(remedy)}{f' ({why})' if why else ''}." if remedy else ""

    @property
    def advice(self) -> Iterator[str]:
        for key, label in (("causes", "Likely cause"), ("advice", "You can")):
            texts = self.data.get(key)
            if isinstance(texts, list) and texts:
                yield f"{label}: {texts[0]}"

    @property
    def place(self) -> str:
        host, incident = self.text("host"), self.text("incident")
        command = f"supervisorctl show {incident}" if incident else "supervisorctl status"
        return f"{f'Host {host}. ' if host else ''}{command}"

    def _local_time(self, text: str) -> str:
        """Return the hour of a time, with its date where that is not the day of the notice."""
        moment, noticed = parse_time(text, self.zone), parse_time(self.notice.timestamp, self.zone)
        if moment is None:
            return ""
        same_day = noticed is not None and moment.date() == noticed.date()
        return moment.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M")


def _spell_name(name: str) -> str:
    """Return the name of a rule, cause or remedy as words."""
    return name.replace("_", " ").replace(".", " ")


def _spell_duration(seconds: float) -> str:
    if not 0 <= seconds < 1e9:
        return "an unknown time"
    rounded_s = round(seconds)
    if rounded_s < 120:
        return f"{rounded_s} s"
    if rounded_s < 7200:
        return f"{rounded_s // 60} min {rounded_s % 60} s"
    return f"{rounded_s // 3600} h {rounded_s % 3600 // 60} min"


def _clean_line(text: str, limit: int = LINE_LIMIT) -> str:
    return one_line(text[: 4 * limit], limit)
