"""Completes the names of jobs and incidents on the command line; offers nothing if the daemon takes over a second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.paths import find_config, find_socket, read_table
from supervisor.control.client import Client, ControlError

if TYPE_CHECKING:
    import click

TIMEOUT_S = 1.0
INCIDENTS_OFFERED = 200


def complete_job(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs with that prefix: the daemon's, or those of the configuration if it cannot be reached."""
    client, config = _find_daemon(context)
    try:
        names = [str(job["name"]) for job in client.get("/v1/status", watched=0)["jobs"]]
    except (ControlError, KeyError, TypeError):
        names = list(read_table(config, "jobs"))
    return sorted(name for name in names if name.startswith(incomplete))


def complete_incident(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the incidents with that prefix, the newest first."""
    client, _ = _find_daemon(context)
    try:
        found = client.get("/v1/incidents", limit=INCIDENTS_OFFERED)["incidents"]
        return [name for entry in found if (name := str(entry["id"])).startswith(incomplete)]
    except (ControlError, KeyError, TypeError):
        return []


def _find_daemon(context: click.Context) -> tuple[Client, Path]:
    """Return a client of the daemon selected by the global options, and its configuration."""
    given = context.find_root().params
    config = find_config(given.get("config"), os.environ)
    return Client(given.get("socket") or find_socket(config, os.environ), timeout_s=TIMEOUT_S), config
