"""Connects to the fleet's database, creates its schema, and says in one sentence why it cannot be used."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from supervisor.fleet import schema
from supervisor.fleet.errors import FleetError, FleetUnreachableError
from supervisor.shipped import shipped

CONNECT_LIMIT_S = 10
STATEMENT_LIMIT_S = 60
SILENCE_LIMIT_S = 30
"""After which a connection without any answer of the network is given up (Linux' TCP_USER_TIMEOUT)."""
ANSWER_LIMIT_S = STATEMENT_LIMIT_S + SILENCE_LIMIT_S
"""After which a connection is given up on which the network answers and the server does not, as one that is stopped."""
PASSWORD_LIMIT_CHARS = 4096
LOCK = 0x726F636D
"""Key of the advisory lock under which the schema is changed: "rocm"."""
AWAY = ("08", "53", "57P")
"""Beginnings of the SQLSTATE of a server that is away, out of resources, or shutting down (its manual, appendix A)."""
DISTRIBUTION = "/usr/lib/python3/dist-packages"
"""Where Debian's python3-psycopg is; what the Debian package brings itself comes first."""
MISSING_DRIVER = "pip install 'rocm-supervisor[fleet]', or the distribution's package python3-psycopg"
EXAMPLE = "postgresql://rocm_shipper@db.example/fleet"


class FleetAddress(Protocol):
    """Where the fleet's database is."""

    @property
    def database_url(self) -> str | None:
        """Its URL; None where no fleet is configured."""
        ...

    @property
    def password_file(self) -> str | None:
        """The file that holds the password."""
        ...


def connect(address: FleetAddress) -> Engine:
    """Return an engine whose connections are opened at each use; nothing is opened yet. Raises FleetError."""
    url = _read_url(address)
    if sys.flags.no_site and DISTRIBUTION not in sys.path:  # as the Debian package's programs run
        sys.path.append(DISTRIBUTION)
    limits = f"-c statement_timeout={STATEMENT_LIMIT_S}s -c idle_in_transaction_session_timeout={STATEMENT_LIMIT_S}s"
    try:
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            connect_args={
                "connect_timeout": CONNECT_LIMIT_S,
                "tcp_user_timeout": SILENCE_LIMIT_S * 1000,
                "application_name": "rocm-supervisor",
                "client_encoding": "utf8",
                "options": limits,
            },
        )
    except ModuleNotFoundError:
        raise FleetError("the driver for PostgreSQL (psycopg 3) is not installed", MISSING_DRIVER) from None


def _read_url(address: FleetAddress) -> URL:
    """Return where the database is, with the password of its file. Raises FleetError."""
    if address.database_url is None:
        raise FleetError("no fleet is configured", f'set [fleet] database_url = "{EXAMPLE}"')
    try:
        url = make_url(address.database_url)
    except ArgumentError:
        raise FleetError("fleet.database_url is not a URL", f"write it as {EXAMPLE}") from None
    if (named := url.get_backend_name()) != "postgresql":
        raise FleetError(f"fleet.database_url names {named}; only PostgreSQL is supported", f"write it as {EXAMPLE}")
    if url.password is not None:
        raise FleetError(
            "fleet.database_url contains a password, which every user who may read the configuration can see",
            "write it into a file of mode 600 and name that in fleet.password_file",
        )
    if address.password_file is not None:
        url = url.set(password=_read_password(Path(address.password_file)))
    return url


