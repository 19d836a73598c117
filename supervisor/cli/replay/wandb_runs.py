"""Writes the steps of a job as offline runs of Weights & Biases, by its own library; `wandb sync` uploads them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from supervisor.cli.replay.extra import load_library
from supervisor.cli.replay.tensorboard import scalars_of
from supervisor.store.records import StepBucket

STEP = "step"
QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_save_requirements": False,
}
"""Settings of the library: it would note the machine, folder and packages of this command, not of the training."""


def write_wandb(target: Path, job: str, buckets: Iterable[StepBucket]) -> None:
    """Write a run for each attempt into the new folder `target`; raise OSError, CliError without wandb.

    A run's project is the job. Its axis is the value "step": the library's own steps may only grow. Its wall time is
    that of the steps, its relative time that of this command, which the library does not let anyone set.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = load_library("wandb", "wandb")
    target.mkdir()
    for attempt, of_attempt in groupby(buckets, key=lambda bucket: bucket.attempt):
        run = wandb.init(
            project=job,
            group=job,
            name=f"attempt {attempt}",
            config={"rocm_supervisor": {"job": job, "attempt": attempt}},
            mode="offline",
            dir=str(target),
            settings=wandb.Settings(**QUIET),
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        for bucket in of_attempt:
            run.log({**scalars_of(bucket), STEP: bucket.step_last, "_timestamp": bucket.last_unix_s})
        run.finish()
