"""How many threads the daemon has at most: a sum over their kinds, each held to its most by what starts it.

Each running child process has one besides, which waits for its end (`supervisor/children`). The threads with which a
node takes part in a training on several nodes (`supervisor/cluster`) are not in it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from supervisor.children.worker_threads import IDLE_AT_MOST
from supervisor.control.metrics_server import ANSWERED_AT_ONCE
from supervisor.control.routes import ANSWERING
from supervisor.daemon.attempt_reader import GIVEN_UP_AT_MOST
from supervisor.daemon.fence import SEARCH
from supervisor.daemon.periodic import PERIODIC_AT_ONCE
from supervisor.daemon.threads import ACTS_AT_ONCE
from supervisor.runner.evidence import PARTS_AT_ONCE
from supervisor.runner.process_words import HANGING_AT_MOST
from supervisor.sources.gpu.gpus import SOURCES

CHILD = "child"
"""The name of the threads that wait for child processes."""
JOBS_LANES = ("sweep", "checkpoints", "the record of checkpoints", "processes", "requests of the user")
DAEMONS_LANES = ("record commits", "sweep code", "programs in PATH")
JOBS_ACTS = ("launch", "continue", "stop", "kill", "last resort", "triage", "evidence", "clear", "container", SEARCH)
DAEMONS_ACTS = ("asking systemd", "reading the configuration")

OF_THE_DAEMON: Mapping[str, int] = {
    "deciding, log, exits, scheduler, presence, starter of children": 6,
    "kernel log and uevents": 2,
    "process that works on files": 2,
    "control socket": 1 + sum(int(workers.at_most) for workers in ANSWERING),
    "metrics": 1 + ANSWERED_AT_ONCE,
    "periodic work": PERIODIC_AT_ONCE,
    "GPU sources": len(SOURCES),
    "lanes": len(DAEMONS_LANES) + 1,
    "acts": ACTS_AT_ONCE * len(DAEMONS_ACTS),
    "readers of command lines": 1 + HANGING_AT_MOST,
    "workers without work": IDLE_AT_MOST,
}
"""The last lane is the free space of the state directory."""
OF_A_JOB: Mapping[str, int] = {
    "reader of its attempt, and of that before": 2,
    "readers that hang": GIVEN_UP_AT_MOST,
    "acts": ACTS_AT_ONCE * len(JOBS_ACTS),
    "parts of evidence": PARTS_AT_ONCE,
    "lanes": len(JOBS_LANES) + 1,
    "checkpoints captured, proven": 2,
    "tune": 1,
    "wait for a folder that does not answer": 1,
}
"""The last lane is the free space of its working directory."""
OF_A_RECEIVER = 2
"""One delivers; that of the configuration before it may not have ended yet."""


def count_most(jobs: int, receivers: int) -> int:
    """Return how many threads the daemon of so many jobs and alert receivers has at most, without those of children."""
    return sum(OF_THE_DAEMON.values()) + jobs * sum(OF_A_JOB.values()) + receivers * OF_A_RECEIVER


def count_threads() -> int:
    """Return how many threads this process has, without those of children."""
    return sum(thread.name != CHILD for thread in threading.enumerate())
