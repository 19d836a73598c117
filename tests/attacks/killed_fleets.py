"""Kills the leader, or the daemon of a node, at each change that an act asks of its disk, and looks at the training.

    python tests/attacks/killed_fleets.py [--scene leader_fault] [--every 1] [--from 1] [--only 17]

As `killed_acts.py` for a training on two nodes: the record of the leader, or the attempts of one node, lie on a file
system that counts what is asked of it (`tests/rigs/killing_disk.py`). An act is the start of the training, a rank that
is killed, its user's stop, or its own end. Whoever was killed is started again, as an engine does; then all ranks must
run in one launch, or none and all daemons have ended, no rank of an earlier launch may live, and one fault is one
incident.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from killed_acts import Outcome, sweep  # noqa: E402 (after the path is set)

from tests.cluster.cluster_by_hand import Cluster, gone, until  # noqa: E402
from tests.cluster.generations_by_hand import write_generation  # noqa: E402
from tests.rigs.killing_disk import KillingDisk, killing  # noqa: E402

NODES, RANKS = 2, 4
LEASE_S = 20
ACT_LIMIT_S, LOOK_LIMIT_S = 90.0, 120.0
VICTIMS = {"leader": "leader", "node": "n1"}
PLACES = {"leader": "leader", "n1": "n1/jobs/run"}
"""What lies on the disk of a victim: the leader's record, a node's attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A training on two nodes, of which one daemon is killed."""

    cluster: Cluster
    disk: KillingDisk
    victim: str
    """`leader`, or the name of a node."""

    def find_pid(self) -> int | None:
        """Return the pid of whoever is to be killed."""
        daemon = self.cluster.leader if self.victim == "leader" else self.cluster.daemons.get(self.victim)
        return None if daemon is None else daemon.pid

    def start(self, victim: str) -> None:
        """Start the leader or a node."""
        if victim == "leader":
            self.cluster.start_leader("--lease-s", str(LEASE_S), "--evidence-s", "5")
        else:
            self.cluster.start_node(victim)

    def start_all(self) -> None:
        """Start the training."""
        for name in ("leader", "n0", "n1"):
            self.start(name)

    def start_again(self) -> None:
        """Start whoever was killed, once it is gone; no leader whose record says that all is over.

        That was its last act, and what is started on such a record is another training.
        """
        daemon = self.cluster.leader if self.victim == "leader" else self.cluster.daemons.pop(self.victim)
        assert daemon is not None
        daemon.wait(60)
        if self.victim != "leader" or self.read_stage() != "over":
            self.start(self.victim)

    def read_stage(self) -> object:
        """Return where the training stands by the leader's record; None where that has nothing yet."""
        try:
            return self.cluster.state()["stage"]
        except FileNotFoundError:
            return None

    def starts(self) -> dict[str, list[int]]:
        """Return the processes of each launch."""
        found: dict[str, list[int]] = {}
        for path in self.cluster.folder.glob("rank-*"):
            for epoch, pid in self.cluster.read_rank(path):
                found.setdefault(epoch, []).append(pid)
        return found

    def living(self) -> dict[str, int]:
        """Return how many ranks of each launch live."""
        counts = {epoch: sum(not gone(pid) for pid in pids) for epoch, pids in self.starts().items()}
        return {epoch: count for epoch, count in counts.items() if count}

    def trains(self) -> bool:
        """Whether all ranks of the leader's launch run, with their nodes watching, and no others."""
        with suppress(OSError, ValueError):
            state = self.cluster.state()
            is_here = state["stage"] == "running" and not state["missing"]
            return is_here and self.cluster.watched() == RANKS and self.living() == {str(state["epoch"]): RANKS}
        return False

    def incidents(self) -> dict[str, list[dict[str, object]]]:
        """Return what the leader wrote down of each incident."""
        found: dict[str, list[dict[str, object]]] = {}
        for item in self.cluster.incidents():
            found.setdefault(str(item["id"]), []).append(dict(item))
        return found

    def has_ended(self) -> bool:
        """Whether all daemons and ranks have ended."""
        daemons = [self.cluster.leader, *self.cluster.daemons.values()]
        return all(daemon is not None and daemon.poll() is not None for daemon in daemons) and self.living() == {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScene:
    """One act of a training on several nodes."""

    prepare: Callable[[Fleet], None]
    act: Callable[[Fleet], None]
    is_over: Callable[[Fleet], bool]
    look: Callable[[Fleet], None]


def prepare_running(fleet: Fleet) -> None:
    """Have all ranks run, and a state of all of them saved."""
    fleet.start_all()
    until(fleet.trains, "all ranks to run")
    write_generation(fleet.cluster.folder / "all" / "run", 10, "0.1", RANKS)


def look_at_start(fleet: Fleet) -> None:
    """Assert that one launch runs in whole, and that a node that went on was not disturbed for a leader's death."""
    until(fleet.trains, f"all ranks to run\n{fleet.living()}", LOOK_LIMIT_S)
    check_incidents(fleet, at_most=0 if fleet.victim == "leader" else 1)
    launches = len(fleet.starts())
    assert launches <= (1 if fleet.victim == "leader" else 2), fleet.starts().keys()
    assert_recovers(fleet)


def end_rank(fleet: Fleet) -> None:
    """Kill a rank of the other node."""
    [launch] = fleet.starts()
    os.kill(fleet.cluster.pids(int(launch.rpartition(".")[2]))[1], signal.SIGKILL)


def is_relaunched(fleet: Fleet) -> bool:
    """Whether all ranks run in another launch."""
    return len(fleet.starts()) > 1 and fleet.trains()


def look_at_fault(fleet: Fleet) -> None:
    """Assert that the fault is one incident with its culprit, and that all ranks went on from what was saved."""
    until(lambda: is_relaunched(fleet), "all ranks to run again", LOOK_LIMIT_S)
    until(lambda: all(found[-1]["closed"] for found in fleet.incidents().values()), "incidents to be closed")
    check_incidents(fleet, at_most=1 if fleet.victim == "leader" else 2)
    first = fleet.incidents()["run.0.1"][-1]
    culprit = first["culprit"]
    assert isinstance(culprit, dict)
    if fleet.victim == "leader":
        assert (first["kind"], culprit["ranks"], culprit["nodes"]) == ("rank_exit", [1], ["n0"]), first
        assert len(fleet.starts()) == 2, fleet.starts()
    newest = str(fleet.cluster.folder / "all" / "run" / "step-000000000010")
    assert fleet.cluster.resumed_from() == {newest}, fleet.cluster.resumed_from()
    assert_recovers(fleet)


def check_incidents(fleet: Fleet, at_most: int) -> None:
    """Assert that each incident was closed once, that there are no more, and that the state counts them."""
    found = fleet.incidents()
    assert len(found) <= at_most, found
    for lines in found.values():
        assert [line["closed"] for line in lines].count(True) <= 1, lines
    until(
        lambda: fleet.cluster.state()["incidents"] == len(found), f"{len(found)} incidents in {fleet.cluster.state()}"
    )


def assert_recovers(fleet: Fleet) -> None:
    """Assert that another fault leads to a launch of all ranks, and the user's stop to the end of all."""
    before = set(fleet.starts())
    state = fleet.cluster.state()
    os.kill(fleet.cluster.pids(int(str(state["epoch"]).rpartition(".")[2]))[3], signal.SIGKILL)
    until(
        lambda: set(fleet.starts()) > before and fleet.trains(), "all ranks to run after a further fault", LOOK_LIMIT_S
    )


def ask_for_stop(fleet: Fleet) -> None:
    """Have it stopped, as its user does."""
    (fleet.cluster.folder / "leader" / "stop").touch()


def finish(fleet: Fleet) -> None:
    """Have its ranks end by themselves."""
    (fleet.cluster.folder / "finish").touch()


def look_at_end(fleet: Fleet, *, finished: bool) -> None:
    """Assert that all daemons and ranks have ended, and that the record says how."""
    until(fleet.has_ended, "the end of all", LOOK_LIMIT_S)
    over = json.loads((fleet.cluster.folder / "leader" / "over.json").read_text())
    assert over["finished"] is finished, over
    assert fleet.cluster.state()["stage"] == "over", fleet.cluster.state()
    assert fleet.incidents() == {}, fleet.incidents()


ACTS = {
    "start": FleetScene(prepare=lambda fleet: None, act=Fleet.start_all, is_over=Fleet.trains, look=look_at_start),
    "fault": FleetScene(prepare=prepare_running, act=end_rank, is_over=is_relaunched, look=look_at_fault),
    "stop": FleetScene(
        prepare=prepare_running,
        act=ask_for_stop,
        is_over=Fleet.has_ended,
        look=lambda fleet: look_at_end(fleet, finished=False),
    ),
    "finish": FleetScene(
        prepare=prepare_running,
        act=finish,
        is_over=Fleet.has_ended,
        look=lambda fleet: look_at_end(fleet, finished=True),
    ),
}
SCENES = {f"{victim}_{act}": (VICTIMS[victim], scene) for victim in VICTIMS for act, scene in ACTS.items()}


def play(name: str, number: int | None, code: Path) -> Outcome:
    """Play a scene; its victim is killed at that change of the act, None: at none."""
    victim, scene = SCENES[name]
    with tempfile.TemporaryDirectory(prefix="killed-fleets-", ignore_cleanup_errors=True) as name_of_folder:
        folder = Path(name_of_folder)
        place = folder / PLACES[victim]
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with killing(place, folder / "behind") as disk, Cluster(folder, NODES, code_copies=code) as cluster:
            fleet = Fleet(cluster=cluster, disk=disk, victim=victim)
            try:
                scene.prepare(fleet)
                disk.arm(number, fleet.find_pid)
                scene.act(fleet)
                until(lambda: disk.killed_at is not None or scene.is_over(fleet), "the act", ACT_LIMIT_S)
                changes = disk.disarm()
                if disk.killed_at is not None:
                    fleet.start_again()
                scene.look(fleet)
                broken = None
            except Exception as error:  # noqa: BLE001 - whatever did not hold is the finding
                changes = disk.disarm()
                broken = f"{type(error).__name__}: {error}\n{cluster.logs()}"
    return Outcome(changes=tuple(changes), killed_at=disk.killed_at, broken=broken)


if __name__ == "__main__":
    sys.exit(sweep(__doc__, SCENES, play))
