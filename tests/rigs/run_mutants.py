"""Changes `supervisor/core` in 300 places, one at a time, and says which of the changes its own tests did not notice.

    run_mutants.py [--sample N] [--seed N] [--only TEXT ...] [--at-once N] [--of PATH --tests PATH ...]

The changes are those of mutmut's operators, in every function that mutmut would change; the sample is the same for the
same seed and the same code. What mutmut does with them is not used: it writes all 22,000 into a copy of the tree and
runs every test through them before it judges the first, and each call of a function goes by way of them. Here pytest
collects the units of `tests/core` once and forks: first into processes that run each test and learn which functions of
the sample it reaches, then into one for each mutant, which exchanges the code of that function in memory and runs
the tests that reach it, the quickest first, until one fails. A mutant that takes TIMES_AS_LONG is noticed.

With `--of` it is another folder or file of `supervisor` that is changed, and the tests are those of `--tests`: such as
call what they test in their own process, for a change reaches no other program. What needs a training environment is
left out: each fork would make its own.

The laws, and what copies the package or plays whole nights, are left out: the units are to notice by themselves. Exit
status 1: less than NOTICED_AT_LEAST was noticed.
"""

from __future__ import annotations
import __future__

import argparse
import builtins
import difflib
import importlib
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType

import libcst as cst
import pytest
from hypothesis import Phase, settings
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = "supervisor/core"
NOTICED_AT_LEAST = 0.92
LEFT_OUT = ("laws", "rule_seam", "remedy_seam", "healthy", "healthy_hours", "shadow")
TIMES_AS_LONG, AT_LEAST_S = 10, 20
"""The processor time that a mutant may take: so many times what its tests take without it, and at least so long."""
NOTICED, SURVIVED, FAULTY = 1, 0, 70
"""Exit statuses of the process of a mutant; FAULTY: the mutant could not be put in place."""
REACHED = "__reached_by_a_test__"
PYTEST = ("-p", "no:cacheprovider", "-p", "no:terminal", "-o", "addopts=--strict-markers")
MARKED = ("-m", "not alone and not train")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module or a method of one of its classes, as it is written."""

    path: str
    class_name: str | None
    name: str
    source: str
    marked: str
    """The source with a first statement that tells that it was reached."""

    @property
    def label(self) -> str:
        """Return the name as a reader would look for it."""
        return f"{self.path} {self.class_name + '.' if self.class_name else ''}{self.name}"

    def exchange(self, source: str) -> None:
        """Give the living function the code and the defaults of `source`, which defines it anew."""
        module = importlib.import_module(self.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        living = _function_of(vars(vars(module)[self.class_name] if self.class_name else module)[self.name])
        if self.class_name:  # within a class, so that super() and private names are what they are there
            source = f"class {self.class_name}:\n" + "".join(f"    {line}" for line in source.splitlines(keepends=True))
        made: dict[str, object] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(source, self.path, "exec", flags, dont_inherit=True), vars(module), made)
        defined = _function_of(vars(made[self.class_name])[self.name] if self.class_name else made[self.name])
        living.__code__ = defined.__code__
        living.__defaults__, living.__kwdefaults__ = defined.__defaults__, defined.__kwdefaults__


def _function_of(value: object) -> FunctionType:
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    assert isinstance(value, FunctionType), value
    return value


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function with one change; `number` counts the mutants of the function."""

    function: Function
    change: Mutation
    line: int
    number: int

    @property
    def name(self) -> str:
        """Return a name that the next run has as well, for the same code."""
        return f"{self.function.label} {self.number} (line {self.line})"

    def source(self) -> str:
        """Return the function as it is with the change."""
        function = self.change.contained_by_top_level_function
        assert function is not None
        changed = deep_replace(function, self.change.original_node, self.change.mutated_node)
        assert isinstance(changed, cst.FunctionDef)
        return _source(changed)

    def show(self) -> str:
        """Return the lines that the change takes away and adds."""
        before, after = self.function.source.splitlines(), self.source().splitlines()
        lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[3:]
        return "\n".join(f"    {line}" for line in lines if not line.startswith("@@"))


