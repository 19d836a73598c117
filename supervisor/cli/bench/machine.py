"""`supervisorctl bench gemm|attention|copy|allreduce|all`: what this machine does in a job's interpreter, checked.

Each bench says in one sentence what it decides. A report file holds device, torch and numbers: no names, no paths.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from supervisor import __version__
from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.bench.conv2d import find_interpreter, run_script
from supervisor.cli.bench.report import bar
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import size
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

SCRIPT = "bench_machine.py"
WORTH_MOVING = 1.1
ADVICE = {name: f': ranks_backend = "{name}" in the job' for name in ("gloo", "host", "host-bf16")}
ADVICE |= {"nccl, no direct transfers": ": NCCL_P2P_DISABLE=1", "nccl, simple protocol": ": NCCL_PROTO=Simple"}
PATH = re.compile(r"\S*[/\\\\]\S*")
Line = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One measurement."""

    name: str
    title: str
    decides: Callable[[list[Line]], str]


def _decide_gemm(rows: list[Line]) -> str:
    rates = {row["name"]: row["value"] for row in rows if row.get("right")}
    base = rates.get("float32")
    faster = {name: rate / base for name, rate in rates.items() if base and name != "float32" and rate > 1.1 * base}
    if not faster:
        return "precision: stay with float32, no other type is a tenth faster and right"
    best = max(faster, key=lambda name: faster[name])
    return f"precision: {best} multiplies {faster[best]:.1f}x as fast as float32 here, so AMP in it can pay"


def _decide_attention(rows: list[Line]) -> str:
    times = {row["name"]: row["value"] for row in rows if row.get("right")}
    if not times:
        return "attention: no way is right on this device"
    best = min(times, key=lambda name: times[name])
    if best == "eager" or "eager" not in times:
        return f"attention: {best} is the fastest that is right"
    return (
        f"attention: scaled_dot_product_attention with {best} is {times['eager'] / times[best]:.1f}x as fast as eager"
    )


def _decide_copy(rows: list[Line]) -> str:
    rates = {row["name"]: row["value"] for row in rows if row.get("right")}
    plain, pinned = rates.get("host to GPU"), rates.get("pinned host to GPU")
    if plain is None or pinned is None:
        return "pinning: without a GPU there is nothing to pin for"
    verb = "pays" if pinned > 1.2 * plain else "does not pay"
    return f"pinning: pin_memory {verb}, {pinned / plain:.1f}x the rate of plain memory"


def _decide_allreduce(rows: list[Line]) -> str:
    rates = {row["name"]: row["value"] for row in rows if row.get("right")}
    if not rates:
        return "several GPUs: no way to average gradients is right here: one GPU"
    best = max(rates, key=lambda name: rates[name])
    speedups = {row["name"]: row["speedup"] for row in rows if row.get("right") and "speedup" in row}
    if speedups:
        best = max(speedups, key=lambda name: speedups[name])
        if speedups[best] < WORTH_MOVING:
            return f"several GPUs: two would train {speedups[best]:.2f}x as fast at best ({best}): stay with one GPU"
        return f"several GPUs: two train at most {speedups[best]:.2f}x as fast as one by {best}{ADVICE.get(best, '')}"
    return (
        f"several GPUs: {best} averages gradients at {rates[best]:.1f} GB/s, 1 GB in {1 / rates[best]:.2f} s a step"
        f"{ADVICE.get(best, '')}"
    )


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(name="gemm", title="Matrix products by type", decides=_decide_gemm),
        Bench(name="attention", title="Causal attention, both passes", decides=_decide_attention),
        Bench(name="copy", title="Copies", decides=_decide_copy),
        Bench(name="allreduce", title="Mean over two processes", decides=_decide_allreduce),
    )
}


