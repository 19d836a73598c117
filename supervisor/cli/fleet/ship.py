"""`supervisorctl fleet ship`: copies this node's record to the fleet's database until it is ended."""

from __future__ import annotations

import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.configured import settings
from supervisor.cli.errors import CliError
from supervisor.cli.fleet.answers import explained
from supervisor.cli.formatting import span
from supervisor.config.derive import database_url
from supervisor.core.sanitize import one_line
from supervisor.fleet.database import connect
from supervisor.fleet.errors import FleetError, FleetUnreachableError
from supervisor.fleet.sent import FILE, FOLDER, Sent
from supervisor.fleet.shipping import Pass, Shipper
from supervisor.store.errors import ArchiveError, StoreError
from supervisor.store.files import database_path

LONGEST_WAIT_S = 60.0


@click.command("ship", short_help="Copy this node's record to the fleet's database.")
@click.option("--once", is_flag=True, help="Copy what is new and end.")
@click.option("--again", is_flag=True, help="Copy everything again, as after the fleet's database was put back.")
@pass_app
def command(app: App, *, once: bool, again: bool) -> None:
    """Copy this node's record to the fleet's database every [fleet] interval_s seconds, until SIGTERM.

    While that database is away nothing is lost: the copy goes on where it was. The daemon does not wait for it.
    """
    known = settings(app)
    folder = Path(known.supervisor.state_dir) / FOLDER
    try:
        record = database_path(database_url(known.supervisor))
        folder.mkdir(mode=0o700, exist_ok=True)
        if again:
            (folder / FILE).unlink(missing_ok=True)
        sent = Sent(folder / FILE, app.now())
    except (StoreError, OSError, sqlite3.Error) as error:
        raise CliError(f"{folder / FILE}: {error}", "run it as the daemon's user: sudo -u rocm-supervisor") from error
    with explained():
        shipper = Shipper(record, connect(known.fleet), sent, known.fleet.node or socket.gethostname(), app.now)
        if once:
            _ship_once(app, shipper)
            return
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ship_until(ended, shipper.ship_new, known.fleet.interval_s, app.now)


def _ship_once(app: App, shipper: Shipper) -> None:
    try:
        done = shipper.ship_new()
    except (ArchiveError, sqlite3.Error) as error:
        raise CliError(str(error), "supervisorctl doctor") from error
    _print_refused(done)
    app.print(f"{done.rows} rows sent")


def _print_refused(done: Pass) -> None:
    for refused in done.refused:
        click.echo(f"refused: {one_line(refused)}", err=True)


def ship_until(
    ended: threading.Event, ship_new: Callable[[], Pass], interval_s: float, now: Callable[[], float]
) -> None:
    """Copy again and again; after a failure wait longer each time, and say when it began and when it was over."""
    failed_at: float | None = None
    wait_s, longest_s = interval_s, max(LONGEST_WAIT_S, interval_s)
    while not ended.is_set():
        try:
            done = ship_new()
        except (FleetError, ArchiveError, sqlite3.Error) as error:
            if failed_at is None:
                failed_at = now()
                remedy = f" ({error.remedy})" if isinstance(error, FleetError) and error.remedy else ""
                click.echo(f"not copied: {one_line(str(error))}{remedy}; nothing is lost, it is tried again", err=True)
            wait_s = min(2 * wait_s, longest_s) if isinstance(error, FleetUnreachableError) else longest_s
        else:
            if failed_at is not None:
                click.echo(f"copied again after {span(now() - failed_at)}: {done.rows} rows", err=True)
            failed_at, wait_s = None, interval_s
            _print_refused(done)
        ended.wait(wait_s)
