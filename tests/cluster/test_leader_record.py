"""The leader's record on folders that hang, are full or refuse writing, and what the next leader reads of it."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_by_hand import until

from supervisor.children.shared_files import append_lines
from supervisor.cluster.leader_record import (
    INCIDENTS,
    LINES_MAX,
    OVER,
    STATE,
    WARNINGS,
    WARNINGS_MAX,
    WRITE_LIMIT_S,
    LeaderRecord,
)
from supervisor.cluster.leader_state import find_ranks_end, read_begin, read_known
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.ladder import Fleet
from supervisor.core.fleet.leading import WITNESSES_MAX, Leading
from supervisor.core.fleet.training import Incident, LeaderLimits, RecordWarning, Stage
from supervisor.core.moments import Moment
from tests.rigs.hanging_fs import HangingFs
from tests.rigs.small_disk import mounted

EPOCH = Epoch("run", 0, 1)
INCIDENT = Incident(
    id=str(EPOCH), epoch=EPOCH, kind="rank_exit", reason="rank 3 killed", node="n1", rank=3, began_s=1.0
)
LIMITS = LeaderLimits(nodes=2)


class World:
    """The clock of the leader's machine, which a story moves."""

    def __init__(self) -> None:
        self.monotonic_s, self.unix_s = 1000.0, 1.8e9

    def now(self) -> Moment:
        return Moment(monotonic_s=self.monotonic_s, unix_s=self.unix_s)


def running(fleet: Fleet | None = None) -> Leading:
    leading = Leading(EPOCH, LIMITS, 0.0, fleet or Fleet(nodes=("n0", "n1")))
    leading.stage = Stage.RUNNING
    return leading


def lines(folder: Path) -> list[dict[str, object]]:
    path = folder / INCIDENTS
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


@pytest.fixture
def world() -> World:
    return World()


def test_a_folder_that_hangs_costs_bounded_memory_and_says_how_much_was_not_recorded(
    far: HangingFs, world: World
) -> None:
    record = LeaderRecord(far.at, world.now, "boot")
    far.hang()
    assert not record.is_stop_asked()
    until(lambda: far.held > 0, "the record's thread waits for the folder")
    leading = running()
    for number in range(LINES_MAX + 10):
        record.write_incident(replace(INCIDENT, reason=f"number {number}"), closed=False)
        leading.progress.steps, leading.incidents = number, number
        record.write_state(leading)
        record.write_alerts([{"id": str(number)}])
    assert record.find_problem() is None
    world.monotonic_s += WRITE_LIMIT_S + 1.0
    assert record.find_problem() == f"{far.at}: has not answered for 5 s"
    assert record.shed == 10
    far.go_on()
    until(lambda: record.find_problem() is None, "the folder is back")
    until(lambda: len(lines(far.real)) == LINES_MAX, "what waited is written")
    assert [line["reason"] for line in lines(far.real)][:1] == ["number 10"], "the oldest were shed"
    leading.incidents += 1
    record.write_state(leading)
    record.close()
    state = json.loads((far.real / STATE).read_text())
    assert (state["not_recorded"], state["incidents"]) == (10, LINES_MAX + 10)


def test_a_warning_of_a_node_is_written_with_its_name_and_by_the_leaders_clock(tmp_path: Path, world: World) -> None:
    record = LeaderRecord(tmp_path / "leader", world.now, "boot")
    warning = ms.NodeWarning(number=3, rule="storage_wait", text="process 7 waits", ago_s=60.0, launch="run.0.1")
    record.write_warning(RecordWarning(node="n1", instance="daemon", warning=warning))
    record.close()
    (line,) = map(json.loads, (tmp_path / "leader" / WARNINGS).read_text().splitlines())
    assert line == {
        "at_unix_s": 1.8e9 - 60.0,
        "id": "n1 daemon 3",
        "node": "n1",
        "epoch": "run.0.1",
        "rule": "storage_wait",
        "text": "process 7 waits",
    }


