"""`supervisorctl start`, `stop` and `restart`, and the request that they share."""
