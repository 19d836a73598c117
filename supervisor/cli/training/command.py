"""`supervisorctl training`: a training on several nodes as a whole, read from its folder on any machine that has it.

That folder may hang, lie on another machine or be another user's: it is read by a process of its own, within a time.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from supervisor.children.files_apart import apart_within
from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.submit import default_folder
from supervisor.cli.table import Cell
from supervisor.cli.training.folder import is_folder, list_evidence, read_file, read_outputs, touch
from supervisor.core.sanitize import one_line

P = ParamSpec("P")
T = TypeVar("T")
Facts = Mapping[str, object]
ANSWER_LIMIT_S = 5.0
DRAIN_REASON_CHARS = 200
OLD_S = 60.0
"""The leader writes its state every ten seconds at least; a file system that nodes share may show it later."""
HEAD = ("WHEN", "ID", "KIND", "WHAT", "AT FAULT", "THEN")


@click.group("training")
def command() -> None:
    """A training on several nodes: its state, its incidents, its output, its end.

    NAME is that of `supervisorctl submit --name`, or its folder.
    """


def find_folder(name: str) -> Path:
    """Return the folder of a training. Raises CliError where there is none."""
    if "/" in name or _ask(Path(name), is_folder, Path(name).absolute()):
        folder = Path(name).absolute()
    else:
        folder = default_folder(name)
    if not _ask(folder, is_folder, folder):
        remedy = "name it as `submit --name` did, or by its folder, on a machine that shares it with the leader"
        raise CliError(f"no training {name!r}: {folder} is not a folder on this machine", remedy)
    return folder


def _ask(folder: Path, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Return what a function of files in the folder returns. Raises CliError where it cannot be had."""
    try:
        return apart_within(ANSWER_LIMIT_S, work, *given, **named)
    except TimeoutError as error:
        remedy = "its file system hangs; the training goes on without it, and `squeue` shows its job"
        raise CliError(f"{folder}: {error.strerror}", remedy) from error
    except PermissionError as error:
        text = f"{error.filename or folder}: may not be {'read' if work is not touch else 'written'} by this user"
        raise CliError(text, "ask as the user who submitted the training") from error
    except (OSError, RuntimeError) as error:
        text = f"{getattr(error, 'filename', None) or folder}: {getattr(error, 'strerror', None) or error}"
        raise CliError(text, "check its disk or server") from error


def _read_object(folder: Path, path: Path) -> Facts | None:
    """Return a JSON object; None where the file is missing. Raises CliError where it is damaged."""
    data = _ask(folder, read_file, path)
    try:
        found = None if data is None else json.loads(data)
    except ValueError as error:
        raise CliError(f"{path}: {error}", "move it away; the leader writes it again") from error
    return found if isinstance(found, dict) else None


def _read_incidents(folder: Path) -> list[Facts]:
    """Return each incident once, oldest first: what was written of it last counts."""
    found: dict[str, Facts] = {}
    for name, facts in _read_lines(folder, "incidents.jsonl"):
        found[name] = {**facts, "began_unix_s": found.get(name, facts).get("at_unix_s")}
    return list(found.values())


def _read_warnings(folder: Path) -> list[Facts]:
    """Return what rules have warned of on each node, each once: two leaders in turn may have written it."""
    found: dict[str, Facts] = {}
    for name, facts in _read_lines(folder, "warnings.jsonl"):
        found.setdefault(name, facts)
    return list(found.values())


def _read_lines(folder: Path, name: str) -> Iterator[tuple[str, Facts]]:
    """Yield each line of a file of the leader's record, with its id."""
    data = _ask(folder, read_file, folder / "leader" / name) or b""
    for line in data.decode(errors="replace").splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            continue  # torn by a full disk
        if isinstance(facts, dict) and isinstance(facts.get("id"), str):
            yield facts["id"], facts


@command.command("status")
@click.argument("name", default="training")
@json_option
@pass_app
def status(app: App, name: str) -> None:
    """Where the training stands."""
    from supervisor.daemon.clock import SystemClock  # noqa: PLC0415 - as in every command

    folder = find_folder(name)
    leader = folder / "leader"
    state, over = _read_object(folder, leader / "state.json"), _read_object(folder, leader / "over.json")
    if state is None:
        raise CliError(f"{folder}: its leader has not started yet", "squeue shows whether its job waits for nodes")
    written = state.get("at_unix_s")
    old_s = SystemClock().now().unix_s - written if isinstance(written, (int, float)) else None
    if app.json:
        app.print_json({"training": {**state, "over": over, "written_s_ago": old_s}})
        return
    for line in _describe_state(state, over, old_s):
        app.print(line)
    if state.get("excluded"):
        for line in [line for incident in _read_incidents(folder) for line in list_drains(incident)]:
            app.print(line)


