"""A tune, its stop and its `--undo` as acts over which a daemon is killed (`killed_acts.py`)."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from killed_scene import Scene, lay_out

from supervisor.control.client import ControlError
from supervisor.daemon.tunes.tune import LEASE_S
from supervisor.runner import tuned
from tests.e2e.house import House
from tests.rigs.killing_disk import KillingDisk

ROOT = Path(__file__).resolve().parents[2]
ROUNDING = 1e-4
"""How far losses lie apart at most, relative, where the same is added in another order."""


def prepare_tune(home: House, disk: KillingDisk) -> None:
    """Run a training that waits for its data, and that prints its losses and the settings that hold."""
    lay_out(home, disk, home.job_of("one", starved_command()))
    home.start()
    home.step("one", 20, limit_s=60)


def prepare_undo(home: House, disk: KillingDisk) -> None:
    """Run one with what a tune has adopted for it."""
    folder = disk.real / "state" / "jobs" / "one"
    folder.mkdir(parents=True, mode=0o700)
    tuned.keep(folder, starved_command(), {"adopted": [{"knob": "workers", "value": 2}]}, {})
    prepare_tune(home, disk)
    home.until(lambda: settings_printed(home)[-1:] == ["2"], 60, "the workers that were adopted")


WITHOUT_WAITS = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "bench")!r})
import starved_training
starved_training.SLEEP_S = 0
starved_training.main()
"""


def starved_command(steps: int = 1_000_000) -> list[str]:
    """Return the command of that training."""
    python = os.environ["ROCM_SUPERVISOR_TRAIN_PYTHON"]
    return [python, str(ROOT / "tests" / "bench" / "starved_training.py"), "cpu", str(steps), "8"]


def tune(home: House) -> None:
    """Have it tuned."""
    ask_tune(home, for_s=60, steps=1000)


def stop_tune(home: House) -> None:
    """Have it tuned, and end that once something is tried."""
    tune(home)
    home.until(lambda: is_trying(home) or home.daemon is None or home.daemon.poll() is not None, 60, "a trial")
    ask_tune(home, stop=True)


def ask_tune(home: House, **given: object) -> None:
    """Ask for it of a daemon that may be killed over it."""
    with suppress(ControlError):
        home.client.post("/v1/jobs/one/tune", **given)


def is_trying(home: House) -> bool:
    """Whether settings are lent to the training."""
    order = read_order(home)
    return order is not None and bool(order["settings"])


def is_tuned(home: House) -> bool:
    """Whether the tune is over."""
    return bool(home.client.get("/v1/jobs/one/tune")["state"] == "ended")


def is_undone(home: House) -> bool:
    """Whether nothing is ordered nor kept."""
    return read_order(home) is None and tuned.read_kept(home.state / "jobs" / "one") is None


def read_order(home: House) -> dict[str, Any] | None:
    """Return what the agent of the first attempt is to hold."""
    try:
        found: dict[str, Any] = json.loads((home.state / "jobs" / "one" / "1" / "tune.json").read_text())
    except FileNotFoundError:
        return None
    return found


def lines_printed(home: House) -> list[list[str]]:
    """Return the words of each whole line: the loss, and the settings as the training finds them."""
    printed = (home.state / "jobs" / "one" / "1" / "run" / "output.log").read_text().splitlines()[:-1]
    return [line.split() for line in printed if line[:1].isdecimal()]


def settings_printed(home: House) -> list[str]:
    """Return the settings of the newest step."""
    return (lines_printed(home) or [[]])[-1][1:]


def look_at_tune(home: House, _: KillingDisk) -> None:
    """Assert that what holds is the owner's or kept, that it can be undone, and that no loss is another for it."""
    owned, folder = lines_printed(home)[0][1:], home.state / "jobs" / "one"
    home.until(lambda: is_settled(home, owned), LEASE_S + 30, f"{owned} or what is kept to hold")
    order = read_order(home)
    if order is not None and order["until_ns"] is None:
        assert {row["knob"]: row["value"] for row in kept_of(folder)} == order["settings"]
    assert home.job("one")["attempt"] == 1
    ask_tune(home, undo=True)
    home.until(lambda: settings_printed(home) == owned, 60, f"{owned} to hold after an undo")
    assert is_undone(home)
    check_losses(lines_printed(home), owned)
    os.kill(home.job("one")["pid"], signal.SIGKILL)
    home.step("one", 5, attempt=2, limit_s=60)
    assert not (folder / "2" / "tune.json").exists(), "the next attempt has what was undone"


def check_losses(lines: list[list[str]], owned: list[str]) -> None:
    """Assert that the losses are those without a tune: equal, until a knob other than workers has been tried.

    Another layout adds in another order, and so do weights that were trained with it: from there on they are close.
    """
    found, alone = [words[0] for words in lines], losses_alone(len(lines))
    tried = (number for number, words in enumerate(lines) if words[1:-1] != owned[:-1])
    first = next(tried, len(lines))
    assert found[:first] == alone[:first], "losses differ"
    pairs = zip(map(float, found[first:]), map(float, alone[first:]), strict=True)
    assert all(math.isclose(loss, other, rel_tol=ROUNDING) for loss, other in pairs), "losses are not close"


def is_settled(home: House, owned: list[str]) -> bool:
    """Whether the training holds the owner's settings, or those that are ordered for good."""
    order = read_order(home)
    if order is not None and order["until_ns"] is None and order["settings"]:
        return settings_printed(home) != owned
    return settings_printed(home) == owned


def kept_of(folder: Path) -> list[dict[str, Any]]:
    """Return what a tune has adopted for a job."""
    kept = tuned.read_kept(folder)
    return [] if kept is None else kept["report"]["adopted"]


def losses_alone(steps: int) -> list[str]:
    """Return the losses of a training that no daemon knows, and that waits for no data."""
    python, _, *words = starved_command(steps)
    done = subprocess.run([python, "-c", WITHOUT_WAITS, *words], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in done.stdout.splitlines()]


TUNES = {
    "tune": Scene(prepare=prepare_tune, act=tune, is_over=is_tuned, look=look_at_tune),
    "tune_stop": Scene(prepare=prepare_tune, act=stop_tune, is_over=is_tuned, look=look_at_tune),
    "tune_undo": Scene(
        prepare=prepare_undo, act=lambda home: ask_tune(home, undo=True), is_over=is_undone, look=look_at_tune
    ),
}
