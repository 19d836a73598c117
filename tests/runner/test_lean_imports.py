"""What a probed command imports and hardly uses runs once it is used, and then as if it had run at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.runner.loaded_probe import LoadedProbe
from supervisor.runner.memory_probe import Command, WhatIf

AGENT = Path(__file__).parents[2] / "supervisor/agent/path"
PACKAGE = {
    "__init__.py": "print('heavy runs')\n"
    "from .shapes import Shape, area\nfrom .names import *\nVERSION = 3\n__version__ = '3.1'\n",
    "shapes.py": "from . import units\nfrom .errors import ShapeError\n"
    "class Shape:\n    side = 2\n    def __eq__(self, other): return type(other) is Shape\n    __hash__ = None\n"
    "def area(shape, factor=1):\n    'Return it.'\n    return shape.side ** 2 * units.SCALE * factor\n",
    "units.py": "import heavy.shapes\nSCALE = 10\n",
    "errors.py": "class ShapeError(ValueError): pass\n",
    "names.py": "__all__ = ['call_name']\ndef call_name(): return __name__\n",
    "late.py": "def count(): return 5\n",
}
PROGRAM = """
import sys
if len(sys.argv) > 1:
    from rocm_agent.memory import lean_imports
    lean_imports.begin(["heavy"])
import heavy, heavy.late
from heavy import Shape, area, call_name
from heavy.late import count
import importlib.util, inspect, json, pickle, threading, typing
def sides(shape: typing.Optional[Shape] = None) -> "Shape | int": ...
module, path = sys.modules["heavy"], importlib.util.find_spec("heavy").origin
before = [isinstance(3, Shape), issubclass(int, Shape), isinstance("x", (int, Shape)), path == heavy.__file__]
names = Shape.__name__, Shape.__qualname__, Shape.__module__, area.__name__, area.__module__, heavy.__package__
print("imported")
class Square(Shape):
    side = 3