def _describe_state(state: Facts, over: Facts | None, old_s: float | None) -> Iterator[str]:
    """Return the lines of `status`; `old_s`: how long ago the leader wrote the state."""
    ended = None if over is None or state.get("stage") != "over" else over
    how = "" if ended is None else f" ({'finished' if ended.get('finished') else 'ended'}: {ended.get('reason')})"
    yield f"{state.get('stage')}{how}, launch {state.get('epoch')}, {state.get('incidents')} incidents"
    if old_s is not None and old_s >= OLD_S and state.get("stage") != "over":
        yield (
            f"not written for {old_s:.0f} s by the leader on {state.get('host') or 'its node'}: it has ended, or this "
            "folder hangs there; the training may have gone on or ended since"
        )
    steps = state.get("steps")
    yield f"steps: {'not reported' if steps is None else steps}"
    if state.get("not_recorded"):
        yield f"not recorded: {state['not_recorded']} lines of incidents, while the leader's folder hung or was full"
    yield f"resumed from: {state.get('resumed') or 'no saved state'}"
    if state.get("resume_problem"):
        yield f"the next launch waits for {state['resume_problem']}"
    for key in ("nodes", "spares", "excluded", "missing"):
        names = state.get(key)
        yield f"{key}: {', '.join(map(str, names)) if isinstance(names, list) and names else 'none'}"


def list_drains(incident: Facts) -> list[str]:
    """Return what to ask the administrator for: a node that is proven to be at fault is still given to others.

    No user may drain a node of Slurm, and nothing here does. What only statistics name is no reason to.
    """
    culprit, nodes = incident.get("culprit"), incident.get("excluded")
    if not isinstance(culprit, dict) or culprit.get("proof") != "physical" or not isinstance(nodes, list):
        return []
    reason = f"rocm-supervisor {incident.get('id')}: {culprit.get('reason')}"[:DRAIN_REASON_CHARS]
    words = ["scontrol", "update", f"NodeName={','.join(map(str, nodes))}", "State=DRAIN", f"Reason={reason}"]
    return [f"ask the administrator to drain: {shlex.join(words)}"] if nodes else []


@command.command("history", short_help="Incidents of the training as a whole.")
@click.argument("name", default="training")
@json_option
@pass_app
def history(app: App, name: str) -> None:
    """Incidents of the training as a whole: one each, whatever number of nodes reported it; and warnings of its nodes.

    What a rule has warned of names the node whose rule it was. The times are those of the leader's clock.
    """
    folder = find_folder(name)
    incidents, warnings = _read_incidents(folder), _read_warnings(folder)
    if app.json:
        app.print_json({"incidents": incidents, "warnings": warnings})
        return
    summaries = [*map(_summarize, incidents), *map(_summarize_warning, warnings)]
    rows = [[Cell(text) for text in summary] for summary in sorted(summaries, key=itemgetter(0))]
    app.print(app.pen.table(HEAD, rows) if rows else "no incidents")


def _summarize_warning(warning: Facts) -> tuple[str, ...]:
    when, what = _format_time(warning.get("at_unix_s")), one_line(f"{warning.get('node')}: {warning.get('text')}")
    return when, str(warning.get("epoch")), str(warning.get("rule")), what, "-", "warned"


def _format_time(at: object) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, float) else "-"


def _summarize(incident: Facts) -> tuple[str, ...]:
    culprit = incident.get("culprit")
    who = culprit.get("reason") if isinstance(culprit, dict) else None
    when = _format_time(incident.get("began_unix_s"))
    then = str(incident.get("rung") or "open")
    excluded = incident.get("excluded")
    if isinstance(excluded, list) and excluded:
        then += f", without {', '.join(map(str, excluded))}"
    return when, str(incident.get("id")), str(incident.get("kind")), str(incident.get("reason")), str(who), then


@command.command("show", short_help="One incident in full.")
@click.argument("incident")
@click.argument("name", default="training")
@json_option
@pass_app
def show(app: App, incident: str, name: str) -> None:
    """One incident in full; its evidence lies in the folder of each node."""
    folder = find_folder(name)
    found = next((item for item in _read_incidents(folder) if item.get("id") == incident), None)
    if found is None:
        raise CliError(f"no incident {incident}", f"supervisorctl training history {name}")
    evidence = _ask(folder, list_evidence, folder, incident)
    if app.json:
        app.print_json({"incident": {**found, "evidence": evidence}})
        return
    for key, value in found.items():
        app.print(f"{key}: {value}")
    for line in [*list_drains(found), *(f"evidence: {path}" for path in evidence)]:
        app.print(line)


@command.command("logs")
@click.argument("name", default="training")
@click.option("--node", help="Of one node alone.")
@pass_app
def logs(app: App, name: str, node: str | None) -> None:
    """The end of the newest launch's output on every node."""
    folder = find_folder(name)
    outputs = _ask(folder, read_outputs, folder, node)
    if not outputs:
        raise CliError(f"{folder}: no output of {node or 'any node'}", f"supervisorctl training status {name}")
    for of_node, path, text in outputs:
        app.print(f"== {of_node}: {path}")
        app.print(text)


@command.command("stop")
@click.argument("name", default="training")
@pass_app
def stop(app: App, name: str) -> None:
    """Have all ranks save and end; the training stays stopped."""
    folder = find_folder(name) / "leader"
    if not _ask(folder, is_folder, folder):
        raise CliError(f"{folder}: its leader has not started yet", "to cancel a job that is still queued, use scancel")
    _ask(folder, touch, folder / "stop")
    app.print("the leader ends the training within seconds; `supervisorctl training status` shows it")


@command.command("jobset", short_help="Print a JobSet that trains on Kubernetes.")
def jobset() -> None:
    """Print a JobSet that trains on Kubernetes, with the role of its leader.

    Names, image, number of nodes and command are yours to set. It was not run on a cluster.
    """
    click.echo(files("supervisor.cluster").joinpath("jobset.json").read_text(encoding="utf-8"), nl=False)
