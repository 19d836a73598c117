"""`python -m supervisor.cli`, for where the command is not on the PATH; it is the same command."""

from __future__ import annotations

from supervisor.cli.main import main

main()
