"""Wounds real trainings under the real daemon, on a card where there is one, and checks how each came back.

    python tests/bench/gpu_recovery.py --train-python PYTHON [--device cuda|cpu] [--only loop-oom yolo-nan ...]
                                       [--json FILE] [--limit-s SECONDS]

A loop of somebody's own with snapshots, and ultralytics' YOLOv8n on generated thermal-like images, each out of the
card's memory, in a kernel that never ends, in memory that nobody has, killed by SIGKILL while it holds memory,
and with a batch that is no number. Checked of each: found and classed rightly, evidence there (the card's readings
and the kernel's log too), resumed from a proven state, at most an interval and a step of work lost, the card free of
the dead before the next start (sampled by NVML, not through the daemon), the remedy, and the training's end. Then a
NaN that was given up is triaged on the same device, and must be called data. One training at a time: law 7 is about
who holds the card. On a CPU the wounds are those that it can have, and out of memory is an exception raised by hand.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from gpu_memory import GpuMemory  # noqa: E402 (after the path is set)
from house import House, house  # noqa: E402
from injected_runs import say  # noqa: E402
from recovery_checks import Check, Must, Reported, checks  # noqa: E402

HERE = Path(__file__).parent
IMAGES = HERE.parent / "demo" / "images.py"
DRAW = HERE.parent / "agent" / "draw_images.py"
EVERY_S = {"loop": 1.0, "yolo": 2.0}
STALL_S = 8.0
BUSY = "hold_s = 6.0"
RESTART = frozenset({"restart"})
MUST = {
    "oom": Must(found=frozenset({("crash", "oom_gpu")}), remedies=frozenset({"half_batch"})),
    "spin": Must(found=frozenset({("stall", None), ("busy_without_progress", None)}), remedies=RESTART),
    "illegal": Must(found=frozenset({("crash", "illegal_access")}), remedies=RESTART),
    "sigkill": Must(found=frozenset({("crash", "killed_by_signal")}), remedies=RESTART),
    "nan": Must(found=frozenset({("non_finite_loss", None)}), remedies=frozenset({"skip_step"})),
}
TRIAGE = "triage"
NAMES = [f"{kind}-{wound}" for wound in (*MUST, TRIAGE) for kind in EVERY_S]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is trained, by device."""

    loop: tuple[int, int] = (100, 200)
    """Step of the wound, steps in all."""
    yolo: tuple[int, int, int, int, int] = (38, 4, 16, 320, 256)
    """Batch of the wound, epochs, images in a batch, pixels, images in all."""


SIZES = {"cuda": Size(), "cpu": Size(yolo=(22, 4, 2, 64, 16))}


