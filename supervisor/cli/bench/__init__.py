"""`supervisorctl bench`: measurements of this machine."""
