"""No name that is stored or sent between programs changes without being noticed."""

from __future__ import annotations

import difflib
import functools

import pytest
from frozen_names import LIST, as_text
from frozen_names import collect as collect_anew

pytestmark = pytest.mark.xdist_group("frozen names")
collect = functools.cache(collect_anew)
"""Takes a second: the tests of this file share a process."""

NEW = """\
new names are stored or sent between programs, and none of the old ones is gone:

{changes}

From a release on they stay as they are. Run `make frozen-names`, and commit what it has written.
"""
CHANGED = """\
names that are stored or sent between programs have changed (- before, + now):

{changes}

Databases, running trainings, scripts and receivers of alerts know the names marked with -. Change them back, or
  1. where the name is stored in the database: add a migration that renames it in every row (migrations/versions), and
     the database of the new revision to tests/store/databases;
  2. where it is written by a running shim or agent: read both names, for a training outlives an upgrade;
  3. describe the change in CHANGELOG.md;
  4. run `make frozen-names` and commit tests/store/frozen_names.txt.
"""


def explain(changes: list[str]) -> str:
    """Return what to do about lines of a difference between the names before and now."""
    text = CHANGED if any(line.startswith("-") for line in changes) else NEW
    return text.format(changes="\n".join(changes))


def test_no_stored_or_sent_name_has_changed() -> None:
    before, now = LIST.read_text(encoding="utf-8").splitlines(), as_text(collect()).splitlines()
    changes = [
        line for line in difflib.unified_diff(before, now, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
    ]
    assert not changes, explain(changes)


def test_a_name_that_is_added_asks_for_no_migration() -> None:
    assert "migration" not in explain(["+GET /v1/nodes"])
    assert "migration" in explain(["+GET /v1/nodes", "-GET /v1/node"])


def test_every_group_has_names() -> None:
    """A collector that finds nothing any more would guard nothing."""
    assert [group for group, names in collect().items() if not names] == []


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("tables and columns", "remedies.outcome"),
        ("notes", "kernel log boot"),
        ("jobs, incidents, decisions and events as JSON", "job.ledger.in_a_row"),
        ("jobs, incidents, decisions and events as JSON", "job.phase=backoff"),
        ("jobs, incidents, decisions and events as JSON", "decision give_up"),
        ("jobs, incidents, decisions and events as JSON", "event kernel_reported"),
        ("settings", "config.jobs.gpu_memory_release_s"),
        ("settings", "rules.stall.enabled"),
        ("control socket: routes", "POST /v1/jobs/{job}/start"),
        ("control socket: fields", "IncidentEntry.lost_steps"),
        ("control socket: error codes", "no_such_job 404"),
        ("exit codes", "rocm-supervisord EX_CONFIG=78"),
        ("alerts: types", "incident.opened"),
        ("control socket: error codes", "busy"),
        ("control socket: error codes", "not_running"),
        ("alerts: types", "flag.{}"),
        ("alerts: fields", "lost_steps"),
        ("attempt folder", "run/exit.json"),
        ("attempt folder: keys of JSON files", "max_rss_bytes"),
        ("attempt folder: keys of JSON files", "training_start_ticks"),
        ("attempt folder: keys of JSON files", "alone_s"),
        ("attempt folder: events of the agent", "checkpoint_saved.paths"),
        ("attempt folder: events of the agent", "common.unix_s"),
    ],
)
def test_each_kind_of_name_is_collected(group: str, name: str) -> None:
    assert name in collect()[group]
