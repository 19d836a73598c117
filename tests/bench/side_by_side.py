"""Runs copies of a bench side by side, each with a network, processes and mounts of its own, on a machine with cores.

    python tests/bench/side_by_side.py --copies 5 -- tests/bench/fleet_faults.py --nodes 4 --json FILE --first {copy}

`{copy}` in the words is the number of the copy. The end of this program ends all copies (root; `unshare` and `ip`).
What they print is shown once all have ended; in the folder of `--outputs` it can be read meanwhile.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WITHIN = """mkdir -p /run/netns /etc/netns && mount -t tmpfs none /run/netns && mount -t tmpfs none /etc/netns &&
ip link set lo up && "$@"
exit $?"""
"""The shell stays: as the first process of its namespace it takes the exits of those whose parent has ended."""


def begin(words: list[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a copy."""
    apart = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    with output.open("wb") as file:
        return subprocess.Popen([*apart, "sh", "-c", WITHIN, "sh", sys.executable, *words], stdout=file, stderr=file)


def main() -> int:
    """Run all copies to their end; return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--outputs", type=Path, help="a folder for what the copies print")
    parser.add_argument("words", nargs="+", help="a bench and its options, after --")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [(asked.outputs or Path(folder)) / str(number) for number in range(asked.copies)]
        copies = [
            begin([word.replace("{copy}", str(number)) for word in asked.words], output)
            for number, output in enumerate(outputs)
        ]
        statuses = [copy.wait() for copy in copies]
        for number, output in enumerate(outputs):
            print(f"--- copy {number}: status {statuses[number]}\n{output.read_text(errors='replace')}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
