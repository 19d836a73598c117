"""`doctor` says whether this machine's record reaches the fleet's database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from supervisor.cli.doctor.shipping import LATE_S, shipping
from supervisor.config.settings import FleetSettings, Settings, SupervisorSettings
from supervisor.fleet.sent import FILE, FOLDER, Sent

NOW = 2_000_000_000.0


def doctor(state: Path, *, now: float = NOW, url: str | None = "postgresql://shipper@db.example/fleet") -> list[str]:
    settings = Settings(supervisor=SupervisorSettings(state_dir=str(state)), fleet=FleetSettings(database_url=url))
    return [f"{line.level}: {line.found}" for line in shipping(settings, now)]


def test_the_last_complete_copy_is_named_with_its_age(tmp_path: Path) -> None:
    assert doctor(tmp_path, url=None) == []
    assert doctor(tmp_path) == [
        "warn: this machine's record has not been copied completely to the fleet's database yet"
    ]
    (tmp_path / FOLDER).mkdir()
    with closing(Sent(tmp_path / FOLDER / FILE, NOW)) as sent:
        assert doctor(tmp_path)[0].startswith("warn: this machine's record has not been copied"), "begun, not complete"
        sent.note_pass(NOW)
    copied = "this machine's record was copied to the fleet's database"
    assert doctor(tmp_path, now=NOW + 20) == [f"ok: {copied} 20 s ago"]
    assert doctor(tmp_path, now=NOW + LATE_S + 30) == [f"warn: {copied} 10 min 30 s ago (limit 10 min)"]


def test_a_file_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / FILE).write_bytes(b"no database" * 1000)
    (found,) = doctor(tmp_path)
    assert found.startswith(f"warn: {tmp_path / FOLDER / FILE} cannot be read: ")
