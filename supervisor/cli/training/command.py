"""`supervisorctl training`: a training on several nodes as a whole, read from its folder on any machine that has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.submit import default_folder
from supervisor.cli.table import Cell

Facts = Mapping[str, object]
FILE_BYTES_MAX = 64 << 20
TAIL_BYTES = 65536
HEAD = ("WHEN", "ID", "KIND", "WHAT", "AT FAULT", "THEN")


@click.group("training")
def command() -> None:
    """A training on several nodes: its state, its incidents, its output, its end.

    NAME is that of `supervisorctl submit --name`, or its folder.
    """


def find_folder(name: str) -> Path:
    """Return the folder of a training. Raises CliError where there is none."""
    given = Path(name)
    folder = given if "/" in name or given.is_dir() else default_folder(name)
    if not folder.is_dir():
        raise CliError(f"no training {name}: {folder} is no folder", "name it as `submit --name` did, or by its folder")
    return folder


def read_object(path: Path) -> Facts | None:
    """Return a JSON object; None where the file is missing. Raises CliError where it is damaged."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CliError(f"{path}: {error}", "move it away; the leader writes it again") from error
    return found if isinstance(found, dict) else None


def read_incidents(folder: Path) -> list[Facts]:
    """Return each incident once, oldest first: what was written of it last counts."""
    found: dict[str, Facts] = {}
    try:
        lines = (folder / "leader" / "incidents.jsonl").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            facts = json.loads(line)
        except ValueError:
            continue  # torn by a full disk
        if isinstance(facts, dict) and isinstance(facts.get("id"), str):
            found[facts["id"]] = {**facts, "began_unix_s": found.get(facts["id"], facts).get("at_unix_s")}
    return list(found.values())


@command.command("status")
@click.argument("name", default="training")
@json_option
@pass_app
def status(app: App, name: str) -> None:
    """Where the training stands."""
    folder = find_folder(name)
    state, over = read_object(folder / "leader" / "state.json"), read_object(folder / "leader" / "over.json")
    if state is None:
        raise CliError(f"{folder}: its leader has not begun yet", "squeue shows whether its job waits for nodes")
    if app.json:
        app.print_json({"training": {**state, "over": over}})
        return
    ended = None if over is None or state.get("stage") != "over" else over
    how = "" if ended is None else f" ({'finished' if ended.get('finished') else 'ended'}: {ended.get('reason')})"
    app.print(f"{state.get('stage')}{how}, launch {state.get('epoch')}, {state.get('incidents')} incidents")
    steps = state.get("steps")
    app.print(f"steps: {'not reported' if steps is None else steps}")
    if state.get("not_recorded"):
        app.print(
            f"not recorded: {state['not_recorded']} lines of incidents, while the leader's folder hung or was full"
        )
    app.print(f"resumed from: {state.get('resumed') or 'no saved state'}")
    for key in ("nodes", "spares", "excluded", "missing"):
        names = state.get(key)
        app.print(f"{key}: {', '.join(map(str, names)) if isinstance(names, list) and names else 'none'}")


@command.command("history")
@click.argument("name", default="training")
@json_option
@pass_app
def history(app: App, name: str) -> None:
    """Incidents of the training as a whole: one each, whatever number of nodes reported it."""
    incidents = read_incidents(find_folder(name))
    if app.json:
        app.print_json({"incidents": incidents})
        return
    rows = [[Cell(text) for text in _summarize(incident)] for incident in incidents]
    app.print(app.pen.table(HEAD, rows) if rows else "no incidents")


def _summarize(incident: Facts) -> tuple[str, ...]:
    culprit = incident.get("culprit")
    who = culprit.get("reason") if isinstance(culprit, dict) else None
    at = incident.get("began_unix_s")
    when = datetime.fromtimestamp(at, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, float) else "-"
    then = str(incident.get("rung") or "open")
    excluded = incident.get("excluded")
    if isinstance(excluded, list) and excluded:
        then += f", without {', '.join(map(str, excluded))}"
    return when, str(incident.get("id")), str(incident.get("kind")), str(incident.get("reason")), str(who), then


@command.command("show")
@click.argument("incident")
@click.argument("name", default="training")
@json_option
@pass_app
def show(app: App, incident: str, name: str) -> None:
    """One incident in full; its evidence lies in the folder of each node."""
    folder = find_folder(name)
    found = next((item for item in read_incidents(folder) if item.get("id") == incident), None)
    if found is None:
        raise CliError(f"no incident {incident}", f"supervisorctl training history {name}")
    evidence = sorted(map(str, (folder / "nodes").glob(f"*/jobs/*/*/evidence/{incident}")))
    if app.json:
        app.print_json({"incident": {**found, "evidence": evidence}})
        return
    for key, value in found.items():
        app.print(f"{key}: {value}")
    for path in evidence:
        app.print(f"evidence: {path}")


@command.command("logs")
@click.argument("name", default="training")
@click.option("--node", help="Of one node alone.")
@pass_app
def logs(app: App, name: str, node: str | None) -> None:
    """The end of the newest launch's output on every node."""
    folder = find_folder(name)
    states = sorted(path for path in (folder / "nodes").glob("*") if node is None or path.name == node)
    if not states:
        raise CliError(f"{folder}: no output of {node or 'any node'}", f"supervisorctl training status {name}")
    for state in states:
        outputs = sorted(state.glob("jobs/*/current/run/output.log"))
        for path in outputs:
            app.print(f"== {state.name}: {path}")
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                app.print(file.read(TAIL_BYTES).decode("utf-8", "replace").rstrip("\n"))


@command.command("stop")
@click.argument("name", default="training")
@pass_app
def stop(app: App, name: str) -> None:
    """Have all ranks save and end; the training stays stopped."""
    folder = find_folder(name) / "leader"
    if not folder.is_dir():
        raise CliError(f"{folder}: its leader has not begun yet", "scancel ends a job that still waits")
    (folder / "stop").touch()
    app.print("the leader ends the training within seconds; `supervisorctl training status` shows it")
