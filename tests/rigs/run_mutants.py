"""Changes `supervisor/core` in 300 places, one at a time, and says which of the changes its own tests did not notice.

    run_mutants.py [--sample N] [--seed N] [--folder FOLDER] [--children N]

mutmut makes the mutants of every function without a decorator in a copy of the tree at FOLDER, runs the units of
`tests/core` once to learn which of them reach which function, and then these against each mutant of the sample. The
sample is the same for the same seed and the same code. The laws, and what copies the package or plays whole nights, are
left out: the units are to notice by themselves. Exit status 1: less than NOTICED_AT_LEAST was noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NOTICED_AT_LEAST = 0.92
MUTMUT = (sys.executable, "-c", "from mutmut.__main__ import cli; cli()")
NAMING = """
import sys
from mutmut import __main__ as mutmut
from mutmut.mutation.trampoline import set_mutant_under_test
set_mutant_under_test("mutant_generation")
mutmut.makedirs("mutants", exist_ok=True)
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(int(sys.argv[1]))
"""
"""The first steps of `mutmut run`, which goes on with tests that take minutes; there is no command for them alone."""
COPIED = ("supervisor", "tests", "migrations", "systemd", "config.toml", "pyproject.toml")
LEFT_OUT = ("laws", "rule_seam", "remedy_seam", "healthy", "healthy_hours", "shadow")
SURVIVED, UNREACHED = 0, 33
"""Exit statuses of mutmut's tests of a mutant: every test passed, no test reaches the function."""
SETTINGS = """
[tool.mutmut]
source_paths = ["supervisor"]
only_mutate = ["supervisor/core/**"]
also_copy = ["config.toml", "migrations", "systemd"]
track_dependencies = false
use_git_change_detection = false
pytest_add_cli_args = ["-m", "not alone"]
pytest_add_cli_args_test_selection = {selection}
"""


def lay_out(folder: Path) -> None:
    """Copy what is tested to `folder`, replacing what was copied there before."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    selection = ["tests/core", *(f"--ignore=tests/core/test_{name}.py" for name in LEFT_OUT)]
    with (folder / "pyproject.toml").open("a") as file:
        file.write(SETTINGS.format(selection=json.dumps(selection)))


def make_names(folder: Path, children: int) -> list[str]:
    """Make every mutant without running a test; return their names in order."""
    subprocess.run([sys.executable, "-c", NAMING, str(children)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return sorted(read_outcomes(folder))


def mutate(folder: Path, names: Sequence[str], children: int) -> None:
    """Have mutmut run the tests against mutants of these names; raise CalledProcessError where it failed itself."""
    subprocess.run([*MUTMUT, "run", "--max-children", str(children), *names], cwd=folder, check=True)


def read_outcomes(folder: Path) -> dict[str, int | None]:
    """Return the exit status of the tests by mutant; None where they were not run."""
    outcomes: dict[str, int | None] = {}
    for path in sorted((folder / "mutants" / "supervisor" / "core").rglob("*.meta")):
        outcomes |= json.loads(path.read_text())["exit_code_by_key"]
    return outcomes


def report(folder: Path, sample: Sequence[str]) -> int:
    """Print what was not noticed and how much was; return the exit status."""
    outcomes = read_outcomes(folder)
    unnoticed = [name for name in sample if outcomes[name] in (SURVIVED, UNREACHED)]
    unjudged = [name for name in sample if outcomes[name] is None]
    for name in unnoticed:
        tell(f"{'no test reaches' if outcomes[name] == UNREACHED else 'survived'}  {name}")
        if outcomes[name] == SURVIVED:
            shown = subprocess.run([*MUTMUT, "show", name], cwd=folder, capture_output=True, text=True, check=False)
            changed = [line for line in shown.stdout.splitlines() if line.startswith(("+", "-"))]
            tell("\n".join(line for line in changed if not line.startswith(("+++", "---"))))
    judged = len(sample) - len(unjudged)
    noticed = (judged - len(unnoticed)) / judged if judged else 0.0
    tell(f"{judged - len(unnoticed)} of {judged} mutants noticed: {noticed:.1%} (at least {NOTICED_AT_LEAST:.0%})")
    if unjudged:
        tell(f"{len(unjudged)} mutants were not run")
    return 0 if noticed >= NOTICED_AT_LEAST and not unjudged else 1


def tell(line: str) -> None:
    """Print a line at once, between what mutmut prints."""
    print(line, flush=True)  # noqa: T201 - it is a command


def main() -> int:
    """Make the mutants, run the tests against a sample of them, and say what was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--children", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    lay_out(asked.folder)
    every = make_names(asked.folder, asked.children)
    sample = random.Random(asked.seed).sample(every, min(asked.sample, len(every)))
    mutate(asked.folder, sample, asked.children)
    return report(asked.folder, sample)


if __name__ == "__main__":
    sys.exit(main())
