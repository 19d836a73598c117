"""Epochs and steps from the loops around a training's first step: right, or unknown."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from agent_by_hand import AGENT_PATH, Attempt, interpreters

NEWEST = interpreters()[-1]
BY_HAND = Path(__file__).with_name("loops_by_hand.py")

BY_FUNCTION = """
    def train(args, optimizer, epoch):
        for number, batch in enumerate(range(8)):
            optimizer.step()
            if number % 2:
                print(number)
                if args.dry_run:
                    break

    def main():
        for epoch in range(1, args.epochs + 1):
            train(args, optimizer, epoch)

    if __name__ == "__main__":
        main()
"""
BY_CLASS = """
    class Trainer:
        def __init__(self, epochs):
            self.epochs, self.scaler = epochs, None

        def fit(self, batches):
            for epoch in range(self.epochs):
                self.run_epoch(batches)

        def run_epoch(self, batches):
            for batch in batches:
                optimizer.step()

    Trainer(4).fit(range(5))
"""
KNOWN = {
    "one loop": ("for number in range(100):\n    optimizer.step()", {"total_steps": 100}),
    "epochs without batches": (
        "for epoch in range(30):\n    optimizer.step()", {"epochs": 30, "steps_per_epoch": 1, "total_steps": 30},
    ),
    "functions, from 1": (BY_FUNCTION, {"epochs": 3, "steps_per_epoch": 8, "total_steps": 24}),
    "a class": (BY_CLASS, {"epochs": 4, "steps_per_epoch": 5, "total_steps": 20}),
    "a dictionary of settings": (
        """
        settings = {"train": {"epochs": 6, "samples": 64, "batch": 16}}
        train = settings["train"]
        for epoch in range(train["epochs"]):
            for batch in range(train["samples"] // train["batch"]):
                with open("/dev/null"):
                    optimizer.step()
        """,
        {"epochs": 6, "steps_per_epoch": 4, "total_steps": 24},
    ),
    "a branch that a setting decides": (
        """
        scaler = None
        for epoch in range(2):
            for batch in range(3):
                if scaler is not None:
                    scaler.step(optimizer)
                else:
                    optimizer.step()
        """,
        {"epochs": 2, "steps_per_epoch": 3, "total_steps": 6},
    ),
    "a decorated function": (
        """
        import functools

        def timed(function):
            @functools.wraps(function)
            def inside(*args):
                return function(*args)
            return inside

        @timed
        def train():
            for epoch in range(2):
                for batch in range(3):
                    optimizer.step()

        train()
        """,
        {"epochs": 2, "steps_per_epoch": 3, "total_steps": 6},
    ),
    "a decorator with a wrapper of each kind, and a function that is handed on": (
        """
        def caught(function):
            if args.dry_run:
                async def inside(*given):
                    return function(*given)
            elif args.epochs > 100:
                def inside(*given):
                    yield function(*given)
            else:
                def inside(*given):
                    return function(*given)
            return inside

        class Trainer:
            def fit(self, most):
                self.most, self.batches = most, 4
                for self.epoch in range(self.most):
                    for self.batch in range(self.batches):
                        optimizer.step()

        @caught
        def main():
            Trainer().fit(6)

        def launch(run):
            run()

        def launch_elsewhere(run):
            run()

        launch(main)
        """,
        {"epochs": 6, "steps_per_epoch": 4, "total_steps": 24},
    ),
    "epochs that other loops are in": (
        """
        for epoch in range(5):
            for task in (1, 2):
                while True:
                    optimizer.step()
        """,
        {"epochs": 5},
    ),
    "batches counted from 1": (
        """
        for epoch in range(5):
            for number, batch in enumerate(range(9), 1):
                optimizer.step()
        """,
        {"epochs": 5, "steps_per_epoch": 9, "total_steps": 45},
    ),
    "two steps in one pass": (
        """
        for epoch in range(5):
            for number in range(9):
                optimizer.step()
                optimizer.step()
        """,
        {"epochs": 5},
    ),
    "an error that would end it": (
        """
        import math
        for number in range(100):
            loss = 1.0
            optimizer.step()
            if math.isnan(loss):
                raise ValueError("not a number")
        """,
        {"total_steps": 100},
    ),
    "several calls in one pass": (
        """
        def update():
            optimizer.step()

        for epoch in range(5):
            for number in range(9):
                if epoch:
                    update()
                else:
                    update()
        """,
        {"epochs": 5},
    ),
    "steps now and then": (
        """
        for epoch in range(5):
            for number in range(9):
                if (number + 1) % 1 == 0:
                    optimizer.step()
        """,
        {"epochs": 5},
    ),
}  # fmt: skip
UNKNOWN = {
    "stops early": """
        best = 0
        for epoch in range(5):
            for batch in range(3):
                optimizer.step()
            best += 1
            if best > 3:
                break
    """,
    "ends the program": """
        import sys
        for number in range(5):
            optimizer.step()
            if len(sys.argv) > 30:
                sys.exit()
    """,
    "until it is told to stop": "while True:\n    optimizer.step()",
    "a loop in C": "def train(epoch):\n    for _ in range(3):\n        optimizer.step()\nlist(map(train, range(5)))",
    "a comprehension": "def train(e):\n    for _ in range(3):\n        optimizer.step()\n[train(e) for e in range(5)]",
    "a generator": """
        def batches():
            for batch in range(8):
                optimizer.step()
                yield batch
        steps = batches()
        for epoch in range(3):
            next(steps)
    """,
    "recursion": """
        def train(depth):
            for batch in range(3):
                if depth:
                    train(depth - 1)
                optimizer.step()
        train(2)
    """,
    "code without a file": """
        exec(compile("for epoch in range(3):\\n    optimizer.step()", "made-up.py", "exec"))
    """,
    "code in the name of its file": """
        exec(compile("for epoch in range(3):\\n    optimizer.step()", __file__, "exec"))
    """,
    "two trainings": """
        def train(epochs):
            for epoch in range(epochs):
                optimizer.step()
        train(3)
        train(10)
    """,
    "a function of the one around, that another within it calls too": """
        def caught(function):
            def twice():
                function()
                function()

            def inside():
                return function()
            return inside

        @caught
        def train():
            for epoch in range(3):
                optimizer.step()
        train()
    """,
    "another loop that trains": """
        def loss():
            return optimizer
        for epoch in range(3):
            optimizer.step()
        for epoch in range(9):
            loss().backward()
    """,
    "two loops that train in one epoch": """
        def loss():
            return optimizer
        for epoch in range(3):
            for batch in range(4):
                optimizer.step()
            for batch in range(2):
                loss().backward()
    """,
    "an exception that ends it": """
        class Enough(Exception):
            pass
        count = 0
        try:
            for number in range(100):
                optimizer.step()
                count += 1
                if count > 9:
                    raise Enough
        except Enough:
            pass
    """,
    "a step after each epoch": """
        for epoch in range(3):
            for batch in range(2):
                optimizer.step()
            optimizer.step()
    """,
    "folds": """
        for fold in range(5):
            for epoch in range(3):
                for batch in range(2):
                    optimizer.step()
    """,
    "a length of its own making": """
        class Batches(list):
            def __len__(self):
                raise SystemExit("asked")
        for batch in Batches([1, 2]):
            optimizer.step()
    """,
    "a property": """
        class Settings:
            @property
            def steps(self):
                global asked
                asked += 1
                return 7
        asked, settings = 0, Settings()
        for number in range(settings.steps):
            assert asked == 1
            optimizer.step()
            assert asked == 1
    """,
    "a count that the loop changes": """
        number = 0
        for number in range(10):
            number += 5
            optimizer.step()
    """,
    "a script that was edited since it began": """
        text = open(__file__).read()
        open(__file__, "w").write(text.replace("range(30)", "range(90)"))
        for epoch in range(30):
            optimizer.step()
    """,
    "a thread's": """
        import concurrent.futures
        def train():
            for number in range(10):
                optimizer.step()
        concurrent.futures.ThreadPoolExecutor(1).submit(train).result()
    """,
}


RESUMED = "for epoch in range(args.first, 9):\n    for batch in range(5):\n        optimizer.step()"
LOCALS = """
    import weakref

    class Tensor:
        pass

    def train():
        settings = vars(args)
        for epoch in range(2):
            batch = Tensor()
            kept = weakref.ref(batch)
            try:
                optimizer.step()
            except KeyboardInterrupt:
                del batch
                assert kept() is None, "a tensor of the first step is kept"
                raise

    train()
"""


def totals(folder: Path, scripts: dict[str, dict[str, Any]], python: Path = NEWEST) -> dict[str, Any]:
    """Run scripts to their first steps in one interpreter; return what was read of each, or how it failed."""
    for number, script in enumerate(scripts.values()):
        script["path"] = str(folder / f"train{number}.py")
        Path(script["path"]).write_text(textwrap.dedent(script.pop("text")).strip() + "\n")
    finished = subprocess.run(
        [str(python), str(BY_HAND)],
        input=json.dumps(scripts), capture_output=True, text=True, env={"PYTHONPATH": str(AGENT_PATH)}, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def test_loops_that_can_be_read_are_counted(tmp_path: Path, python: Path) -> None:
    assert totals(tmp_path, {name: {"text": text} for name, (text, _) in KNOWN.items()}, python) == {
        name: expected for name, (_, expected) in KNOWN.items()
    }


def test_what_is_in_doubt_is_unknown(tmp_path: Path, python: Path) -> None:
    found = totals(tmp_path, {name: {"text": text} for name, text in UNKNOWN.items()}, python)
    assert found == {name: {} for name in UNKNOWN}


def test_a_setting_that_ends_each_epoch_early_leaves_only_the_epochs(tmp_path: Path) -> None:
    script = {"text": BY_FUNCTION, "settings": {"dry_run": True}}
    assert totals(tmp_path, {"dry": script}) == {"dry": {"epochs": 3}}


def test_a_resumed_training_counts_the_epochs_made_before(tmp_path: Path) -> None:
    """By (the first epoch of its range, steps made before)."""
    expected: dict[str, dict[str, int]] = {
        "0 0": {"epochs": 9, "steps_per_epoch": 5, "total_steps": 45},
        "4 20": {"epochs": 9, "steps_per_epoch": 5, "total_steps": 45},
        "5 20": {"epochs": 8, "steps_per_epoch": 5, "total_steps": 40},
        "4 22": {"steps_per_epoch": 5},
        "4 0": {"steps_per_epoch": 5, "total_steps": 25},
    }
    scripts = {
        name: {"text": RESUMED, "settings": {"first": int(name.split()[0])}, "made": int(name.split()[1])}
        for name in expected
    }
    assert totals(tmp_path, scripts) == expected


def test_no_tensor_of_the_first_step_is_kept(tmp_path: Path, python: Path) -> None:
    expected = {"epochs": 2, "steps_per_epoch": 1, "total_steps": 2}
    assert totals(tmp_path, {"locals": {"text": LOCALS}}, python) == {"locals": expected}


LOADERS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

def log_every(batches):
    for batch in batches:
        yield batch

def train(epochs):
    number = 0
    for epoch in range(epochs):
        for (batch,) in loader:
            number += 1
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(30, 3)), 4, shuffle=True)
"""


def read_loops(attempt: Attempt, python: Path, script: str) -> list[tuple[Any, Any, Any]]:
    """Return epochs, steps of an epoch and total of each report that a training makes of its loops."""
    path = attempt.folder / "train.py"
    path.write_text(script + "train(3)\n")
    finished = attempt.run([python, path])
    assert finished.code == 0, finished.output
    assert not attempt.failures()
    loops = attempt.list_reports("loops")
    return [(fact.get("epochs"), fact.get("steps_per_epoch"), fact.get("total_steps")) for fact in loops]


@pytest.mark.train
def test_a_loader_s_batches_are_known_at_the_first_step(attempt: Attempt, train_python: Path) -> None:
    assert read_loops(attempt, train_python, LOADERS) == [(3, 8, 24)]


@pytest.mark.train
def test_batches_that_pass_through_a_generator_are_counted_over_the_first_epoch(
    attempt: Attempt, quickest_python: Path
) -> None:
    script = LOADERS.replace("in loader:", "in log_every(loader):")
    assert read_loops(attempt, quickest_python, script) == [(3, None, None), (3, 8, 24)]


@pytest.mark.train
def test_batches_that_make_no_step_each_leave_only_the_epochs(attempt: Attempt, quickest_python: Path) -> None:
    script = LOADERS.replace("        optimizer.step()", "        if number % 2: optimizer.step()")
    assert read_loops(attempt, quickest_python, script) == [(3, None, None)]


ACCUMULATED = """
import types
kind = type("GradientState", (), {"_shared_state": {"plugin_kwargs": SETTINGS}})
sys.modules["accelerate.state"] = types.SimpleNamespace(GradientState=kind)
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("settings", "steps"),
    [('{"num_steps": 3}', (3, 3, 9)), ('{"num_steps": 3, "sync_with_dataloader": False}', None), ("{}", None)],
    ids=["the rest as one", "over the end", "by hand"],
)
def test_steps_of_several_batches_are_known_after_an_epoch_where_accelerate_was_set_to_make_them(
    settings: str, steps: tuple[int, int, int] | None, attempt: Attempt, quickest_python: Path
) -> None:
    stepping = "        if number % 8 in (0, 3, 6): optimizer.step()"
    script = LOADERS.replace("        optimizer.step()", stepping) + ACCUMULATED.replace("SETTINGS", settings)
    assert read_loops(attempt, quickest_python, script) == [(3, None, None), *([steps] if steps else [])]
