"""`make test`: each test runs in exactly one stage, and what failed in any of them is said at the end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processor_time import read_processor_s
from tests.rigs.outcomes import spread
from tests.rigs.run_tests import (
    FAILED,
    OK,
    QUICK,
    UNSTEADY_AT_MOST,
    Outcome,
    Stage,
    StartedStage,
    compile_tests,
    report,
    run_again,
    run_stage,
    run_stages,
    stages,
)

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

@pytest.mark.calm(reason="limits of seconds")
def test_calm(): assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.kernel
def test_kernel(): assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.kernel
@pytest.mark.alone(reason="a limit")
def test_kernel_alone(): assert "PYTEST_XDIST_WORKER" not in os.environ

@pytest.mark.fills
def test_fills(): pass

@pytest.mark.fills
@pytest.mark.train
def test_fills_and_trains(): assert "PYTEST_XDIST_WORKER" in os.environ

def test_wrong(): assert 1 == 2, "not the same"

@pytest.mark.waits
def test_without_its_part(): pytest.skip("no such program")

@pytest.fixture
def broken(): raise OSError("no disk")

def test_not_set_up(broken): pass
"""
EVERYTHING = Stage("all", "", 0)
FEW = [dataclasses.replace(stage, workers=min(stage.workers, 2)) for stage in stages(2)]
"""The stages with two processes at most: each more is another start of pytest."""
of_all_stages = pytest.mark.xdist_group("all stages")  # which are run once
PASSED = {"parallel": 4, "calm": 3, "alone": 3}


@pytest.fixture(scope="module", autouse=True)
def few_plugins() -> Iterator[None]:
    """Each process of these stages loads what the stages need: a third less of a start."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        environment.delenv("PYTEST_ADDOPTS", raising=False)
        yield


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
        return [run_stage(stage, [*suite(folder, TESTS), f"--basetemp={folder}/tmp"]) for stage in FEW]


@of_all_stages
def test_each_test_runs_in_one_stage_and_what_must_be_alone_runs_in_one_process(outcomes: list[Outcome]) -> None:
    assert {outcome.stage.name: outcome.counts["passed"] for outcome in outcomes} == PASSED
    names = [name for outcome in outcomes for name, _ in outcome.seconds]
    assert len(names) == len(set(names)) == TESTS.count("def test_")
    assert all(name.rpartition("::")[2].isidentifier() for name in names), "as pytest takes them"


def test_later_stages_import_the_files_that_have_tests_of_theirs_alone(tmp_path: Path) -> None:
    noted = """
from pathlib import Path
import pytest
with Path(__file__).with_suffix(".read").open("a") as file:
    file.write("read ")
"""
    for name, text in {
        "plain": "def test_plain(): pass\n",
        "mixed": "def test_plain(): pass\n@pytest.mark.calm(reason='limits')\ndef test_calm(): pass\n",
        "alone": "@pytest.mark.alone(reason='a limit')\ndef test_alone(): pass\n",
    }.items():
        (tmp_path / f"test_{name}.py").write_text(noted + text)
    options = [str(tmp_path), *suite(tmp_path, "")[1:]]
    ran = run_stages(FEW, options)
    assert [outcome.counts["passed"] for outcome in ran] == [2, 1, 1]
    times = {path.stem: len(path.read_text().split()) for path in tmp_path.glob("*.read")}
    assert times == {"test_plain": 1, "test_mixed": len(FEW), "test_alone": len(FEW)}


NOTED = """
import os
import time
from pathlib import Path
import pytest

def note(text):
    with Path(__file__).with_name("noted").open("a") as file:
        file.write(f"{text} {time.monotonic()}\\n")

note("collected")
"""


def noted(folder: Path) -> dict[str, list[float]]:
    """Return when what was noted, in order."""
    found: dict[str, list[float]] = {}
    for line in (folder / "noted").read_text().splitlines():
        what, _, at = line.partition(" ")
        found.setdefault(what, []).append(float(at))
    return found


def test_stages_collect_together_and_run_one_after_another(tmp_path: Path) -> None:
    text = """
