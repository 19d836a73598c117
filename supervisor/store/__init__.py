"""The record: SQLite through SQLAlchemy Core, one thread writes; it decides nothing."""
