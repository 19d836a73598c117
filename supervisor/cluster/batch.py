"""The batch script of a training under Slurm: a daemon on every node as one step, the leader as the batch step."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PORT = 29300
LAUNCHER_PID = "ROCM_SUPERVISOR_SRUN"
"""What the batch script names the process of its srun by."""
TIME_LIMIT_WARNING_S = 120
"""How long before the job's time limit the training is saved and ended."""
CONFIG_ERRORS_FROM = 64
CONFIG_ERRORS_TO = 78
"""Exit statuses (sysexits.h) after which starting a daemon again would change nothing."""

_PLAIN = re.compile(r"[A-Za-z0-9_./%+=:@,-]*")
"""What sbatch takes as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What the user asked for."""

    training: str
    nodes: int
    spares: int
    command: Sequence[str]
    folder: Path
    """Of the training, on a file system that all nodes and the login node share."""
    local_dir: str | None = None
    """Of each node, on a disk of its own, for its database while it runs."""
    config: Path | None = None
    options: Sequence[str] = ()
    """Further options of sbatch, as they are."""
    cwd: Path
    python: str = sys.executable


def leader_folder(folder: Path) -> Path:
    """Return where the leader writes its record."""
    return folder / "leader"


def write_script(asked: Submission) -> str:
    """Return the batch script. Raises ValueError for an option or a path that no line of it can have."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={asked.training}",
        f"#SBATCH --nodes={asked.nodes + asked.spares}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --no-kill",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{TIME_LIMIT_WARNING_S}",
        f"#SBATCH --output={_quote_option(str(asked.folder / 'slurm.log').replace('%', '%%'))}",
        f"#SBATCH --chdir={_quote_option(str(asked.cwd))}",
        *(f"#SBATCH {_require_line(option)}" for option in asked.options),
        "",
        write_body(asked),
    ]
    return "\n".join(lines)


def write_body(asked: Submission) -> str:
    """Return what runs within an allocation: in a script of the user's own it is all that is needed."""
    daemon = [asked.python, "-m", "supervisor.daemon.main"]
    common = ["--training", asked.training, "--secret-file", str(asked.folder / "secret")]
    node = [*daemon, "--role", "node", *common, "--snapshots", str(asked.folder / "snapshots")]
    if asked.config is not None:
        common += ["--config", str(asked.config)]
        node += ["--config", str(asked.config)]
    leader = [*daemon, "--role", "leader", "--engine", "slurm", "--nodes", str(asked.nodes), *common]
    leader += ["--listen", f"0.0.0.0:{PORT}", "--state-dir", str(leader_folder(asked.folder))]
    absent = "rocm-supervisor cannot be started there, install it or exclude the node:"
    check = shlex.join([asked.python, "-c", "import supervisor.daemon.main"])
    check += f' || {{ echo "node $SLURMD_NODENAME: {absent}" {shlex.quote(asked.python)} >&2; false; }}'
    # In the script of a node: its user and its directory for temporary files may be others than here.
    local = '"${TMPDIR:-/var/tmp}/rocm-supervisor-$UID"' if asked.local_dir is None else shlex.quote(asked.local_dir)
    on_node = f"""
  while true; do
    {shlex.join(node)} --leader "$ROCM_SUPERVISOR_LEADER" \\
      --state-dir {shlex.quote(str(asked.folder / "nodes"))}/"$SLURMD_NODENAME" \\
      --local-dir {local} -- {shlex.join(asked.command)}
    status=$?
    [ "$status" = 0 ] && exit 0
    [ "$status" -ge {CONFIG_ERRORS_FROM} ] && [ "$status" -le {CONFIG_ERRORS_TO} ] && exit "$status"
    case "$status" in 1|126|127) {check} || exit {CONFIG_ERRORS_TO};; esac
    sleep 1
  done"""
    return f"""\
# A daemon on every node, as one step; one that is killed is started again, one that is refused is not.
export ROCM_SUPERVISOR_LEADER="${{SLURMD_NODENAME:-$(hostname)}}:{PORT}"
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill bash -c {_quote(on_node)} &
export {LAUNCHER_PID}=$!
# The leader: the batch step is the one process of a job that Slurm keeps unique.
exec {shlex.join(leader)}
"""


def _quote(script: str) -> str:
    """Return a script in single quotes, which it may have itself: in the paths and the command."""
    return "'" + script.replace("'", "'\\''") + "'"


def _quote_option(value: str) -> str:
    """Return a value of an option in a line of sbatch, which splits it at blanks. Raises ValueError for two lines."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return _require_line(value if _PLAIN.fullmatch(value) else f'"{escaped}"')


def _require_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError(f"{text!r}: what sbatch is given is one line")
    return text
