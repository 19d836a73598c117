"""A leader in this process, for stories that need no nodes of their own."""

from __future__ import annotations

import socket
from pathlib import Path

from supervisor.cluster.leader import Leader
from supervisor.cluster.leader_record import LeaderRecord
from supervisor.cluster.static_nodes import StaticNodes
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import LeaderLimits
from supervisor.daemon.clock import Clock
from supervisor.daemon.roles.leader_alerts import LeaderAlerts

SECRET = b"sixteen bytes or more"


def begin_leading(clock: Clock) -> Leading:
    """Return a training of two nodes that have still to come."""
    return Leading(Epoch("run", 0, 0), LeaderLimits(nodes=2), clock.now().monotonic_s)


def begin_leader(folder: Path, listening: socket.socket, clock: Clock, leading: Leading | None = None) -> Leader:
    """Return the leader of a training; it begins with `run`."""
    return Leader(
        leading=leading or begin_leading(clock),
        job="run",
        name="boss",
        secret=SECRET,
        listening=listening,
        record=LeaderRecord(folder, clock.now, "boot"),
        engine=StaticNodes(),
        announcer=LeaderAlerts({}, "run", "boss", clock),
        now=clock.now,
    )
