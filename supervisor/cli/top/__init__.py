"""`supervisorctl top`: a live view in the terminal, from state to lines by pure functions."""
