"""`supervisorctl fleet check`: whether this machine is fit to be taken into a training, within half a minute.

It runs in a job's own interpreter and ends with a status that a prolog of Slurm or a health check can use.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.bench.conv2d import SCRIPTS, find_interpreter
from supervisor.cli.table import Cell
from supervisor.core.sanitize import one_line

SCRIPT = "check_node.py"
SHARE_FOR_PRODUCTS = 0.3
"""Of the limit: the rest is for starting the interpreter, memory and pairs."""
START = "start"
"""The check that only waits for processes to have imported torch."""
SLOWEST_SHARE = 0.5
REASON_CHARS_MAX = 300

Row = dict[str, Any]


@dataclass(kw_only=True)
class Found:
    """What the checks found."""

    machine: Row = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    """Why this machine is not fit."""
    unknown: str | None = None
    """Why nothing can be said about it; None where the checks ran."""


@click.command("check", short_help="Check whether this machine is fit for a training.")
@click.option("--job", help="Run in the interpreter of this job of the configuration.")
@click.option("--python", type=click.Path(path_type=Path), help="Run in this interpreter.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--limit-s", type=click.FloatRange(5, 600), default=30.0, show_default=True, help="For everything.")
@click.option("--mib", type=click.IntRange(1, 16384), default=128, show_default=True, help="Memory checked, a device.")
@click.option("--size", type=click.IntRange(16, 65536), help="Side of the matrices.")
@click.option(
    "--slowest",
    type=click.FloatRange(0, 1),
    default=SLOWEST_SHARE,
    show_default=True,
    help="A device below this share of the median speed of this machine's devices is unfit.",
)
@click.option(
    "--prolog", is_flag=True, help="Exit with 0 also if nothing could be checked, so that the node is not drained."
)
@click.option(
    "--reason-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the reason to FILE if unfit; remove FILE if fit.",
)
@json_option
@pass_app
def command(  # noqa: PLR0913 - one argument an option
    app: App,
    /,
    *,
    job: str | None,
    python: Path | None,
    device: str,
    limit_s: float,
    mib: int,
    size: int | None,
    slowest: float,
    prolog: bool,
    reason_file: Path | None,
) -> None:
    """Check this machine: products against float64, every byte of some memory, an all-reduce in pairs.

    Ends with 0 where it is fit, 1 where it is not, and 4 where that could not be checked (no torch, no GPU seen).
    """
    given = {"device": device, "seconds": limit_s * SHARE_FOR_PRODUCTS, "mib": mib, "size": size or 0}
    found = run_checks(find_interpreter(app, job, python), given, limit_s)
    found.unfit += list_slow(found.rows, slowest)
    reason = "; ".join(found.unfit)[:REASON_CHARS_MAX]
    if reason_file is not None:
        _write_reason(reason_file, reason)
    if app.json:
        fit = None if found.unknown else not found.unfit
        facts = {"why": found.unfit, "unknown": found.unknown, "machine": found.machine, "checks": found.rows}
        app.print_json({"schema": 1, "fit": fit, **facts})
    else:
        _print_table(app, found)
    if found.unfit:
        end(exit_codes.FAILED)
    if found.unknown and not prolog:
        end(exit_codes.UNREACHABLE)


def run_checks(interpreter: Path, given: dict[str, Any], limit_s: float) -> Found:
    """Return what was found within `limit_s`; a check that does not answer until then makes the machine unfit."""
    command = [str(interpreter), str(SCRIPTS / SCRIPT), json.dumps(given)]
    try:
        # A session of its own: what hangs in a driver is ended with all its children.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        return Found(unknown=f"{interpreter}: {error.strerror}")
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
    threading.Thread(target=_keep_last, args=(process.stderr, errors), daemon=True).start()
    found = Found()
    try:
        _read_rows(found, lines, time.perf_counter() + limit_s, limit_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if not found.machine and found.unknown is None:
        found.unknown = one_line(errors[-1])[:REASON_CHARS_MAX] if errors else "the interpreter ended without a message"
    return found


def _read_rows(found: Found, lines: queue.Queue[str | None], until_s: float, limit_s: float) -> None:
    under_way: Row | None = None
    while True:
        try:
            text = lines.get(timeout=max(0.0, until_s - time.perf_counter()))
        except queue.Empty:
            _note_silence(found, under_way, limit_s)
            return
        if text is None:
            if under_way is not None:
                found.unfit.append(f"{_where(under_way)}: the process was ended by the check")
            return
        row = _as_row(text)
        under_way = row if row.get("kind") == "begin" else under_way
        if row.get("kind") == "refused":
            found.unknown = one_line(str(row.get("message")))
        elif row.get("kind") == "machine":
            found.machine = {name: row.get(name) for name in ("devices", "name", "torch", "hip")}
        elif row.get("kind") == "row":
            under_way = None
            found.rows.append(row)
            if "problem" in row:
                found.unfit.append(f"{_where(row)}: {one_line(str(row['problem']))}")


def _note_silence(found: Found, under_way: Row | None, limit_s: float) -> None:
    if under_way is not None and under_way.get("check") != START:
        found.unfit.append(f"{_where(under_way)}: no answer within the limit of {limit_s:g} s")
    elif under_way is not None or not found.machine:  # a busy machine may be that slow: no proof against it
        found.unknown = f"torch was not imported within the limit of {limit_s:g} s: give a longer --limit-s"


def list_slow(rows: list[Row], slowest: float) -> list[str]:
    """Return the devices that reach less than a share of the median of their neighbours; with three of them or more."""
    found = []
    for check in dict.fromkeys(row["check"] for row in rows):
        rates = {row["device"]: row["value"] for row in rows if row["check"] == check and "value" in row}
        if len(rates) < 3:  # of two, which is wrong is not known
            continue
        usual = statistics.median(rates.values())
        found += [
            f"{device} {check}: {rate:.1f}, and {usual:.1f} is the median of {len(rates)} devices"
            for device, rate in rates.items()
            if rate < slowest * usual
        ]
    return found


def _where(row: Row) -> str:
    return f"{one_line(str(row.get('device')))} {one_line(str(row.get('check')))}"


def _as_row(text: str) -> Row:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _pass_on(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for text in stream:
        lines.put(text)
    lines.put(None)


def _keep_last(stream: IO[str], errors: list[str]) -> None:
    for text in stream:
        if text.strip():
            errors[:] = [text.strip()]


def _write_reason(path: Path, reason: str) -> None:
    """Write why a machine is unfit, for a health check that drains with it; a failure changes no verdict."""
    try:
        if reason:
            path.write_text(reason + "\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        click.echo(f"{path}: {error.strerror}: the reason was not written", err=True)


def _print_table(app: App, /, found: Found) -> None:
    if found.machine:
        app.print(one_line(f"{found.machine['name']}, torch {found.machine['torch']}"))
    cells = []
    for row in found.rows:
        value = f"{row['value']:.3g} {row['unit']}" if "value" in row else "-"
        verdict = Cell(one_line(str(row["problem"])), "red") if "problem" in row else Cell("ok", "green")
        took = Cell(f"{row['took_s']:.1f} s", right=True)
        cells.append([Cell(row["device"]), Cell(row["check"]), Cell(value, right=True), took, verdict])
    if cells:
        app.print(app.pen.table(["DEVICE", "CHECK", "MEASURED", "TOOK", "RESULT"], cells))
    if found.unknown:
        app.print(f"not checked: {found.unknown}")
    elif found.unfit:
        app.print("unfit: " + "; ".join(found.unfit))
    else:
        app.print("fit")
