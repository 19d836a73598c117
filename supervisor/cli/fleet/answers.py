"""Answers with `--fleet`: the same questions and bodies, read from the records of every node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from supervisor.cli.configured import GlobalOptions, settings
from supervisor.cli.errors import CliError, WrongUsageError
from supervisor.control.record_view import Parameters, RecordView, find_read
from supervisor.control.refusals import NoSuchIncident, NoSuchJob, Refusal
from supervisor.fleet.database import connect
from supervisor.fleet.errors import FleetError
from supervisor.fleet.reading import Node, NodeFacts, list_nodes, open_node
from supervisor.store.archive import Archive

SEPARATOR = "/"
"""Between the name of a node and of its incident."""
Body = dict[str, Any]


@contextmanager
def explained() -> Iterator[None]:
    """Turn a FleetError into the error of a command."""
    try:
        yield
    except FleetError as error:
        raise CliError(str(error), error.remedy, "fleet") from error


class Fleet:
    """The nodes in the fleet's database. Methods raise CliError."""

    def __init__(self, app: GlobalOptions) -> None:
        self._now = app.now
        with explained():
            self._engine = connect(settings(app).fleet)
            self.nodes = list_nodes(self._engine)

    def open(self, node: Node) -> Archive:
        """Return the record of a node."""
        return open_node(self._engine, node.name)

    def ask(self, node: Node, path: str, query: Mapping[str, str]) -> Body:
        """Return the answer of a node's record to GET `path`; raise Refusal where it has none."""
        found = find_read(path)
        assert found is not None, path
        read, in_path = found
        archive = self.open(node)
        facts = NodeFacts(archive=archive, now=self._now)
        with explained():
            body = read.answer(RecordView(archive, Path("/nonexistent"), facts), Parameters(in_path, query))
        plain: Body = msgspec.to_builtins(body)
        return plain


def answer(app: GlobalOptions, route: str, query: Mapping[str, str | int | None]) -> Body:
    """Return what GET `route` would, of every node; parameters that are None are left out. Raises CliError."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    found = find_read(route)
    merge = None if found is None else _MERGES.get(found[0].route)
    if found is None or merge is None:
        raise WrongUsageError("this is recorded on one machine only, not in the fleet", "omit --fleet, on that machine")
    try:
        return merge(Fleet(app), found[1], given)
    except Refusal as refusal:
        raise CliError(str(refusal), refusal.remedy, refusal.code) from refusal


def _merge_history(fleet: Fleet, _in_path: Mapping[str, str], query: Mapping[str, str]) -> Body:
    """Return the newest incidents and outages of all nodes, each with its node."""
    merged: Body = {"incidents": [], "outages": []}
    for node, body in _ask_each(fleet, "/v1/incidents", query):
        for kind, entries in merged.items():
            entries += [{**entry, "node": node.name} for entry in body[kind]]
    for entry in merged["incidents"]:
        entry["id"] = f"{entry['node']}{SEPARATOR}{entry['id']}"
    limit = int(query.get("limit", 50))
    return {
        kind: sorted(entries, key=lambda entry: float(entry["at"]), reverse=True)[:limit]
        for kind, entries in merged.items()
    }


def _find_incident(fleet: Fleet, in_path: Mapping[str, str], query: Mapping[str, str]) -> Body:
    """Return the one incident that NODE/ID names."""
    name, _, incident = in_path["id"].partition(SEPARATOR)
    node = next((node for node in fleet.nodes if node.name == name), None)
    if node is None or not incident:
        known = ", ".join(node.name for node in fleet.nodes) or "none"
        raise NoSuchIncident(f"no incident {in_path['id']!r}; nodes: {known}", "supervisorctl --fleet history")
    body = fleet.ask(node, f"/v1/incidents/{quote(incident, safe='')}", query)
    body["incident"] |= {"node": name, "id": in_path["id"]}
    return body


def _merge_accounts(fleet: Fleet, in_path: Mapping[str, str], query: Mapping[str, str]) -> Body:
    """Return how each node that has the job spent its time on it."""
    job = in_path["job"]
    accounts = [
        {**body, "node": node.name} for node, body in _ask_each(fleet, f"/v1/jobs/{quote(job, safe='')}/account", query)
    ]
    return {"job": job, "nodes": accounts}


def _ask_each(fleet: Fleet, path: str, query: Mapping[str, str]) -> Iterator[tuple[Node, Body]]:
    """Yield the answer of each node that knows what is asked for; raise the last refusal where none does."""
    refused: NoSuchJob | None = None
    known = False
    for node in fleet.nodes:
        try:
            body = fleet.ask(node, path, query)
        except NoSuchJob as refusal:
            refused = refusal
            continue
        known = True
        yield node, body
    if refused is not None and not known:
        raise refused


_MERGES: dict[str, Callable[[Fleet, Mapping[str, str], Mapping[str, str]], Body]] = {
    "/v1/incidents": _merge_history,
    "/v1/incidents/{id}": _find_incident,
    "/v1/jobs/{job}/account": _merge_accounts,
}
