"""The agent's log: whole lines, from an offset, whatever else stands in the file."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import untrusted_files
from supervisor.core import attempt_files
from supervisor.core.events import AgentEvent, AgentReported
from supervisor.core.moments import Moment
from supervisor.core.rules import RULES, flag_of
from supervisor.core.stats.learned_limits import setting_of
from supervisor.core.stats.rate_limit import Allowance
from supervisor.sources.attempt.agent_log import (
    BYTES_PER_READ,
    FIELDS,
    FILE_LIMIT_BYTES,
    LINES_PER_READ,
    PATHS_MAX,
    SAVES_AT_ONCE,
    SAVES_PER_S,
    AgentFact,
    AgentLogReader,
    parse,
)
from supervisor.store.rows import event_row
from tests.core.long_stories import long_story

NOW = Moment(100.0, 1_700_000_000.0)


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, "pid": 7, "rank": 0, "monotonic_ns": 90 * 10**9, **fields}).encode() + b"\n"


def test_events_are_read_in_order_with_their_own_fields(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive", python="3.10") + line("checkpoint_saved", paths=["a.pt"], epoch=3, requested=False))
    alive, saved = AgentLogReader(path.parent, name=path.name).read(NOW)
    assert (alive.agent_event, alive.pid, alive.rank, alive.facts) == (AgentEvent.ALIVE, 7, 0, {"python": "3.10"})
    assert alive.at == NOW.plus(-10.0)
    assert saved.facts == {"paths": ["a.pt"], "epoch": 3, "requested": False}


def test_where_one_event_is_asked_for_no_other_line_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive") + b"garbage\n" + line("checkpoint_saved", step=4) + line("train_end"))
    reader = AgentLogReader(path.parent, name=path.name, only=AgentEvent.CHECKPOINT_SAVED)
    assert [fact.facts for fact in reader.read(NOW)] == [{"step": 4}]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path, whole = tmp_path / "agent.jsonl", line("train_end", epoch=9)
    reader = AgentLogReader(path.parent, name=path.name)
    assert reader.read(NOW) == ()
    path.write_bytes(whole[:20])
    assert (reader.read(NOW), reader.offset) == ((), 0)
    path.write_bytes(whole)
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.TRAIN_END]
    assert (reader.offset, reader.read(NOW)) == (len(whole), ())


def test_a_new_daemon_reads_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive"))
    old = AgentLogReader(path.parent, name=path.name)
    old.read(NOW)
    with path.open("ab") as file:
        file.write(line("resumed", path="x"))
    assert [fact.agent_event for fact in AgentLogReader(path.parent, old.offset, path.name).read(NOW)] == [
        AgentEvent.RESUMED
    ]


def test_garbage_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    junk = (
        b'nonsense\n{"event": "no such word", "monotonic_ns": 1}\n[1]\n\xff\xfe\n{"event": "alive"}\n'
        + b"[" * 9000
        + b"\n"
    )
    path.write_bytes(junk + line("alive"))
    reader = AgentLogReader(path.parent, name=path.name)
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.ALIVE]


def test_a_line_without_end_neither_fills_the_memory_nor_hides_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(b"x" * (2 * BYTES_PER_READ + 5) + b"\n" + line("alive"))
    reader, facts = AgentLogReader(path.parent, name=path.name), list[AgentFact]()
    for _ in range(4):
        facts += reader.read(NOW)
    assert [fact.agent_event for fact in facts] == [AgentEvent.ALIVE]


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive", python="3.10"))
    reader = AgentLogReader(path.parent, name=path.name)
    reader.read(NOW)
    path.write_bytes(line("alive"))
    assert len(reader.read(NOW)) == 1


def test_half_a_surrogate_pair_does_not_reach_the_database() -> None:
    fact = parse(rb'{"event": "exception", "monotonic_ns": 1, "message": "\ud800 boom"}', NOW)
    assert fact is not None
    assert str(fact.facts["message"]).encode("utf-8") == b"? boom"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=60) | st.builds(
    lambda fields: json.dumps(fields).encode(),
    st.fixed_dictionaries({}, optional={"event": st.sampled_from([word.value for word in AgentEvent]) | JSON,
                                        "monotonic_ns": JSON, "pid": JSON, "rank": JSON, "x": JSON})))  # fmt: skip
def test_no_line_makes_it_raise_or_invent(raw: bytes) -> None:
    fact = parse(raw, NOW)
    if fact is not None:
        reported = json.loads(raw)
        assert reported["event"] == fact.agent_event.value
        assert fact.pid in (None, reported.get("pid"))
        assert fact.rank in (None, reported.get("rank"))
        assert set(fact.facts) <= set(reported)


HUGE = 10**400


@pytest.mark.parametrize("field", [*FIELDS, "fitness", "train_loss", "val_loss", "metrics", "batch", "of no field"])
@pytest.mark.parametrize(
    "value",
    [HUGE, -HUGE, 2**64, 1e308, math.nan, math.inf, [HUGE] * 3, {"a": HUGE}, "9" * 400],
    ids=lambda value: repr(value)[:20],
)
def test_no_number_of_a_training_reaches_the_rules_or_the_record_unbounded(field: str, value: object) -> None:
    """Whatever a field says, every agent_event with it is taken in, judged by every rule and kept."""
    reported = long_story().training(20)
    for agent_event in AgentEvent:
        common = {"epoch": 1, "reserved_bytes": 2, "allocated_bytes": 1, "loader": 1, "pids": [5]}
        fact = parse(line(agent_event.value, **{**common, field: value}), reported.now)
        assert fact is not None
        output = AgentReported(
            at=fact.at, job="night", attempt=1, agent_event=agent_event, facts=fact.facts, pid=fact.pid, rank=fact.rank
        )
        reported.put(output)
        if agent_event is AgentEvent.PLAN:
            reported.put(replace(output, facts={**fact.facts, "batches_per_epoch": 7}))
        setting_of(fact.facts, None)
        row = event_row(output)
        assert row is not None
        json.loads(row["body"])
        for rule in RULES:
            flag_of(rule(), reported.history)
        assert all(type(item) is not int or abs(item) < 2**63 for item in fact.facts.values())


def test_an_event_never_has_a_time_after_it_was_read() -> None:
    """Every limit of the job would be reckoned from such a time, and no calendar has it."""
    fact = parse(b'{"event": "alive", "monotonic_ns": 4611686018427387904}', NOW)
    assert fact is not None
    assert fact.at == NOW


def test_paths_and_processes_that_cannot_be_are_left_out() -> None:
    saved = parse(
        line("checkpoint_saved", paths=["/a.pt", "x" * 5000, 3, "", None, "\0", "/b\0.pt"], step=2**63, epoch=-2), NOW
    )
    workers = parse(line("workers", loader=1, pids=[1, 0, -1, 2**22 + 1, 2.0, True, "7"]), NOW)
    assert saved is not None
    assert workers is not None
    assert saved.facts == {"paths": ["/a.pt"], "step": None, "epoch": None}
    assert workers.facts["pids"] == [1]


@pytest.fixture
def agent_log(tmp_path: Path) -> Path:
    made = tmp_path / attempt_files.AGENT
    made.parent.mkdir()
    return made


def reader_of(agent_log: Path, allowance: Allowance | None = None) -> AgentLogReader:
    return AgentLogReader(agent_log.parents[1], allowance=allowance)


def flood(lines: int, word: bytes = b'{"event":"alive","monotonic_ns":0}\n') -> bytes:
    return word * lines


def listened(reader: AgentLogReader, seconds: float, every_s: float = 0.1) -> list[AgentFact]:
    facts = list[AgentFact]()
    for look in range(round(seconds / every_s)):
        facts += reader.read(NOW.plus(look * every_s))
    return facts


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_flood_of_events_is_read_at_its_allowance_and_the_newest_are_read(agent_log: Path) -> None:
    """1.2 million short words once took 423 MB and put off a neighbour's crash by 143 seconds."""
    agent_log.write_bytes(line("plan", epochs=3))
    reader = reader_of(agent_log, allowance=Allowance(50.0, 2000))
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.PLAN]
    with agent_log.open("ab") as file:
        file.write(flood(400_000) + line("exception", type="OSError"))
    began = time.process_time()
    received = listened(reader, 60)
    assert time.process_time() - began < 3.0
    assert len(received) <= 2000 + 60 * 50
    assert AgentEvent.EXCEPTION in [fact.agent_event for fact in received]
    assert reader.skipped_bytes > 10 << 20