def collected_by(count):
    deadline = time.monotonic() + 60
    while Path(__file__).with_name("noted").read_text().count("collected") < count:
        assert time.monotonic() < deadline, "the later stages do not collect meanwhile"
        time.sleep(0.01)

def test_plain():
    collected_by(COLLECTED)
    note("end")

@pytest.mark.calm(reason="limits")
def test_calm(): note("calm")

@pytest.mark.alone(reason="a limit")
def test_alone(): note("alone")
"""
    ran = run_stages(FEW, suite(tmp_path, NOTED + text.replace("COLLECTED", str(len(FEW)))))
    assert [outcome.counts["passed"] for outcome in ran] == [1, 1, 1]
    times = noted(tmp_path)
    (end,), (calm,), (alone,) = times["end"], times["calm"], times["alone"]
    assert end < calm < alone
    assert len(times["collected"]) == len(FEW)


def test_a_stage_whose_suite_was_killed_ends_without_a_test(tmp_path: Path) -> None:
    started = StartedStage(EVERYTHING, suite(tmp_path, NOTED + 'def test_plain(): note("ran")\n'))
    os.close(started.letting)
    assert started.process.wait() not in {OK, FAILED}
    assert set(noted(tmp_path)) == {"collected"}


class Item:
    """A test with these markers, as far as its place depends on them."""

    def __init__(self, *markers: str) -> None:
        self.markers = markers

    def get_closest_marker(self, name: str) -> str | None:
        """Return the marker of this name."""
        return name if name in self.markers else None


def test_trainings_are_spread_among_what_starts_processes_and_units_come_last() -> None:
    """What waits would else be alone at the end, with idle cores."""
    kinds = {"long": 2, "train": 40, "slow": 200, "waits": 30, "unit": 300}
    items: list[Any] = [Item(kind) for kind, count in kinds.items() for _ in range(count)]
    found: list[Any] = list(spread(items))
    placed = [item.markers[0] for item in found]
    assert sorted(placed) == sorted(item.markers[0] for item in items)
    assert placed[:2] == ["long", "waits"] or set(placed[:3]) <= {"long", "waits", "train"}
    first, last = placed.index("slow"), len(placed) - 1 - placed[::-1].index("slow")
    assert "unit" not in placed[:last]
    for part in range(8):  # of eight parts the last has fewer, so that no training is begun at the very end
        begin, end = (first + (last - first) * at // 8 for at in (part, part + 1))
        assert placed[begin:end].count("train") >= (1 if part == 7 else 4), part
    assert "train" not in placed[int(0.97 * last) : last]


def test_tests_of_a_group_share_a_process(tmp_path: Path) -> None:
    """Where they do not, each process makes what they share once more: minutes, and nothing else would tell of it."""
    text = """
import os
from pathlib import Path
import pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(8))
def test_some(number):
    with Path(__file__).with_name("pids").open("a") as file:
        file.write("%d\\n" % os.getpid())
"""
    ran = run_stage(FEW[0], suite(tmp_path, text))
    assert ran.counts["passed"] == 8
    assert len(set((tmp_path / "pids").read_text().split())) == 1


def test_the_processor_time_of_a_test_is_also_that_of_its_processes(tmp_path: Path) -> None:
    text = """
import subprocess
import sys

def test_burns():
    burn = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)

