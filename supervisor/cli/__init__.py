"""`supervisorctl`, one file per command: queries the daemon, or reads its record while it is not running."""
