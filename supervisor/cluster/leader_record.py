"""The leader's record: a folder with state and incidents of the training, written without holding up the leader.

    state.json       stage, epoch, nodes, spares, excluded nodes, steps; replaced as a whole
    incidents.jsonl  a line when an incident begins and one when it is closed, with the same id
    warnings.jsonl   a line for what a rule has warned of on a node; one that was sent twice has the same id
    alerts.json      alerts that no receiver has taken yet
    over.json        how the training ended
    stop             made by `supervisorctl training stop`: the user wants it to end

The folder may lie on a file system that hangs, is full or read-only: then a thread tries on, and the training goes on.
That thread has another process write, so that the leader can end.
Of each file it keeps what is to be in it at last, and a bounded number of incidents.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.children.files_apart import apart
from supervisor.children.prompt_thread import PromptThread
from supervisor.children.shared_files import append_lines, make_folder, replace_file
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Incident, RecordWarning, incident_facts
from supervisor.core.moments import Moment

log = logging.getLogger(__name__)

STATE, INCIDENTS, ALERTS, OVER, STOP = "state.json", "incidents.jsonl", "alerts.json", "over.json", "stop"
EXCLUDED, WARNINGS = "excluded.json", "warnings.jsonl"
ORDER = (ALERTS, OVER, EXCLUDED, STATE)
"""The state last: what it says has happened is written by then."""
LINES_MAX = 1024
"""Incidents that wait to be written, and warnings; an hour has at most two lines for each of its restarts."""
WARNINGS_MAX = 10_000
"""Written by one leader: a node that warns without an end must not fill the disk."""
STATE_VERSION = 1
LINE_BYTES_MAX = 1 << 18
"""A leader that comes after this one reads the last megabyte."""
FILE_MODE = 0o644
"""In a folder of its user alone."""
STOP_EVERY_S = 0.5
STEPS_EVERY_S = 1.0
"""How often the state is written because steps were made."""
ALIVE_EVERY_S = 10.0
"""How often it is written at least: who reads it elsewhere sees by its age whether there is a leader."""
CLOSE_LIMIT_S = 5.0
WRITE_LIMIT_S = 5.0
"""How long a write may take before the folder is said to hang."""
TRY_AGAIN_S = 1.0


class LeaderRecord:
    """Writes in a thread; what fails is tried again until it succeeds, or until newer content replaces it."""

    def __init__(self, folder: Path, now: Callable[[], Moment], boot: str) -> None:
        """`boot` identifies this start of the machine, for which its monotonic times count.

        Raises OSError where the folder cannot be made.
        """
        apart(make_folder, folder, 0o700)
        self._folder, self._now, self._boot = folder, now, boot
        self._written: Mapping[str, object] = {}
        self._lock = threading.Lock()
        self._files: dict[str, Mapping[str, object]] = {}
        self._lines: dict[str, deque[Mapping[str, object]]] = {INCIDENTS: deque(), WARNINGS: deque()}
        self._warnings = 0
        self.shed = 0
        """Lines of incidents and warnings that were never written, because too many waited."""
        self._bell = threading.Event()
        self._stop_asked = self._looking = self._closing = False
        self._over_written = threading.Event()
        self._look_at_s = self._steps_at_s = self._alive_at_s = 0.0
        self._begun_s: float | None = None
        self.storage_behind_s: float | None = None
        """How far the clock of the folder's file system is behind this machine's; None before the first write."""
        self._failure: str | None = None
        self._reported: str | None = None
        self._thread = PromptThread(self._run, "leader-record")
        self._thread.start()

    # --- asked by the leader's thread -----------------------------------------------------------------------------

    def write_state(self, leading: Leading) -> None:
        """Write what a leader that is started again needs, where it has changed."""
        facts, now_s = {**state_facts(leading), "not_recorded": self.shed}, self._now().monotonic_s
        moved = {**facts, "steps": None} != {**self._written, "steps": None}
        stepped = facts != self._written and now_s >= self._steps_at_s
        if not moved and not stepped and now_s < self._alive_at_s:
            return
        self._written, self._steps_at_s, self._alive_at_s = facts, now_s + STEPS_EVERY_S, now_s + ALIVE_EVERY_S
        place = {"host": platform.node(), "boot": self._boot}
        self._put(STATE, {**facts, **place, "at_s": now_s, "at_unix_s": self._now().unix_s})

    def write_incident(self, incident: Incident, *, closed: bool) -> None:
        """Append an incident."""
        facts = fit_line({"at_unix_s": self._now().unix_s, "closed": closed, **incident_facts(incident)})
        log.warning("leader.incident", extra={"fields": {"closed": closed, "id": incident.id, "kind": incident.kind}})
        self._append(INCIDENTS, facts)

    def write_warning(self, found: RecordWarning) -> None:
        """Append what a rule has warned of on a node."""
        warning = found.warning
        self._warnings += 1
        if self._warnings > WARNINGS_MAX:
            return
        log.warning("leader.node_warns", extra={"fields": {"node": found.node, "rule": warning.rule}})
        facts = {
            "at_unix_s": self._now().unix_s - warning.ago_s,
            "id": f"{found.node} {found.instance} {warning.number}",
            "node": found.node,
            "epoch": warning.launch,
            "rule": warning.rule,
            "text": warning.text,
        }
        self._append(WARNINGS, facts)

    def _append(self, name: str, facts: Mapping[str, object]) -> None:
        with self._lock:
            lines = self._lines[name]
            lines.append(facts)
            if len(lines) > LINES_MAX:
                lines.popleft()
                self.shed += 1
        self._bell.set()

    def write_alerts(self, waiting: Sequence[Mapping[str, object]]) -> None:
        """Write the alerts that are still to be delivered."""
        self._put(ALERTS, {"alerts": list(waiting)})

    def write_over(self, epoch: Epoch, *, finished: bool, reason: str) -> None:
        """Write how the training ended, with its last launch."""
        facts = {"epoch": str(epoch), "finished": finished, "reason": reason, "at_unix_s": self._now().unix_s}
        self._put(OVER, facts)

    def await_over(self, limit_s: float) -> None:
        """Wait until that is written, for a bounded time: a folder may hang."""
        self._over_written.wait(limit_s)

    def write_excluded(self, nodes: Sequence[str]) -> None:
        """Write which nodes the next start of the job leaves out."""
        self._put(EXCLUDED, {"nodes": list(nodes)})

    def is_stop_asked(self) -> bool:
        """Whether the user wants the training to end; looked up in the thread, so that no file system holds this up."""
        now_s = self._now().monotonic_s
        if now_s >= self._look_at_s:
            self._look_at_s, self._looking = now_s + STOP_EVERY_S, True
            self._bell.set()
        return self._stop_asked

    def find_problem(self) -> str | None:
        """Return why the record cannot be written at present, logged once for each reason; None while it can."""
        begun_s, problem = self._begun_s, self._failure
        if begun_s is not None and self._now().monotonic_s - begun_s > WRITE_LIMIT_S:
            problem = f"{self._folder}: has not answered for {WRITE_LIMIT_S:.0f} s"
        if problem != self._reported:
            self._reported = problem
            if problem is None:
                log.info("leader.record_back", extra={"fields": {"folder": str(self._folder), "shed": self.shed}})
            else:
                log.error("leader.record_failed", extra={"fields": {"why": problem}})
        return problem

    def close(self) -> None:
        """Wait for what is still to be written, for a bounded time."""
        self._closing = True
        self._bell.set()
        self._thread.join(CLOSE_LIMIT_S)

    def _put(self, name: str, facts: Mapping[str, object]) -> None:
        with self._lock:
            self._files[name] = facts
        self._bell.set()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ends = False
        while not ends:
            self._bell.wait(TRY_AGAIN_S if self._failure is not None else None)
            self._bell.clear()
            ends = self._closing
            self._begun_s = self._now().monotonic_s
            try:
                self._write_all()
            except OSError as error:
                self._failure = f"{error.filename or self._folder}: {error.strerror or error}"
            except RuntimeError as error:  # the other process ended over it
                self._failure = f"{self._folder}: {error}"
            else:
                self._failure = None
            self._begun_s = None

    def _write_all(self) -> None:
        if self._looking:
            self._looking = False
            self._stop_asked = apart(os.path.exists, self._folder / STOP)
        self._write_file(ALERTS)
        for name, waiting in self._lines.items():
            self._write_lines(name, waiting)
        for name in ORDER:
            self._write_file(name)

    def _write_lines(self, name: str, waiting: deque[Mapping[str, object]]) -> None:
        with self._lock:
            lines = tuple(waiting)
        if lines:
            apart(append_lines, self._folder / name, lines)
            with self._lock:
                while waiting and any(waiting[0] is line for line in lines):
                    waiting.popleft()

    def _write_file(self, name: str) -> None:
        with self._lock:
            facts = self._files.get(name)
        if facts is None:
            return
        content, began_unix_s = json.dumps(facts, indent=1) + "\n", self._now().unix_s
        apart(replace_file, self._folder / name, content.encode(), FILE_MODE, sync=True)
        if name == STATE:
            modified_unix_s = apart(os.stat, self._folder / name).st_mtime
            self.storage_behind_s = began_unix_s - modified_unix_s  # a file that is written later is not behind
        with self._lock:
            if self._files.get(name) is facts:
                del self._files[name]
        if name == OVER:
            self._over_written.set()


def state_facts(leading: Leading) -> dict[str, object]:
    """Return the state of a training for its file."""
    fleet = leading.fleet
    first = fleet.nodes[0] if fleet is not None and fleet.nodes else None
    return {
        "version": STATE_VERSION,
        "epoch": str(leading.epoch),
        "stage": leading.stage.value,
        "steps": leading.progress.steps,
        "began_unix_s": leading.question.clocks.find_begin(leading.began_unix_s, first),
        "resumed": None if leading.progress.resumed is None else leading.progress.resumed.name,
        "resume_problem": leading.resume_problem,
        "incidents": leading.incidents,
        "fruitless": dict(leading.progress.fruitless),
        "nodes": [] if fleet is None else list(fleet.nodes),
        "ranks": {node: list(member.ranks) for node, member in leading.members.items() if member.ranks},
        "spares": sorted(node for node in leading.members if fleet is None or node not in fleet.nodes),
        "excluded": [] if fleet is None else sorted(fleet.excluded),
        "named_at_s": {} if fleet is None else {node: list(times) for node, times in fleet.named_at_s.items()},
        "restarted_at_s": [] if fleet is None else list(fleet.restarted_at_s),
        "same_restarts": 0 if fleet is None else fleet.same_restarts,
        "ranks_until_s": leading.ranks_until_s or None,
        "missing": [
            node
            for node in (fleet.nodes if fleet is not None else ())
            if node not in leading.members or not leading.members[node].connected
        ],
    }


def fit_line(facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return an incident whose line is short enough to be read back: of its witnesses those that came first."""
    witnesses, left_out = facts["witnesses"], 0
    assert isinstance(witnesses, list)
    while witnesses and len(json.dumps(facts)) > LINE_BYTES_MAX:
        left_out += len(witnesses) - len(witnesses) // 2
        witnesses = witnesses[: len(witnesses) // 2]
        facts = {**facts, "witnesses": witnesses, "witnesses_left_out": left_out}
    return facts
