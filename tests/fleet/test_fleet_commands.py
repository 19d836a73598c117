"""What the commands print of several nodes, and what they say where the fleet's database cannot be used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli import exit_codes
from supervisor.cli.app import App
from supervisor.cli.fleet.ship import ship_until
from supervisor.cli.main import cli
from supervisor.fleet.database import connect
from supervisor.fleet.errors import FleetError, FleetUnreachableError
from supervisor.fleet.shipping import Pass
from tests.rigs.postgres_server import READER, SHIPPER, Address, FleetDatabase
from tests.store.record_by_hand import START, at, flag, incident, open_store, record_everything

pytestmark = [pytest.mark.xdist_group("postgres")]
LATER_S = 3600.0


class Node:
    """A machine with a record and a configuration of its own."""

    def __init__(self, folder: Path, name: str, fleet: FleetDatabase) -> None:
        self.state = folder / name
        self.state.mkdir()
        self._config = folder / f"{name}.toml"
        self._fleet, self._name = fleet, name
        self.store = open_store(self.state)

    def call(self, *words: str, role: str = READER) -> Result:
        """Call `supervisorctl` as on this machine."""
        text = f"[supervisor]\nstate_dir = '{self.state}'\n[jobs.night]\ncommand = ['true']\n"
        self._config.write_text(
            f"{text}[fleet]\ndatabase_url = '{self._fleet.url(role)}'\nnode = '{self._name}'\n", encoding="utf-8"
        )
        app = App(now=lambda: START.unix_s + LATER_S)
        return CliRunner().invoke(cli, ["--config", str(self._config), *words], obj=app, catch_exceptions=False)

    def ship(self) -> Result:
        """Copy the record once."""
        return self.call("fleet", "ship", "--once", role=SHIPPER)


@pytest.fixture
def nodes(tmp_path: Path, fleet: FleetDatabase) -> tuple[Node, Node]:
    """Two nodes: on one a gpu was lost, on the other nothing happened."""
    good, bad = Node(tmp_path, "good", fleet), Node(tmp_path, "bad", fleet)
    for node in (good, bad):
        record_everything(node.store)
    with bad.store.turn(at(100)):
        lost = replace(flag("gpu_lost"), at=at(90), message="the card has fallen off the bus", fault="gpu_lost")
        bad.store.save_incident(replace(incident(2), flag=lost, cause="gpu_lost"))
        bad.store.save_incident(replace(incident(3), cause="non_finite"))
    for node in (good, bad):
        assert node.ship().exit_code == 0
    return good, bad


def test_the_history_of_all_nodes_is_one_list_with_their_names(nodes: tuple[Node, Node]) -> None:
    shown = nodes[0].call("--fleet", "history").output
    assert shown.index("bad: night, attempt 2") < shown.index("good: night, attempt 1")
    assert "supervisorctl --fleet show bad/night-2" in shown
    entries = json.loads(nodes[0].call("--fleet", "--json", "history", "night").output)["incidents"]
    assert entries[0]["id"] == "bad/night-2"
    assert sorted((entry["node"], entry["id"]) for entry in entries[1:]) == [
        ("bad", "bad/night-1"),
        ("bad", "bad/night-3"),
        ("good", "good/night-1"),
    ]
    assert len(json.loads(nodes[0].call("--fleet", "--json", "history", "-n", "1").output)["incidents"]) == 1


def test_an_incident_of_any_node_is_shown_with_its_timeline(nodes: tuple[Node, Node]) -> None:
    shown = nodes[0].call("--fleet", "show", "bad/night-1").output
    assert "bad: night, attempt 1" in shown
    assert "stalled" in shown
    for wrong in ("night-1", "worse/night-1", "bad/night-9"):
        refused = nodes[0].call("--fleet", "show", wrong)
        assert refused.exit_code == exit_codes.FAILED
        assert "no incident" in refused.output


def test_the_status_of_all_nodes_says_when_each_was_copied(nodes: tuple[Node, Node]) -> None:
    shown = nodes[0].call("--fleet", "status")
    assert [line.split()[:1] for line in shown.output.splitlines()] == [["NODE"], ["bad"], ["good"]]
    jobs = json.loads(nodes[0].call("--fleet", "--json", "status", "night").output)["jobs"]
    assert {(job["node"], job["job"], job["attempt"]) for job in jobs} == {("bad", "night", 1), ("good", "night", 1)}
    assert all(abs(job["copied_at"] - START.unix_s - LATER_S) <= 60 for job in jobs)
    assert "no node has such a job" in nodes[0].call("--fleet", "status", "day").output


def test_the_account_of_a_job_is_printed_for_each_node(nodes: tuple[Node, Node]) -> None:
    shown = nodes[0].call("--fleet", "account", "night").output
    assert shown.startswith("bad\nnight: ")
    assert "\ngood\nnight: " in shown
    unknown = nodes[0].call("--fleet", "account", "day")
    assert unknown.exit_code == exit_codes.FAILED
    assert "day" in unknown.output


def test_the_node_whose_machine_fails_is_named_first(nodes: tuple[Node, Node]) -> None:
    shown = nodes[0].call("fleet", "nodes").output.splitlines()
    assert [line.split()[0] for line in shown] == ["NODE", "bad", "good"]
    found = json.loads(nodes[0].call("--json", "fleet", "nodes").output)["nodes"]
    assert [(item["node"], item["incidents"], item["machine_incidents"]) for item in found] == [
        ("bad", 3, 2),
        ("good", 1, 1),
    ]
    assert found[0]["per_1000_h"] > found[1]["per_1000_h"] > 0


@pytest.mark.parametrize("words", [("stop", "night"), ("gpus",), ("remedies",), ("checkpoints", "night")])
def test_what_concerns_one_machine_is_refused_for_the_fleet(nodes: tuple[Node, Node], words: tuple[str, ...]) -> None:
    refused = nodes[0].call("--fleet", *words)
    assert refused.exit_code == exit_codes.USAGE
    assert "--fleet" in refused.output


def test_a_second_copy_from_scratch_shows_the_same(nodes: tuple[Node, Node]) -> None:
    before = nodes[0].call("--fleet", "--json", "history").output
    again = nodes[1].call("fleet", "ship", "--once", "--again", role=SHIPPER)
    assert again.exit_code == 0
    assert nodes[0].call("--fleet", "--json", "history").output == before


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "no fleet is configured"),
        ("no url", "not a URL"),
        ("mysql://me@host/fleet", "only PostgreSQL"),
        ("postgresql://me:secret@host/fleet", "contains a password"),
    ],
)
def test_an_address_that_cannot_be_used_says_how_to_write_it(url: str | None, message: str) -> None:
    with pytest.raises(FleetError, match=message) as refused:
        connect(Address(url))
    assert refused.value.remedy
    assert "secret" not in f"{refused.value} {refused.value.remedy}"


def test_a_password_is_read_from_its_file(tmp_path: Path) -> None:
    address = Address("postgresql://me@host/fleet")
    file = tmp_path / "password"
    address.password_file = str(file)
    with pytest.raises(FleetError, match="cannot be read"):
        connect(address)
    file.write_text("a secret\n")
    assert connect(address).url.password == "a secret"


def test_a_server_that_is_away_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f"[supervisor]\nstate_dir = '{tmp_path}'\n[fleet]\ndatabase_url = 'postgresql://me@/fleet?host={tmp_path}'\n"
    )
    failed = CliRunner().invoke(cli, ["--config", str(tmp_path / "config.toml"), "fleet", "nodes"])
    assert failed.exit_code == exit_codes.FAILED
    assert "the fleet's database cannot be reached" in failed.output


class Passes:
    """What each pass of a shipper does; the loop is ended after the last."""

    def __init__(self, *outcomes: Callable[[], Pass]) -> None:
        self.ended = threading.Event()
        self._left = list(outcomes)

    def __call__(self) -> Pass:
        outcome = self._left.pop(0)
        if not self._left:
            self.ended.set()
        return outcome()


def _away() -> Pass:
    raise FleetUnreachableError("the fleet's database cannot be reached: refused")


def test_an_outage_is_printed_when_it_begins_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    passes = Passes(_away, _away, lambda: Pass(rows=7), lambda: Pass(rows=1))
    times = iter((100.0, 400.0))
    ship_until(passes.ended, passes, interval_s=0.001, now=lambda: next(times))
    printed = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in printed] == ["not copied", "copied again after 5 min"]
    assert "nothing is lost" in printed[0]
    assert printed[1].endswith("7 rows")
