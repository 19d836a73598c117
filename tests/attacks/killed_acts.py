"""Kills the daemon at each change that an act asks of its disk, and looks whether the act is whole after a restart.

    python tests/attacks/killed_acts.py [--scene reload] [--every 1] [--from 1] [--only 17]

The whole state lies on a file system of ours (`tests/rigs/killing_disk.py`) that counts what is asked of it: files and
folders made, written, synced, cut off, renamed, linked and removed. A scene is one act: a reload that adds, changes and
removes jobs; a checkpoint that is captured and proven, and one that is pruned for it; a stop; a resume;
`supervisorctl forget`; a retry after NaN, with a triage and without; two out of memory, each with half the batch; the
expiry of old rows; a tune, its stop and its `--undo`; the upgrade of an older record. First it is played without a
kill, which says of how many changes it is; then the daemon is killed at the first, at the second, and so on. After each
a new daemon is started, and nothing may be lost, doubled or half.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from killed_faults import FAULTS  # noqa: E402 (after the path is set)
from killed_scene import ANSWERED, Scene, ask, decisions, goes_on, lay_out, processes_with  # noqa: E402
from killed_tunes import TUNES  # noqa: E402

from supervisor.control.client import ControlError  # noqa: E402
from supervisor.runner.code_copy import FOLDER, CodeCopies  # noqa: E402
from supervisor.store import schema  # noqa: E402
from tests.e2e.house import House, house  # noqa: E402
from tests.rigs.killing_disk import KillingDisk, killing  # noqa: E402
from tests.rigs.laid_code import lay_code  # noqa: E402

DATABASES = ROOT / "tests" / "store" / "databases"
OLDEST = "0001_initial"
SAVE_EVERY = 25


# --- a reload ---------------------------------------------------------------------------------------------------------


def prepare_reload(home: House, disk: KillingDisk) -> None:
    """Run two jobs, and write a configuration that changes one of them, removes the other and adds a third."""
    lay_out(home, disk, home.by_hand("changed", table="checkpoints.keep = false") + removed(home))
    home.start()
    for name in ("changed", "removed"):
        home.step(name, 30)
    lay_out(home, disk, changed(home) + home.by_hand("added"))


def changed(home: House) -> str:
    """Return the job that is changed, as it is after that."""
    return home.by_hand("changed", table="checkpoints.keep = false\nkill_wait_s = 7")


def removed(home: House) -> str:
    """Return the job that is removed."""
    return home.by_hand("removed", table="checkpoints.keep = false")


def is_reloaded(home: House) -> bool:
    """Whether the jobs are those of the new configuration, each with steps."""
    jobs = {job["name"]: job for job in (home.status() or {"jobs": []})["jobs"]}
    return jobs.keys() == {"changed", "added"} and (jobs["added"]["step"] or 0) > 0


def look_at_reload(home: House, disk: KillingDisk) -> None:
    """Assert that the jobs are those of the file, that of the removed one nothing runs, and no other was restarted."""
    home.until(lambda: is_reloaded(home), 60, "the jobs of the new configuration")
    for name in ("changed", "added"):
        goes_on(home, name)
        assert decisions(home, name).count("launch") == 1, decisions(home, name)
        assert home.job(name)["attempt"] == 1
    assert home.incidents() == []
    if not (home.folder / ANSWERED).exists() and running(home, "removed"):
        # As one that was left out of the configuration of a start: nothing that runs is ended for that.
        lay_out(home, disk, changed(home) + home.by_hand("added") + removed(home))
        home.client.post("/v1/reload")
        goes_on(home, "removed")
        assert home.job("removed")["attempt"] == 1
        return
    home.until(lambda: not running(home, "removed"), 60, "nothing of the removed job to run")
    home.until(lambda: home.recorded_phase("removed") == "stopped", 60, "the removed job to be recorded as stopped")


def running(home: House, name: str) -> list[int]:
    """Return the processes of a job's attempts."""
    return processes_with(str(home.state / "jobs" / name))


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def prepare_save(home: House, disk: KillingDisk) -> None:
    """Run a training up to the step before its first save."""
    lay_out(home, disk, home.by_hand("one", "--every-s", "0.1", "--pause", f"{SAVE_EVERY}:{home.folder / 'go'}"))
    home.start()
    home.step("one", SAVE_EVERY - 1)


