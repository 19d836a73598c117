"""Composes one frame of `supervisorctl top`: from state, time and size of the screen, one line for each of its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from supervisor.cli.formatting import UNKNOWN, ago, epoch, number, part_of, size, span, until
from supervisor.cli.status import STYLES
from supervisor.cli.table import cells
from supervisor.cli.top.braille import curve
from supervisor.cli.top.state import DETAILS, HELP, TopState
from supervisor.core.sanitize import one_line

Span = tuple[str, str | None]
"""Text and its style."""
Line = tuple[Span, ...]

NAME_CELLS = 16
KEYS = "q quit  / filter  enter details  ? help"
KEYS_TEXT = (
    ("up, k / down, j", "previous, next row"),
    ("home, g / end, G", "first, last row"),
    ("enter", "incidents and output"),
    ("esc, left", "back, or no filter"),
    ("/", "filter by name"),
    ("?, h", "these keys"),
    ("q", "quit; stops nothing"),
)
_OUTCOMES = {"open": "red", "gave_up": "red", "resumed": "green"}


def compose(state: TopState, now: float, columns: int, rows: int) -> list[Line]:
    """Return exactly `rows` lines of at most `columns` cells."""
    body = {HELP: _help_lines, DETAILS: _detail_lines}.get(state.page, _overview_lines)
    room = max(rows - 2, 0)
    lines = [_draw_header(state, now), *body(state, now, columns, room)[:room]]
    lines += [()] * (rows - 1 - len(lines))
    lines = [*lines, _draw_footer(state)][:rows] if rows > 1 else lines[:rows]
    return [fit(line, columns) for line in lines]


def fit(line: Line, columns: int) -> Line:
    """Return the line cut to `columns` cells."""
    fitted: list[Span] = []
    left = columns
    for text, style in line:
        shown = shorten(text, left)
        fitted.append((shown, style))
        left -= cells(shown)
        if left <= 0 or shown != text:
            break
    return tuple(span_ for span_ in fitted if span_[0])


def shorten(text: str, width: int) -> str:
    """Return `text` with an ellipsis in the place of what exceeds `width` cells."""
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 1:
        text = text[:-1]
    return f"{text}…" if width > 0 else ""


def _draw_header(state: TopState, now: float) -> Line:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    answer = state.answer
    if answer.problem is not None:
        since = "" if answer.answered_unix_s is None else f", last answer {ago(answer.answered_unix_s, now)}"
        return ((f"{clock}  ", None), (f"no answer from the daemon{since}: {one_line(answer.problem)}", "red"))
    if answer.status is None:
        return ((f"{clock}  ", None), ("asking the daemon", "dim"))
    daemon = answer.status["daemon"]
    text = f"rocm-supervisor {one_line(daemon['version'])}, up {span(daemon['uptime_s'])}"
    problem = daemon["problem"] or next(iter(daemon.get("alert_problems", ())), None)
    return ((f"{clock}  ", None), (text, "dim"), (f"  {one_line(problem)}" if problem else "", "red"))


def _draw_footer(state: TopState) -> Line:
    if state.typing:
        return ((f"/{state.filter}_", "bold"), ("  enter: keep, esc: all", "dim"))
    if state.page != "overview":
        return (("esc back  q quit", "dim"),)
    return ((f"/{state.filter}  " if state.filter else "", "bold"), (KEYS, "dim"))


# --- the overview -------------------------------------------------------------------------------------------------


def _overview_lines(state: TopState, now: float, columns: int, room: int) -> list[Line]:
    if state.answer.status is None:
        return []
    gpus = state.answer.status["gpus"]
    spare = max(room - 4, 1)  # head, loss, incident, one line of output
    jobs_room = max(min(len(state.jobs), spare - min(len(gpus), spare // 2)), 1)
    shown = _select_visible(state, jobs_room)
    chosen = _choose_columns(columns, shown)
    lines = [_job_line(chosen, None)]
    lines += [_job_line(chosen, job, now, selected=job is state.job) for job in shown]
    if not shown:
        lines.append((("no training" + (" has this name" if state.filter else " is configured"), "dim"),))
    lines += [_gpu_line(gpu) for gpu in gpus[: max(spare - len(shown), 0)]]
    lines.append(_loss_line(state, columns))
    lines.append(_incident_line(state, now))
    return lines + _output_lines(state, room - len(lines))


def _select_visible(state: TopState, room: int) -> Sequence[dict[str, Any]]:
    """Return the trainings that have room, the selected one among them."""
    jobs = state.jobs
    index = next((number_ for number_, job in enumerate(jobs) if job is state.job), 0)
    first = min(max(index - room + 1, 0), max(len(jobs) - room, 0))
    return jobs[first : first + room]


Column = tuple[str, int, Callable[[dict[str, Any], float], str]]
COLUMNS: tuple[Column, ...] = (
    ("TRAINING", NAME_CELLS, lambda job, _: one_line(job["name"])),
    ("PHASE", 9, lambda job, _: one_line(job["phase"])),
    ("STEPS/S", 8, lambda job, _: number(job["steps_per_s"], "{:.1f}")),
    ("EPOCH", 7, lambda job, _: part_of(epoch(job["epoch"]), job["epochs"])),
    ("LOSS", 9, lambda job, _: number(job["loss"], "{:.4g}")),
    ("ETA", 12, lambda job, now: until(job["eta"], now)),
    ("STEP", 17, lambda job, _: part_of(job["step"], job["steps_total"])),
    ("LAST STEP", 12, lambda job, now: ago(job["last_step_at"], now)),
    ("RESTARTS", 8, lambda job, _: str(job["restarts"])),
    ("WHY", 40, lambda job, _: one_line(job["reason"] or "")),
)
"""Head, cells, text; the first ones are shown on a narrow screen."""


def _choose_columns(columns: int, jobs: Sequence[dict[str, Any]]) -> Sequence[Column]:
    """Return the columns that have room; the names take no more than the longest of them needs."""
    title, widest, read = COLUMNS[0]
    longest = max((cells(read(job, 0.0)) for job in jobs), default=0)
    names = (title, min(max(longest, len(title)), widest), read)
    used, count = 2, 0
    for _, width, _ in (names, *COLUMNS[1:]):
        if used + width > columns:
            break
        used, count = used + width + 1, count + 1
    return (names, *COLUMNS[1 : max(count, 1)])


def _job_line(
    chosen: Sequence[Column], job: dict[str, Any] | None, now: float = 0.0, *, selected: bool = False
) -> Line:
    spans: list[Span] = [("> " if selected else "  ", "bold")]
    for title, width, read in chosen:
        text = title if job is None else read(job, now)
        style = (
            "dim" if job is None else STYLES.get(text) if title == "PHASE" else "bold" if title == "TRAINING" else None
        )
        text = shorten(text, width)
        spans.append((text + " " * (width - cells(text) + 1), style))
    return tuple(spans)


def _gpu_line(gpu: dict[str, Any]) -> Line:
    known = [gpu[name] for name in ("edge_c", "junction_c", "memory_c") if gpu[name] is not None]
    hottest = number(max(known, default=None), "{:.0f} C")
    use = (
        "asleep"
        if gpu["runtime_status"] in ("suspended", "suspending")
        else number(gpu["gpu_busy_percent"], "{:.0f} %")
    )
    memory = f"{size(gpu['vram_used_bytes'])} of {size(gpu['vram_total_bytes'])}"
    name = one_line(gpu["gpu"]).removeprefix("0000:")
    text = f"  {name}  {use}  {hottest}  {memory}  {number(gpu['power_w'], '{:.0f} W')}  {one_line(gpu['name'] or '')}"
    return ((text, None),)


def _loss_line(state: TopState, columns: int) -> Line:
    job = state.job
    if job is None:
        return ()
    losses = state.losses.get(job["name"], ())
    known = [loss for loss in losses if loss is not None]
    ends = f" {min(known):.3g} to {max(known):.3g}" if known else ""
    label = f"loss {shorten(one_line(job['name']), NAME_CELLS)} "
    drawn = curve(losses, columns - cells(label) - cells(ends))
    return ((label, "dim"), (drawn or UNKNOWN, "cyan"), (ends, None))


def _incident_line(state: TopState, now: float) -> Line:
    newest = next(iter(state.answer.incidents), None)
    if newest is None:
        return (("no incident is recorded", "dim"),)
    return _describe_incident(newest, now)


def _describe_incident(incident: dict[str, Any], now: float) -> Line:
    outcome = one_line(incident["outcome"])
    head = f"{one_line(incident['id'])}, {ago(incident['at'], now)}: "
    cost = "" if incident["lost_steps"] is None else f", {incident['lost_steps']} steps to redo"
    return (
        (head, "bold"),
        (outcome + cost, _OUTCOMES.get(outcome, "yellow")),
        (f": {one_line(incident['message'])}", None),
    )


def _output_lines(state: TopState, room: int) -> list[Line]:
    if state.job is None or state.answer.output_of != state.job["name"] or room <= 0:
        return []
    return [((one_line(text), "dim"),) for text in state.answer.output[-room:]]


# --- the other pages ----------------------------------------------------------------------------------------------


def _detail_lines(state: TopState, now: float, columns: int, room: int) -> list[Line]:
    job = state.job
    if job is None:
        return [(("this training is no longer configured", "yellow"),)]
    lines: list[Line] = list(_describe_job(job, now))
    lines.append(_loss_line(state, columns))
    lines += [((one_line(flag), "red"),) for flag in job["flags"]]
    lines += [((f"remedy {one_line(remedy)}", "yellow"),) for remedy in job["remedies"]]
    of_job = [incident for incident in state.answer.incidents if incident["job"] == job["name"]]
    lines += [_describe_incident(incident, now) for incident in of_job[: max((room - len(lines)) // 2, 1)]]
    return lines + _output_lines(state, room - len(lines))


def _describe_job(job: dict[str, Any], now: float) -> Iterator[Line]:
    phase = one_line(job["phase"])
    yield ((one_line(job["name"]), "bold"), (f"  {phase}", STYLES.get(phase)), (f", attempt {job['attempt']}", None))
    yield tuple(
        (f"{title.lower()} {read(job, now)}  ", None)
        for title, _, read in COLUMNS
        if title not in ("TRAINING", "PHASE", "WHY")
    )
    if job["reason"]:
        yield ((one_line(job["reason"]), "yellow"),)


def _help_lines(_state: TopState, _now: float, _columns: int, _room: int) -> list[Line]:
    return [((f"{keys:<18}", "bold"), (text, None)) for keys, text in KEYS_TEXT]
