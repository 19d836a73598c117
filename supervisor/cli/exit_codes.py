"""Exit codes of `supervisorctl`; scripts depend on them, so a number never changes its meaning."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_RUNNING = 3
UNREACHABLE = 4
REFUSED = 5

TEXT = """\
Exit codes:
  0  ok; for status: every job is running, waiting to run, or finished
  1  failed: no such job or incident, a problem found by doctor or config check, a timeout,
     or what is printed cannot be written
  2  invalid command line, or another program's supervisorctl is installed in this environment
  3  status: a job has failed or is stopped
  4  the daemon cannot be reached; commands about what is recorded (history, logs, account ...) then read its record
  5  refused: this user lacks permission, or the job is not in a state for it
"""
