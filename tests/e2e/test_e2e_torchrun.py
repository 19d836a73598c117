"""Two ranks under the real torchrun (gloo, CPU): the first failure of a rank is found, told and treated as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from house import House

from tests.conftest import interpreter

pytestmark = pytest.mark.train

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist

kinds, scars = sys.argv[1].split(","), Path(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(1, 400):
    optimizer.zero_grad()
    layer(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.zeros(1))
    time.sleep(0.02)
    made = len(scars.read_text()) if step == 20 and rank == 1 else len(kinds)
    if made < len(kinds):
        kind = kinds[made]
        scars.write_text((made + 1) * "x")
        if kind == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                                         "of 5.98 GiB of which 1.10 GiB is free.")
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("label 81 is beyond the classes")
"""


@pytest.mark.parametrize(
    ("environment", "failures"),
    [
        (
            "current",
            {
                "memory": "rank 1: OutOfMemoryError: CUDA out of memory.",
                "killed": "was killed by SIGKILL, as its launcher reports",
            },
        ),
        ("owner", {"data": "rank 1: ValueError: label 81 is beyond the classes"}),
    ],
    ids=["memory, then killed", "data"],
)
def test_the_first_failure_of_a_rank_is_the_cause(home: House, environment: str, failures: dict[str, str]) -> None:
    """Each attempt has one of these failures; the last has none."""
    program, scars = home.folder / "program.py", home.folder / "scars"
    program.write_text(PROGRAM)
    scars.touch()
    torchrun = str(interpreter(environment).with_name("torchrun"))
    words = [torchrun, "--standalone", "--nproc_per_node", "2", str(program), ",".join(failures), str(scars)]
    home.write(home.job_of("one", words, 'env = { OMP_NUM_THREADS = "1" }\nbudget.backoff_s = [0.0]'))
    home.start()
    home.step("one", 5, attempt=1 + len(failures), limit_s=120)
    for incident, kind in zip(home.incidents("one"), failures, strict=True):
        assert failures[kind] in incident["message"], incident
        assert incident["cause"] == ("oom_gpu" if kind == "memory" else "crash")
        if kind == "memory":
            assert incident["remedy"] == "allocator"
            assert appliers(home.state / "jobs" / "one" / "2") == {0, 1}, "the remedy reaches every rank"


def appliers(attempt: Path) -> set[int]:
    """Return the ranks that told of a remedy that they made."""
    output = map(json.loads, next(attempt.rglob("agent.jsonl")).read_text().splitlines())
    return {report["rank"] for report in output if report["event"] == "remedy_applied"}
