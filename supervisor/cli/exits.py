"""Exit codes of `supervisorctl`; scripts rely on them, so a number never changes its meaning."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_RUNNING = 3
UNREACHABLE = 4
REFUSED = 5

TEXT = """\
Exit codes:
  0  done; for status: every job runs, waits to run, or has finished
  1  failed: no such job or incident, a problem found by doctor or config check, a wait that ran out
  2  the command line is wrong, or another program's supervisorctl shares this environment
  3  status: a job has failed or is stopped
  4  the daemon cannot be reached (history, show, checkpoints and logs then read what it left)
  5  refused: this user may not, or it makes no sense now
"""
