"""Prometheus' own tool accepts the exposition and the rules, and their cases come out as written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from test_metrics_exposition import ALL

from supervisor.metrics.exposition import text_of

PROMTOOL = shutil.which("promtool")
RULES = Path(__file__).parents[2] / "supervisor/metrics/prometheus-rules.yml"
CASES = Path(__file__).with_name("rules_promtool.yml")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMTOOL is None, reason="promtool could not be fetched by .ci/run"),
]


def run(*words: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *words], input=text, capture_output=True, text=True, check=False)


def test_it_accepts_the_exposition() -> None:
    done = run("check", "metrics", text=text_of(ALL))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_accepts_the_rules_and_their_cases_come_out_as_written() -> None:
    checked = run("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    cases = run("test", "rules", CASES)
    assert cases.returncode == 0, cases.stdout + cases.stderr