def test_rests(): pass
"""
    folder = tmp_path / "times"
    folder.mkdir()
    options = [*suite(tmp_path, text), "-p", "tests.processor_time", "--processor-to", str(folder)]
    assert run_stage(FEW[0], options).counts["passed"] == 2
    found = {name.rpartition("::")[2]: used_s for name, used_s in read_processor_s(folder).items()}
    assert found["test_burns"] >= 0.5 > found["test_rests"]
    assert found["(collection)"] > 0


@of_all_stages
def test_under_ci_what_is_skipped_in_a_worker_process_has_failed(outcomes: list[Outcome]) -> None:
    parallel, *_ = outcomes
    ((name, reason),) = [pair for pair in parallel.failed.items() if "test_without_its_part" in pair[0]]
    assert name.endswith("test_without_its_part")
    assert "no such program (nothing may be skipped under CI)" in reason
    assert "skipped" not in parallel.counts


@of_all_stages
def test_what_failed_in_any_stage_is_reported_at_the_end(
    outcomes: list[Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [outcome.ok for outcome in outcomes] == [False, True, True]
    assert report(outcomes) == 1
    output = capsys.readouterr().out.splitlines()
    failed = [line for line in output if line.startswith("FAILED (")]
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
    broken = run_stage(EVERYTHING, suite(tmp_path, "import nothing_of_this_name\n"))
    assert ["nothing_of_this_name" in reason for reason in broken.failed.values()] == [True]
    died = run_stage(EVERYTHING, suite(tmp_path, "import os\ndef test_dies(): os._exit(3)\n"))
    assert [report([broken]), report([died])] == [1, 1]
    assert "pytest ended with status 3" in capsys.readouterr().out


UNSTEADY = """
from pathlib import Path
import pytest

def passes_from_the_second_time_on(name):
    been = Path(__file__).with_name(name)
    if not been.exists():
        been.touch()
        raise AssertionError(f"not yet {name}")

def test_plain(): pass

@pytest.mark.parametrize("name", NAMES)
def test_late(name): passes_from_the_second_time_on(name)

@pytest.mark.alone(reason="a limit")
def test_late_alone(): passes_from_the_second_time_on("alone")
"""


def run_twice(folder: Path, text: str, *ran: Stage) -> tuple[int, list[Outcome], Outcome | None]:
    """Run tests in stages and what failed again; return the exit status, and what became of them."""
    options = [*suite(folder, text), f"--basetemp={folder}/tmp"]
    outcomes = [run_stage(stage, options) for stage in ran]
    again = run_again(outcomes, options)
    return report(outcomes, again), outcomes, again


def test_a_few_tests_that_pass_when_run_again_by_themselves_are_named_and_do_not_fail_the_suite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, outcomes, again = run_twice(tmp_path, UNSTEADY.replace("NAMES", '["one", "two [b]"]'), *FEW)
    output = capsys.readouterr().out.splitlines()
    assert status == 0, output
    assert again is not None
    assert [name.rpartition("::")[2] for name, _ in sorted(again.seconds)] == [
        "test_late[one]",
        "test_late[two [b]]",
        "test_late_alone",
    ], "nothing else ran twice"
    unsteady = [line for line in output if line.startswith("UNSTEADY ")]
    assert len(unsteady) == 3 == UNSTEADY_AT_MOST
    assert any(
        "test_late[one] - AssertionError: not yet one (failed in parallel, passed when run again by itself)" in line
        for line in unsteady
    )
    assert any("not yet alone (failed in alone, passed" in line for line in unsteady)
    assert not [line for line in output if line.startswith("FAILED (")]
    assert outcomes[0].line() in output, "with what failed in the stage"
    assert "2 failed" in outcomes[0].line()
    assert "3 UNSTEADY (at most 3 may be)" in output[-1]


def test_one_unsteady_test_too_many_fails_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, _ = run_twice(tmp_path, UNSTEADY.replace("NAMES", '["one", "two", "three"]'), EVERYTHING)
    output = capsys.readouterr().out.splitlines()
    assert status == 1
    assert len([line for line in output if line.startswith("UNSTEADY ")]) == UNSTEADY_AT_MOST + 1
    assert output[-1].startswith("FAILED in ")


def test_a_test_that_fails_both_times_fails_the_suite_and_both_reasons_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "def test_wrong(tmp_path): assert not tmp_path, f\"wrong, {Path(__file__).with_name('one').exists()}\"\n"
    status, _, again = run_twice(tmp_path, UNSTEADY.replace("NAMES", '["one"]') + wrong, EVERYTHING)
    output = capsys.readouterr().out.splitlines()
    assert status == 1
    assert again is not None
    assert len(again.failed) == 1
    assert len([line for line in output if line.startswith("UNSTEADY ")]) == 2
    (failed,) = [line for line in output if line.startswith("FAILED (")]
    assert "test_wrong - AssertionError: wrong, " in failed
    assert "(again: AssertionError: wrong, True" in failed


def test_where_pytest_did_not_come_to_its_end_or_very_much_failed_nothing_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, text in (
        ("uncollected", "import nothing_of_this_name\n"),
        ("died", UNSTEADY.replace("NAMES", '["one"]') + "def test_dies():\n    pytest.exit('no more', 3)\n"),
        ("many", "import pytest\n@pytest.mark.parametrize('at', range(21))\ndef test_wrong(at): assert at < 0\n"),
    ):
        (tmp_path / folder).mkdir()
        status, _, again = run_twice(tmp_path / folder, text, EVERYTHING)
        assert (status, again) == (1, None), folder
    assert "UNSTEADY" not in capsys.readouterr().out


def test_a_test_that_does_not_run_the_second_time_has_not_passed(tmp_path: Path) -> None:
    vanishing = """