class Ward:
    """One daemon, and the trainings that come to it one after the other."""

    def __init__(self, home: House, python: str, device: str) -> None:
        self._house, self._python, self._device = home, python, device
        self._size = SIZES[device]
        self._card = GpuMemory() if device == "cuda" else None

    def open(self, names: list[str]) -> None:
        """Start the daemon with every job that may be asked for."""
        if any(name.startswith("yolo") for name in names):
            *_, size, images = self._size.yolo
            data = self._house.folder / "data"
            subprocess.run([self._python, str(DRAW), str(data), str(images), str(size)], check=True)
        head = "[telemetry]\ninterval_s = 0.25\n[kernel_log]\nenabled = true\n"
        self._house.write(head + "\n".join(map(self._job, names)))
        self._house.start()
        if self._card is not None:
            self._card.start()

    def close(self) -> None:
        """End the sampling; the daemon is the house's."""
        if self._card is not None:
            self._card.end()

    def treat(self, name: str, limit_s: float) -> list[Check]:
        """Have one training wounded and wait for its end; return what was checked."""
        kind, _, wound = name.partition("-")
        self._house.client.post(f"/v1/jobs/{name}/start")
        try:
            self._house.phase(name, "finished", "failed", limit_s=limit_s)
        except AssertionError as error:
            self._house.client.post(f"/v1/jobs/{name}/stop")
            self._house.nothing_runs(60)
            return [Check(name="finished", met=False, words=str(error))]
        if wound == TRIAGE:
            return [self._triage(name)]
        reported = Reported(
            house=self._house, job=name, wound=wound, must=self._must(wound), every_s=EVERY_S[kind], card=self._card
        )
        return list(checks(reported))

    def _must(self, wound: str) -> Must:
        return MUST[wound]

    def _triage(self, name: str) -> Check:
        incidents = self._house.incidents(name)
        if not incidents:
            return Check(name=TRIAGE, met=False, words="no incident")
        answer = self._house.ctl("--json", "triage", incidents[0]["id"], limit_s=300)
        if answer.returncode:
            return Check(name=TRIAGE, met=False, words=answer.stderr)
        output: dict[str, Any] = json.loads(answer.stdout)
        finding = output["finding"]
        where = "/".join(str(replay["device"]) for replay in output["replays"])
        names = [Path(file).name for file in finding["files"]]
        met = finding["verdict"] == "data" and (name.startswith("loop") or names == ["3.png"])
        met = met and all(str(replay["device"]).startswith(self._device) for replay in output["replays"][:1])
        words = f"{finding['verdict']}: {finding['words']} {names or ''} (replayed on {where})"
        return Check(name=TRIAGE, met=met, words=words)

    def _job(self, name: str) -> str:
        kind, _, wound = name.partition("-")
        folder = self._house.folder / name
        folder.mkdir()
        words = [self._python, str(HERE / f"wounded_{kind}.py"), "nan" if wound == TRIAGE else wound]
        words += ["--device", self._device, "--folder", str(folder), *self._how_much(kind)]
        env = {"OMP_NUM_THREADS": "1", "YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true", "HOME": str(folder)}
        table = "autostart = false\nenv = { " + ", ".join(f'{key} = "{value}"' for key, value in env.items()) + " }\n"
        table += f'snapshot_every_s = {EVERY_S[kind]}\nconv2d = "off"\nkill_wait_s = 30\n'
        rules = {"stall": f"limit_s = {STALL_S}"} if kind == "loop" or self._device == "cpu" else {}
        rules |= {"busy_without_progress": BUSY} if kind == "yolo" else {}
        restarts = 0 if wound == TRIAGE else 4
        tail = f"[jobs.{name}.budget]\nbackoff_s = [0.0]\nrestarts = {restarts}\n"
        tail += f'[jobs.{name}.remedies]\nlearn = false\noom_gpu = ["half_batch", "half_batch"]\n'
        return self._house.job_of(name, words, table, **rules) + tail

    def _how_much(self, kind: str) -> list[str]:
        if kind == "loop":
            at, steps = self._size.loop
            return ["--at", str(at), "--steps", str(steps)]
        at, epochs, batch, size, _ = self._size.yolo
        words = {"--at": at, "--epochs": epochs, "--batch": batch, "--size": size}
        data = str(self._house.folder / "data" / "data.yaml")
        return ["--data", data, *(text for pair in words.items() for text in map(str, pair))]


def main() -> None:
    """Wound, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-s", type=float, default=1e9, help="no training is started after it")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s = time.monotonic()  # noqa: TID251 - how long the whole may take
    found: dict[str, list[Check]] = {}
    with tempfile.TemporaryDirectory(prefix="recovery-") as place, house(Path(place)) as item:
        ward = Ward(item, given.train_python, given.device)
        ward.open(given.only)
        for name in given.only:
            if time.monotonic() - began_s > given.limit_s:  # noqa: TID251 - the same
                say(f"{name}: not begun, the time is over")
                continue
            found[name] = ward.treat(name, 240)
            for check in found[name]:
                say(f"{name:<13} {check.name:<9} {'met' if check.met else 'NOT MET':<8} {check.words}")
            if given.json is not None:
                given.json.write_text(json.dumps({job: [asdict(two) for two in all_] for job, all_ in found.items()}))
        ward.close()
    met = [all(check.met for check in found.get(name, ())) and name in found for name in given.only]
    say(f"\n{sum(met)} of {len(met)} trainings came back as they must, on {given.device}")
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
