"""Finds the steps of what an earlier process of the same attempt saved, where a launcher has started it again.

torchrun starts its ranks again, and a loop of the shell its program, within one attempt. What they load then was not
handed to them, and nothing that the daemon gave to the attempt can name it.
"""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os

from . import events

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Dict, List

READ_BYTES = 4 << 20
NAMED = (b'"alive"', b'"counting"', b'"file_saved"')


def list_saves() -> List[List[Any]]:
    """Return [path, size, modified_ns, step] of each file that a process of the same command line has saved before.

    Of one whose steps are not counted in the training nothing is known.
    """
    import json

    facts = [json.loads(line) for line in events.read(READ_BYTES) if any(name in line for name in NAMED)]
    commands: Dict[int, Any] = {item["pid"]: item.get("argv") for item in facts if item["event"] == "alive"}
    scales: Dict[int, Any] = {item["pid"]: item.get("scale") for item in facts if item["event"] == "counting"}
    me = os.getpid()
    before = {pid for pid, argv in commands.items() if pid != me and argv == commands.get(me)}
    return [
        [item["path"], item["size_bytes"], item["modified_s"] * 10**9 + item["modified_ns"], item["step"]]
        for item in facts
        if item["event"] == "file_saved" and item["pid"] in before and scales.get(item["pid"]) == "training"
    ]
