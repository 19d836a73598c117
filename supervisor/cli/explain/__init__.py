"""`supervisorctl explain`: what a saved log or tool output means."""