threads = [threading.Thread(target=lambda: found.append(area(Square()))) for _ in range(4)]
found = []
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({
    "before": before, "names": names, "found": found, "call_name": call_name(), "count": count(),
    "same": [module is sys.modules["heavy"], module is heavy, type(heavy).__name__, Shape is heavy.Shape,
             area is heavy.shapes.area, type(Shape()) is Shape, isinstance(Square(), Shape)],
    "pickled": [pickle.loads(pickle.dumps(value)) is value for value in (Shape, area, Square)],
    "signature": str(inspect.signature(area)), "doc": area.__doc__, "version": [heavy.VERSION, heavy.__version__],
    "names_in": sorted(name for name in vars(heavy) if not name.startswith("_")),
    "annotated": str(typing.get_type_hints(heavy.shapes.area)), "missing": hasattr(heavy, "nothing"),
    "initializing": getattr(heavy.__spec__, "_initializing", False), "loader": type(heavy.__loader__).__name__,
}))
"""


def run(folder: Path, program: str, *words: str) -> list[str]:
    """Return the lines that a program prints, which imports the package."""
    (folder / "heavy").mkdir(exist_ok=True)
    for name, text in PACKAGE.items():
        (folder / "heavy" / name).write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{AGENT}"}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_package_that_waits_runs_once_it_is_used_and_is_then_what_it_would_have_been(tmp_path: Path) -> None:
    *plain, expected = run(tmp_path, PROGRAM)
    *lean, found = run(tmp_path, PROGRAM, "lean")
    assert plain == ["heavy runs", "imported"]
    assert lean == ["imported", "heavy runs"]
    assert json.loads(found) == json.loads(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "heavy.VERSION",
        "heavy.__version__",
        "from heavy.errors import ShapeError; ShapeError.__mro__",
        "from heavy.shapes import units",
        "heavy.VERSION = 4; assert heavy.VERSION == 4; heavy.area(heavy.Shape())",
        "{Shape: 1}[heavy.Shape]; assert heavy.Shape in {Shape: 1}",
        "vars(heavy)['Shape']",
        "import copy; assert copy.deepcopy(Shape) is heavy.Shape",
    ],
)
def test_whatever_is_asked_of_it_has_it_run_first(tmp_path: Path, use: str) -> None:
    begin = (
        "import sys\nif sys.argv[1:]:\n from rocm_agent.memory import lean_imports\n lean_imports.begin(['heavy'])\n"
    )
    program = f"{begin}import heavy\nfrom heavy import Shape\nprint('imported')\n{use}\nprint('used')\n"
    assert run(tmp_path, program) == ["heavy runs", "imported", "used"]
    lean = run(tmp_path, program, "lean")
    assert sorted(lean) == ["heavy runs", "imported", "used"]
    assert lean.index("heavy runs") < lean.index("used")


TRAINER = """
import json, os, sys, torch, transformers
sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 1}
torch.manual_seed(3)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
rows = [{"input_ids": torch.arange(8) + row, "labels": torch.arange(8) + row} for row in range(40)]
settings = transformers.TrainingArguments(
    output_dir=sys.argv[1], max_steps=int(sys.argv[2]), per_device_train_batch_size=4, use_cpu=True, report_to=[],
    save_strategy="no", logging_steps=1, disable_tqdm=True,
)
trainer = transformers.Trainer(model=model, args=settings, train_dataset=rows)
HEAVY = "sympy.core", "scipy.linalg", "sklearn.base", "torch._dynamo.symbolic_convert", "torch._inductor.utils"
class Report(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            print("imported:", [name for name in HEAVY if name in sys.modules], len(sys.modules), flush=True)
trainer.add_callback(Report())
trainer.train()
print("losses:", [row["loss"] for row in trainer.state.log_history if "loss" in row], flush=True)
"""


@pytest.mark.train
@pytest.mark.whole_torch(reason="what a probe imports of it")
def test_a_training_of_transformers_is_probed_without_what_it_only_imports_and_makes_the_same_steps(
    foreign_python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    command = [str(foreign_python), str(script), str(tmp_path / "out")]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    whole = subprocess.run([*command, "3"], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    with LoadedProbe(Command(argv=[*command, "90"], cwd=str(tmp_path), env={}, limit_s=120.0)) as probes:
        found = probes.probe(WhatIf(batch=8, configured=4, timed=True, steps=6))
    assert (found.point is not None and found.point.batch, found.way, probes.why_alone) == (8, "forked", "")
    begin = f"import sys\nsys.path.insert(0, {str(AGENT)!r})\nfrom rocm_agent.memory import lean_imports, lean_torch\n"
    script.write_text(
        f"{begin}lean_torch.begin()\nlean_imports.begin()\nimport torch\nlean_imports.leave_compiler(torch)\n{TRAINER}"
    )
    lean = subprocess.run([*command, "3"], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert read(lean, "losses") == read(whole, "losses")
    (imported, count), (all_imported, all_count) = (read_imported(text) for text in (lean, whole))
    assert imported == []
    assert "torch._dynamo.symbolic_convert" in all_imported
    assert count < 0.75 * all_count
    assert read_imported(found.output)[0] == []


def read(text: str, name: str) -> str:
    """Return what a line of the training says."""
    return next(line for line in text.splitlines() if line.startswith(f"{name}:"))


def read_imported(text: str) -> tuple[list[str], int]:
    """Return which of the heavy modules it had imported after a step, and how many in all."""
    names, _, count = read(text, "imported").removeprefix("imported: ").rpartition(" ")
    found: Any = json.loads(names.replace("'", '"'))
    return found, int(count)


@pytest.mark.train
@pytest.mark.whole_torch(reason="what a probe imports of it")
def test_a_command_that_fails_where_a_package_waits_is_probed_with_it_imported(
    foreign_python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sympy, sys, torch\n"
        "if type(sys.modules['sympy']).__name__ != 'module': raise SystemExit('sympy is not as it was')\n"
        "print('loaded', flush=True)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for row in torch.utils.data.DataLoader(torch.ones(400, 4), batch_size=8):\n"
        "    optimizer.zero_grad(); model(row).sum().backward(); optimizer.step()\n"
    )
    command = Command(argv=[str(foreign_python), str(script)], cwd=str(tmp_path), env={}, limit_s=90.0)
    with LoadedProbe(command) as probes:
        ways = [probes.probe(WhatIf(batch=count, configured=8, timed=True)).way for count in (16, 24, 32)]
        assert (ways, probes.why_alone) == (["alone", "forked", "further"], "")
