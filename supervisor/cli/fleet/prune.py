"""`supervisorctl fleet prune`: deletes old rows from the fleet's database, as a timer or a person asks for it."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.configured import settings
from supervisor.cli.fleet.answers import explained
from supervisor.fleet.database import connect
from supervisor.fleet.pruning import LEAST_DAYS, Kept, prune

DEFAULT = Kept()
_days = click.IntRange(LEAST_DAYS, 36_500)


@click.command("prune", short_help="Delete old rows from the fleet's database.")
@click.option(
    "--metrics-days", type=_days, default=DEFAULT.metrics, show_default=True, help="Days that metrics are kept."
)
@click.option(
    "--reports-days",
    type=_days,
    default=DEFAULT.reports,
    show_default=True,
    help="Days that flags, decisions and events are kept.",
)
@click.option(
    "--replaced-days",
    type=_days,
    default=DEFAULT.replaced,
    show_default=True,
    help="Days that replaced versions of rows are kept.",
)
@json_option
@pass_app
def command(app: App, *, metrics_days: int, reports_days: int, replaced_days: int) -> None:
    """Delete old rows from the fleet's database; incidents, attempts and remedies are kept.

    Its role must own the tables: that of `fleet init`. A role that ships or reads cannot delete.
    """
    kept = Kept(metrics=metrics_days, reports=reports_days, replaced=replaced_days)
    with explained():
        deleted = prune(connect(settings(app).fleet), kept, app.now())
    if app.json:
        app.print_json({"schema": 1, "deleted": deleted})
        return
    found = [f"{count} of {table}" for table, count in deleted.items() if count]
    app.print(f"{sum(deleted.values())} rows deleted" + (f": {', '.join(found)}" if found else ""))
