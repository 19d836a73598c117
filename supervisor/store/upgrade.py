"""Upgrades one database file to the newest revision: a program of its own, so that the daemon never imports Alembic.

Run as `python -m supervisor.store.upgrade FILE`. All revisions are one transaction: the file is upgraded or untouched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool

from supervisor.shipped import shipped
from supervisor.store.tables import metadata

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry


def upgrade(path: Path, migrations: Path, revision: str = "head") -> None:
    """Bring the file to `revision` of the migrations in a folder."""
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)

    # The driver commits before each CREATE and ALTER unless it is kept out of transactions altogether.
    @event.listens_for(engine, "connect")
    def _no_driver_transactions(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        # It takes effect only before the first table of a new file.
        cursor = connection.cursor()
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        cursor.close()

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        config.attributes.update(connection=connection, metadata=metadata)
        command.upgrade(config, revision)
        connection.commit()
    engine.dispose()


def main(arguments: list[str]) -> int:
    """Upgrade the file named on the command line."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m supervisor.store.upgrade FILE\n")
        return 2
    upgrade(Path(arguments[0]), shipped("migrations"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
