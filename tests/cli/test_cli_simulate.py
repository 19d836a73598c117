"""`supervisorctl simulate` prints what faults cost, and everything that it assumed."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.app import App
from supervisor.cli.main import cli


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), obj=App())


def test_the_answer_has_parts_that_add_up_and_every_assumption() -> None:
    result = call("--json", "simulate", "--nodes", "64", "--days", "20", "--seeds", "3")
    answer = json.loads(result.stdout)
    share = answer["unproductive_share"]
    assert result.exit_code == 0
    assert share["low"] <= share["mean"] <= share["high"]
    assert sum(answer["by_part"].values()) == pytest.approx(share["mean"])
    assert (answer["assumptions"]["nodes"], answer["assumptions"]["spares"]) == (64, 1)


def test_the_text_names_the_dearest_first_and_says_what_was_assumed() -> None:
    text = call("simulate", "--nodes", "512", "--save-every", "1800").stdout
    assert text.startswith("unproductive: ")
    assert text.index("lost work") < text.index("restart")
    assert re.search(r"^save every +30 min$", text, re.MULTILINE)
    assert re.search(r"^nodes +512$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_a_training_without_faults_is_refused() -> None:
    result = call("simulate", "--nodes", "8", "--faults-per-node-day", "0")
    assert result.exit_code == 2
    assert "without faults nothing is simulated" in result.stderr
