"""How far an attempt's files were read, so that a new daemon reads on without a gap or a duplicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from supervisor.core.events import StepsMade
from supervisor.json_bytes import encode_json
from supervisor.store.steps import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursors:
    """Positions in one attempt's files, and what was last read there."""

    recorder: Mapping[int, int] = field(default_factory=dict)
    """Records read of each rank's flight recorder."""
    output_bytes: int = 0
    agent_log_bytes: int = 0
    lost_records: int = 0
    last_step: int | None = None
    last_epoch: int | None = None

    def reached(self, event: StepsMade) -> bool:
        """Whether these steps were recorded before."""
        return event.cursor <= self.recorder.get(event.rank, 0)

    def after(self, event: StepsMade) -> Cursors:
        """Return the positions after steps were read."""
        moved = replace(
            self,
            recorder={**self.recorder, event.rank: event.cursor},
            lost_records=self.lost_records + event.lost,
        )
        if event.rank != 0 or not event.records:
            return moved
        last = event.records[-1]
        return replace(moved, last_step=last.step, last_epoch=self.last_epoch if last.epoch is None else last.epoch)

    def row(self, job: str, number: int) -> Row:
        """Return the columns of the attempt's row that hold them."""
        return {
            "job": job,
            "number": number,
            "cursors": encode_json(self.recorder).decode(),
            "output_bytes": self.output_bytes,
            "agent_log_bytes": self.agent_log_bytes,
            "lost_records": self.lost_records,
            "last_step": self.last_step,
            "last_epoch": self.last_epoch,
        }


def cursors_of(row: Row) -> Cursors:
    """Return the positions in an attempt's row."""
    recorder = msgspec.json.decode(row["cursors"] or "null", type=dict[int, int] | None)
    return Cursors(
        recorder=recorder or {},
        output_bytes=row["output_bytes"] or 0,
        agent_log_bytes=row["agent_log_bytes"] or 0,
        lost_records=row["lost_records"] or 0,
        last_step=row["last_step"],
        last_epoch=row["last_epoch"],
    )
