"""`python -m supervisor.cli`: the same command, where `supervisorctl` is not on the PATH."""

from __future__ import annotations

from supervisor.cli.main import main

main()
