"""What `export` writes for pyarrow, MLflow and Weights & Biases is what their own libraries read."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.replay.series import COLUMNS
from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.store.store import Store

ROOT = Path(__file__).parents[2]
READER = Path(__file__).with_name("read_exports.py")
T0 = Moment(1000.0, 1_763_600_000.0)
ROWS = 252
"""Of both attempts; six values each, more than MLflow takes in one request."""

pytestmark = pytest.mark.waits


def made(attempt: int, first: int, last: int, begun_s: float) -> ev.StepsMade:
    """One step a second."""
    records = tuple(
        StepRecord(at=T0.plus(begun_s + step - first), step=step, epoch=0, loss=1 / step, lr=0.01)
        for step in range(first, last + 1)
    )
    return ev.StepsMade(at=records[-1].at, job="night", attempt=attempt, records=records, cursor=last)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attempts: steps 1 to 2500, then 2481 to 2500 again."""
    state = tmp_path_factory.mktemp("state")
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    with store.turn(T0.plus(3000)):
        store.add_steps(made(1, 1, 2500, 0))
        store.add_steps(made(2, 2481, 2500, 2600))
    store.close(T0.plus(3000))
    path = state / "config.toml"
    path.write_text(f"[supervisor]\nstate_dir = '{state}'\n[jobs.night]\ncommand = ['true']\n")
    return path


