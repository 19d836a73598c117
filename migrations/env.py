"""Runs the migrations over the connection that the caller passes; it opens none and reads no configuration file."""

from __future__ import annotations

from alembic import context

from supervisor.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError(
        "migrations run through `python -m supervisor.store.upgrade FILE`, which hands over a connection"
    )

# The caller's transaction holds all of it. `render_as_batch` is how SQLite alters a table: by building a new one.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
