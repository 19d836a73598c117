"""`supervisorctl explain`: explain a log or a saved tool output; needs neither a daemon nor a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.explain.pasted_input import read_saved
from supervisor.cli.table import Pen
from supervisor.core.sanitize import one_line
from supervisor.sources.faults.events import Finding
from supervisor.sources.faults.explain import explained

STYLES = {"fatal": "red", "warn": "yellow", "info": "dim"}


@click.command("explain")
@click.argument("file", required=False)
@click.option(
    "--smi", "smi", metavar="FILE", help="Print the readings in a saved output of rocm-smi, amd-smi or nvidia-smi."
)
@json_option
@pass_app
def command(app: App, file: str | None, smi: str | None) -> None:
    """Explain the faults in a kernel log or a training's output: what happened, on which GPU, and a hint.

    FILE is the output of dmesg, journalctl or a training, in any of their formats; without it, or with -, standard
    input is read. With --json one object per finding and line.
    """
    if smi is not None:
        if file is not None:
            raise click.UsageError("FILE and --smi FILE exclude each other: give one of them")
        from supervisor.cli.explain.smi import print_smi  # noqa: PLC0415 - needed with --smi only

        print_smi(app, smi)
        return
    found = explained(read_saved(file or "-"))
    if app.json:
        app.print_json_lines(map(as_json, found))
        return
    app.print("\n\n".join(finding_lines(finding, app.pen) for finding in found) or "no known fault found")


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object."""
    return {
        "line": finding.line_number,
        "kind": finding.kind,
        "class": finding.fault.value,
        "severity": finding.severity.label,
        "device": finding.device,
        "remedy": finding.remedy,
        "source": finding.source,
        "what": finding.what,
        "pid": finding.pid,
        "process": finding.process,
        "lines": finding.lines,
        "text": finding.line,
    }


def finding_lines(finding: Finding, pen: Pen) -> str:
    """Return a finding as lines of text."""
    severity = finding.severity.label
    where = f", {finding.device}" if finding.device else ""
    head = f"line {finding.line_number}: {finding.fault.value}{where} ({severity})"
    rows = [("line", finding.line), ("means", finding.what), ("process", _name_process(finding))]
    rows += [("hint", finding.remedy), ("source", finding.source)]
    body = [f"{label:>12}  {one_line(text)}" for label, text in rows if text]
    return "\n".join([pen.paint(one_line(head), STYLES[severity]), *body])


def _name_process(finding: Finding) -> str | None:
    named = " ".join(_keep_known((finding.process, None if finding.pid is None else f"(pid {finding.pid})")))
    return named or None


def _keep_known(parts: Iterable[str | None]) -> Iterable[str]:
    return (part for part in parts if part)