def save(home: House) -> None:
    """Let it go on."""
    (home.folder / "go").touch()


def is_saved(home: House) -> bool:
    """Whether its first save was captured and proven."""
    return home.proven("one") != []


def look_at_save(home: House, _: KillingDisk) -> None:
    """Assert that generations are whole, each once, and that a training that is killed goes on from its newest save."""
    goes_on(home, "one")
    kept = [item for item in home.checkpoints("one") if item["source"] is not None]
    counted = Counter(item["step"] for item in kept)
    assert set(counted.values()) == {1}, f"generations by step: {counted}"
    for item in kept:
        try:
            held = struct.unpack("<f", Path(item["path"]).read_bytes()[-4:])[0]
        except FileNotFoundError:
            continue  # it has been pruned since
        assert held == item["step"], f"{item['path']} holds step {held}"
    assert not [item for item in home.checkpoints("one") if item["verdict"] == "rejected"]
    home.until(lambda: not list(home.state.glob("jobs/one/generations/.taking-*")), 30, "no half copy to be left")
    os.kill(home.job("one")["pid"], signal.SIGKILL)
    assert_resumed_from_newest(home.resumed("one"))


def assert_resumed_from_newest(incident: dict[str, Any]) -> None:
    """Assert that a training went on from its newest save."""
    newest = incident["last_step"] // SAVE_EVERY * SAVE_EVERY
    unsaved = SAVE_EVERY if newest == incident["last_step"] else 0  # it was killed between that step and its save
    assert incident["resumed_from"]["step"] in (newest, newest - unsaved), incident


# --- what is left of a removed job ------------------------------------------------------------------------------------


def prepare_forget(home: House, disk: KillingDisk) -> None:
    """Run two jobs, of which one is killed once, then stop that one and remove it from the configuration."""
    both = home.by_hand("one", table="checkpoints.keep = false") + home.by_hand("old", "--wound", "kill:40")
    lay_out(home, disk, both)
    home.start()
    home.resumed("old")
    home.client.post("/v1/jobs/old/stop")
    home.phase("old", "stopped")
    lay_out(home, disk, home.by_hand("one", table="checkpoints.keep = false"))
    home.client.post("/v1/reload")


def forget(home: House) -> None:
    """Have it forgotten."""
    ask(home, "/v1/jobs/old/forget")


def is_forgotten(home: House) -> bool:
    """Whether nothing is left of it."""
    return rows_of(home, "old") == {} and not list((home.state / "jobs").glob("*old*"))


def rows_of(home: House, name: str) -> dict[str, int]:
    """Return how many rows each table of the record has of a job."""
    counts = [f"SELECT '{table}', count(*) FROM {table} WHERE {key} = '{name}'" for table, key in list_keys()]
    return {table: count for table, count in home.query(" UNION ALL ".join(counts)) if count}


def list_keys() -> list[tuple[str, str]]:
    """Return each table of the record that is about jobs, with the column that has their names."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(schema.TABLES.read_text())
        tables = [table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in tables}
    return [("jobs", "name"), *((table, "job") for table in tables if "job" in columns[table])]


def look_at_forget(home: House, disk: KillingDisk) -> None:
    """Assert that it can be forgotten after that, that another's record is whole, and its name begins afresh."""
    if not is_forgotten(home):
        ask(home, "/v1/jobs/old/forget")
    home.until(lambda: is_forgotten(home), 30, f"nothing of it to be left: {rows_of(home, 'old')}")
    goes_on(home, "one")
    assert home.incidents() == []
    both = home.by_hand("one", table="checkpoints.keep = false") + home.by_hand("old", "--steps", "30")
    (home.folder / "old" / "steps.log").unlink()
    for saved in (home.folder / "old").glob("*.safetensors"):
        saved.unlink()
    lay_out(home, disk, both)
    home.client.post("/v1/reload")
    home.phase("old", "finished", limit_s=60)
    assert (home.job("old")["attempt"], home.steps_made("old")) == (1, list(range(1, 31)))


