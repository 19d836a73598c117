"""Runs the migrations over the connection that the caller passes; it opens none and reads no configuration file.

Those in `versions` build a machine's own database, those in `fleet` the one that several machines share.
"""

from __future__ import annotations

from alembic import context

given = context.config.attributes
connection = given.get("connection")
if connection is None:
    raise RuntimeError(
        "migrations run through `python -m supervisor.store.upgrade FILE` or `supervisorctl fleet init`, which hand "
        "over a connection"
    )

# The caller's transaction holds all of it. `render_as_batch` is how SQLite alters a table: by building a new one.
context.configure(
    connection=connection,
    target_metadata=given["metadata"],
    version_table=given.get("version_table", "alembic_version"),
    version_table_schema=given.get("schema"),
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
