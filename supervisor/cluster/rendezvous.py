"""The environment by which torchrun on each node becomes a part of one launch, whatever its command line says of nodes.

torchrun takes the default of every option from PET_OPTION (torch.distributed.argparse_util). A program that is started
without it finds the same places in MASTER_ADDR and its like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.core.fleet.messages import Launch

ENV_EPOCH = "ROCM_SUPERVISOR_EPOCH"
"""JOB.ENGINE_RESTARTS.RELAUNCH: it only grows, so a writer with a lower one is a process that should not exist."""
OVERRIDING = (
    "--nnodes",
    "--node-rank",
    "--node_rank",
    "--rdzv-backend",
    "--rdzv_backend",
    "--rdzv-endpoint",
    "--rdzv_endpoint",
    "--rdzv-id",
    "--rdzv_id",
    "--rdzv-conf",
    "--rdzv_conf",
    "--max-restarts",
    "--max_restarts",
    "--master-addr",
    "--master_addr",
    "--master-port",
    "--master_port",
    "--standalone",
)
"""Options of torchrun that would outweigh what the leader says."""


def environment_of(order: Launch, own_host: str) -> Mapping[str, str]:
    """Return the variables of a launch on the node that others reach at `own_host`.

    Unless torchrun is given that, it names the node by its host name, which others may not be able to resolve.
    """
    endpoint = f"[{order.host}]:{order.port}" if ":" in order.host else f"{order.host}:{order.port}"
    return {
        ENV_EPOCH: str(order.epoch),
        "PET_NNODES": str(order.nodes),
        "PET_NODE_RANK": str(order.node_rank),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": str(order.epoch),
        "PET_RDZV_CONF": f"is_host={1 if order.node_rank == 0 else 0}",
        "PET_MAX_RESTARTS": "0",
        "PET_LOCAL_ADDR": own_host,
        "MASTER_ADDR": order.host,
        "MASTER_PORT": str(order.port),
        "NNODES": str(order.nodes),
        "NODE_RANK": str(order.node_rank),
    }


def find_overriding(command: Sequence[str]) -> list[str]:
    """Return the options of a torchrun command that the leader decides; they end where the program's name begins."""
    found = []
    for word in command:
        name = word.partition("=")[0]
        if name in OVERRIDING:
            found.append(name)
        if word.endswith(".py"):
            break
    return found
