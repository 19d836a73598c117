"""Prints the result for one file, within limits of memory and processor time."""

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main(path: str, memory_limit_bytes: int = 0, cpu_limit_s: int = 0, share: int = 0, shares: int = 1) -> None:
    """Print the answer as one line of JSON; of a generation of shards that of a share of them."""
    sys.path.insert(0, os.path.dirname(HERE))  # an isolated interpreter does not search the script's folder
    from prove import confine, prove  # noqa: PLC0415 - only now it can be found

    answer = prove(path, lambda: confine(memory_limit_bytes, cpu_limit_s), (share, shares))
    print(json.dumps(answer))  # noqa: T201 - what this program is for


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
