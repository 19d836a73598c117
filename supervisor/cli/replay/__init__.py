"""`supervisorctl replay` and `export`: run the rules over a recorded attempt, and copy one out."""