# --- an older record --------------------------------------------------------------------------------------------------


def prepare_upgrade(home: House, disk: KillingDisk) -> None:
    """Lay a record of the oldest schema where the daemon will find it; what is in it has ended."""
    lay_out(home, disk, home.by_hand("fresh", table="checkpoints.keep = false"))
    record = disk.real / "state" / "supervisor.db"
    record.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(record)) as database:
        database.executescript((DATABASES / f"{OLDEST}.sql").read_text())


def begin(home: House) -> None:
    """Start the daemon."""
    home.start(wait=False)


def is_upgraded(home: House) -> bool:
    """Whether it answers, and trains."""
    return home.status() is not None and (home.job("fresh")["step"] or 0) > 0


KEPT = ("attempts", "incidents", "decisions", "remedies", "checkpoints", "step_metrics", "notes", "flags")


def look_at_upgrade(home: House, disk: KillingDisk) -> None:
    """Assert that no row was lost or doubled, that the copy of before is one, and that a training begins."""
    home.until(lambda: is_upgraded(home), 60, "the job to train")
    goes_on(home, "fresh")
    before = copy_of_oldest(home)
    for table in KEPT:
        key = "key" if table == "notes" else "job"
        asked = f"SELECT {key}, count(*) FROM {table} WHERE {key} != 'fresh' GROUP BY {key}"
        old = dict(before.execute(asked).fetchall())
        new = dict(home.query(asked))
        assert {name: new.get(name) for name in old} == old, f"{table}: {old} became {new}"
    assert home.query("SELECT version_num FROM alembic_version") == [(schema.HEAD,)]
    copies = list((disk.real / "state").glob("supervisor.db.before-*"))
    assert len(copies) == 1, copies
    with closing(sqlite3.connect(copies[0])) as kept:
        assert kept.execute("SELECT version_num FROM alembic_version").fetchall() == [(OLDEST,)], "the copy of before"
    assert not list((disk.real / "state").glob("*.part")), "a half copy is left"


def copy_of_oldest(home: House) -> sqlite3.Connection:
    """Return the record as it was."""
    database = sqlite3.connect(":memory:")
    database.executescript((DATABASES / f"{OLDEST}.sql").read_text())
    return database


# --- a stop -----------------------------------------------------------------------------------------------------------


def prepare_stop(home: House, disk: KillingDisk) -> None:
    """Run a training beyond its first save."""
    lay_out(home, disk, home.by_hand("one"))
    home.start()
    home.step("one", SAVE_EVERY + 5)


def is_stopped(home: House) -> bool:
    """Whether it is stopped, and the record has that."""
    return home.job("one")["phase"] == "stopped" and home.recorded_phase("one") == "stopped"


def look_at_stop(home: House, _: KillingDisk) -> None:
    """Assert that a stop that was answered is one, that nothing runs after it, and that a start loses no step."""
    if (home.folder / ANSWERED).exists():
        home.until(lambda: is_stopped(home), 60, "the stop that was answered")
    home.until(lambda: home.job("one")["phase"] in {"stopped", "running"}, 60, "the stop to be over, or forgotten")
    if home.job("one")["phase"] == "stopped":
        home.nothing_runs()
        assert home.job("one")["attempt"] == 1, home.job("one")
        ask(home, "/v1/jobs/one/start")
    last = len(home.steps_made("one"))
    home.until(lambda: len(home.steps_made("one")) > last + 20, 60, "the training to go on")
    goes_on_from_a_save(home, "one", attempts=2)
    assert home.incidents() == []