def options(function: Command) -> Command:
    """Add the options that every bench has."""
    for option in (
        click.option("--job", help="Run in the interpreter of this job of the configuration."),
        click.option("--python", type=click.Path(path_type=Path), help="Run in this interpreter."),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True),
        click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Also write a file to send."),
        click.option("--size", type=click.IntRange(16, 65536), help="Side of the matrices (gemm)."),
        click.option("--length", type=click.IntRange(16, 65536), help="Tokens in a sequence (attention)."),
        click.option("--heads", type=click.IntRange(1, 256), default=16, show_default=True, help="(attention)"),
        click.option("--head-size", type=click.IntRange(8, 256), default=64, show_default=True, help="(attention)"),
        click.option("--batch", type=click.IntRange(1, 4096), default=2, show_default=True, help="(attention)"),
        click.option(
            "--dtype", type=click.Choice(["auto", "float32", "float16", "bfloat16"]), default="auto", help="(attention)"
        ),
        click.option("--mib", type=click.IntRange(1, 16384), default=256, show_default=True, help="(copy, allreduce)"),
        click.option(
            "--step-ms",
            type=click.FloatRange(0.001),
            help="A step on one GPU: predicts two with --mib of gradients (allreduce).",
        ),
        click.option("--limit-s", type=click.FloatRange(1), default=60.0, show_default=True, help="(allreduce)"),
        json_option,
    ):
        function = option(function)
    return function


def make_command(names: tuple[str, ...], name: str, help_line: str) -> click.Command:
    """Return the command that runs these benches."""

    @click.command(name, short_help=help_line, help=help_line)
    @options
    @pass_app
    def command(app: App, /, job: str | None, python: Path | None, report: Path | None, **given: Any) -> None:
        interpreter = find_interpreter(app, job, python)
        lines = []
        for line in run_script(interpreter, {**given, "benches": names}, SCRIPT):
            lines.append(line)
            if not app.json and sys.stderr.isatty():
                click.echo(f"measured: {one_line(line.get('bench', 'device'))} {one_line(line['name'])}", err=True)
        found = {
            chosen: [line for line in lines if line["kind"] == "device" or line.get("bench") == chosen]
            for chosen in names
        }
        answer = as_json(found, given)
        if report is not None:
            _write_report(report, answer)
        if app.json:
            app.print_json(answer)
        else:
            app.print("\n".join(report_lines(found, app.pen)))
        if any(row.get("right") is False for lines in found.values() for row in lines):
            end(exit_codes.FAILED)

    return command


def as_json(found: dict[str, list[Line]], options_given: dict[str, Any]) -> dict[str, Any]:
    """Return what `--json` and a report file have; of the machine, its device and torch alone."""
    device = next(line for lines in found.values() for line in lines if line["kind"] == "device")
    benches = {name: [_without_paths(line) for line in lines if line["kind"] == "row"] for name, lines in found.items()}
    return {
        "schema": 1,
        "version": __version__,
        "device": {name: device[name] for name in ("device", "name", "torch", "hip")},
        "options": options_given,
        "benches": benches,
        "decides": {name: BENCHES[name].decides(rows) for name, rows in benches.items()},
    }


def _without_paths(row: Line) -> Line:
    return {**row, "problem": PATH.sub("(path)", row["problem"])} if "problem" in row else row


def _write_report(path: Path, answer: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}", "give a writable file") from error


def report_lines(found: dict[str, list[Line]], pen: Pen) -> list[str]:
    """Return the tables with bars, and the sentence of each bench."""
    text: list[str] = []
    for name, lines in found.items():
        device = next(line for line in lines if line["kind"] == "device")
        rows = [line for line in lines if line["kind"] == "row"]
        text += [*([] if text else [one_line(f"{device['name']}, torch {device['torch']}"), ""])]
        text += [f"{BENCHES[name].title}:", _table(rows, pen), BENCHES[name].decides(rows), ""]
    return text[:-1]


def _table(rows: list[Line], pen: Pen) -> str:
    highest = max((row["value"] for row in rows if "value" in row), default=0.0)
    cells = []
    for row in rows:
        if "problem" in row:
            cells.append([Cell(one_line(row["name"])), *[Cell("-")] * 4, Cell(one_line(row["problem"]), "yellow")])
            continue
        verdict = Cell("right") if row["right"] else Cell("WRONG", "red")
        error = f"{row['error']:.0e}" if row.get("error") is not None else "-"
        value = Cell(f"{row['value']:.2f} {row['unit']}", right=True)
        peak = Cell(size(row.get("peak_bytes")), right=True)
        cells.append(
            [Cell(row["name"]), value, Cell(bar(row["value"], highest)), peak, Cell(error, right=True), verdict]
        )
    return pen.table(["", "measured", "", "peak", "error", "against float64"], cells)
