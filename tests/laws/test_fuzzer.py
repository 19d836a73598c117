"""The fuzzer: what a reader does wrong is counted, and what several processes fed adds up."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest
from fuzz import summed
from fuzz_files import Fed, FileFeed, fuzz_file


def test_an_exception_and_a_reading_beyond_its_limit_are_wrong(tmp_path: Path) -> None:
    def read() -> None:
        raise ValueError("no number")

    assert fuzz_file("raises", FileFeed(tmp_path / "file", [b"1"], read), 5, random.Random(1)).wrong == 5
    slow = FileFeed(tmp_path / "file", [b"1"], lambda: None, limit_s=-1.0)
    assert fuzz_file("slow", slow, 5, random.Random(1)).bad


def test_what_processes_keep_is_added_up_and_may_be_a_megabyte_a_million(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fed.jsonl"

    def note(*grown_bytes: int) -> None:
        shards = [Fed("file", 500_000, 0, 1.0, slowest_s=0.01 * grown, grown_bytes=grown) for grown in grown_bytes]
        file.write_text("".join(f"{json.dumps({**asdict(shard), 'seed': 1})}\n" for shard in shards))

    note(400_000, 500_000)
    assert summed(file) == 0
    assert "1000000 inputs" in capsys.readouterr().out
    note(600_000, 500_000)
    assert summed(file) == 1, "neither is too much by itself"
    note(600_000, 500_000, 100_000, 100_000)
    assert summed(file) == 0, "of two millions"
