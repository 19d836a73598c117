"""`supervisorctl tune JOB`: try what can make a living training faster, keep what is proven, undo the rest."""

from __future__ import annotations

import re
import time
from typing import Any, BinaryIO

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen
from supervisor.control.client import quoted
from supervisor.core.reports.tune_picture import draw, list_bars, write_value
from supervisor.core.sanitize import one_line
from supervisor.core.tuning.batch import BATCH
from supervisor.core.tuning.budget import STEPS
from supervisor.core.tuning.knob import KNOBS
from supervisor.core.tuning.starts import RESTART

POLL_S = 1.0
STEPS_RANGE = click.IntRange(100, 1_000_000)
UNITS_S = {"s": 1, "m": 60, "h": 3600}
PERMISSIONS = sorted({BATCH, RESTART, *(knob.permission for knob in KNOBS if knob.permission is not None)})
HEAD = ("KNOB", "VALUE", "VERDICT", "GAIN", "WHY")
CELLS = 40
"""Of the longest bar of a plot."""
JSON_FIELDS = ("job", "samples_per_s", "adopted", "refused", "bottleneck")


@click.command("tune")
@click.argument("job", shell_complete=complete_job)
@click.option("--dry-run", is_flag=True, help="Find the bottleneck and list what would be tried; change nothing.")
@click.option(
    "--for",
    "given",
    default="15m",
    show_default=True,
    help="Time for it, as 90s, 15m or 1h; what has begun, and the last comparison, may take it to twice that.",
)
@click.option("--steps", type=STEPS_RANGE, default=STEPS, show_default=True, help="Steps of the training for it.")
@click.option("--may", default="", help=f"Also try settings that are off unless permitted: {', '.join(PERMISSIONS)}.")
@click.option("--show", is_flag=True, help="Print the tune under way, or the last one; begin none.")
@click.option("--stop", is_flag=True, help="End the tune under way; the owner's settings hold again.")
@click.option("--undo", is_flag=True, help="Put the owner's settings back, now and for the next attempts.")
@click.option("--png", type=click.File("wb", lazy=False), help="Write a plot of what was adopted to this PNG file.")
@json_option
@pass_app
def command(  # noqa: PLR0913, PLR0917 - one an option
    app: App,
    job: str,
    dry_run: bool,  # noqa: FBT001
    given: str,
    steps: int,
    may: str,
    show: bool,  # noqa: FBT001
    stop: bool,  # noqa: FBT001
    undo: bool,  # noqa: FBT001
    png: BinaryIO | None,
) -> None:
    """Tune the living training of JOB without changing its script.

    Settings are tried one after the other on its own steps, in blocks that alternate with the owner's settings, and
    kept only where the gain is proven; what changes rounding has to give the same results on the same batches first.
    All that was adopted is confirmed together and used by the next attempts. An interrupt ends the tune with the
    owner's settings.

    With --may restart, what only a start can apply is tried after that: variables, and the environments of
    [jobs.JOB.environments]. The training is restarted from one snapshot several times, with it and without; the
    steps of these starts are repeated. What is proven is used by its next starts, the first of which is at once.

    With --may batch, twice the batch is tried in the same way, with the learning rate by the rule for the optimizer:
    in proportion for SGD, by the square root for Adam. That is another training: --dry-run shows both before.
    """
    route = f"/v1/jobs/{quoted(job)}/tune"
    more = {"steps": steps, "may": parse_permissions(may), "stop": stop, "undo": undo}
    body = {"dry_run": dry_run, "for_s": parse_span_s(given), **more}
    report = app.get(route) if show else app.post(route, **body)
    if not (show or stop or undo):
        report = _follow_tune(app, route, report)
    if png is not None:
        png.write(draw(report))
    if app.json:
        app.print_json(as_json(report))
    elif undo:
        left = f"; {report['why']}" if report["why"] else ""
        app.print(one_line(report["problem"] or f"{job}: the owner's settings hold{left}"))
    else:
        app.print("\n".join(report_lines(report, app.pen)))
    if report["problem"] and not (show or stop or undo):
        raise CliError(f"{one_line(job)}: {one_line(report['problem'])}", "", "tune_ended")


