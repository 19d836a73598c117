"""`supervisorctl explain`: says what a pasted log or a saved tool output means, without a daemon and without a card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.saved import read_saved
from supervisor.cli.table import Pen
from supervisor.core.harmless import one_line
from supervisor.sources.explained import explained
from supervisor.sources.fault_events import Finding

STYLES = {"fatal": "red", "warn": "yellow", "info": "dim"}


@click.command("explain")
@click.argument("file", required=False)
@click.option(
    "--smi", "smi", metavar="FILE", help="Print the readings in what rocm-smi, amd-smi or nvidia-smi printed."
)
@json_option
@pass_app
def command(app: App, file: str | None, smi: str | None) -> None:
    """Say what happened, to which card, and what cures it, by a kernel log or a training's output in FILE.

    FILE may be what dmesg, journalctl or a training printed, in any of their formats; without it, or with -, standard
    input is read. With --json, one object a finding and line.
    """
    if smi is not None:
        if file is not None:
            raise click.UsageError("FILE and --smi FILE are two questions: ask one of them")
        from supervisor.cli.explain_smi import print_smi  # noqa: PLC0415 - only where it is asked

        print_smi(app, smi)
        return
    found = explained(read_saved(file or "-"))
    if app.json:
        app.print_json_lines(map(as_json, found))
        return
    app.print("\n\n".join(told(one, app.pen) for one in found) or "nothing in it tells of a fault that is known here")


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding in the words that programs read."""
    return {
        "line": finding.line_number,
        "kind": finding.kind,
        "class": finding.fault.value,
        "severity": finding.severity.word,
        "device": finding.device,
        "remedy": finding.remedy,
        "source": finding.source,
        "what": finding.what,
        "pid": finding.pid,
        "process": finding.process,
        "lines": finding.lines,
        "text": finding.line,
    }


def told(finding: Finding, pen: Pen) -> str:
    """Return a finding as lines for people."""
    word = finding.severity.word
    where = f", {finding.device}" if finding.device else ""
    head = f"line {finding.line_number}: {finding.fault.value}{where} ({word})"
    rows = [("says", finding.line), ("means", finding.what), ("process", _process(finding))]
    rows += [("cure", finding.remedy), ("known from", finding.source)]
    body = [f"{label:>12}  {one_line(text)}" for label, text in rows if text]
    return "\n".join([pen.paint(one_line(head), STYLES[word]), *body])


def _process(finding: Finding) -> str | None:
    named = " ".join(_known((finding.process, None if finding.pid is None else f"(pid {finding.pid})")))
    return named or None


def _known(parts: Iterable[str | None]) -> Iterable[str]:
    return (part for part in parts if part)
