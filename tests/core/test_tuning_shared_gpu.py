"""A GPU on which another program computes is named before a tune takes what that does for an effect of settings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess, GpuReading, ProcessReading
from supervisor.core.tuning.shared_gpu import LEAST_BYTES, find_other_program

START = Moment(1000.0, 1_800_000_000.0)
GPU, NEXT = "0000:03:00.0", "0000:0a:00.0"
GIB = 1 << 30
OWN = GpuProcess(pid=70, name="python", vram_bytes=4 * GIB)
RANK = GpuProcess(pid=71, name="python", vram_bytes=4 * GIB)
OTHER = GpuProcess(pid=99, name="jupyter", vram_bytes=10 * GIB)


def history(listed: Sequence[GpuProcess] | None, *, gpu: str = GPU, read_s_ago: float = 5.0) -> History:
    """Return that of a training of the processes 70 and 71, on one GPU with these processes."""
    made = History(now=START, launched_at=START, gpus_used=(GPU,))
    read, processes = START.plus(100.0 - read_s_ago), None if listed is None else tuple(listed)
    tree = ProcessReading(at=read, processes=2, pids=(70, 71))
    made.add(ev.ProcessesRead(at=read, job="one", attempt=1, reading=tree))
    gpus = (GpuReading(at=read, gpu=gpu, source="sysfs", processes=processes),)
    made.add(ev.GpusRead(at=read, readings=gpus))
    made.now = START.plus(100.0)
    return made


def test_another_program_is_named_with_the_memory_that_it_holds() -> None:
    found = find_other_program(history([OWN, RANK, OTHER]))
    assert found == f"process 99 (jupyter, 10.0 GiB) uses its GPU {GPU} too"
    assert find_other_program(history([OWN, GpuProcess(pid=99)])) == f"process 99 uses its GPU {GPU} too"


@pytest.mark.parametrize(
    "known",
    [
        history([OWN, RANK]),
        history([OWN, GpuProcess(pid=99, name="mps-server", vram_bytes=LEAST_BYTES - 1)]),
        history([OWN, OTHER], gpu=NEXT),
        history([OTHER]),
        history(None),
        history([OWN, OTHER], read_s_ago=70.0),
    ],
    ids=["alone", "a server", "another GPU", "numbers of another namespace", "not listed", "old"],
)
def test_nothing_is_named_where_it_is_alone_or_nothing_is_known(known: History) -> None:
    assert find_other_program(known) is None
