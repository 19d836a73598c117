"""A measured field is declared once, and reaches the record, the API and the table on screen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.cli.gpus.table import lines
from supervisor.cli.table import Pen
from supervisor.control import types
from supervisor.control.present import gpu_status, host_status
from supervisor.core.measured import Column, Measure, measured, measures_of
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading
from supervisor.store.archive import Archive
from supervisor.store.store import Store
from supervisor.store.tables import SQL_TYPES, metadata

AT = Moment(100.0, 1_763_164_800.0)
VALUES: dict[Any, Any] = {int: 4711, float: 47.11, str: "some text", tuple[str, ...]: ("power",)}
GPU, HOST = measures_of(GpuReading), measures_of(HostReading)


def reading(kind: type, declared: dict[str, Measure]) -> dict[str, Any]:
    """A value for every measured field, each in its type."""
    return {name: VALUES[measure.type] for name, measure in declared.items()}


@pytest.fixture
def gpu() -> GpuReading:
    return GpuReading(at=AT, gpu="0000:0a:00.0", source="sysfs", **reading(GpuReading, dict(GPU)))


@pytest.fixture
def host() -> HostReading:
    return HostReading(at=AT, **reading(HostReading, dict(HOST)))


def test_what_is_declared_as_recorded_is_read_back_from_the_record(
    tmp_path: Path, gpu: GpuReading, host: HostReading
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/supervisor.db", AT, "boot")
    with store.turn(AT):
        store.add_gpu_samples([gpu])
        store.add_host_sample(host)
    store.close(AT)
    archive = Archive(tmp_path / "supervisor.db")
    (gpu_sample,), (host_sample,) = archive.gpu_samples(), archive.host_samples()
    assert gpu_sample.values == {name: VALUES[measure.type] for name, measure in GPU.items() if measure.record}
    assert host_sample.values == {name: VALUES[measure.type] for name, measure in HOST.items() if measure.record}


def test_what_is_declared_for_the_api_is_answered(gpu: GpuReading, host: HostReading) -> None:
    for status, declared in ((gpu_status(gpu), GPU), (host_status(host), HOST)):
        body = msgspec.to_builtins(status)
        for name, measure in declared.items():
            assert (body.get(name) == msgspec.to_builtins(VALUES[measure.type])) is measure.api, name


def test_what_is_declared_with_a_column_is_on_screen(gpu: GpuReading) -> None:
    head, row = (line.split("  ") for line in lines([gpu], Pen(), {})[:2])
    shown = [measure.column for measure in GPU.values() if measure.column is not None]
    assert len(shown) > 5
    for column in shown:
        assert any(column.heading == cell.strip() for cell in head)
    assert "4711 rpm" in [cell.strip() for cell in row]


def test_an_unknown_value_is_unknown_everywhere() -> None:
    bare = GpuReading(at=AT, gpu="a", source="sysfs")
    body = msgspec.to_builtins(gpu_status(bare))
    assert all(body[name] is None for name, measure in GPU.items() if measure.api)
    assert all(measure.column.format(None) == "-" for measure in GPU.values() if measure.column is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpReading:
    """A reading that only this test has."""

    at: Moment
    flow_l_per_h: float | None = measured(record=True, api=True, column=Column("FLOW", "{:.1f} l/h"))
    coolant_ph: float | None = measured(api=True, column=Column("PH", "{:.1f}", scale=0.1, hot_at=80.0))
    serial: str | None = None


def test_a_field_is_declared_in_one_line() -> None:
    declared = measures_of(PumpReading)
    assert list(declared) == ["flow_l_per_h", "coolant_ph"]
    assert {name: measure.record for name, measure in declared.items()} == {"flow_l_per_h": True, "coolant_ph": False}
    assert declared["flow_l_per_h"].type is float
    body = types.measured_body(PumpReading)
    assert body.__struct_fields__ == ("flow_l_per_h", "coolant_ph")
    assert msgspec.convert({"coolant_ph": 71}, type=body).coolant_ph == 71.0  # type: ignore[attr-defined]
    columns = [measure.column for measure in declared.values() if measure.column is not None]
    assert [column.format(71.0) for column in columns] == ["71.0 l/h", "7.1"]
    assert PumpReading(at=AT).flow_l_per_h is None


def test_the_table_of_samples_has_the_declared_columns_and_no_other() -> None:
    for table, reading, keys in (
        ("gpu_samples", GpuReading, {"at_unix_s", "gpu", "source"}),
        ("host_samples", HostReading, {"at_unix_s", "disks"}),
    ):
        recorded = {name: SQL_TYPES[m.type] for name, m in measures_of(reading).items() if m.record}
        found = {column.name: type(column.type) for column in metadata.tables[table].columns if column.name not in keys}
        assert found == recorded
        assert set(recorded) <= {field.name for field in fields(reading)}