def test_a_node_that_warns_without_an_end_does_not_fill_the_disk(tmp_path: Path, world: World) -> None:
    record = LeaderRecord(tmp_path / "leader", world.now, "boot")
    for number in range(1, WARNINGS_MAX + 100):
        warning = ms.NodeWarning(number=number, rule="r", text="t", ago_s=0.0)
        record.write_warning(RecordWarning(node="n1", instance="daemon", warning=warning))
    record.close()
    written = (tmp_path / "leader" / WARNINGS).read_text().splitlines()
    assert LINES_MAX <= len(written) <= WARNINGS_MAX
    assert json.loads(written[-1])["id"] == f"n1 daemon {WARNINGS_MAX}"


def fill(path: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_on_a_full_disk_the_leader_goes_on_and_writes_all_of_it_once_there_is_room(
    tmp_path: Path, world: World
) -> None:
    with mounted(tmp_path / "small", 1) as folder:
        record = LeaderRecord(folder, world.now, "boot")
        ballast = folder / "ballast"
        fill(ballast)
        record.write_incident(INCIDENT, closed=False)
        until(lambda: record.find_problem() is not None, "the failure is noticed")
        problem = record.find_problem()
        assert problem is not None
        assert "No space left on device" in problem
        record.write_incident(INCIDENT, closed=True)
        record.write_over(EPOCH, finished=True, reason="all done")
        assert lines(folder) == []
        ballast.unlink()
        until(lambda: record.find_problem() is None, "there is room again")
        record.close()
        assert [line["closed"] for line in lines(folder)] == [False, True]
        assert json.loads((folder / "over.json").read_text())["finished"] is True


def test_a_folder_that_cannot_be_written_is_named_with_its_reason(far: HangingFs, world: World) -> None:
    record = LeaderRecord(far.at, world.now, "boot")
    far.failure = 30  # EROFS
    record.write_incident(INCIDENT, closed=False)
    until(lambda: "Read-only file system" in (record.find_problem() or ""), "the reason")
    far.failure = None
    until(lambda: record.find_problem() is None, "it can be written again")
    record.close()
    assert len(lines(far.real)) == 1


def test_a_line_that_a_killed_leader_left_half_written_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / INCIDENTS
    append_lines(path, [{"id": "a"}])
    with path.open("ab") as file:
        file.write(b'{"id": "to')
    append_lines(path, [{"id": "b"}, {"id": "c"}])
    assert path.read_text() == '{"id": "a"}\n{"id": "to\n{"id": "b"}\n{"id": "c"}\n'


# --- the next leader ----------------------------------------------------------------------------------------------


def write(folder: Path, world: World, leading: Leading, *incidents: bool, boot: str = "boot") -> None:
    record = LeaderRecord(folder, world.now, boot)
    record.write_state(leading)
    for closed in incidents:
        record.write_incident(INCIDENT, closed=closed)
    record.close()


def test_an_open_incident_is_read_back_and_a_closed_one_ends_its_launch(tmp_path: Path, world: World) -> None:
    assert read_known(tmp_path, "run", world.now(), "boot") is None
    leading = running()
    leading.incidents, leading.progress.steps, leading.progress.fruitless = 7, 420, {"step-000000000020": 1}
    write(tmp_path, world, leading)
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert (known.epoch, known.is_live, known.incident) == (EPOCH, True, None)
    assert (known.incidents, known.steps, known.fruitless) == (7, 420, {"step-000000000020": 1})
    write(tmp_path, world, leading, False)
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert known.incident == replace(INCIDENT, began_s=0.0)
    assert known.incidents == 8, "its leader was killed before its state counted it"
    write(tmp_path, world, leading, True)  # and killed before its state said so
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert (known.is_live, known.incident) == (False, None)


def test_until_when_ranks_may_run_is_known_to_the_leader_of_the_next_run_on_the_same_machine_alone(
    tmp_path: Path, world: World
) -> None:
    leading = running()
    leading.stage, leading.ranks_until_s = Stage.OVER, world.monotonic_s + 4.0
    write(tmp_path, world, leading, False, True)
    same, another = (read_known(tmp_path, "run", world.now(), boot) for boot in ("boot", "another boot"))
    assert same is not None
    assert another is not None
    assert find_ranks_end(same, 1) == leading.ranks_until_s
    assert find_ranks_end(another, 1) == math.inf, "another machine's clock; wall clocks may differ by an hour"
    assert find_ranks_end(same, 2) == math.inf, "of the run between nothing was written down"
    assert find_ranks_end(None, 1) == math.inf
    assert find_ranks_end(None, 0) == 0.0, "a new training"
    leading.ranks_until_s = 0.0
    write(tmp_path, world, leading)
    ended = read_known(tmp_path, "run", world.now(), "another boot")
    assert find_ranks_end(ended, 1) == 0.0, "that leader had waited for their end"


def test_a_state_that_was_not_written_at_the_end_says_nothing_of_when_ranks_end(tmp_path: Path, world: World) -> None:
    write(tmp_path, world, running(), False, True)  # the disk was full after the closed incident
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert not known.is_live
    assert find_ranks_end(known, 1) == math.inf


def test_what_is_held_against_nodes_keeps_its_age_over_a_reboot_of_the_leader_s_machine(
    tmp_path: Path, world: World
) -> None:
    """Named an hour before the machine went down, and it was down for two."""
    fleet = Fleet(nodes=("n0", "n1"), named_at_s={"n1": (world.monotonic_s - 3600.0,)}, restarted_at_s=(990.0,))
    write(tmp_path, world, running(fleet))
    same = read_known(tmp_path, "run", world.now(), "boot")
    assert same is not None
    assert same.fleet is not None
    assert (same.fleet.named_at_s, same.fleet.restarted_at_s) == (fleet.named_at_s, fleet.restarted_at_s)
    world.unix_s += 7200.0
    world.monotonic_s = 20.0
    after = read_known(tmp_path, "run", world.now(), "another boot")
    assert after is not None
    assert after.fleet is not None
    (named_s,) = after.fleet.named_at_s["n1"]
    assert world.monotonic_s - named_s == pytest.approx(3 * 3600.0)
    assert world.monotonic_s - after.fleet.restarted_at_s[0] == pytest.approx(7210.0)


def test_a_wall_clock_that_was_set_back_over_a_reboot_makes_no_naming_younger_than_it_was(
    tmp_path: Path, world: World
) -> None:
    write(tmp_path, world, running(Fleet(nodes=("n0",), named_at_s={"n0": (400.0,)})))
    world.unix_s, world.monotonic_s = world.unix_s - 86400.0, 20.0
    after = read_known(tmp_path, "run", world.now(), "another boot")
    assert after is not None
    assert after.fleet is not None
    assert world.monotonic_s - after.fleet.named_at_s["n0"][0] == pytest.approx(600.0)


def test_the_state_of_another_training_and_a_damaged_one_are_refused(tmp_path: Path, world: World) -> None:
    write(tmp_path, world, running())
    with pytest.raises(ValueError, match="is the state of training run, this is other"):
        read_known(tmp_path, "other", world.now(), "boot")
    (tmp_path / STATE).write_text("[]")
    with pytest.raises(ValueError, match=r"state\.json: is not the state of a training; move it away"):
        read_known(tmp_path, "run", world.now(), "boot")
    (tmp_path / STATE).unlink()
    assert read_known(tmp_path, "run", world.now(), "boot") is None


def test_a_training_keeps_when_it_began_until_it_has_finished(tmp_path: Path, world: World) -> None:
    assert read_begin(tmp_path) is None
    leading = running()
    leading.began_unix_s = 1.7e9
    record = LeaderRecord(tmp_path, world.now, "boot")
    record.write_state(leading)
    until((tmp_path / STATE).exists, "the state")
    record.close()
    assert read_begin(tmp_path) == 1.7e9, "requeued, or submitted again, it is the same training"
    leading.stage = Stage.OVER
    record = LeaderRecord(tmp_path, world.now, "boot")
    record.write_over(EPOCH, finished=False, reason="stopped")
    record.write_state(leading)
    record.close()
    assert read_begin(tmp_path) == 1.7e9
    record = LeaderRecord(tmp_path, world.now, "boot")
    record.write_over(EPOCH, finished=True, reason="done")
    record.close()
    assert read_begin(tmp_path) is None, "what comes after it is another"


@pytest.mark.parametrize("stage", [[None], {}, 7, "over", "\ud800"], ids=str)
def test_a_state_whose_stage_is_none_is_that_of_a_launch_that_has_ended(
    tmp_path: Path, world: World, stage: object
) -> None:
    write(tmp_path, world, running())
    facts = json.loads((tmp_path / STATE).read_text())
    (tmp_path / STATE).write_text(json.dumps({**facts, "stage": stage}))
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert not known.is_live


def test_a_state_of_more_launches_than_a_training_can_have_made_is_refused(tmp_path: Path, world: World) -> None:
    write(tmp_path, world, running())
    facts = json.loads((tmp_path / STATE).read_text())
    (tmp_path / STATE).write_text(json.dumps({**facts, "epoch": "run.0.999999999"}))
    with pytest.raises(ValueError, match="is not the state of a training"):
        read_known(tmp_path, "run", world.now(), "boot")


def test_an_incident_to_which_all_nodes_added_the_longest_reasons_is_read_back(tmp_path: Path, world: World) -> None:
    record = LeaderRecord(tmp_path, world.now, "boot")
    reason = chr(0x10FFFF) * ms.REASON_CHARS_MAX
    record.write_state(running())
    record.write_incident(replace(INCIDENT, witnesses=(reason,) * WITNESSES_MAX), closed=False)
    record.close()
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert known.incident is not None
    assert known.incident.reason == "rank 3 killed"
    (line,) = lines(tmp_path)
    assert len(line["witnesses"]) + line["witnesses_left_out"] == WITNESSES_MAX  # type: ignore[arg-type, operator]


def test_the_state_of_a_newer_version_is_refused_and_not_taken_for_one_in_which_nothing_runs(
    tmp_path: Path, world: World
) -> None:
    record = LeaderRecord(tmp_path, world.now, "boot")
    record.write_state(running())
    record.close()
    facts = json.loads((tmp_path / STATE).read_text())
    (tmp_path / STATE).write_text(json.dumps({**facts, "version": 2, "stage": "of another name"}))
    with pytest.raises(ValueError, match="newer version of rocm-supervisor; start the leader with that one"):
        read_known(tmp_path, "run", world.now(), "boot")


@pytest.mark.parametrize("version", ["2", None, 2.5, 10**400, [1], True])
def test_the_state_of_a_version_that_is_no_number_is_refused_and_not_taken_for_the_present_one(
    tmp_path: Path, world: World, version: object
) -> None:
    write(tmp_path, world, running())
    facts = json.loads((tmp_path / STATE).read_text())
    (tmp_path / STATE).write_text(json.dumps({**facts, "version": version}))
    with pytest.raises(ValueError, match="its version is no number"):
        read_known(tmp_path, "run", world.now(), "boot")


def test_a_launch_that_finished_has_so_for_a_leader_that_comes_before_the_state_says_so(
    tmp_path: Path, world: World
) -> None:
    leading = running()
    leading.began_unix_s = world.unix_s
    write(tmp_path, world, leading)
    record = LeaderRecord(tmp_path, world.now, "boot")
    record.write_over(EPOCH, finished=True, reason="done")
    record.await_over(60.0)
    assert json.loads((tmp_path / OVER).read_text())["finished"] is True
    record.close()
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert known.is_finished
    leading.began_unix_s += 1.0
    write(tmp_path, world, leading)
    known = read_known(tmp_path, "run", world.now(), "boot")
    assert known is not None
    assert not known.is_finished, "what had finished is a training before this one"
