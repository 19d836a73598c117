"""Writes the steps of a job as runs of MLflow, by its own client: into a new SQLite file, or to a tracking server."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from supervisor.cli.errors import CliError
from supervisor.cli.replay.extra import load_library
from supervisor.cli.replay.follow import Pause
from supervisor.cli.replay.tensorboard import scalars_of
from supervisor.store.records import StepBucket

METRICS_OF_REQUEST = 1000
"""The most that MLflow takes in one `log-batch`."""
JOB_TAG, ATTEMPT_TAG = "rocm_supervisor.job", "rocm_supervisor.attempt"
DEFAULTS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
"""Of the client, where the user's environment does not say otherwise: nothing is sent elsewhere, and no long wait."""


def is_server(target: str) -> bool:
    """Whether a target is the address of a tracking server."""
    return target.startswith(("http://", "https://"))


def write_mlflow(target: str, job: str, buckets: Iterable[StepBucket], pause: Pause) -> None:
    """Write a run for each attempt into the experiment `job`; raise OSError, CliError.

    `target` is a new file or the address of a server; a server that has a run of an attempt already is sent nothing of
    it. What was gathered is sent in each pause.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    tracking = load_library("mlflow.tracking", "mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    address = target
    if not is_server(target):
        Path(target).touch(exist_ok=False)
        address = f"sqlite:///{Path(target).absolute()}"
    with _explain_errors(target), tempfile.TemporaryDirectory() as unused:
        client = tracking.MlflowClient(address, registry_uri=unused)
        known = client.get_experiment_by_name(job)
        experiment = client.create_experiment(job) if known is None else known.experiment_id
        for attempt, of_attempt in groupby(buckets, key=lambda bucket: bucket.attempt):
            _write_run(client, partial(_create_run, client, experiment, job, attempt), of_attempt, pause)


def _write_run(client: Any, create: Callable[[StepBucket], str], buckets: Iterator[StepBucket], pause: Pause) -> None:
    first = next(buckets)
    _fill_run(client, create(first), chain((first,), buckets), pause)


def _create_run(client: Any, experiment: str, job: str, attempt: int, first: StepBucket) -> str:
    """Return the id of a new run; raise CliError where there is one of this attempt."""
    tags = {JOB_TAG: job, ATTEMPT_TAG: str(attempt)}
    same = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    if client.search_runs([experiment], same, max_results=1):
        remedy = "delete that run there, or choose another attempt by --attempt"
        raise CliError(f"the experiment {job} has a run of attempt {attempt} already", remedy, "exported_already")
    run = client.create_run(experiment, int(first.first_unix_s * 1000), tags, run_name=f"attempt {attempt}")
    identity: str = run.info.run_id
    return identity


def _fill_run(client: Any, run: str, buckets: Iterator[StepBucket], pause: Pause) -> None:
    """Send the values of each bucket at its last step, and end the run at its last time."""
    waiting: list[Any] = []
    end_ms, status = 0, "KILLED"

    def send() -> None:
        if waiting:
            client.log_batch(run, waiting)
            waiting.clear()

    pause.flush = send
    try:
        for bucket in buckets:
            metrics = _metrics_of(bucket)
            if len(waiting) + len(metrics) > METRICS_OF_REQUEST:
                send()
            waiting += metrics
            end_ms = max(end_ms, int(bucket.last_unix_s * 1000))
        send()
        status = "FINISHED"
    finally:
        pause.flush = None
        client.set_terminated(run, status, end_ms)


def _metrics_of(bucket: StepBucket) -> list[Any]:
    make = load_library("mlflow.entities", "mlflow").Metric
    at_ms = int(bucket.last_unix_s * 1000)
    return [make(tag, float(value), at_ms, bucket.step_last) for tag, value in scalars_of(bucket).items()]


@contextmanager
def _explain_errors(target: str) -> Iterator[None]:
    """Turn what MLflow raises into CliError."""
    raised = load_library("mlflow.exceptions", "mlflow").MlflowException
    try:
        yield
    except raised as error:
        remedy = "give --output a path that does not exist yet, or the address of a server that can be reached"
        raise CliError(f"MLflow, {target}: {str(error).splitlines()[0]}", remedy, "mlflow") from error
