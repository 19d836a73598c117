"""A daemon with no memory for another thread goes on judging, and makes up for what waited once there is room."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House, house

STALL_S = 2.0
HANGS_AT = 400
TOO_LITTLE_BYTES = 10_000_000
"""Less than what the daemon has mapped already: no thread gets a stack."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as item:
        item.write(
            "[telemetry]\ninterval_s = 0.5\n"
            + item.by_hand("night", "--wound", f"hang:{HANGS_AT}", stall=f"limit_s = {STALL_S}")
        )
        yield item


def problem(home: House) -> object:
    """What the daemon says is wrong with it; "no answer" where it gives none."""
    status = home.status()
    return "no answer" if status is None else status["daemon"]["problem"]


def limit_memory(home: House, *, free: bool) -> None:
    assert home.daemon is not None
    status = Path(f"/proc/{home.daemon.pid}/status").read_text().splitlines()
    mapped = int(next(line for line in status if line.startswith("VmSize")).split()[1]) * 1024
    soft = resource.RLIM_INFINITY if free else mapped - TOO_LITTLE_BYTES
    resource.prlimit(home.daemon.pid, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


def test_a_hang_is_ended_and_resumed_once_there_is_room_for_a_thread_again(home: House) -> None:
    home.start()
    home.step("night", 30)
    limit_memory(home, free=False)
    home.until(lambda: "decision.stop" in home.log.read_text(), 40, "the hang to be decided on")
    limit_memory(home, free=True)
    home.resumed("night")
    home.until(lambda: problem(home) is None, 30, "the problem to be over")
    assert [incident["rule"] for incident in home.incidents("night")] == ["stall"]
    home.until(lambda: home.steps_recorded("night") >= HANGS_AT - 1, 30, "every step to be recorded")
    passed_by = [item for item in home.job("night")["degraded"] if "passed by" in item]
    assert passed_by == [], "what the training reported meanwhile was done later"
