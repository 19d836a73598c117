"""The record: SQLite through SQLAlchemy Core, written by one thread."""