def parse_span_s(text: str) -> float:
    """Return a span as `15m` in seconds; raise CliError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None or not 10 <= float(found[1]) * UNITS_S[found[2]] <= 86_400:
        raise CliError(f"--for {text!r} is not a duration", "give 10 s to one day, such as 90s, 15m or 1h", "usage")
    return float(found[1]) * UNITS_S[found[2]]


def parse_permissions(text: str) -> list[str]:
    """Return the permissions in a comma-separated list; raise CliError for an unknown one."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in found if word not in PERMISSIONS]
    if unknown:
        raise CliError(f"--may {unknown[0]!r} is unknown", f"one of: {', '.join(PERMISSIONS)}", "usage")
    return found


def _follow_tune(app: App, route: str, report: dict[str, Any]) -> dict[str, Any]:
    """Return the report at the end of the tune, telling its progress to stderr as it goes."""
    printed = ""
    try:
        while report["state"] != "ended":
            doing = report["state"] if report["state"] != "trying" else f"trying {report['trying']}"
            if doing != printed and not app.json:
                click.echo(f"{one_line(doing)} (step {report['made']} of the tune)", err=True)
            printed = doing
            time.sleep(POLL_S)
            report = app.get(route)
    except KeyboardInterrupt:
        click.echo("stopping: the owner's settings are put back", err=True)
        return app.post(route, stop=True)
    return report


def as_json(report: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `--json`."""
    more = {"not_tried": report["left"], "problem": report["problem"]}
    return {name: report[name] for name in JSON_FIELDS} | more


def report_lines(report: dict[str, Any], pen: Pen) -> list[str]:
    """Return a tune's report as lines for people."""
    before, after = report["bottleneck"]["before"], report["bottleneck"]["after"]
    text = [f"{one_line(report['job'])}: {before or 'no bottleneck measured'}{_because(report)}"]
    if report["problem"]:
        text.append(f"it ended early: {one_line(report['problem'])}")
    rows = [
        [Cell(row["knob"]), Cell(write_value(row["value"])), *_judged_cells(row, verdict)]
        for verdict, found in (
            ("adopted", report["adopted"]),
            ("refused", report["refused"]),
            ("not tried", report["left"]),
        )
        for row in found
    ]
    if rows:
        text += ["", pen.table(HEAD, rows)]
    text += ["", drawn] if (drawn := plot(report, pen)) else []
    rates = report["samples_per_s"]
    if rates["before"] and rates["after"]:
        factor = rates["after"] / rates["before"]
        text += ["", f"{rates['before']:,.1f} -> {rates['after']:,.1f} {report['unit']}/s ({factor:.2f}x), confirmed"]
        text.append(f"bottleneck now: {after or 'none measured'}; supervisorctl tune {report['job']} --undo goes back")
    elif report["trying"] and not report["adopted"] and not report["refused"]:
        text += ["", f"would try: {one_line(report['trying'])}"]
    else:
        text += ["", "nothing was adopted: the owner's settings hold"]
    return text


def plot(report: dict[str, Any], pen: Pen) -> str:
    """Return the bars as lines for a terminal, solid up to what is gained at least; empty where there are none."""
    rows = []
    for bar in list_bars(report):
        solid = round(bar.low * CELLS)
        blocks = "█" * solid + "▒" * (round(bar.high * CELLS) - solid)
        rows.append([Cell(one_line(bar.label)), Cell(bar.shown, right=True), Cell(blocks)])
    return pen.table(("PACE, GAIN", "", "AT LEAST █, AT MOST ▒"), rows) if rows else ""


def _judged_cells(row: dict[str, Any], verdict: str) -> list[Cell]:
    if verdict == "adopted":
        return [Cell(verdict, "green"), Cell(_format_gain(row), right=True), Cell(one_line(row["remark"]))]
    return [Cell(verdict), Cell("-"), Cell(one_line(row["why"]))]


def _because(report: dict[str, Any]) -> str:
    return f": {one_line(report['why'])}" if report["why"] else ""


def _format_gain(row: dict[str, Any]) -> str:
    return f"{row['gain']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})"
