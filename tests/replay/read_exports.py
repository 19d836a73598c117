"""Reads an export as the library reads it that it was made for, and prints it as JSON; run where those libraries are.

read_exports.py parquet FILE | mlflow ADDRESS | wandb FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def read_parquet(target: str) -> object:
    """Return the type of each column and the rows, times as text."""
    from pyarrow import parquet  # noqa: PLC0415 - each takes seconds, and one is asked

    table = parquet.read_table(target)
    rows = [
        {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
        for row in table.to_pylist()
    ]
    return {"types": {field.name: str(field.type) for field in table.schema}, "rows": rows}


def read_mlflow(target: str) -> object:
    """Return each run of the only experiment: its name, tags, times, and the points of each metric."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - each takes seconds, and one is asked

    client = MlflowClient(target, registry_uri="/nonexistent")
    (experiment,) = (found for found in client.search_experiments() if found.name != "Default")
    runs = []
    for run in client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]):
        points = {
            key: [
                (point.step, point.timestamp, point.value) for point in client.get_metric_history(run.info.run_id, key)
            ]
            for key in run.data.metrics
        }
        tags = {key: value for key, value in run.data.tags.items() if key.startswith("rocm_supervisor.")}
        about = {"name": run.info.run_name, "start_ms": run.info.start_time, "end_ms": run.info.end_time}
        runs.append({**about, "status": run.info.status, "tags": tags, "points": points})
    return {"experiment": experiment.name, "runs": runs}


def read_wandb(target: str) -> object:
    """Return each run in the order of their files: project, name, configuration and the rows of its history."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415 - each takes seconds, and one is asked
    from wandb.sdk.internal.datastore import DataStore  # noqa: PLC0415 - each takes seconds, and one is asked

    runs = []
    for file in sorted(Path(target).rglob("*.wandb")):
        store, run = DataStore(), {"rows": [], "complete": False}
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                run |= {"project": record.run.project, "name": record.run.display_name, "config": config}
                run["host"] = record.run.host
            elif kind == "history":
                items = record.history.item
                run["rows"].append({(item.key or item.nested_key[0]): json.loads(item.value_json) for item in items})
            elif kind == "exit":
                run["complete"] = True
        runs.append(run)
    return sorted(runs, key=lambda run: run["name"])


if __name__ == "__main__":
    READERS = {"parquet": read_parquet, "mlflow": read_mlflow, "wandb": read_wandb}
    json.dump(READERS[sys.argv[1]](sys.argv[2]), sys.stdout)