def _read_password(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(PASSWORD_LIMIT_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise FleetError(
            f"fleet.password_file: {path} cannot be read: {why}", f"chown it to who runs this: {path}"
        ) from None


def is_away(error: DBAPIError) -> bool:
    """Whether an error is the server's absence; any other is about what was asked of it."""
    state = getattr(error.orig, "sqlstate", None)
    return state is None or str(state).startswith(AWAY) or error.connection_invalidated


@contextmanager
def answered_within(connection: Connection, limit_s: float) -> Iterator[None]:
    """Cut the connection unless the block ends in time: libpq itself waits for an answer for ever."""
    driver = connection.connection.driver_connection
    assert driver is not None
    with socket.socket(fileno=os.dup(driver.fileno())) as line:

        def cut() -> None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(limit_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the database into FleetError with a remedy; an absent server into FleetUnreachableError."""
    try:
        yield
    except DBAPIError as error:
        first = next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)
        if is_away(error):
            raise FleetUnreachableError(f"the fleet's database cannot be reached: {first}") from error
        state = str(getattr(error.orig, "sqlstate", ""))
        remedies = {
            "42P01": "supervisorctl fleet init, as a role that may create schemas",
            "3F000": "supervisorctl fleet init, as a role that may create schemas",
            "42501": "supervisorctl fleet init --shipper ROLE --reader ROLE grants what each needs",
        }
        raise FleetError(f"the fleet's database refused: {first}", remedies.get(state, "")) from error
    except SQLAlchemyError as error:
        raise FleetError(f"the fleet's database cannot be used: {error}") from error


def check_revision(connection: Connection) -> None:
    """Raise FleetError unless the schema is the one that this version writes."""
    found = connection.execute(text(f"SELECT version_num FROM {schema.SCHEMA}.{schema.VERSION_TABLE}")).scalar()  # noqa: S608 - our own names
    if found == schema.REVISION:
        return
    known = f"the fleet's database has the schema {found}, this version uses {schema.REVISION}"
    older = found is None or str(found) < schema.REVISION
    raise FleetError(known, "supervisorctl fleet init upgrades it" if older else "upgrade rocm-supervisor on this node")


def create(engine: Engine, *, shippers: tuple[str, ...] = (), readers: tuple[str, ...] = ()) -> None:
    """Create or upgrade the schema and grant roles what they need, in one transaction. Raises FleetError.

    A role that ships may insert, and read the revision; one that reads may select. Neither may change a row.
    """
    with explained(), engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema.SCHEMA}"))
        shippers = _known_roles(connection, schema.SCHEMA, "INSERT", shippers)
        readers = _known_roles(connection, schema.NODE_SCHEMA, "SELECT", readers)
        connection.execute(text(f"DROP SCHEMA IF EXISTS {schema.NODE_SCHEMA} CASCADE"))
        _migrate(connection)
        connection.execute(text(f"CREATE SCHEMA {schema.NODE_SCHEMA}"))
        for name, query in schema.views().items():
            connection.execute(text(f"CREATE VIEW {schema.NODE_SCHEMA}.{name} AS {query}"))
        for statement in _grants(connection, shippers, readers):
            connection.execute(text(statement))


def _migrate(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - 60 ms to import, needed by this command only
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    migrations = str(shipped("migrations")).replace("%", "%%")
    config.set_main_option("script_location", migrations)
    config.set_main_option("version_locations", f"{migrations}/fleet")
    config.set_main_option("path_separator", "os")
    own = {"metadata": schema.metadata, "schema": schema.SCHEMA, "version_table": schema.VERSION_TABLE}
    config.attributes.update(own, connection=connection)
    command.upgrade(config, "head")


def _known_roles(connection: Connection, name: str, right: str, more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the roles that have a right in a schema, and `more`: new tables and views are theirs as well."""
    found = connection.execute(
        text(
            "SELECT DISTINCT grantee FROM information_schema.role_table_grants "
            "WHERE table_schema = :name AND privilege_type = :right AND grantee <> grantor"
        ),
        {"name": name, "right": right},
    )
    return tuple(dict.fromkeys((*found.scalars(), *more)))


def _grants(connection: Connection, shippers: tuple[str, ...], readers: tuple[str, ...]) -> Iterator[str]:
    quote = connection.dialect.identifier_preparer.quote_identifier
    for role in map(quote, shippers):
        yield f"GRANT USAGE ON SCHEMA {schema.SCHEMA} TO {role}"
        yield f"GRANT INSERT ON ALL TABLES IN SCHEMA {schema.SCHEMA} TO {role}"
        yield f"REVOKE INSERT ON {schema.SCHEMA}.{schema.VERSION_TABLE} FROM {role}"
        yield f"GRANT SELECT ON {schema.SCHEMA}.{schema.VERSION_TABLE} TO {role}"
    for role in map(quote, readers):
        for name in (schema.SCHEMA, schema.NODE_SCHEMA):
            yield f"GRANT USAGE ON SCHEMA {name} TO {role}"
            yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}"
