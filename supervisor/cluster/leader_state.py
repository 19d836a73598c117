"""What a leader before this one wrote down, read back: its state, the incident that it left open, alerts to be sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from supervisor.cluster.leader_record import ALERTS, INCIDENTS, OVER, STATE, STATE_VERSION
from supervisor.core.fleet.epoch import Epoch, read_epoch
from supervisor.core.fleet.ladder import Fleet
from supervisor.core.fleet.resume import Offer
from supervisor.core.fleet.training import Incident, Known, Stage
from supervisor.core.foreign_values import (
    PATH_CHARS_MAX,
    RANK_MAX,
    UNIX_S_MAX,
    as_dict,
    as_float,
    as_int,
    as_list,
    as_message,
    as_text,
    read_json_object,
)
from supervisor.core.moments import Moment

STATE_BYTES_MAX = 1 << 22
INCIDENTS_TAIL_BYTES = 1 << 20
LIVE = frozenset(stage.value for stage in (Stage.RUNNING, Stage.COLLECTING, Stage.STOPPING, Stage.WAITING))


def read_known(folder: Path, job: str, now: Moment, boot: str) -> Known | None:
    """Return what a leader before this one wrote down; None where there was none.

    `boot` identifies this start of the machine. Raises ValueError for the state of another training or of a newer
    version, which may have stages that this one takes for none in which ranks run; OSError where it cannot be read.
    """
    path = folder / STATE
    facts = _read_object(path)
    if facts is None:
        return None
    epoch = _read_own_epoch(path, facts, job)
    last = _read_last_incident(folder, epoch)
    closed = last is not None and last.get("closed") is True
    resumed = as_text(facts.get("resumed"), PATH_CHARS_MAX)
    stage = as_text(facts.get("stage"))
    not_counted = last is not None and stage == Stage.RUNNING.value  # killed before its state said so
    return Known(
        epoch=epoch,
        fleet=_read_fleet(facts, _later_by_s(facts, now, boot)),
        is_live=stage in LIVE and not closed,
        is_over=stage == Stage.OVER.value,
        is_finished=stage != Stage.OVER.value and _is_finished(folder, facts),
        ranks_until_s=_read_ranks_until(facts, boot),
        incident=None if last is None or closed else _read_incident(last, epoch),
        incidents=(as_int(facts.get("incidents")) or 0) + not_counted,
        steps=as_int(facts.get("steps")),
        resumed=None if resumed is None else Offer(name=resumed, digest=""),
        fruitless={name: as_int(times) or 0 for name, times in as_dict(facts.get("fruitless")).items()},
    )


def _read_own_epoch(path: Path, facts: Mapping[str, object], job: str) -> Epoch:
    """Return the launch of a state. Raises ValueError where it is none of this training's, or of a newer version."""
    version = as_int(facts.get("version", STATE_VERSION))
    if version is None:
        raise ValueError(f"{path}: its version is no number; start the leader that wrote it, or move the file away")
    if version > STATE_VERSION:
        raise ValueError(f"{path}: was written by a newer version of rocm-supervisor; start the leader with that one")
    epoch = read_epoch(facts.get("epoch"))
    if epoch is None or not epoch.is_possible:
        raise ValueError(f"{path}: is not the state of a training; move it away")
    if epoch.job != job:
        raise ValueError(f"{path}: is the state of training {epoch.job}, this is {job}; give each a folder of its own")
    return epoch


def read_begin(folder: Path) -> float | None:
    """Return when the training of a record began, in Unix seconds; None for a new one, or after one that has finished.

    Raises OSError where it cannot be read.
    """
    facts, over = _read_object(folder / STATE) or {}, _read_object(folder / OVER) or {}
    if facts.get("stage") == Stage.OVER.value and over.get("finished") is True:
        return None
    return as_float(facts.get("began_unix_s"), 0.0, UNIX_S_MAX)


