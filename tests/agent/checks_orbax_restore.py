"""Restores what orbax saved, where it is there, makes a step, and saves."""

import pathlib
import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp
import rocm_agent

with ocp.CheckpointManager(pathlib.Path(sys.argv[1])) as manager:
    if manager.latest_step() is not None:
        manager.restore(manager.latest_step(), args=ocp.args.StandardRestore({"weights": jnp.zeros(3)}))
    rocm_agent.step(loss=1.0)
    manager.save(40, args=ocp.args.StandardSave({"weights": jnp.ones(3)}))
