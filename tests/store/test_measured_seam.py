"""A new measured field is a line where it is declared, a line where it is read, and the tables written again."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.store.archive import Archive
from supervisor.store.store import Store
from tests.rigs.amdgpu_tree import AmdgpuTree

ROOT = Path(__file__).parents[2]
AT = Moment(100.0, 1_763_164_800.0)
ENTRIES = {
    "supervisor/core/readings.py": (
        "    fan_rpm: int | None = measured(",
        '    vdd_mv: int | None = measured(record=True, api=True, column=Column("VDD", "{} mV"))\n',
    ),
    "supervisor/sources/gpu/amdgpu_sysfs.py": (
        "            fan_rpm=count(",
        '            vdd_mv=count(self._read_number(str(card.fan).replace("fan1", "in0"))),\n',
    ),
}
"""What is added in front of a line of the files that are there."""
GENERATED = "supervisor/store/schema.sql"
"""The third file, as `make frozen-names` writes it."""
USE = """
import sys
from pathlib import Path

import msgspec

from supervisor.cli.gpus.table import lines
from supervisor.cli.table import Pen
from supervisor.control.present import gpu_status
from supervisor.core.moments import Moment
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs
from supervisor.store.archive import Archive
from supervisor.store.store import Store

database, sys_root = map(Path, sys.argv[1:])
now = Moment(200.0, 1_763_164_900.0)
(reading,) = AmdgpuSysfs(sys_root).read(now)
print([sample.values["vdd_mv"] for sample in Archive(database).gpu_samples()])
store = Store.open(f"sqlite:///{database}", now, "boot")
with store.turn(now):
    store.add_gpu_samples([reading])
store.close(now)
print([sample.values["vdd_mv"] for sample in Archive(database).gpu_samples()])
print(msgspec.to_builtins(gpu_status(reading))["vdd_mv"])
print("1000 mV" in lines([reading], Pen(), {})[1])
"""


def run_python(folder: Path, *arguments: str) -> str:
    """Run Python where the copy is found before the program that is installed; return what it printed."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """A copy of the program to which a measured field is added."""
    folder = tmp_path / "extended"
    shutil.copytree(ROOT / "supervisor", folder / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, entry) in ENTRIES.items():
        text = (folder / name).read_text()
        assert text.count(before) == 1, before
        (folder / name).write_text(text.replace(before, entry + before))
    (folder / GENERATED).write_text(
        run_python(folder, "-c", "from supervisor.store.tables import as_sql; print(as_sql(), end='')")
    )
    return folder


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A record of the program as it is, with a sample."""
    store = Store.open(f"sqlite:///{tmp_path}/supervisor.db", AT, "boot")
    with store.turn(AT):
        store.add_gpu_samples([GpuReading(at=AT, gpu="0000:0a:00.0", source="sysfs", fan_rpm=900)])
    store.close(AT)
    return tmp_path / "supervisor.db"


@pytest.mark.slow
def test_it_takes_three_files_and_is_recorded_answered_and_shown(
    extended: Path, recorded: Path, tmp_path: Path
) -> None:
    assert len({*ENTRIES, GENERATED}) <= 3
    tree = AmdgpuTree.build(tmp_path / "tree")
    before, after, answered, shown = run_python(extended, "-c", USE, str(recorded), str(tree.sys_root)).splitlines()
    assert (before, after) == ("[None]", "[None, 1000]")
    assert (answered, shown) == ("1000", "True")


def test_a_record_that_is_older_than_a_field_gets_its_column_and_keeps_its_samples(recorded: Path) -> None:
    with closing(sqlite3.connect(recorded)) as connection:
        connection.execute("ALTER TABLE gpu_samples DROP COLUMN sclk_hz")
        connection.execute("ALTER TABLE host_samples DROP COLUMN load_1m")
    Store.open(f"sqlite:///{recorded}", AT, "boot").close(AT)
    with closing(sqlite3.connect(recorded)) as connection:
        assert connection.execute("SELECT sclk_hz, fan_rpm FROM gpu_samples").fetchall() == [(None, 900)]
        assert connection.execute("SELECT load_1m FROM host_samples").fetchall() == []


def test_the_samples_of_a_record_that_is_older_than_a_field_are_read_without_the_daemon(recorded: Path) -> None:
    with closing(sqlite3.connect(recorded)) as connection:
        connection.execute("ALTER TABLE gpu_samples DROP COLUMN sclk_hz")
    (sample,) = Archive(recorded).gpu_samples()
    assert (sample.values["sclk_hz"], sample.values["fan_rpm"]) == (None, 900)
