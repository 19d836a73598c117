"""Finds how many processes train together, this one's rank, and whether their state can be saved.

It asks torch and the environment and nothing that another process would have to answer.
"""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Tuple

from rocm_agent import claim
from rocm_agent.layout import ENV_REPLICAS


class World(NamedTuple):
    """The processes of one training."""

    rank: int
    size: int
    problem: str
    """Why what they train cannot be saved in mid-epoch; empty where it can."""
    local_rank: int = 0
    """Counted on this machine."""
    local_size: int = 1
    """How many of them run on this machine."""
    spread: bool = False
    """Whether the weights are spread over the ranks as DTensors, so that each holds a part."""

    @property
    def in_shards(self) -> bool:
        """Whether each rank writes a shard of its own: no rank has it all, or not all are of this machine."""
        return self.spread or self.local_size != self.size


def of(torch: Any, modules: Dict[str, Any]) -> World:
    """Return the world of this process, which trains `modules`; to be asked once the training is set up."""
    rank, size = place(torch)
    if size == 1 and claim.world_size() > 1:
        return World(
            rank,
            size,
            "its %d processes do without torch.distributed, by which ranks are known to be at one step"
            % claim.world_size(),
        )
    if size == 1:
        return World(rank, size, "" if rank == 0 else "another process reports for this training")
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    local_size = int(here) if here.isdigit() and 0 < int(here) <= size else size
    local_rank = claim.local_rank() if local_size != size else rank
    spread = any(_is_spread(module) for module in modules.values())
    return World(rank, size, _find_problem(rank, size, local_size, modules), local_rank, local_size, spread)


def place(torch: Any) -> Tuple[int, int]:
    """Return (rank, number of processes) of this process."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "").isdigit():
        return claim.rank, max(int(os.environ["WORLD_SIZE"]), 1)
    return claim.rank, 1


def _find_problem(rank: int, size: int, local_size: int, modules: Dict[str, Any]) -> str:
    if local_size != size and not os.environ.get(ENV_REPLICAS):
        return (
            "%d of its %d processes run on this machine, and the job has no snapshot_replicas: a folder that all "
            "machines reach, without which only those of one machine are saved in mid-epoch" % (local_size, size)
        )
    if rank != claim.rank:
        return "rank %d was not started with RANK or LOCAL_RANK in its environment, as torchrun does" % rank
    for module in modules.values():
        names = {type(item).__name__ for item in module.modules()}
        if names & {"FullyShardedDataParallel", "DeepSpeedEngine"} or any(
            hasattr(parameter, "ds_id") for parameter in module.parameters()
        ):
            return "its weights are spread by FSDP1 or DeepSpeed: those of DDP and FSDP2 are saved in mid-epoch"
    return ""


def _is_spread(module: Any) -> bool:
    return any(hasattr(parameter, "placements") for parameter in module.parameters())
