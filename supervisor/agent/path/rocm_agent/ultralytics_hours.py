"""Has an ultralytics training that ends after so many hours (`time=`) count those of the processes before this one.

ultralytics counts from the start of the process. It ends the training by that, and expects as many epochs as fit into
the hours at the mean time of an epoch in this process, be that a part of one: learning rates fall along them.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional


def read_spent_s(trainer: Any) -> Optional[float]:
    """Return the seconds that the training has taken; None where no time limits it."""
    began_unix_s = getattr(trainer, "train_time_start", None)
    if began_unix_s is None or not getattr(trainer.args, "time", None):
        return None
    return time.time() - began_unix_s  # noqa: TID251 - the clock that ultralytics counts by


def count_on(trainer: Any, exact: Optional[Dict[str, Any]]) -> bool:
    """Have a resumed training count from what it had taken; return whether that is known.

    `exact` is what a snapshot held; the rows of results.csv have it for the end of each epoch.
    """
    if read_spent_s(trainer) is None:
        return False
    spent_s = (exact or {}).get("spent_s")
    if spent_s is None and trainer.start_epoch > 0:
        spent_s = _read_row_s(str(trainer.csv))
    if spent_s is None:
        return False
    trainer.train_time_start -= spent_s
    return True


def count_epochs(trainer: Any) -> None:
    """Have the mean of an epoch be one of all epochs; the trainer has begun with its own first one."""
    trainer.start_epoch = 0


def _read_row_s(csv: str) -> Optional[float]:
    """Return the time in the last row; None without one."""
    try:
        with open(csv, encoding="utf-8") as file:
            names, *rows = [line.split(",") for line in file]
        return float(rows[-1][[name.strip() for name in names].index("time")])
    except (OSError, ValueError, IndexError):
        return None
