"""What the ranks of one training hold alike and what each holds alone, and how a snapshot keeps both.

Replicas have the same parameters and optimizers: rank 0's stand for all. Random states, the place in the data and the
buffers of modules, which DDP need not keep alike, are each rank's own, and are in rank 0's file in addition to its own.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from rocm_agent import claim, events
from rocm_agent.layout import ENV_RESUME_FROM

from . import world
from .files import OURS

RANKS, SIZE, BUFFERS = "ranks", "world_size", "buffers"
"""Keys, under ours, of what the other ranks hold alone, by rank, of the number of ranks, and in a part of buffers."""
SAMPLED_TENSORS, SAMPLED_NUMBERS = 32, 64


def alike(modules: Dict[str, Any], optimizers: List[Any]) -> List[Any]:
    """Return a sample of what replicas hold alike, bit by bit: a few numbers of a few tensors, not copied."""
    tensors = [parameter for module in modules.values() for parameter in module.parameters()]
    for optimizer in optimizers:
        tensors += [
            item for state in optimizer.state.values() for item in state.values() if hasattr(item, "as_strided")
        ]
    return sample(tensors)


def sample(tensors: List[Any]) -> List[Any]:
    """Return a few numbers of a few tensors, not copied."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    chosen = tensors[:: -(-len(tensors) // SAMPLED_TENSORS) or 1]
    return [item.detach().as_strided((min(item.numel(), SAMPLED_NUMBERS),), (1,)) for item in chosen]


def same(torch: Any, mine: List[Any], its: List[Any]) -> bool:
    """Whether two samples are those of replicas."""
    return len(mine) == len(its) and all(torch.equal(item, other) for item, other in zip(mine, its))


def buffers(modules: Dict[str, Any]) -> Dict[str, Any]:
    """Return the saved buffers of modules, such as the statistics of BatchNorm, not copied."""
    found = {}
    for name, module in modules.items():
        state, names = module.state_dict(), [buffer for buffer, _ in module.named_buffers()]
        found[name] = {item: state[item] for item in names if item in state}
    return found


def put_buffers(torch: Any, modules: Dict[str, Any], found: Dict[str, Any]) -> None:
    """Give modules this rank's own buffers back; those that they lack now are passed over."""
    with torch.no_grad():
        for name, module in modules.items():
            own = found.get(name, {})
            for key, buffer in module.named_buffers():
                if key in own:
                    buffer.copy_(own[key])


def of_this_rank(torch: Any, found: Dict[str, Any]) -> Tuple[Dict[str, Any], str]:
    """Return a snapshot as this rank left it, and why it cannot go on in mid-epoch, empty where it can.

    Another number of processes cuts the data otherwise: the place in it means nothing any more.
    """
    rank, size = world.place(torch)
    ours = found[OURS]
    others, before = ours.get(RANKS, {}), ours.get(SIZE, 1)
    rest = {key: value for key, value in ours.items() if key not in (RANKS, SIZE)}
    if before != size:
        return {**found, OURS: rest}, "%d processes left off and %d go on: the place in the data is lost" % (
            before,
            size,
        )
    return {**found, OURS: {**rest, **others.get(rank, {})}}, ""


def of_shards(torch: Any, folder: str, kind: str, modules: Dict[str, Any]) -> Tuple[Optional[Dict[str, Any]], str]:
    """Return what this rank resumes from in a generation of shards, and why it cannot go on in mid-epoch.

    None where the generation is of another `kind` of training. Raises ValueError where a shard is not the one that the
    manifest names, or where the weights cannot be put on this number of ranks.
    """
    from . import generation, sharding  # noqa: PLC0415 - most trainings need none of it

    rank, size = world.place(torch)
    manifest = generation.read_manifest(folder)
    before = manifest["world_size"]
    mine = generation.read_shard(torch, folder, manifest, rank if before == size else 0)
    if kind not in mine[OURS]:
        return None, ""
    if mine[OURS].get("spread"):
        meshes = sharding.meshes_of(modules)
        if before == size:
            mine = sharding.from_parts(torch, mine, meshes)
        else:
            rest = [generation.read_shard(torch, folder, manifest, other) for other in range(1, before)]
            mine = sharding.cut_again(torch, [mine, *rest], meshes)
    elif rank and before == size:
        full = generation.read_shard(torch, folder, manifest, 0)
        mine = {**full, OURS: {**full[OURS], **mine[OURS]}}
    problem = "%d processes left off and %d go on: the place in the data is lost" % (before, size)
    return mine, "" if before == size else problem


def resumed(epoch: Optional[int], step: int, problem: str) -> None:
    """Say once, for all ranks, from where the training goes on, and what was lost on the way."""
    if claim.rank == 0:
        lost = {"lost": problem} if problem else {}
        events.write("resumed", path=os.environ.get(ENV_RESUME_FROM), epoch=epoch, step=step, **lost)
