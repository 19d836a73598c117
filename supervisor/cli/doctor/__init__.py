"""`supervisorctl doctor`: checks of this machine, made by the command line itself."""
