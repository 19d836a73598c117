"""`make test`: each test runs in exactly one stage, and what failed in any of them is said at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.run_tests import QUICK, Outcome, Stage, report, run_stage, stages

TESTS = """
import os
import pytest

def test_plain(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.waits
@pytest.mark.xdist_group("shared")
def test_waits(): pass

@pytest.mark.alone(reason="a limit")
def test_alone(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.waits
@pytest.mark.alone(reason="a limit")
def test_waits_alone(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.kernel
def test_kernel(): assert "PYTEST_XDIST_WORKER" not in os.environ

def test_wrong(): assert 1 == 2, "not the same"

@pytest.mark.waits
def test_without_its_part(): pytest.skip("no such program")

@pytest.fixture
def broken(): raise OSError("no disk")

def test_not_set_up(broken): pass
"""
PASSED = {"units": 2, "waits": 1, "alone": 3}


def suite(folder: Path, text: str) -> list[str]:
    path = folder / "test_some.py"
    path.write_text(text)
    return [str(path), "-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """What becomes of those tests in each stage, under CI."""
    folder = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CI", "true")
        return [run_stage(stage, [*suite(folder, TESTS), f"--basetemp={folder}/tmp"]) for stage in stages(2)]


def test_each_test_runs_in_one_stage_and_what_must_be_alone_runs_in_one_process(outcomes: list[Outcome]) -> None:
    assert {outcome.stage.name: outcome.counts["passed"] for outcome in outcomes} == PASSED
    names = [name for outcome in outcomes for name, _ in outcome.seconds]
    assert len(names) == len(set(names)) == TESTS.count("def test_")
    assert all(name.rpartition("::")[2].isidentifier() for name in names), "as pytest takes them"


def test_under_ci_what_is_skipped_in_a_worker_process_has_failed(outcomes: list[Outcome]) -> None:
    _, waits, _ = outcomes
    ((name, reason),) = waits.failed.items()
    assert name.endswith("test_without_its_part")
    assert "no such program (nothing may be skipped under CI)" in reason
    assert "skipped" not in waits.counts


def test_what_failed_in_any_stage_is_said_at_the_end(
    outcomes: list[Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [outcome.ok for outcome in outcomes] == [False, False, True]
    assert report(outcomes) == 1
    said = capsys.readouterr().out.splitlines()
    failed = [line for line in said if line.startswith("FAILED (")]
    assert len(failed) == 3
    assert any("test_wrong - AssertionError: not the same" in line for line in failed)
    assert any("test_not_set_up - OSError: no disk" in line for line in failed)


def test_a_suite_that_passes_and_a_stage_without_tests_are_status_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = suite(tmp_path, "def test_plain(): pass\n")
    ran = [run_stage(Stage(name, name, 0), options) for name in ("not alone", "alone")]
    assert [outcome.counts.get("passed", 0) for outcome in ran] == [1, 0]
    assert report(ran) == 0
    assert report(ran[1:]) == 1, "no test ran at all"
    assert "1 passed" in capsys.readouterr().out


def test_a_file_that_cannot_be_imported_and_a_pytest_that_died_are_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = Stage("all", "", 0)
    broken = run_stage(everything, suite(tmp_path, "import nothing_of_this_name\n"))
    assert ["nothing_of_this_name" in reason for reason in broken.failed.values()] == [True]
    died = run_stage(everything, suite(tmp_path, "import os\ndef test_dies(): os._exit(3)\n"))
    assert [report([broken]), report([died])] == [1, 1]
    assert "pytest ended with status 3" in capsys.readouterr().out


def test_the_quick_run_leaves_out_what_is_slow(tmp_path: Path) -> None:
    ran = run_stage(Stage("quick", QUICK, 0), suite(tmp_path, TESTS))
    assert [name.rpartition("::")[2] for name in sorted(name for name, _ in ran.seconds)] == [
        "test_not_set_up",
        "test_plain",
        "test_wrong",
    ]


def test_alone_needs_its_reason(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.alone\ndef test_some(): pass\n"
    assert not run_stage(Stage("all", "", 0), suite(tmp_path, text)).ok
