"""Carries an announced step to the machines whose ranks do not share memory with rank 0, through a folder of all.

Rank 0 writes the announcement there, and the first rank of every other machine repeats it on its own board. Whoever
reads it too late has no shard of that step, and there is no generation of it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Optional

from rocm_agent.fence import failed

from . import files
from .background import Background
from .board import Announced, Board

NAME = "announced.json"
LEAD_S = 2.0
"""Announced so far ahead: several looks of a machine whose folder answers slowly."""
LOOK_S = 0.2
LIMIT_BYTES = 4096


class Carrier:
    """Of one machine."""

    def __init__(self, folder: str, epoch: str, board: Board) -> None:
        self._path = os.path.join(folder, NAME)
        self._epoch = epoch
        self._board = board
        self._background = Background("snapshot-announcer")
        self._last: Optional[Announced] = None

    def publish(self, announced: Announced) -> None:
        """Write an announcement, in the background: the folder may be slow."""
        self._background.begin(lambda: self._write(announced))

    def _write(self, announced: Announced) -> None:
        part = files.part_of(self._path)
        with open(part, "w", encoding="ascii") as file:
            json.dump({"epoch": self._epoch, **announced._asdict()}, file)
        os.replace(part, self._path)

    def follow(self) -> None:
        """Repeat on this machine's board whatever rank 0 announces in this epoch."""
        threading.Thread(target=self._follow, name="snapshot-follower", daemon=True).start()

    def _follow(self) -> None:
        while True:
            try:
                found = self._read()
            except Exception as error:
                failed("snapshots.nodes", error)
                found = None
            if found is not None and found != self._last:
                self._last = found
                self._board.repeat(found)
            time.sleep(LOOK_S)

    def _read(self) -> Optional[Announced]:
        try:
            with open(self._path, "rb") as file:
                found = json.loads(file.read(LIMIT_BYTES))
        except FileNotFoundError:
            return None
        if found.get("epoch") != self._epoch:
            return None
        return Announced(int(found["number"]), int(found["kind"]), int(found["step"]))
