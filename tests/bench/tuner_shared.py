"""Tunes of a training on a GPU that another program uses too: before the tune, from its middle on, and not at all.

    python tests/bench/tuner_shared.py [--train-python PYTHON] [--json FILE]

`started_training.py` is the training, and a process of this file is the other program: it holds a gibibyte and
computes. A tune of the training alone, with restarts and without, has to come to its end: what it starts is no other
program. While the other one is there no tune begins; one that is under way when it comes has to end, with the owner's
settings. What GPUs' tools list of processes is printed: in a container that may be none, or numbers of another
namespace, by which nothing is known.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402 (after the path is set)

SCRIPT = Path(__file__).with_name("started_training.py")
NAMED = "uses its GPU"
HELD_BYTES = 1 << 30
SEEN_LIMIT_S = 30.0
"""Within which another program has to be seen, or its end: GPUs are read each 5 s, and a tune asks as often."""
ALONE_S, STARTS_S = 15, 35
"""Of the tunes without and with restarts."""


class Bench:
    """One daemon with the training."""

    def __init__(self, home: House, train_python: str) -> None:
        self._home, self._python = home, train_python
        self.rows: list[dict[str, Any]] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        """Tune alone, beside another program, and with one that comes."""
        home = self._home
        words = [self._python, str(SCRIPT), "cuda"]
        home.write(home.job_of("shared", words, 'conv2d = "off"\nsnapshot_every_s = 2\n'))
        home.start()
        home.phase("shared", "running", limit_s=120)
        home.step("shared", 20, limit_s=120)
        time.sleep(6.0)  # GPUs are read each 5 s
        self._print_processes("alone")
        self._expect_whole("alone", self._tune(ALONE_S))
        self._expect_whole("alone, with restarts", self._tune(STARTS_S, "--may", "restart"))
        self._refuse_before()
        self._end_in_its_middle()

    def _tune(self, span_s: float, *more: str) -> dict[str, Any]:
        done = self._home.ctl("tune", "shared", "--for", f"{span_s:.0f}s", "--steps", "1000000", *more, "--json")
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            found = {"problem": done.stdout + done.stderr}
        self._home.ctl("tune", "shared", "--undo")
        return found

    def _expect_whole(self, when: str, report: dict[str, Any]) -> None:
        """Note a tune that no other program may have ended."""
        found = {name: len(report.get(name) or ()) for name in ("adopted", "refused")}
        self._note(when, f"{report.get('problem')}; {found}")
        if NAMED in str(report.get("problem")):
            self.wrong.append(f"{when}: the tune ended: {report['problem']}")

    def _refuse_before(self) -> None:
        with other_program(self._python) as pid:
            began_s, found = time.perf_counter(), ""
            while NAMED not in found and time.perf_counter() - began_s < SEEN_LIMIT_S:
                found = self._ask()
            self._print_processes("with another program")
            self._expect_named(f"begun {time.perf_counter() - began_s:.1f} s after the other program", found, pid)
        began_s = time.perf_counter()
        while NAMED in found and time.perf_counter() - began_s < SEEN_LIMIT_S:
            found = self._ask()
        self._note(f"after its end, {time.perf_counter() - began_s:.1f} s", found.partition("\n")[0])
        if NAMED in found:
            self.wrong.append("the other program has ended, and is still named")

    def _ask(self) -> str:
        """Return what a tune that tries nothing prints: the plan, or why none is begun."""
        done = self._home.ctl("tune", "shared", "--dry-run", "--for", "10s")
        return (done.stdout + done.stderr).strip()

    def _end_in_its_middle(self) -> None:
        command = [str(self._home.bin / "rocm-supervisorctl"), "--config", str(self._home.config), "tune", "shared"]
        words = [*command, "--for", "120s", "--steps", "1000000", "--may", "precision", "--json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tune:
            time.sleep(8.0)  # the tune is in its middle
            with other_program(self._python) as pid:
                began_s = time.perf_counter()
                printed = tune.communicate(timeout=150)[0]
                took_s = time.perf_counter() - began_s
        self._expect_named(f"a tune under way, ended {took_s:.1f} s after the other program came", printed, pid)
        if took_s > SEEN_LIMIT_S:
            self.wrong.append(f"a tune went on for {took_s:.0f} s beside another program")
        report = self._home.client.get("/v1/jobs/shared/tune")
        if report["adopted"]:
            self.wrong.append(f"adopted beside another program: {report['adopted']}")

    def _expect_named(self, when: str, text: str, pid: int) -> None:
        line = next((line for line in text.splitlines() if NAMED in line), text[-300:])
        self._note(when, line.strip())
        if f"process {pid} " not in text:
            self.wrong.append(f"{when}: process {pid} is not named")

    def _note(self, when: str, what: str | None) -> None:
        self.rows.append({"when": when, "what": what})
        print(f"{when}: {what}", flush=True)

    def _print_processes(self, when: str) -> None:
        print(f"{when}: {self._home.ctl('gpus').stdout}of the training {self._home.training_pids()}", flush=True)


@contextmanager
def other_program(python: str) -> Iterator[int]:
    """Have another program hold a gibibyte and compute; give its number once it does."""
    words = [python, str(Path(__file__).resolve()), "--compute"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def compute() -> None:
    """Hold a gibibyte of the GPU and compute until killed."""
    import torch  # noqa: PLC0415 - the bench needs none

    held = torch.ones(HELD_BYTES // 4, device="cuda").view(16384, -1)
    torch.cuda.synchronize()
    print("computes", flush=True)
    while True:
        torch.mm(held[:, :4096], held[:4096, :4096])
        torch.cuda.synchronize()


def main() -> None:
    """Run all of it; exit with status 1 where anything is not as it has to be."""
    if sys.argv[1:] == ["--compute"]:
        compute()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shared-") as place, house(Path(place)) as home:
        home.bin = Path(os.environ.get("SUPERVISOR_BIN", home.bin))
        bench = Bench(home, given.train_python)
        try:
            bench.run()
        except BaseException:
            print(home.read_output(), flush=True)
            raise
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": bench.rows, "wrong": bench.wrong}))
    for text in bench.wrong:
        print(f"WRONG: {text}")
    if bench.wrong:
        raise SystemExit(1)
    print("no tune measured another program, and none took its own starts for one")


if __name__ == "__main__":
    main()
