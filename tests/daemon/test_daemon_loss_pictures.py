"""The picture of an alert is that of its training, of the hours before it, and fails without a sound."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

from supervisor.alerts.channel import KeptNotice, read_notice
from supervisor.alerts.payload import rfc3339
from supervisor.alerts.picture import INCIDENT, LINE
from supervisor.core.events import StepsMade
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.daemon.alerts.loss_pictures import LossPictures
from supervisor.store.store import Store

PNG = b"\x89PNG\r\n\x1a\n"
START = Moment(1000.0, 1_763_600_000.0)
HOUR = START.plus(3600)


def opened(job: str | None = "night", unix_s: float = START.unix_s + 3600) -> KeptNotice:
    data = {"severity": "critical", **({"job": job} if job else {})}
    body = {"type": "incident.opened", "timestamp": rfc3339(unix_s), "data": data}
    return read_notice("msg_1", json.dumps(body).encode())


def colors(png: bytes) -> set[int]:
    """Return the colors in a picture, by their place in the palette."""
    begin = png.index(b"IDAT") + 4
    return set(zlib.decompressobj().decompress(png[begin:]))


def record(folder: Path) -> LossPictures:
    """An hour of steps, each second one, with an incident."""
    store = Store.open(f"sqlite:///{folder}/supervisor.db", START, "boot")
    records = tuple(StepRecord(step=number, at=START.plus(number), loss=5 - number / 1000) for number in range(1, 3600))
    store.add_steps(StepsMade(at=HOUR, job="night", attempt=1, records=records, rank=0, cursor=3599))
    flag = RedFlag(rule="stall", severity=Severity.CRITICAL, at=START.plus(1800), message="no step")
    store.save_incident(Incident(id="night-1", job="night", attempt=1, flag=flag, decision="stop"))
    store.close(HOUR)
    return LossPictures(store.path)


def test_an_incident_shows_the_loss_of_the_hours_before_it(tmp_path: Path) -> None:
    pictures = record(tmp_path)
    shown = pictures.draw(opened())
    assert shown is not None
    assert shown.startswith(PNG)
    before = pictures.draw(opened(unix_s=START.unix_s + 1700))
    assert before is not None
    assert (colors(shown) - colors(before), LINE in colors(before)) == ({INCIDENT}, True)


def test_there_is_none_of_another_training_a_warning_or_a_time_without_steps(tmp_path: Path) -> None:
    pictures = record(tmp_path)
    assert pictures.draw(opened(job="day")) is None
    assert pictures.draw(opened(job=None)) is None
    assert pictures.draw(opened(unix_s=START.unix_s + 86_400)) is None
    assert pictures.draw(replace(opened(), type="flag.warning")) is None
    assert pictures.draw(replace(opened(), timestamp="yesterday")) is None


def test_a_record_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    assert LossPictures(tmp_path / "supervisor.db").draw(opened()) is None
    (tmp_path / "supervisor.db").write_bytes(b"not a database" * 100)
    assert LossPictures(tmp_path / "supervisor.db").draw(opened()) is None
