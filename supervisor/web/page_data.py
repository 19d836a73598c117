"""What each view of the page shows: the record, and the live state where the daemon answers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import msgspec

from supervisor import __version__
from supervisor.control.client import ControlError, UnreachableError
from supervisor.core.reports.tune_picture import WIDTH, draw
from supervisor.core.sanitize import sanitize, sanitized
from supervisor.json_bytes import encode_json
from supervisor.web.clock import now_unix_s
from supervisor.web.daemon import Daemon, Kept
from supervisor.web.question import ask_record
from supervisor.web.record import Record, RecordError, Row

LINES_AT_FIRST = 500
OUTPUT_LIMIT = 300_000
ALERTS_SHOWN = 100
SPARKLINES_KEPT_S = 10.0
ANSWERS_KEPT_S = 30.0
WIDTH_LEAST = 280
PICTURES_KEPT = 16
NO_TUNE = ("refused", "no_such_job", "not_served")
"""Codes of a daemon that has no tune of a training."""
SHOWN_OF_A_JOB = (
    "name", "phase", "stage", "since", "attempt", "epoch", "epochs", "step", "steps_total", "steps_per_s",
    "last_step_at", "eta", "eta_early", "eta_late", "loss", "restarts", "reason", "hooked", "flags", "gpus", "remedies",
    "degraded", "expectations",
)  # fmt: skip


class PageData:
    """The answers of every view. Methods raise RecordError, and ControlError for what only the daemon knows."""

    def __init__(self, record: Record, daemon: Daemon, config: Path) -> None:
        self._record = record
        self._daemon = daemon
        self._config = config
        self._sparklines: Kept[Row] = Kept(SPARKLINES_KEPT_S)
        self._answers: Kept[dict[str, object]] = Kept(ANSWERS_KEPT_S)

    def overview(self) -> Row:
        """Return the trainings with their live state, the daemon's problems, and a loss curve of six hours each."""
        status, problem = self._read_status()
        live = {str(job["name"]): job for job in _read_list(status, "jobs")}
        try:
            recorded = {str(job["name"]): job for job in self._record.jobs()}
        except RecordError as error:
            recorded, problem = {}, "; ".join(filter(None, (problem, str(error))))
        trainings = []
        for name in sorted({*live, *recorded}):
            job = live.get(name)
            shown = recorded[name] if job is None else {key: job.get(key) for key in SHOWN_OF_A_JOB}
            trainings.append({**shown, "live": job is not None, "spark": self._read_sparkline(name, recorded)})
        answer = {"now": now_unix_s(), "version": __version__, "trainings": trainings, "problem": problem}
        daemon = status.get("daemon") if status else None
        return _clean_answer({**answer, "daemon": daemon, "gpus": _read_list(status, "gpus")})

    def training(self, name: str) -> Row:
        """Return the attempts, the incidents and the state of one training."""
        status, problem = self._read_status()
        live = next((job for job in _read_list(status, "jobs") if job["name"] == name), None)
        found = self._record.training(name)
        recorded = next((job for job in self._record.jobs() if job["name"] == name), None)
        if live is None and recorded is None and not found["attempts"]:
            raise ControlError("no_such_job", f"no training {name!r} is recorded", "the overview lists them")
        shown = recorded if live is None else {key: live.get(key) for key in SHOWN_OF_A_JOB}
        return _clean_answer(
            {"now": now_unix_s(), "problem": problem, "live": live is not None, "state": shown, **found}
        )

    def steps(self, name: str, since: float | None, until: float | None, points: int) -> Row:
        """Return the steps of a training in a window of time."""
        return self._record.steps(name, since, until, points)

    def samples(self, name: str, since: float | None, until: float | None, points: int) -> Row:
        """Return the readings of a training's GPUs and processes in a window of time."""
        status, _ = self._read_status()
        live = next((job for job in _read_list(status, "jobs") if job["name"] == name), {})
        gpus = live.get("gpus")
        return self._record.samples(name, gpus if isinstance(gpus, list) else [], since, until, points)

    def gpus(self, since: float | None, until: float | None, points: int) -> Row:
        """Return every GPU: what it reads now, and its readings in a window of time."""
        status, problem = self._read_status()
        now = now_unix_s()
        read = self._record.samples(
            None, [], now - 3600 if since is None else since, now if until is None else until, points
        )
        host = status.get("host") if status else None
        return _clean_answer({"now": now, "problem": problem, "live": _read_list(status, "gpus"), "host": host}) | read

    def compare(self, chosen: list[tuple[str, int | None]], points: int) -> Row:
        """Return the steps of the chosen attempts."""
        return {"compared": self._record.compare(chosen, points)}

    def output(self, name: str, after: int | None, attempt: int | None) -> Row:
        """Return the end of a training's output, or what follows offset `after` of `attempt`."""
        route = f"/v1/jobs/{quote(name, safe='')}/output"
        answer = self._ask(route, after=after, attempt=attempt, lines=LINES_AT_FIRST)
        return {**answer, "text": sanitize(str(answer["text"]), OUTPUT_LIMIT)}

    def account(self, name: str) -> Row:
        """Return how the time of a training was spent; never asked of the daemon, which it would delay."""
        route = f"/v1/jobs/{quote(name, safe='')}/account"
        return _clean_answer(self._answers.get(route, lambda: ask_record(self._config, route)))

    def tune(self, name: str) -> Row:
        """Return what the last tune of a training came to, None where there is none or no daemon that knows it."""
        return _clean_answer({"tune": self._read_tune(name)})

    def tune_picture(self, name: str, width: int | None, *, is_dark: bool) -> bytes:
        """Return the plot of the last tune as PNG, of about a width in pixels."""
        report = self._read_tune(name)
        if report is None:
            raise ControlError("no_such_tune", f"no tune of {name!r} is known", f"supervisorctl tune {name}")
        width = WIDTH if width is None else max(WIDTH_LEAST, min(WIDTH, width))
        return _draw_tune(encode_json(report), width, is_dark)

    def incident(self, incident: str) -> Row:
        """Return what `supervisorctl show` prints about an incident, with the files of its evidence."""
        route = f"/v1/incidents/{quote(incident, safe='')}"
        answer = self._ask(route)
        try:
            evidence: object = self._ask(route + "/evidence").get("files")
        except ControlError:
            evidence = None
        return _clean_answer({**answer, "evidence_files": evidence})

    def alerts(self) -> Row:
        """Return the receivers of alerts and the newest alerts."""
        return _clean_answer(self._ask("/v1/alerts", limit=ALERTS_SHOWN))

    def metrics(self, accept: str) -> str:
        """Return what `supervisorctl metrics` prints."""
        return self._daemon.metrics(accept)

    def _ask(self, route: str, **query: str | int | None) -> dict[str, object]:
        """Return the daemon's answer about the record, or, where it is not reached, the record's own."""
        try:
            return self._daemon.get(route, **query)
        except UnreachableError:
            return ask_record(self._config, route, **query)

    def _read_tune(self, name: str) -> Row | None:
        try:
            report = self._daemon.get(f"/v1/jobs/{quote(name, safe='')}/tune")
        except UnreachableError:
            return None
        except ControlError as error:
            if error.code in NO_TUNE:
                return None
            raise
        return report if report["adopted"] or report["refused"] else None

    def _read_status(self) -> tuple[Row, str | None]:
        """Return the live state, or why there is none."""
        try:
            return self._daemon.get("/v1/status", watched=0), None
        except ControlError as error:
            return {}, f"{error}; this is the record" + (f" ({error.remedy})" if error.remedy else "")

    def _read_sparkline(self, name: str, recorded: dict[str, Row]) -> Row | None:
        if name not in recorded:
            return None
        return self._sparklines.get(name, lambda: dict(self._record.sparkline(name)))


@lru_cache(PICTURES_KEPT)
def _draw_tune(report: bytes, width: int, is_dark: bool) -> bytes:  # noqa: FBT001 - of what is kept, no name
    return draw(msgspec.json.decode(report), width=width, is_dark=is_dark)


def _read_list(status: Row, name: str) -> list[Row]:
    found = status.get(name)
    return found if isinstance(found, list) else []


def _clean_answer(answer: Row) -> Row:
    """Return an answer without what could turn or hide text on the page; markup is harmless there."""
    made = sanitized(answer)
    assert isinstance(made, dict)
    return made
