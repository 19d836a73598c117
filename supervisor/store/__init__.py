"""The record: SQLite, written by one thread; SQLAlchemy and Alembic define and upgrade its tables."""
