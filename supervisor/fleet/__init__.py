"""What several nodes record together: a copy of each node's record in one PostgreSQL database."""
