"""Requeues a job of Slurm without some nodes, from a process that outlives the job's batch step for that.

python -m supervisor.cluster.requeue JOB [NODE...]
"""

from __future__ import annotations

import signal
import sys

from supervisor.cluster.slurm import leave_allocation


def main(arguments: list[str]) -> int:
    """Requeue the job; return 0, or 1 with Slurm's answer on stderr."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        leave_allocation(arguments[0], arguments[1:])
    except (OSError, ValueError) as error:
        print(f"requeue of job {arguments[0]}: {error}", file=sys.stderr)  # noqa: T201 - into the job's output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
