"""`make laws`: what it counts is what really ran, and what it finds fails it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import EXAMPLES, Sampling
from tests.rigs.run_laws import Law, report, run_shard, write

ROOT = Path(__file__).resolve().parents[2]
OWN_NUMBER = re.compile(r"max_examples=\d+")
PROPERTY = """
from hypothesis import given
from hypothesis import strategies as st

@given(st.integers(0, 10**9))
def test_numbers_are_small(number):
    assert number < {limit}
"""


DRAWN = """
import sys

from tests.examples import load_profile

load_profile()
if sys.argv[1:]:
    import constants_of_another_module
from hypothesis import given
from hypothesis import strategies as st

@given(st.integers(), st.floats(allow_nan=False), st.text())
def draw(number, share, word):
    print(ascii((number, share, word)))

draw()
"""


def draw(folder: Path, *words: str) -> list[str]:
    (folder / "draw.py").write_text(DRAWN)
    (folder / "constants_of_another_module.py").write_text(
        f"NUMBERS = {tuple(range(70_001, 70_200))}\nWORDS = {tuple(f'word {number}' for number in range(200))}\n"
    )
    command = [sys.executable, "draw.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("LAWS_EXAMPLES", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.splitlines()


def law(folder: Path, limit: int) -> str:
    path = folder / "test_numbers.py"
    path.write_text(PROPERTY.format(limit=limit))
    return f"{path}::test_numbers_are_small"


def test_property_tests_take_the_same_examples_each_time_unless_laws_are_run_at_length() -> None:
    if settings.get_current_profile_name() != "ci":
        pytest.skip("the laws are run at length")
    assert settings.default is not None
    assert settings.default.derandomize
    assert settings.default.deadline is None
    assert settings.default.max_examples == EXAMPLES
    assert settings.default.database is None


def test_no_property_test_keeps_a_number_of_its_own_where_more_are_asked_for() -> None:
    tests = sorted((ROOT / "tests").glob("*/test_*.py"))
    fixed = [f"{path.name}: {found}" for path in tests for found in OWN_NUMBER.findall(path.read_text())]
    assert fixed == [], "at_least() takes as many as the laws are run with"


def test_the_examples_are_the_same_whatever_modules_are_loaded_alongside(tmp_path: Path) -> None:
    drawn = draw(tmp_path)
    assert len(drawn) >= EXAMPLES
    assert draw(tmp_path, "with another module") == drawn


def test_a_shard_counts_the_examples_that_it_ran(tmp_path: Path) -> None:
    outcome, _ = run_shard(law(tmp_path, 10**9 + 1), 321, seed=7)
    assert (outcome["examples"], outcome["counterexamples"], outcome["failed"]) == (321, 0, False)


def test_a_shard_finds_and_prints_the_counterexample(tmp_path: Path) -> None:
    outcome, output = run_shard(law(tmp_path, 1000), 321, seed=7)
    assert (outcome["counterexamples"], outcome["failed"]) == (1, True)
    assert "number=1000" in output


def test_a_shard_that_runs_nothing_reports_nothing(tmp_path: Path) -> None:
    assert run_shard(f"{tmp_path}/test_none.py::test_none", 10, seed=7)[0] == {}


def test_a_counterexample_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([Law(name="a", left=0, examples=10)], 10, 1.0) == 0
    assert report([Law(name="a", left=0, examples=10, counterexamples=1, failures=["number=1000"])], 10, 1.0) == 1
    assert "number=1000" in capsys.readouterr().out


def test_a_statistical_law_is_judged_by_the_rate_that_it_states() -> None:
    def seldom(chance: random.Random) -> bool:
        return chance.random() > 0.01

    Sampling(seed=1, samples=5000).holds(seldom, error_rate=0.02)
    with pytest.raises(AssertionError, match="of 5000"):
        Sampling(seed=1, samples=5000).holds(seldom, error_rate=0.001)


def test_a_shard_near_the_end_of_the_time_is_as_small_as_the_time() -> None:
    quick = Law(name="a", left=10**6, examples=1000, seconds=1.0)
    assert quick.shard(2.0) == 2000
    assert quick.shard() == 50_000
    slow = Law(name="a", left=10**6, examples=500, seconds=250.0)
    assert slow.shard(5.0) == 10


def test_what_came_of_each_law_is_kept_while_others_run(tmp_path: Path) -> None:
    law = Law(name="a", left=0, examples=10, counterexamples=1, failures=["number=1000"])
    write([law, Law(name="b", left=5)], 7, tmp_path / "laws.json")
    kept = json.loads((tmp_path / "laws.json").read_text())
    assert (kept["seed"], kept["laws"][0]["failures"], kept["laws"][1]["left"]) == (7, ["number=1000"], 5)
