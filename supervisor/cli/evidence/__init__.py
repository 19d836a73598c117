"""`supervisorctl evidence`: list the evidence of an incident, or pack it into one file."""
