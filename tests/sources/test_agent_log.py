"""The agent's log: whole lines, from an offset, whatever else stands in the file."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.events import Word
from supervisor.core.moments import Moment
from supervisor.sources.agent_log import BYTES_PER_READ, AgentFact, AgentLogReader, parse

NOW = Moment(100.0, 1_700_000_000.0)


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, "pid": 7, "rank": 0, "monotonic_ns": 90 * 10**9, **fields}).encode() + b"\n"


def test_events_are_read_in_order_with_their_own_fields(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive", python="3.10") + line("checkpoint_saved", paths=["a.pt"], epoch=3, requested=False))
    alive, saved = AgentLogReader(path).read(NOW)
    assert (alive.word, alive.pid, alive.rank, alive.facts) == (Word.ALIVE, 7, 0, {"python": "3.10"})
    assert alive.at == NOW.plus(-10.0)
    assert saved.facts == {"paths": ["a.pt"], "epoch": 3, "requested": False}


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path, whole = tmp_path / "agent.jsonl", line("train_end", epoch=9)
    reader = AgentLogReader(path)
    assert reader.read(NOW) == ()
    path.write_bytes(whole[:20])
    assert (reader.read(NOW), reader.offset) == ((), 0)
    path.write_bytes(whole)
    assert [fact.word for fact in reader.read(NOW)] == [Word.TRAIN_END]
    assert (reader.offset, reader.garbage, reader.read(NOW)) == (len(whole), 0, ())


def test_a_new_daemon_reads_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive"))
    old = AgentLogReader(path)
    old.read(NOW)
    with path.open("ab") as file:
        file.write(line("resumed", path="x"))
    assert [fact.word for fact in AgentLogReader(path, old.offset).read(NOW)] == [Word.RESUMED]


def test_garbage_is_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    junk = (
        b'nonsense\n{"event": "no such word", "monotonic_ns": 1}\n[1]\n\xff\xfe\n{"event": "alive"}\n'
        + b"[" * 9000
        + b"\n"
    )
    path.write_bytes(junk + line("alive"))
    reader = AgentLogReader(path)
    assert [fact.word for fact in reader.read(NOW)] == [Word.ALIVE]
    assert reader.garbage == 6


def test_a_line_without_end_neither_fills_the_memory_nor_hides_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(b"x" * (2 * BYTES_PER_READ + 5) + b"\n" + line("alive"))
    reader, facts = AgentLogReader(path), list[AgentFact]()
    for _ in range(4):
        facts += reader.read(NOW)
    assert [fact.word for fact in facts] == [Word.ALIVE]
    assert reader.garbage == 1


def test_a_file_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    path.write_bytes(line("alive", python="3.10"))
    reader = AgentLogReader(path)
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
    st.fixed_dictionaries({}, optional={"event": st.sampled_from([word.value for word in Word]) | JSON,
                                        "monotonic_ns": JSON, "pid": JSON, "rank": JSON, "x": JSON})))  # fmt: skip
def test_no_line_makes_it_raise_or_invent(raw: bytes) -> None:
    fact = parse(raw, NOW)
    if fact is not None:
        told = json.loads(raw)
        assert told["event"] == fact.word.value
        assert fact.pid in (None, told.get("pid"))
        assert fact.rank in (None, told.get("rank"))
        assert set(fact.facts) <= set(told)
