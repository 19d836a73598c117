"""A real PostgreSQL server, with a database of its own for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import text

from supervisor.fleet.database import connect, create
from tests.rigs.postgres_server import READER, SHIPPER, Address, FleetDatabase, PostgresServer, missing

NUMBERS = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    if (why := missing()) is not None:
        pytest.skip(why)
    # Its user must be able to enter it, which pytest's folders do not allow; a socket's path has 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    folder.chmod(0o755)
    started = PostgresServer(folder / "server")
    started.start()
    try:
        with connect(Address(started.url())).begin() as connection:
            for role in (SHIPPER, READER, "nobody"):
                connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder)


@pytest.fixture
def fleet(server: PostgresServer) -> FleetDatabase:
    """A database with the schema, in which each role may do what it should."""
    if server.pid is None:
        server.start()
    database = FleetDatabase(server, f"fleet{next(NUMBERS)}")
    engine = connect(Address(server.url())).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database.name}"))
    create(database.connect(), shippers=(SHIPPER,), readers=(READER,))
    return database