def _is_finished(folder: Path, state: Mapping[str, object]) -> bool:
    """Whether the launch of a state was written down as finished, and not another training's of its name."""
    over = _read_object(folder / OVER) or {}
    at_s, began_s = as_float(over.get("at_unix_s")), as_float(state.get("began_unix_s"))
    is_its_own = over.get("epoch") == state.get("epoch") and at_s is not None and at_s >= (began_s or 0.0)
    return is_its_own and over.get("finished") is True


def read_alerts(folder: Path) -> list[dict[str, object]]:
    """Return the alerts that were still to be delivered. Raises OSError."""
    facts = _read_object(folder / ALERTS)
    return [] if facts is None else [as_dict(alert) for alert in as_list(facts.get("alerts"))]


def find_ranks_end(known: Known | None, engine_restarts: int) -> float:
    """Return until when ranks of the job's earlier runs may still run, as `Known.ranks_until_s` has it.

    Only the leader of the run just before this one can know that it is earlier than a lease from now, by having
    written down that it came to its end.
    """
    if engine_restarts == 0:
        return 0.0
    if known is None or not known.is_over or known.epoch.engine_restarts != engine_restarts - 1:
        return math.inf
    return known.ranks_until_s


def _read_object(path: Path) -> dict[str, object] | None:
    """Return the object in a file, {} for anything else; None where there is no file."""
    try:
        with path.open("rb") as file:
            return read_json_object(file.read(STATE_BYTES_MAX)) or {}
    except FileNotFoundError:
        return None


def _later_by_s(facts: Mapping[str, object], now: Moment, boot: str) -> float:
    """Return what must be added to the monotonic times of a state to have them on this machine's clock.

    After another start of the machine, or on another one, only the wall clock connects the two.
    """
    at_s, at_unix_s = as_float(facts.get("at_s")), as_float(facts.get("at_unix_s"))
    if facts.get("boot") == boot or at_s is None or at_unix_s is None:
        return 0.0
    return now.monotonic_s - at_s - max(0.0, now.unix_s - at_unix_s)


def _read_ranks_until(facts: Mapping[str, object], boot: str) -> float:
    """Return until when ranks may run; a time by another clock is none: wall clocks may differ by an hour."""
    until_s = facts.get("ranks_until_s")
    if until_s is None:
        return 0.0  # the leader waited for their end
    read = as_float(until_s)
    return math.inf if read is None or facts.get("boot") != boot else read


def _read_fleet(facts: Mapping[str, object], later_by_s: float) -> Fleet | None:
    nodes = _read_names(facts.get("nodes"))
    if not nodes:
        return None
    return Fleet(
        nodes=nodes,
        spares=(),
        excluded=frozenset(_read_names(facts.get("excluded"))),
        named_at_s={node: _read_times(times, later_by_s) for node, times in as_dict(facts.get("named_at_s")).items()},
        same_restarts=as_int(facts.get("same_restarts")) or 0,
        restarted_at_s=_read_times(facts.get("restarted_at_s"), later_by_s),
    )


def _read_times(value: object, later_by_s: float) -> tuple[float, ...]:
    times = map(as_float, as_list(value))
    return tuple(at_s + later_by_s for at_s in times if at_s is not None)


def _read_names(value: object) -> tuple[str, ...]:
    return tuple(name for name in map(as_text, as_list(value)) if name is not None)


def _read_last_incident(folder: Path, epoch: Epoch) -> dict[str, object] | None:
    """Return what was written last of the incident of a launch."""
    try:
        with (folder / INCIDENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - INCIDENTS_TAIL_BYTES))
            lines = file.read(INCIDENTS_TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        facts = read_json_object(line)
        if facts is not None and facts.get("id") == str(epoch):
            return facts
    return None


def _read_incident(facts: Mapping[str, object], epoch: Epoch) -> Incident:
    return Incident(
        id=str(epoch),
        epoch=epoch,
        kind=as_text(facts.get("kind")) or "unknown",
        reason=as_message(facts.get("reason")) or "not recorded",
        node=as_text(facts.get("node")) or "-",
        rank=as_int(facts.get("rank"), maximum=RANK_MAX),
        began_s=0.0,
    )