def test_what_lies_there_when_it_is_first_read_is_the_past_and_is_read_in_pieces(agent_log: Path) -> None:
    agent_log.write_bytes(flood(5000) + line("train_end"))
    reader = reader_of(agent_log, allowance=Allowance(50.0, 2000))
    facts = list[AgentFact]()
    for _ in range(5001 // LINES_PER_READ + 1):
        page = reader.read(NOW)
        assert len(page) <= LINES_PER_READ
        facts += page
    assert (len(facts), facts[-1].agent_event) == (5001, AgentEvent.TRAIN_END)


def test_a_file_that_is_emptied_again_and_again_is_no_past(agent_log: Path) -> None:
    agent_log.write_bytes(flood(9000))
    reader = reader_of(agent_log, allowance=Allowance(50.0, 2000))
    received = len(listened(reader, 2))
    for _ in range(100):
        agent_log.write_bytes(b"")
        received += len(reader.read(NOW))
        agent_log.write_bytes(flood(1000))
        received += len(reader.read(NOW))
    assert received <= 9000 + 2000 + 500


def test_at_its_end_the_beginning_and_the_last_words_are_read(agent_log: Path) -> None:
    agent_log.write_bytes(line("plan", epochs=3) + flood(400_000) + line("exception", type="OSError"))
    words = [fact.agent_event for fact in reader_of(agent_log).finish(NOW)]
    assert (words[0], words[-1]) == (AgentEvent.PLAN, AgentEvent.EXCEPTION)
    assert len(words) < 12_000


def test_what_no_agent_writes_any_more_is_not_read(agent_log: Path) -> None:
    with agent_log.open("wb") as file:
        file.truncate(FILE_LIMIT_BYTES)
        file.seek(FILE_LIMIT_BYTES)
        file.write(b"\n" + line("alive"))
    reader, facts = reader_of(agent_log), list[AgentFact]()
    for _ in range(2 * FILE_LIMIT_BYTES // BYTES_PER_READ):
        facts += reader.read(NOW)
    assert (facts, reader.finish(NOW), reader.offset) == ([], (), FILE_LIMIT_BYTES)


def test_of_saves_reported_without_end_so_many_are_looked_at_and_the_last_one_at_the_end(agent_log: Path) -> None:
    agent_log.write_bytes(b"")
    reader = reader_of(agent_log, allowance=Allowance(50.0, 2000))
    assert reader.read(NOW) == ()
    with agent_log.open("ab") as file:
        file.write(b"".join(line("checkpoint_saved", paths=[f"/{number}.pt"] * 100) for number in range(3000)))
        file.write(line("checkpoint_saved", paths=["/last.pt"]))
    received = listened(reader, 10)
    assert len(received) <= SAVES_AT_ONCE + 10 * SAVES_PER_S
    assert all(len(fact.facts["paths"]) <= PATHS_MAX for fact in received)  # type: ignore[arg-type]  # a list, as read
    assert [*received, *reader.finish(NOW)][-1].facts["paths"] == ["/last.pt"]


def test_a_file_that_was_read_to_its_end_is_opened_again_only_once_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "agent.jsonl", []
    open_file = untrusted_files.open_file

    def counted(folder: Path, name: str) -> int:
        opened.append(name)
        return open_file(folder, name)

    monkeypatch.setattr(untrusted_files, "open_file", counted)
    path.write_bytes(line("alive"))
    reader = AgentLogReader(path.parent, name=path.name)
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.ALIVE]
    assert (reader.read(NOW), reader.read(NOW), len(opened)) == ((), (), 1)
    with path.open("ab") as file:
        file.write(line("train_end", epoch=9))
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.TRAIN_END]
    path.write_bytes(b"")
    assert (reader.read(NOW), reader.offset) == ((), 0)
    path.write_bytes(line("alive"))
    assert [fact.agent_event for fact in reader.read(NOW)] == [AgentEvent.ALIVE]


def test_another_file_of_the_same_length_in_its_place_is_looked_at_through_the_gate(tmp_path: Path) -> None:
    path, other = tmp_path / "agent.jsonl", tmp_path / "other"
    path.write_bytes(line("alive"))
    reader = AgentLogReader(path.parent, name=path.name)
    assert len(reader.read(NOW)) == 1
    other.write_bytes(line("alive") + line("alive"))
    other.replace(path)
    assert len(reader.read(NOW)) == 1
    path.unlink()
    assert reader.read(NOW) == ()
    path.write_bytes(line("alive") * 3)
    assert len(reader.read(NOW)) == 1