def find_mutants(root: Path, of: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, or of a folder's in the order of its files and lines."""
    files = sorted((root / of).rglob("*.py")) if (root / of).is_dir() else [root / of]
    for file in files:
        wrapper = MetadataWrapper(cst.parse_module(file.read_text()))
        visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
        module = wrapper.visit(visitor)
        positions = wrapper.resolve(PositionProvider)
        functions = dict(_functions_of(str(file.relative_to(root)), module))
        numbers = dict.fromkeys(functions, 0)
        for change in visitor.mutations:
            node = change.contained_by_top_level_function
            if node not in functions:
                continue
            numbers[node] += 1
            line = positions[change.original_node if change.original_node in positions else node].start.line
            yield Mutant(functions[node], change, line, numbers[node])


def _functions_of(path: str, module: cst.Module) -> Iterator[tuple[cst.FunctionDef, Function]]:
    for statement in module.body:
        inner = statement.body.body if isinstance(statement, cst.ClassDef) else [statement]
        class_name = statement.name.value if isinstance(statement, cst.ClassDef) else None
        for node in inner:
            if isinstance(node, cst.FunctionDef) and isinstance(node.body, cst.IndentedBlock):
                mark = cst.parse_statement(f"{REACHED}({path!r}, {class_name!r}, {node.name.value!r})")
                marked = node.with_changes(body=node.body.with_changes(body=[mark, *node.body.body]))
                yield node, Function(path, class_name, node.name.value, _source(node), _source(marked))


def _source(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).lstrip("\n")


class Judge:
    """A pytest plugin that takes the place of its loop: it learns who reaches what, then judges each mutant."""

    def __init__(self, sample: Sequence[Mutant], at_once: int) -> None:
        self._sample, self._at_once = sample, at_once
        self.outcomes: dict[str, int | None] = {}
        """By the mutant's name; None: no test reaches its function."""
        self._failed = False

    def pytest_configure(self) -> None:
        """A property that fails has noticed: nobody reads the smallest example."""
        settings.register_profile("mutants", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test failed."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge the sample."""
        reached, took_s = self._learn(session.items)
        waiting = list(reversed(self._sample))
        running: dict[int, Mutant] = {}
        while waiting or running:
            while waiting and len(running) < self._at_once:
                mutant = waiting.pop()
                tests = sorted(reached.get(mutant.function.label, ()), key=lambda at: took_s[at])
                if tests:
                    limit_s = max(AT_LEAST_S, TIMES_AS_LONG * sum(took_s[at] for at in tests))
                    running[_fork(partial(self._run, session, mutant, tests), limit_s)] = mutant
                else:
                    self._tell_outcome(mutant, None)
            if running:
                pid, status = os.wait()
                self._tell_outcome(running.pop(pid), os.waitstatus_to_exitcode(status))
        return True

    def _learn(self, items: Sequence[pytest.Item]) -> tuple[dict[str, list[int]], dict[int, float]]:
        """Return by function which tests reach it, and what each test takes in seconds."""
        reached: dict[str, list[int]] = {}
        took_s: dict[int, float] = {}
        functions = {(f.path, f.class_name, f.name): f for f in (mutant.function for mutant in self._sample)}
        with tempfile.TemporaryDirectory() as name:
            files = [Path(name) / f"{part}.json" for part in range(self._at_once)]
            parts = [range(part, len(items), self._at_once) for part in range(self._at_once)]
            pids = [
                _fork(partial(self._run_marked, items, functions, part, file))
                for part, file in zip(parts, files, strict=True)
            ]
            statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            if any(statuses):
                raise pytest.UsageError("a test fails without any change, or its process ended")
            for test, lasted_s, labels in (row for file in files for row in json.loads(file.read_text())):
                took_s[test] = lasted_s
                for label in labels:
                    reached.setdefault(label, []).append(test)
        return reached, took_s

    def _run_marked(
        self,
        items: Sequence[pytest.Item],
        functions: dict[tuple[str, str | None, str], Function],
        part: Sequence[int],
        to: Path,
    ) -> int:
        """Run a part of the tests and write what each of them reached; return the exit status of this process."""
        found: set[str] = set()
        setattr(builtins, REACHED, lambda *names: found.add(functions[names].label))
        for function in functions.values():
            function.exchange(function.marked)
        rows: list[tuple[int, float, list[str]]] = []
        began_s = time.process_time()
        for test in _run_each(items, part):
            if self._failed:
                tell(f"fails without a change: {items[test].nodeid}")
                return NOTICED
            rows.append((test, time.process_time() - began_s, sorted(found)))
            found.clear()
            began_s = time.process_time()
        to.write_text(json.dumps(rows))
        return 0

    def _run(self, session: pytest.Session, mutant: Mutant, tests: Sequence[int]) -> int:
        """Run the tests until one fails; return the exit status of this process."""
        mutant.function.exchange(mutant.source())
        return NOTICED if any(self._failed for _ in _run_each(session.items, tests)) else SURVIVED

    def _tell_outcome(self, mutant: Mutant, outcome: int | None) -> None:
        self.outcomes[mutant.name] = outcome
        if outcome in (None, SURVIVED):
            what = "no test reaches" if outcome is None else "survived"
            tell(f"{len(self.outcomes)}/{len(self._sample)} {what}  {mutant.name}\n{mutant.show()}")


def _run_each(items: Sequence[pytest.Item], tests: Sequence[int]) -> Iterator[int]:
    """Run these tests in this order; each is yielded when it has ended."""
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        item = items[test]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None if following is None else items[following])
        yield test


def _fork(work: Callable[[], int], limit_s: float | None = None) -> int:
    """Start a process that does `work` and exits with what it returns; return its id."""
    if pid := os.fork():
        return pid
    status = FAULTY
    try:
        if limit_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
        status = work()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


_PRINTED = os.dup(1)


def tell(line: str) -> None:
    """Print a line at once, past what pytest captures."""
    os.write(_PRINTED, f"{line}\n".encode())


def report(outcomes: dict[str, int | None]) -> int:
    """Print how much was noticed; return the exit status."""
    faulty = sum(outcome == FAULTY for outcome in outcomes.values())
    noticed = sum(outcome not in (None, SURVIVED, FAULTY) for outcome in outcomes.values())
    share = noticed / len(outcomes) if outcomes else 0.0
    tell(f"{noticed} of {len(outcomes)} mutants noticed: {share:.1%} (at least {NOTICED_AT_LEAST:.0%})")
    if faulty:
        tell(f"{faulty} mutants could not be judged")
    return 0 if share >= NOTICED_AT_LEAST and not faulty else 1


def main() -> int:
    """Draw the sample, judge it, and say what was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--only", action="append", default=[], help="a sample of only what has this in its name")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--of", default=CORE, help="the folder or file that is changed")
    parser.add_argument("--tests", action="append", default=[], help="its tests")
    asked = parser.parse_args()
    if (asked.of == CORE) != (not asked.tests):
        parser.error("--of and --tests go together")
    os.chdir(ROOT)
    every = list(find_mutants(ROOT, asked.of))
    drawn_from = [mutant for mutant in every if not asked.only or any(text in mutant.name for text in asked.only)]
    sample = random.Random(asked.seed).sample(drawn_from, min(asked.sample, len(drawn_from)))
    tell(f"{len(sample)} of {len(every)} mutants, in {len({mutant.function.label for mutant in sample})} functions")
    judge = Judge(sample, asked.at_once)
    tests = asked.tests or [*(f"--ignore=tests/core/test_{name}.py" for name in LEFT_OUT), "tests/core"]
    status = pytest.main([*PYTEST, *MARKED, *tests], plugins=[judge])
    return report(judge.outcomes) if status == pytest.ExitCode.OK else 1


if __name__ == "__main__":
    sys.exit(main())
