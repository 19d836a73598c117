"""`supervisorctl fleet`: the group, with the commands that create the fleet's database and copy this node's record."""

from __future__ import annotations

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.configured import settings
from supervisor.cli.fleet import check, nodes, prune, ship
from supervisor.cli.fleet.answers import explained
from supervisor.fleet.database import connect, create


@click.group("fleet")
def command() -> None:
    """Copy this node's record to a PostgreSQL database that several nodes share, and read it.

    `supervisorctl --fleet history`, `status`, `show` and `account` read it from any machine.
    """


@command.command("init", short_help="Create or upgrade the schema in the fleet's database.")
@click.option("--shipper", "shippers", multiple=True, metavar="ROLE", help="A role that may insert, and nothing else.")
@click.option("--reader", "readers", multiple=True, metavar="ROLE", help="A role that may read, and nothing else.")
@pass_app
def init(app: App, shippers: tuple[str, ...], readers: tuple[str, ...]) -> None:
    """Create or upgrade the schema in the fleet's database; its role must be allowed to create schemas."""
    with explained():
        create(connect(settings(app).fleet), shippers=shippers, readers=readers)
    app.print("the fleet's database is ready")


command.add_command(ship.command)
command.add_command(nodes.command)
command.add_command(check.command)
command.add_command(prune.command)
