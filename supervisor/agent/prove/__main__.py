"""Prints the result for one file, within limits of memory and processor time."""

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main(path: str, memory_limit_bytes: int = 0, cpu_limit_s: int = 0) -> None:
    """Print the answer as one line of JSON."""
    sys.path.insert(0, os.path.dirname(HERE))  # an isolated interpreter does not search the script's folder
    from prove import confine, prove  # noqa: PLC0415 - only now it can be found

    print(json.dumps(prove(path, lambda: confine(memory_limit_bytes, cpu_limit_s))))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
