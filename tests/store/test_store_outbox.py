"""An alert is kept with what it is about, handed out once at a time, and never queued twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_by_hand import OTHER_BOOT, START, alert, at, open_store

from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment
from supervisor.store.archive import Archive
from supervisor.store.store import NewAlert, Store


def tried(name: str, second: float, *, delivered: bool = False, final: bool = False) -> AlertTried:
    error = None if delivered else "status 503"
    return AlertTried(at=at(second), alert=f"msg_{name}", delivered=delivered, error=error, final=final)


def after_five_seconds(_alert_id: str, _tries: int, _tried: AlertTried) -> float | None:
    return 5.0


def after_the_third_never(_alert_id: str, tries: int, _tried: AlertTried) -> float | None:
    return 1.0 if tries < 3 else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def queue(store: Store, *names: str, second: float = 0.0) -> list[bool]:
    with store.turn(at(second)):
        return [store.queue_alert(alert(name), at(second)) for name in names]


def test_an_alert_is_queued_once_whatever_became_of_it(store: Store, tmp_path: Path) -> None:
    assert queue(store, "one", "one") == [True, False]
    assert queue(store, "one") == [False]
    store.due_alerts(START, 10)
    with store.turn(at(1)):
        store.alert_tried(tried("one", 1, delivered=True), after_five_seconds)
    assert queue(store, "one", second=2) == [False]
    store.close(at(3))
    assert queue(open_store(tmp_path, at(4)), "one", second=4) == [False]


def test_an_alert_is_due_at_once_and_handed_out_once(store: Store) -> None:
    queue(store, "one", "two", "three")
    assert [item.id for item in store.due_alerts(START, 2)] == ["msg_one", "msg_two"]
    assert [item.id for item in store.due_alerts(at(0.1), 2)] == ["msg_three"]
    assert store.due_alerts(at(999), 10) == ()


def test_a_failed_one_comes_again_when_its_time_has_come(store: Store) -> None:
    queue(store, "one")
    store.due_alerts(START, 1)
    with store.turn(at(1)):
        after = store.alert_tried(tried("one", 1), after_five_seconds)
    assert after is not None
    assert (after.state, after.tries, after.error) == ("waiting", 1, "status 503")
    assert store.due_alerts(at(5.9), 1) == ()
    assert [item.tries for item in store.due_alerts(at(6), 1)] == [1]


def test_one_that_is_given_up_is_kept_as_failed(store: Store, tmp_path: Path) -> None:
    queue(store, "one", "two")
    for second in (1, 3, 5):
        store.due_alerts(at(second), 10)
        with store.turn(at(second)):
            store.alert_tried(tried("one", second), after_the_third_never)
    with store.turn(at(6)):
        store.alert_tried(tried("two", 6, final=True), after_five_seconds)
    store.close(at(6))
    archive = Archive(tmp_path / "supervisor.db")
    assert {(item.id, item.tries) for item in archive.alerts("failed")} == {("msg_one", 3), ("msg_two", 1)}
    assert archive.alerts("waiting") == ()


def test_waiting_ones_outlive_the_daemon_and_a_reboot(store: Store, tmp_path: Path) -> None:
    queue(store, "one")
    store.due_alerts(START, 1)
    with store.turn(at(1)):
        store.alert_tried(tried("one", 1), lambda *_: 300.0)
    store.close(at(2))
    rebooted = Moment(4.0, at(100).unix_s)
    again = open_store(tmp_path, rebooted, OTHER_BOOT)
    assert again.due_alerts(rebooted.plus(200.9), 1) == ()
    (due,) = again.due_alerts(rebooted.plus(201.1), 1)
    assert (due.body, due.tries, due.sink) == (alert().body, 1, "owner")


def test_an_answer_about_an_alert_nobody_knows_changes_nothing(store: Store) -> None:
    assert store.alert_tried(tried("ghost", 1), after_five_seconds) is None


def test_a_turn_that_failed_queued_nothing(store: Store) -> None:
    def failing_turn() -> None:
        with store.turn(START):
            store.queue_alert(alert(), START)
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        failing_turn()
    assert store.due_alerts(START, 1) == ()
    assert queue(store, "one") == [True]


def test_a_receiver_that_is_gone_for_weeks_fills_no_memory(store: Store, tmp_path: Path) -> None:
    with store.turn(START):
        for number in range(1200):
            store.queue_alert(
                NewAlert(id=f"msg_{number}", sink="owner", type="flag.warning", job=None, body=b"{}"), START
            )
    assert len(store.due_alerts(START, 5000)) == 1000
    store.close(START)
    archive = Archive(tmp_path / "supervisor.db")
    assert len(archive.alerts("failed", limit=5000)) == 200
    assert "newer alerts wait" in (archive.alerts("failed")[0].error or "")


def test_outcomes_and_critical_alerts_are_never_given_up_for_newer_ones(store: Store) -> None:
    kinds = ["job.gave_up", *["flag.warning"] * 1200, "incident.opened", *["flag.critical"] * 1200]
    with store.turn(START):
        for number, kind in enumerate(kinds):
            store.queue_alert(NewAlert(id=f"msg_{number}", sink="owner", type=kind, job=None, body=b"{}"), START)
    left = [item.type for item in store.waiting_alerts()]
    assert left == ["job.gave_up", "incident.opened", *["flag.critical"] * 1200]


def test_what_is_put_back_is_handed_out_again(store: Store) -> None:
    queue(store, "one", "two")
    store.due_alerts(START, 10)
    store.put_back_alerts(["msg_two"])
    assert [item.id for item in store.due_alerts(at(1), 10)] == ["msg_two"]


def test_alerts_that_wait_are_counted_apart_from_those_that_a_receiver_refused(store: Store, tmp_path: Path) -> None:
    queue(store, "one", "two", "three")
    store.due_alerts(START, 1)
    with store.turn(at(1)):
        store.alert_tried(tried("one", 1), after_five_seconds)
    (waiting,) = Archive(tmp_path / "supervisor.db").alert_counts()
    assert (waiting.state, waiting.count, waiting.tried) == ("waiting", 3, 1)
