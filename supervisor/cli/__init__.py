"""`supervisorctl`, one file a command; it asks the daemon or reads what the daemon left, and judges no training."""