def goes_on_from_a_save(home: House, name: str, *, attempts: int) -> None:
    """Assert that one training of a job runs in at most that attempt, that went on where one was saved."""
    job = home.job(name)
    assert job["attempt"] <= attempts, job
    made = home.steps_made(name)
    backs = [(last, step) for last, step in pairwise(made) if step != last + 1]
    assert len(backs) < attempts, f"steps went back: {backs}"
    for last, step in backs:
        assert last - SAVE_EVERY <= step - 1 <= last, f"step {step} came after {last}"
    home.until(lambda: home.steps_recorded(name) >= len(made), 60, f"{len(made)} steps of {name} to be recorded")
    folders = [place for place in (home.state / "jobs" / name).glob("[0-9]*") if place.name != str(job["attempt"])]
    for place in folders:
        assert not processes_with(str(place)), f"something of {place} runs"


# --- a resume ---------------------------------------------------------------------------------------------------------


def end_training(home: House) -> None:
    """Kill the training."""
    os.kill(home.job("one")["pid"], signal.SIGKILL)


def is_resumed(home: House) -> bool:
    """Whether it has made steps since."""
    return [item["resumed_at"] is not None for item in home.incidents()] == [True]


def look_at_resume(home: House, _: KillingDisk) -> None:
    """Assert that one end of a training is one incident and one attempt more, however often a daemon met it."""
    incident = home.resumed("one")
    goes_on_from_a_save(home, "one", attempts=2)
    assert_resumed_from_newest(incident)
    assert home.job("one")["restarts"] == 1, home.job("one")
    assert decisions(home, "one").count("launch") == 2, decisions(home, "one")


# --- a generation that is pruned --------------------------------------------------------------------------------------


def prepare_prune(home: House, disk: KillingDisk) -> None:
    """Run a training of which one save was captured and proven up to the step before its second."""
    table = "checkpoints.keep_newest = 1\ncheckpoints.keep_hourly = 1\ncheckpoints.keep_best = 1"
    pause = f"{2 * SAVE_EVERY}:{home.folder / 'go'}"
    lay_out(home, disk, home.by_hand("one", "--every-s", "0.1", "--pause", pause, table=table))
    home.start()
    home.until(lambda: is_saved(home), 60, "the first save to be proven")
    home.step("one", 2 * SAVE_EVERY - 1)


def is_pruned(home: House) -> bool:
    """Whether a later save was captured and proven, and the first copy is gone."""
    first = home.state / "jobs" / "one" / "generations" / "000001"
    return any((step or 0) > SAVE_EVERY for step in home.proven("one")) and not first.exists()


def look_at_prune(home: House, disk: KillingDisk) -> None:
    """Assert that generations are whole, that each copy is one that is to be kept, and a resume from the newest."""
    look_at_save(home, disk)
    generations = home.state / "jobs" / "one" / "generations"

    def is_each_kept() -> bool:
        kept = {Path(item["path"]).parent.name for item in home.checkpoints("one") if item["kept_by"]}
        return {folder.name for folder in generations.glob("[0-9]*")} <= kept

    home.until(is_each_kept, 60, "older copies to be removed")
    home.until(lambda: not list(generations.glob(".going-*")), 30, "no copy that was to be removed to be left")


