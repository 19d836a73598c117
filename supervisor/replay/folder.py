"""Reads and writes a recording as a portable folder; errors name the file and the line.

recording.json    {"version": 1, "job", "attempt", "launched_at", "gpus_used", "rules", "made_of"}
events.jsonl.gz   {"kind": ..., ...} a line, in the order of time: the events of `core/events.py`, without steps
steps.csv.gz      monotonic_s,unix_s,step,epoch,loss,lr,grad_norm,gpu_memory_bytes,data_wait_s,skipped: a line a step
buckets.jsonl.gz  older steps, folded into ten seconds
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, get_args

import msgspec

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.json_bytes import encode_json
from supervisor.replay.recording import Recording
from supervisor.store.encode import kind_of
from supervisor.store.records import StepBucket

VERSION = 1
HEAD, EVENTS, STEPS, BUCKETS = "recording.json", "events.jsonl.gz", "steps.csv.gz", "buckets.jsonl.gz"
_MEASURED = ("step", "epoch", "loss", "lr", "grad_norm", "gpu_memory_bytes", "data_wait_s", "skipped")
COLUMNS = ("monotonic_s", "unix_s", *_MEASURED)


class RecordingError(ValueError):
    """A folder has no recording that can be replayed; the message names file, line and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    version: int
    job: str
    attempt: int
    launched_at: Moment
    gpus_used: tuple[str, ...] = ()
    rules: dict[str, dict[str, Any]]
    made_of: str = ""


OWN_KIND = "own_kind"
"""Key of the field `kind` that some events have themselves: in a line of a recording `kind` names the event."""


def event_types() -> dict[str, type[ev.Event]]:
    """Return every kind of event by the name that the record gives it."""
    kinds = (arg for union in (ev.AttemptEvent, ev.MachineEvent) for arg in get_args(union))
    return {_kind_name(item): item for item in (*kinds, ev.UserRequest)}


def write(recording: Recording, folder: Path) -> None:
    """Write a recording into a new folder; raise FileExistsError where something is there, OSError where it fails."""
    folder.mkdir(parents=True)
    head = {name: getattr(recording, name) for name in ("job", "attempt", "launched_at", "gpus_used", "made_of")}
    head |= {"version": VERSION, "rules": {name: dict(entry) for name, entry in recording.rules.items()}}
    (folder / HEAD).write_bytes(msgspec.json.format(encode_json(head), indent=2) + b"\n")
    with _open_gzip(folder / EVENTS) as out:
        for fact in recording.facts:
            out.write(json.dumps(_encode_event(fact), ensure_ascii=False) + "\n")
    with _open_gzip(folder / STEPS) as out:
        rows = csv.writer(out)
        rows.writerow(COLUMNS)
        rows.writerows(_build_row(record) for record in recording.steps)
    with _open_gzip(folder / BUCKETS) as out:
        for bucket in recording.buckets:
            out.write(json.dumps(asdict(bucket)) + "\n")


def read(folder: Path) -> Recording:
    """Return the recording in a folder; raise RecordingError where it is none."""
    try:
        head = msgspec.json.decode((folder / HEAD).read_bytes(), type=_Head)
    except OSError as error:
        raise RecordingError(
            f"{folder / HEAD}: {error.strerror}; create one: supervisorctl export JOB FOLDER"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordingError(f"{folder / HEAD}: {error}") from None
    if head.version != VERSION:
        raise RecordingError(f"{folder / HEAD}: version {head.version}, this version replays version {VERSION}")
    return Recording(
        job=head.job,
        attempt=head.attempt,
        launched_at=head.launched_at,
        gpus_used=head.gpus_used,
        rules=head.rules,
        made_of=head.made_of or str(folder),
        facts=tuple(_in_order(_read_lines(folder / EVENTS, _parse_event), folder / EVENTS)),
        buckets=tuple(_read_lines(folder / BUCKETS, lambda line: msgspec.json.decode(line, type=StepBucket))),
        steps=tuple(_read_lines(folder / STEPS, _parse_step, skip=1)),
    )


def _parse_event(line: str) -> ev.Event:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    kind = event_types().get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError("has an unknown kind of event")
    if OWN_KIND in fields:
        fields["kind"] = fields.pop(OWN_KIND)
    return msgspec.convert(fields, type=kind, strict=False)


def _parse_step(line: str) -> StepRecord:
    values = next(csv.reader([line]))
    if len(values) != len(COLUMNS):
        raise ValueError(f"has {len(values)} columns, not {len(COLUMNS)}")
    monotonic_s, unix_s, step, epoch, loss, lr, grad_norm, memory, wait, skipped = values
    return StepRecord(
        at=Moment(float(monotonic_s), float(unix_s)),
        step=int(step),
        epoch=int(epoch) if epoch else None,
        loss=float(loss) if loss else None,
        lr=float(lr) if lr else None,
        grad_norm=float(grad_norm) if grad_norm else None,
        gpu_memory_bytes=int(memory) if memory else None,
        data_wait_s=float(wait) if wait else None,
        skipped=skipped == "1",
    )


def _build_row(record: StepRecord) -> list[object]:
    values = (
        record.step,
        record.epoch,
        record.loss,
        record.lr,
        record.grad_norm,
        record.gpu_memory_bytes,
        record.data_wait_s,
    )
    known = ("" if value is None else value for value in values)
    return [repr(record.at.monotonic_s), repr(record.at.unix_s), *known, "1" if record.skipped else ""]


def _read_lines(path: Path, made: Any, skip: int = 0) -> Iterator[Any]:
    if not path.exists():
        return
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            for number, line in enumerate(lines, start=1):
                if number > skip:
                    yield made(line.rstrip("\r\n"))
    except (ValueError, EOFError, OSError, msgspec.MsgspecError) as error:
        raise RecordingError(f"{path}: line {number}: {error}") from None


def _in_order(facts: Iterable[ev.Event], path: Path) -> Iterator[ev.Event]:
    last = float("-inf")
    for number, fact in enumerate(facts, start=1):
        if not fact.at.monotonic_s >= last:
            raise RecordingError(f"{path}: line {number}: is earlier than the previous line")
        last = fact.at.monotonic_s
        yield fact


def _encode_event(fact: ev.Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(fact, enc_hook=repr, str_keys=True)
    if "kind" in fields:
        fields[OWN_KIND] = fields.pop("kind")
    return {"kind": kind_of(fact), **fields}


def _kind_name(event: type[ev.Event]) -> str:
    return kind_of(object.__new__(event))


def _open_gzip(path: Path) -> IO[str]:
    return gzip.open(path, "wt", encoding="utf-8", newline="")