def export(python: Path | str, config: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "supervisor.cli", "--config", str(config), "export", "night", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def read(python: Path, kind: str, target: str) -> Any:
    """Return what the library of a format reads."""
    done = subprocess.run([python, READER, kind, target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows_of_csv(config: Path, folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export(sys.executable, config, "--to", "csv", folder=folder).stdout)))


def test_pyarrow_reads_the_rows_of_the_other_tables_with_their_types(
    export_python: Path, config: Path, tmp_path: Path
) -> None:
    done = export(export_python, config, "--to", "parquet", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"night.parquet: night, {ROWS} rows of 2 attempts\n"), done.stderr
    found = read(export_python, "parquet", str(tmp_path / "night.parquet"))
    assert tuple(found["types"]) == COLUMNS
    assert {name: found["types"][name] for name in ("attempt", "first_time", "loss_mean", "tokens")} == {
        "attempt": "int64", "first_time": "timestamp[ms, tz=UTC]", "loss_mean": "double", "tokens": "int64",
    }  # fmt: skip
    table = rows_of_csv(config, tmp_path)
    assert len(table) == len(found["rows"]) == ROWS
    for as_text, row in zip(table, found["rows"], strict=True):
        for name, value in row.items():
            if name.endswith("_time"):
                assert value.replace("+00:00", "Z")[:19] == as_text[name][:19]
            else:
                assert ("" if value is None else str(value)) == as_text[name], name


def test_mlflow_reads_a_run_for_each_attempt(export_python: Path, config: Path, tmp_path: Path) -> None:
    done = export(export_python, config, "--to", "mlflow", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"night-mlflow.db: night, {ROWS} rows of 2 attempts\n"), done.stderr
    assert done.stderr == ""
    found = read(export_python, "mlflow", f"sqlite:///{tmp_path}/night-mlflow.db")
    assert found["experiment"] == "night"
    first, second = found["runs"]
    assert (first["name"], first["status"], second["name"]) == ("attempt 1", "FINISHED", "attempt 2")
    assert second["tags"] == {"rocm_supervisor.job": "night", "rocm_supervisor.attempt": "2"}
    assert (first["start_ms"], first["end_ms"]) == (1_763_600_000_000, 1_763_602_499_000)
    table = rows_of_csv(config, tmp_path)
    for run, attempt in ((first, "1"), (second, "2")):
        wanted = [(int(row["step_last"]), float(row["loss_mean"])) for row in table if row["attempt"] == attempt]
        assert [(step, value) for step, _, value in run["points"]["loss/mean"]] == wanted
        assert set(run["points"]) == {"loss/mean", "loss/min", "loss/max", "learning_rate", "steps_per_s", "epoch"}
    again = export(export_python, config, "--to", "mlflow", folder=tmp_path)
    assert (again.returncode, "night-mlflow.db: File exists" in again.stderr) == (1, True)


def test_the_reader_of_wandb_reads_an_offline_run_for_each_attempt(
    export_python: Path, config: Path, tmp_path: Path
) -> None:
    done = export(export_python, config, "--to", "wandb", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"night-wandb: night, {ROWS} rows of 2 attempts\n"), done.stderr
    first, second = read(export_python, "wandb", str(tmp_path / "night-wandb"))
    assert (first["project"], first["name"], second["name"]) == ("night", "attempt 1", "attempt 2")
    assert second["config"]["rocm_supervisor"] == {"job": "night", "attempt": 2}
    assert (first["complete"], second["complete"]) == (True, True)
    table = rows_of_csv(config, tmp_path)
    for run, attempt in ((first, "1"), (second, "2")):
        wanted = [(int(row["step_last"]), float(row["loss_mean"])) for row in table if row["attempt"] == attempt]
        assert [(row["step"], row["loss/mean"]) for row in run["rows"]] == wanted
    assert [row["_timestamp"] for row in second["rows"]] == [T0.unix_s + 2609, T0.unix_s + 2619]


@pytest.mark.parametrize("kind", ["parquet", "mlflow", "wandb"])
def test_without_the_library_the_extra_is_named_and_nothing_is_written(kind: str, config: Path, tmp_path: Path) -> None:
    done = export(sys.executable, config, "--to", kind, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: export --to {kind} needs a library: No module named '")
    assert f"pip install 'rocm-supervisor[{kind}]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_a_server_is_named_with_what_to_do(
    export_python: Path, config: Path, tmp_path: Path
) -> None:
    done = export(export_python, config, "--to", "mlflow", "--output", "http://127.0.0.1:9", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: MLflow, http://127.0.0.1:9: API request to http://127.0.0.1:9/api/")
    assert "the address of a server that can be reached" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def living(tmp_path: Path) -> tuple[Path, Callable[[int, int], None]]:
    """A record of steps 1 to 25 of attempt 1 and 21 to 40 of attempt 2, and what adds steps to the latter."""
    state = tmp_path / "state"
    state.mkdir()

    def add(*events: ev.StepsMade) -> None:
        store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
        with store.turn(T0.plus(1000)):
            for event in events:
                store.add_steps(event)
        store.close(T0.plus(1000))

    add(made(1, 1, 25, 0), made(2, 21, 40, 60))
    path = tmp_path / "config.toml"
    path.write_text(f"[supervisor]\nstate_dir = '{state}'\n[jobs.night]\ncommand = ['true']\n")
    return path, lambda first, last: add(made(2, first, last, 60 + first - 21))


@contextmanager
def following(python: Path, config: Path, kind: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    # What starts the tests in the background may ignore SIGINT, and a child inherits that.
    command = ["env", "--default-signal=INT", str(python), "-m", "supervisor.cli", "--config", str(config)]
    with subprocess.Popen(
        [*command, "export", "night", "--to", kind, "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def wait_until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    end = time.perf_counter() + 120
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.perf_counter() < end
        time.sleep(0.05)


def steps_seen(python: Path, kind: str, folder: Path) -> list[int]:
    """Return the last step of each row that a reader finds of attempt 2; none while it cannot be read yet."""
    try:
        if kind == "parquet":
            rows = read(python, kind, f"{folder}/night.parquet")["rows"]
            return [row["step_last"] for row in rows if row["attempt"] == 2]
        if kind == "wandb":
            return [row["step"] for row in read(python, kind, f"{folder}/night-wandb")[1]["rows"]]
        with closing(sqlite3.connect(f"file:{folder}/night-mlflow.db?mode=ro", uri=True)) as reader:
            found = reader.execute(
                "SELECT step FROM metrics JOIN tags USING (run_uuid) WHERE metrics.key = 'loss/mean' "
                "AND tags.key = 'rocm_supervisor.attempt' AND tags.value = '2' ORDER BY step"
            )
            return [step for (step,) in found]
    except (sqlite3.Error, AssertionError, IndexError):
        return []


@pytest.mark.parametrize("kind", ["parquet", "mlflow", "wandb"])
def test_what_is_followed_can_be_read_meanwhile_and_is_whole_after_an_interrupt(
    export_python: Path, living: tuple[Path, Callable[[int, int], None]], kind: str, tmp_path: Path
) -> None:
    config, add = living
    last = 2060 if kind == "wandb" else 60  # its library writes blocks of 32 KiB
    wanted = list(range(30, last + 1, 10))

    def is_read() -> bool:
        seen = steps_seen(export_python, kind, tmp_path)
        return seen == wanted[: len(seen)] and len(seen) >= (30 if kind == "wandb" else len(wanted) - 1)

    with following(export_python, config, kind, tmp_path) as process:
        if kind != "wandb":
            wait_until(process, lambda: steps_seen(export_python, kind, tmp_path) == [30])
        add(41, last)
        wait_until(process, is_read)
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, "")
    assert f"{len(wanted) + 3} rows of 2 attempts" in printed
    assert steps_seen(export_python, kind, tmp_path) == wanted