SCENES = {
    "reload": Scene(
        prepare=prepare_reload, act=lambda home: ask(home, "/v1/reload"), is_over=is_reloaded, look=look_at_reload
    ),
    "save": Scene(prepare=prepare_save, act=save, is_over=is_saved, look=look_at_save),
    "forget": Scene(prepare=prepare_forget, act=forget, is_over=is_forgotten, look=look_at_forget),
    "stop": Scene(
        prepare=prepare_stop,
        act=lambda home: ask(home, "/v1/jobs/one/stop"),
        is_over=is_stopped,
        look=look_at_stop,
    ),
    "resume": Scene(prepare=prepare_stop, act=end_training, is_over=is_resumed, look=look_at_resume),
    "prune": Scene(prepare=prepare_prune, act=save, is_over=is_pruned, look=look_at_prune),
    **FAULTS,
    **TUNES,
    "upgrade": Scene(prepare=prepare_upgrade, act=begin, is_over=is_upgraded, look=look_at_upgrade),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one life."""

    changes: tuple[str, ...]
    """What the act changed, the first first."""
    killed_at: str | None
    broken: str | None
    """What did not hold."""


def play(scene: Scene, number: int | None, code: Path) -> Outcome:
    """Play a scene in a fresh installation; the daemon is killed at that change of the act, None: at none."""
    with tempfile.TemporaryDirectory(prefix="killed-acts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "house").mkdir()
        with killing(folder / "disk", folder / "behind") as disk, house(folder / "house") as home:
            home.shares_imports = True
            lay_code(code, disk.real / "state")
            try:
                scene.prepare(home, disk)
                disk.arm(number, lambda: home.daemon.pid if home.daemon is not None else None)
                scene.act(home)
                home.until(
                    lambda: disk.killed_at is not None or is_over(home, scene),
                    60,
                    "the act",
                    daemon=False,
                )
                changes = disk.disarm()
                assert home.daemon is not None
                if disk.killed_at is not None:
                    home.daemon.wait(30)
                    home.start()
                scene.look(home, disk)
                broken = None
            except Exception as error:  # noqa: BLE001 - whatever did not hold is the finding
                changes = disk.disarm()
                broken = f"{type(error).__name__}: {error}\n{home.read_output()}"
            home.leave()
    return Outcome(changes=tuple(changes), killed_at=disk.killed_at, broken=broken)


def is_over(home: House, scene: Scene) -> bool:
    """Whether the act came to its end; not where the daemon was killed while it was asked."""
    try:
        return home.daemon is not None and home.daemon.poll() is None and scene.is_over(home)
    except (ControlError, AssertionError, sqlite3.Error):
        return False


Play: TypeAlias = Callable[[str, int | None, Path], Outcome]
"""Plays the scene of that name, with a kill at that change of its act, None: without; the code is that of trainings."""


def sweep(description: str | None, scenes: Iterable[str], play_scene: Play) -> int:
    """Play each scene that is asked for without a kill, and then with one at each of its changes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=list(scenes), nargs="+", default=list(scenes))
    parser.add_argument("--every", type=int, default=1, help="each so many-th change alone")
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--only", type=int, help="this change alone")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended even then
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="killed-code-") as folder:
        CodeCopies(Path(folder), same_user=True).current()
        code = Path(folder) / FOLDER
        for name in given.scene:
            undisturbed = play_scene(name, None, code)
            report(name, "undisturbed", undisturbed)
            counted["BROKEN" if undisturbed.broken else "held"] += 1
            sys.stdout.write(f"{name}: {len(undisturbed.changes)} changes {json.dumps(undisturbed.changes)}\n")
            numbers = choose_numbers(undisturbed.changes)[given.first - 1 :: given.every]
            for number in numbers if given.only is None else [given.only]:
                outcome = play_scene(name, number, code)
                report(name, f"#{number} {outcome.killed_at or 'not reached'}", outcome)
                counted["BROKEN" if outcome.broken else "held" if outcome.killed_at else "not reached"] += 1
    sys.stdout.write(f"{dict(counted)}\n")
    return 1 if counted["BROKEN"] else 0


def choose_numbers(changes: Sequence[str]) -> list[int]:
    """Return the changes to kill at, counted from 1: of several in a row that are alike the first and the last."""
    same = [False, *(before == after for before, after in pairwise(changes)), False]
    return [number for number in range(1, len(changes) + 1) if not (same[number - 1] and same[number])]


def report(scene: str, what: str, outcome: Outcome) -> None:
    """Print what became of a life."""
    sys.stdout.write(f"{'BROKEN' if outcome.broken else 'held'} {scene} {what} {outcome.broken or ''}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(sweep(__doc__, SCENES, lambda name, number, code: play(SCENES[name], number, code)))
