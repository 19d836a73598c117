"""Finds how many processes train together, this one's rank, and whether their state can be saved.

It asks torch and the environment and nothing that another process would have to answer.
"""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Tuple

from rocm_agent import claim


class World(NamedTuple):
    """The processes of one training."""

    rank: int
    size: int
    problem: str
    """Why what they train cannot be saved in mid-epoch; empty where it can."""


def of(torch: Any, modules: Dict[str, Any]) -> World:
    """Return the world of this process, which trains `modules`; to be asked once the training is set up."""
    rank, size = place(torch)
    if size == 1:
        return World(rank, size, "" if rank == 0 else "another process reports for this training")
    return World(rank, size, _find_problem(rank, size, modules))


def place(torch: Any) -> Tuple[int, int]:
    """Return (rank, number of processes) of this process."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "").isdigit():
        return claim.rank, max(int(os.environ["WORLD_SIZE"]), 1)
    return claim.rank, 1


def _find_problem(rank: int, size: int, modules: Dict[str, Any]) -> str:
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    if here.isdigit() and int(here) != size:
        return "%s of its %d processes run on this machine: only those of one machine are saved in mid-epoch" % (
            here,
            size,
        )
    if rank != claim.rank:
        return "rank %d was not started with RANK or LOCAL_RANK in its environment, as torchrun does" % rank
    if any(_is_sharded(module) for module in modules.values()):
        return "its weights are spread over its processes: only replicas, as DDP has them, are saved in mid-epoch"
    return ""


def _is_sharded(module: Any) -> bool:
    """Whether reading the state would be a collective operation, or give this process its share alone."""
    wrapped = any(type(item).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine") for item in module.modules())
    return wrapped or any(
        hasattr(parameter, "placements") or hasattr(parameter, "ds_id") for parameter in module.parameters()
    )
