"""What a job of loops_by_optimizer.py told of itself, held against the supervisor's record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from house import House

LOOP = Path(__file__).with_name("loops_by_optimizer.py")
KINDS = ("sgd", "momentum", "adam", "adafactor", "lbfgs", "own")


@dataclass(frozen=True, slots=True)
class Life:
    """One attempt by the script's own account."""

    resumed_at: int
    last_step: int


def lives(folder: Path) -> list[Life]:
    """Return the attempts of a job, oldest first, as its script wrote them down."""
    found: list[Life] = []
    for line in (folder / "made.log").read_text().splitlines():
        word, number = line.split()
        if word == "resumed":
            found.append(Life(int(number), int(number)))
        else:
            found[-1] = Life(found[-1].resumed_at, int(number))
    return found


def job(home: House, python: Path, kind: str, kills: int, *options: str, by_command: bool = False) -> str:
    """Return the configuration of a loop that is killed so often, and resumes its own file or by a command."""
    folder = home.folder / kind
    command = [str(python), str(LOOP), "--kind", kind, "--folder", str(folder), "--kills", str(kills), *options]
    table = f'[jobs.{kind}.checkpoints]\npaths = ["{folder}/*.pt"]\n'
    table += f"[jobs.{kind}.budget]\nbackoff_s = [0.0]\nrestarts = 1\nrestarts_per_cause = 1\n"
    table += "restarts_per_period = 1000\n"
    if by_command:
        words = ", ".join(f'"{item}"' for item in [*command, "--resume", "{checkpoint}"])
        table += f"[jobs.{kind}.resume]\ncommand = [{words}]\n"
    return home.job_of(kind, command, table)


def differences(home: House, kind: str) -> list[str]:
    """Return what the record says otherwise than the script, one line each; empty where all is told right."""
    made, incidents, wrong = lives(home.folder / kind), home.incidents(kind), []
    if len(incidents) != len(made) - 1:
        wrong.append(f"{len(incidents)} incidents for {len(made) - 1} kills")
    for incident, before, after in zip(incidents, made, made[1:], strict=False):
        lost = max(0, before.last_step - after.resumed_at)  # it may go on from further: an older one was tried before
        reported = (incident["last_step"], incident["lost_steps"], incident["outcome"])
        if reported != (before.last_step, lost, "resumed" if incident["resumed_from"] else "restarted"):
            wrong.append(f"{incident['id']}: told {reported}, made {before} then {after}: {lost} lost")
    status = home.job(kind)
    if status["step"] != made[-1].last_step:
        wrong.append(f"status tells step {status['step']}, made {made[-1].last_step}")
    return wrong
