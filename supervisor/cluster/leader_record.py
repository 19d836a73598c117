"""The leader's record: a folder with state and incidents of the training, written without holding up the leader.

    state.json       stage, epoch, nodes, spares, excluded nodes, steps; replaced as a whole
    incidents.jsonl  a line when an incident begins and one when it is closed, with the same id
    over.json        how the training ended
    stop             made by `supervisorctl training stop`: the user wants it to end

The folder may lie on a file system that hangs or is full: then a thread waits for it, and the training goes on.
"""

from __future__ import annotations

import json
import logging
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.children.prompt_thread import PromptThread
from supervisor.core.fleet import leading as le
from supervisor.core.fleet.epoch import Epoch, read_epoch
from supervisor.core.fleet.ladder import Fleet
from supervisor.core.foreign_values import as_dict, as_float, as_int, as_list, as_text, read_json_object
from supervisor.core.moments import Moment

log = logging.getLogger(__name__)

STATE, INCIDENTS, OVER, STOP = "state.json", "incidents.jsonl", "over.json", "stop"
STATE_BYTES_MAX = 1 << 22
STOP_EVERY_S = 0.5
STEPS_EVERY_S = 1.0
"""How often the state is written because steps were made."""
CLOSE_LIMIT_S = 5.0
WRITE_LIMIT_S = 5.0
"""How long a write may take before the log says that the folder hangs."""


class LeaderRecord:
    """Writes in the order of the calls, in a thread; a write that fails is logged and the next one is tried."""

    def __init__(self, folder: Path, now: Callable[[], Moment]) -> None:
        """Raises OSError where the folder cannot be made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._now = folder, now
        self._written: Mapping[str, object] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stop_asked = False
        self._look_at_s = self._steps_at_s = 0.0
        self._looking = False
        self._begun_s: float | None = None
        self._warned = False
        self._thread = PromptThread(self._run, "leader-record")
        self._thread.start()

    def write_state(self, leading: le.Leading) -> None:
        """Write what a leader that is started again needs, where it has changed."""
        facts, now_s = state_facts(leading), self._now().monotonic_s
        moved = {**facts, "steps": None} != {**self._written, "steps": None}
        if not moved and (facts == self._written or now_s < self._steps_at_s):
            return
        self._written, self._steps_at_s = facts, now_s + STEPS_EVERY_S
        self._work.put(lambda: self._replace(STATE, facts))

    def write_incident(self, incident: le.Incident, *, closed: bool) -> None:
        """Append an incident."""
        facts = {"at_unix_s": self._now().unix_s, "closed": closed, **le.incident_facts(incident)}
        log.warning("leader.incident", extra={"fields": {"closed": closed, "id": incident.id, "kind": incident.kind}})
        self._work.put(lambda: self._append(facts))

    def write_over(self, *, finished: bool, reason: str) -> None:
        """Write how the training ended."""
        facts = {"finished": finished, "reason": reason, "at_unix_s": self._now().unix_s}
        self._work.put(lambda: self._replace(OVER, facts))

    def write_excluded(self, nodes: Sequence[str]) -> None:
        """Write which nodes the next start of the job leaves out."""
        facts = {"nodes": list(nodes)}
        self._work.put(lambda: self._replace("excluded.json", facts))

    def is_stop_asked(self) -> bool:
        """Whether the user wants the training to end; looked up in the thread, so that no file system holds this up."""
        now_s = self._now().monotonic_s
        if now_s >= self._look_at_s and not self._looking:
            self._look_at_s, self._looking = now_s + STOP_EVERY_S, True
            self._work.put(self._look)
        if self._begun_s is not None and now_s - self._begun_s > WRITE_LIMIT_S and not self._warned:
            self._warned = True
            log.error("leader.record_hangs", extra={"fields": {"folder": str(self._folder)}})
        return self._stop_asked

    def close(self) -> None:
        """Wait for what is still to be written, for a bounded time."""
        self._work.put(None)
        self._thread.join(CLOSE_LIMIT_S)

    def _look(self) -> None:
        self._stop_asked = (self._folder / STOP).exists()
        self._looking = False

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._begun_s = self._now().monotonic_s
            try:
                work()
            except OSError as error:
                self._looking = False
                where = error.filename or self._folder
                log.error("leader.record_failed", extra={"fields": {"file": str(where), "why": error.strerror}})
            self._begun_s, self._warned = None, False

    def _replace(self, name: str, facts: Mapping[str, object]) -> None:
        new = self._folder / f"{name}.new"
        with new.open("w") as file:
            file.write(json.dumps(facts, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / name)

    def _append(self, facts: Mapping[str, object]) -> None:
        with (self._folder / INCIDENTS).open("a") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())


def state_facts(leading: le.Leading) -> dict[str, object]:
    """Return the state of a training for its file."""
    fleet = leading.fleet
    return {
        "version": 1,
        "epoch": str(leading.epoch),
        "stage": leading.stage.value,
        "steps": leading.steps,
        "resumed": None if leading.resumed is None else leading.resumed.name,
        "incidents": leading.incidents,
        "nodes": [] if fleet is None else list(fleet.nodes),
        "ranks": {node: list(member.ranks) for node, member in leading.members.items() if member.ranks},
        "spares": sorted(node for node in leading.members if fleet is None or node not in fleet.nodes),
        "excluded": [] if fleet is None else sorted(fleet.excluded),
        "named_at_s": {} if fleet is None else {node: list(times) for node, times in fleet.named_at_s.items()},
        "restarted_at_s": [] if fleet is None else list(fleet.restarted_at_s),
        "same_restarts": 0 if fleet is None else fleet.same_restarts,
        "missing": [
            node
            for node in (fleet.nodes if fleet is not None else ())
            if node not in leading.members or not leading.members[node].connected
        ],
    }


LIVE = frozenset(stage.value for stage in (le.Stage.RUNNING, le.Stage.COLLECTING, le.Stage.STOPPING, le.Stage.WAITING))


def read_state(folder: Path, job: str) -> tuple[Epoch, Fleet | None, bool] | None:
    """Return what a leader before this one wrote down; None where there was none.

    The last epoch, its nodes, and whether it was live.

    Raises ValueError for the state of another training, OSError where it cannot be read.
    """
    path = folder / STATE
    try:
        with path.open("rb") as file:
            facts = read_json_object(file.read(STATE_BYTES_MAX))
    except FileNotFoundError:
        return None
    epoch = read_epoch(facts.get("epoch")) if facts is not None else None
    if facts is None or epoch is None:
        raise ValueError(f"{path}: is not the state of a training; move it away")
    if epoch.job != job:
        raise ValueError(f"{path}: is the state of training {epoch.job}, this is {job}; give each a folder of its own")
    nodes = _read_names(facts.get("nodes"))
    live = facts.get("stage") in LIVE
    if not nodes:
        return epoch, None, live
    named = {
        node: tuple(at_s for at_s in map(as_float, as_list(times)) if at_s is not None)
        for node, times in as_dict(facts.get("named_at_s")).items()
    }
    fleet = Fleet(
        nodes=nodes,
        spares=(),
        excluded=frozenset(_read_names(facts.get("excluded"))),
        named_at_s=named,
        same_restarts=as_int(facts.get("same_restarts")) or 0,
        restarted_at_s=tuple(at_s for at_s in map(as_float, as_list(facts.get("restarted_at_s"))) if at_s is not None),
    )
    return epoch, fleet, live


def _read_names(value: object) -> tuple[str, ...]:
    return tuple(name for name in map(as_text, as_list(value)) if name is not None)