from pathlib import Path
import pytest
def test_plain(): pass
if not Path(__file__).with_name("been").exists():
    def test_there_once():
        Path(__file__).with_name("been").touch()
        raise AssertionError
"""
    status, (ran,), again = run_twice(tmp_path, vanishing, EVERYTHING)
    assert (status, len(ran.failed)) == (1, 1)
    assert again is not None
    assert not again.seconds


def test_the_quick_run_leaves_out_what_is_slow(tmp_path: Path) -> None:
    ran = run_stage(Stage("quick", QUICK, 0), suite(tmp_path, TESTS))
    assert [name.rpartition("::")[2] for name in sorted(name for name, _ in ran.seconds)] == [
        "test_fills",
        "test_not_set_up",
        "test_plain",
        "test_wrong",
    ]


STARTING = """
import os
import subprocess
import threading
import pytest

def test_unit(): pass

def test_runs(): subprocess.run(["true"])

def test_forks():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def test_runs_in_a_thread():
    thread = threading.Thread(target=subprocess.run, args=(["true"],))
    thread.start()
    thread.join()

@pytest.fixture(scope="module")
def started(): return subprocess.run(["true"])

@pytest.mark.parametrize("number", (1, 2))
def test_is_given_what_runs(started, number): pass

@pytest.mark.slow
def test_slow(): subprocess.run(["true"])
"""


def test_a_unit_that_starts_a_process_has_failed(tmp_path: Path) -> None:
    ran = run_stage(EVERYTHING, suite(tmp_path, STARTING))
    reasons = {name.rpartition("::")[2]: reason for name, reason in ran.failed.items()}
    given = {"test_is_given_what_runs[1]", "test_is_given_what_runs[2]"}
    assert set(reasons) == {"test_runs", "test_forks", "test_runs_in_a_thread", *given}
    assert "starts a process (subprocess.Popen ['true']): mark it `slow`" in reasons["test_runs"]
    assert "(os.fork)" in reasons["test_forks"]


def test_what_no_process_has_compiled_is_compiled_once(tmp_path: Path) -> None:
    for name in ("some", "other"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text("def test_some(): pass\n")

    def compiled() -> dict[str, int]:
        return {path.name.partition(".")[0]: path.stat().st_mtime_ns for path in tmp_path.rglob("*pytest*.pyc")}

    compile_tests(tmp_path, 2)
    first = compiled()
    assert set(first) == {"test_some", "test_other"}
    (tmp_path / "tests" / "some" / "test_some.py").touch()
    compile_tests(tmp_path, 2)
    assert compiled() == first


def test_alone_needs_its_reason(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.alone\ndef test_some(): pass\n"
    assert not run_stage(EVERYTHING, suite(tmp_path, text)).ok
