"""Kills the fleet's database while nodes copy their records to it, and counts what is lost or doubled.

python tests/bench/fleet_record.py --kills 20 --nodes 2         # a PostgreSQL server of its own; about two minutes
python tests/bench/fleet_record.py --outage-rows 20000          # rows that each node records while it is stopped
python tests/bench/fleet_record.py --kills 0 --outage-s 3600    # stopped for an hour, 20 rows a second of each node
python tests/bench/fleet_record.py --attempts 3600              # what a pass costs with a record of so many attempts

Each node writes flags, decisions, events, attempts and incidents that change into a database file of its own, and
copies it in a thread of its own. At the end every row of every file is compared with the fleet's.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from sqlalchemy import text  # noqa: E402 (after the path is set)

from supervisor.core import events as ev  # noqa: E402
from supervisor.core.job import Attempt  # noqa: E402
from supervisor.core.readings import ExitStatus  # noqa: E402
from supervisor.fleet import schema  # noqa: E402
from supervisor.fleet.database import connect, create  # noqa: E402
from supervisor.fleet.errors import FleetUnreachableError  # noqa: E402
from supervisor.fleet.reading import NodeRows  # noqa: E402
from supervisor.fleet.sent import Sent  # noqa: E402
from supervisor.fleet.shipping import LOOK_BACK_EVERY_S, Shipper  # noqa: E402
from supervisor.store.archive import FileRows  # noqa: E402
from supervisor.store.sql import Statement  # noqa: E402
from tests.rigs.postgres_server import Address, PostgresServer, missing  # noqa: E402
from tests.store.record_by_hand import at, flag, incident, launch, open_store, record_everything, stop  # noqa: E402

TRICKLE_ROWS = 20
PASSES = 9
COMPARED = ("flags", "decisions", "events", "attempts", "incidents", "remedies")


def now_unix_s() -> float:
    """Return Unix seconds."""
    return time.time_ns() / 1e9


class Node:
    """A record that is written, and a shipper that copies it, each in its turn."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        folder.mkdir()
        self.name = name
        self.store = open_store(folder)
        record_everything(self.store)
        self._shipper = Shipper(
            self.store.path, connect(Address(url)), Sent(folder / "sent.db", now_unix_s()), name, now_unix_s
        )
        self._number = 1
        self._trickled = 0
        self.unreachable = 0

    def write(self, rows: int) -> None:
        """Record so many flags, decisions and events; an attempt begins and an incident changes."""
        self._number += 1
        number = self._number
        with self.store.turn(at(number)):
            self.store.open_attempt(launch(number), f"/state/{number}")
            self.store.save_incident(replace(incident(number), reason="open"))
            self.store.save_incident(replace(incident(number - 1), outcome="gave_up", reason=f"by {number}"))
            for index in range(rows // 3):
                self.store.record_flag("night", number, replace(flag(), message=f"{number} {index}"))
                self.store.record_decision(stop())
                asked = ev.UserRequest(at=at(number + index / 1e4), job="night", ask=ev.Ask.STOP, by=str(index))
                self.store.record_event(asked)

    def close(self) -> None:
        """End the attempt under way, and settle the incident of the one before."""
        ended = at(self._number)
        attempt = Attempt(number=self._number, launched_at=ended, exit=ExitStatus(at=ended, signal=9))
        with self.store.turn(ended):
            self.store.close_attempt("night", attempt, ended)
            self.store.save_incident(replace(incident(self._number), outcome="gave_up"))

    def trickle(self, rows: int) -> None:
        """Record so many flags, decisions and events of the attempt under way."""
        self._trickled += 1
        with self.store.turn(at(self._number)):
            for index in range(rows // 2):
                self.store.record_flag("night", self._number, replace(flag(), message=f"{self._trickled} {index}"))
                self.store.record_decision(stop())

    def ship(self) -> bool:
        """Copy what is new; return whether the database answered."""
        try:
            self._shipper.ship_new()
        except FleetUnreachableError:
            self.unreachable += 1
            return False
        return True

    def compare(self, url: str) -> tuple[int, int, int]:
        """Return the rows of the record, those that the fleet lacks, and those that it has more than once."""
        own, copied = FileRows(self.store.path), NodeRows(connect(Address(url)), self.name)
        total = lost = doubled = 0
        for table in COMPARED:
            query = Statement(f"SELECT * FROM {table}")
            here = [tuple(row.values()) for row in own.read(query)]
            there = [tuple(row.values()) for row in copied.read(query)]
            total += len(here)
            lost += len(set(here) - set(there))
            doubled += len(there) - len(set(there))
        return total, lost, doubled


def main() -> int:
    """Print what was lost and doubled; end with 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=600, help="rows that a node records at once")
    parser.add_argument("--outage-s", type=float, default=0.0, help="seconds for which the server is stopped")
    parser.add_argument("--attempts", type=int, default=0, help="attempts of one record, whose passes are timed")
    parser.add_argument("--outage-rows", type=int, default=10_000, help="rows of each node while the server is stopped")
    asked = parser.parse_args()
    if (why := missing()) is not None:
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        server = PostgresServer(Path(place) / "server")
        server.start()
        try:
            return measure(Path(place), server, asked)
        finally:
            server.stop()


def measure(folder: Path, server: PostgresServer, asked: argparse.Namespace) -> int:
    """Run the kills and the outage, and compare."""
    url = server.url()
    create(connect(Address(url)))
    if asked.attempts:
        return time_passes(folder, url, asked.attempts)
    nodes = [Node(folder / f"node{number}", f"node{number}", url) for number in range(asked.nodes)]
    done = threading.Event()
    pool = ThreadPoolExecutor(len(nodes))
    copying = [pool.submit(copy_until, node, done, asked.rows) for node in nodes]
    for number in range(asked.kills):
        time.sleep(0.3 + 0.37 * number % 1.1)
        server.kill()
        server.start()
    done.set()
    for ended in copying:
        ended.result()
    server.stop()
    began_s = time.perf_counter()
    for node in nodes:
        node.write(asked.outage_rows)
        assert not node.ship()
    trickle_for(nodes, asked.outage_s)
    outage_s = time.perf_counter() - began_s
    server.start()
    began_s = time.perf_counter()
    for node in nodes:
        while not node.ship():
            time.sleep(0.1)
    print(f"stopped for {outage_s:.0f} s; caught up in {time.perf_counter() - began_s:.1f} s")
    total = lost = doubled = 0
    for node in nodes:
        rows, missed, twice = node.compare(url)
        print(f"{node.name}: {rows} rows, {missed} lost, {twice} doubled; {node.unreachable} copies failed")
        total, lost, doubled = total + rows, lost + missed, doubled + twice
    print(f"{asked.kills} kills, one outage: {total} rows, {lost} lost, {doubled} doubled; versions: {versions(url)}")
    return 1 if lost or doubled else 0


def trickle_for(nodes: list[Node], seconds: float) -> None:
    """Have every node record 20 rows a second, an attempt a minute, and try to copy four times a minute."""
    until_s = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < until_s:
        turn += 1
        for node in nodes:
            node.trickle(TRICKLE_ROWS)
            if turn % 60 == 0:
                node.write(3)
            if turn % 15 == 0:
                assert not node.ship()
        time.sleep(1.0)


def time_passes(folder: Path, url: str, attempts: int) -> int:
    """Print what a pass takes with nothing new, while most attempts may change and once they have been complete."""
    node = Node(folder / "long", "long", url)
    for _ in range(attempts):
        node.write(0)
        node.close()
    now = [now_unix_s()]
    shipper = Shipper(node.store.path, connect(Address(url)), Sent(folder / "long.db", now[0]), "long", lambda: now[0])
    shipper.ship_new()
    for name, later_s in (("all of them read", LOOK_BACK_EVERY_S), ("complete for an hour", 60.0)):
        now[0] += later_s
        taken, used = [], []
        for _ in range(PASSES):
            began_s, processor_s = time.perf_counter(), time.process_time()
            shipper.ship_new()
            taken.append(time.perf_counter() - began_s)
            used.append(time.process_time() - processor_s)
            now[0] += 60.0 if later_s < LOOK_BACK_EVERY_S else LOOK_BACK_EVERY_S
        each = f"{statistics.median(taken) * 1e3:.0f} ms, {statistics.median(used) * 1e3:.0f} ms of a processor"
        print(f"{attempts} attempts, {name}: a pass takes {each} (median of {PASSES})")
    return 0


def copy_until(node: Node, done: threading.Event, rows: int) -> None:
    """Write and copy in turns."""
    while not done.is_set():
        node.write(rows)
        node.ship()


def versions(url: str) -> int:
    """Return the rows of tables whose rows have versions."""
    with connect(Address(url)).connect() as connection:
        counts = [
            connection.execute(text(f"SELECT count(*) FROM {schema.SCHEMA}.{shipped.name}")).scalar_one()
            for shipped in schema.VERSIONED
        ]
    return sum(counts)


if __name__ == "__main__":
    sys.exit(main())
