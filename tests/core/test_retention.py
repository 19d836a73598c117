"""Which generations are kept: the newest, one an hour, the best, within a size, and never none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.checkpoints.retention import Policy, kept

HOUR_S = 3600


def generation(
    step: int, at_s: float | None = None, *, verdict: Verdict | None = Verdict.PROVEN, size: int = 10, **changes: object
) -> Checkpoint:
    at_ns = round((step if at_s is None else at_s) * 1e9)
    item = Checkpoint(
        path=f"/s/{step}/last.pt",
        fingerprint=Fingerprint(size_bytes=size, modified_ns=at_ns, inode=step),
        step=step,
        verdict=verdict,
        source="/w/last.pt",
    )
    return replace(item, **changes)  # type: ignore[arg-type]  # the changes are those of a test


def steps(
    policy: Policy, *found: Checkpoint, room: bool = True, resumed_from: Checkpoint | None = None
) -> dict[int | None, str]:
    words = kept(found, policy, room=room, resumed_from=resumed_from)
    return {match.step: words[match.key] for match in found if match.key in words}


ONLY_NEWEST = Policy(keep_newest=2, keep_hourly=0, keep_best=0)


def test_the_newest_proven_ones_are_kept() -> None:
    found = [generation(step) for step in (1, 2, 3, 4)]
    assert steps(ONLY_NEWEST, *found) == {4: "newest", 3: "newest"}


def gan(save: int, *names: str, verdict: Verdict | None = Verdict.PROVEN) -> list[Checkpoint]:
    """The files of one save, written one after the other."""
    sources = [f"/w/{name}.pt" for name in names or ("G", "D", "optG", "optD")]
    at = [save * 100 + number for number in range(len(sources))]
    return [generation(step, source=source, verdict=verdict) for step, source in zip(at, sources, strict=True)]


def test_of_a_save_in_several_files_each_is_kept_and_that_of_the_save_before() -> None:
    """A kill has cut `optG` of the fourth save: the program goes on from all files of the third."""
    policy = Policy(keep_newest=3, keep_hourly=0, keep_best=0)
    found = [*gan(1), *gan(2), *gan(3), *gan(4, "G", "D")]
    assert set(steps(policy, *found)) == {202, 203, 300, 301, 302, 303, 400, 401}
    assert set(steps(replace(policy, keep_newest=1), *found)) == {302, 303, 400, 401}


def test_no_part_of_a_save_is_pruned_before_it_is_proven() -> None:
    found = gan(1, verdict=None)
    assert set(steps(ONLY_NEWEST, *found)) == {100, 101, 102, 103}


def test_numbered_saves_of_several_files_are_kept_by_their_names_without_the_numbers() -> None:
    found = [item for save in (1, 2, 3) for item in gan(save, f"model_{save}", f"opt_{save}")]
    assert set(steps(ONLY_NEWEST, *found)) == {200, 201, 300, 301}


def test_the_newest_of_each_hour_is_kept_however_many_came_after_it() -> None:
    found = [generation(n, n * HOUR_S / 4 + 1) for n in range(16)]
    words = steps(Policy(keep_newest=1, keep_hourly=3, keep_best=0), *found)
    assert words == {15: "newest, hourly", 11: "hourly", 7: "hourly"}


def test_the_best_is_kept_by_its_fitness_or_by_its_name() -> None:
    policy = Policy(keep_newest=1, keep_hourly=0, keep_best=1)
    measured = [generation(n, fitness=value) for n, value in enumerate((0.1, 0.7, 0.5, 0.4))]
    assert steps(policy, *measured) == {3: "newest", 1: "best"}
    near = [generation(n, fitness=value) for n, value in enumerate((0.0, -0.5, -0.9))]
    assert steps(policy, *near) == {2: "newest", 0: "best"}, "a fitness of 0 is a number like another"
    measured_in_part = [generation(1, fitness=-0.5), generation(2), generation(3)]
    assert steps(policy, *measured_in_part) == {3: "newest", 1: "best"}
    named = [generation(1), generation(2, source="/w/best.pt"), generation(3), generation(4)]
    assert steps(policy, *named) == {4: "newest", 2: "best"}


def test_a_rejected_one_is_released_and_one_not_yet_proven_is_not() -> None:
    found = [generation(1), generation(2, verdict=Verdict.REJECTED), generation(3, verdict=None)]
    assert steps(ONLY_NEWEST, *found) == {1: "newest", 3: "not yet proven"}


def test_over_the_size_the_oldest_go_and_the_newest_proven_one_never() -> None:
    found = [generation(n, n * HOUR_S, size=100) for n in range(6)]
    policy = Policy(keep_newest=2, keep_hourly=6, keep_best=0, limit_bytes=350)
    assert sorted(step or 0 for step in steps(policy, *found)) == [3, 4, 5]
    assert list(steps(replace(policy, limit_bytes=1), *found)) == [5]


def test_without_room_the_newest_proven_one_alone_is_kept_and_one_to_come() -> None:
    found = [generation(1), generation(2), generation(3, verdict=None), generation(4, verdict=None)]
    assert steps(Policy(), *found, room=False) == {2: "newest", 4: "not yet proven"}


def test_what_lies_before_the_resume_is_kept_however_much_was_saved_since() -> None:
    """Found by a daemon that was held up: all before the resume was gone when its losses left the old curve."""
    used, since = generation(4), [generation(5), generation(6), generation(7, verdict=None)]
    proven = [generation(1), generation(2), generation(3), used, *since]
    assert steps(ONLY_NEWEST, *proven, resumed_from=used) == {
        7: "not yet proven",
        6: "newest",
        5: "newest",
        3: "before the resume",
    }
    waiting = [generation(step, verdict=None) for step in (8, 9)]
    unproven = [generation(1), generation(2, verdict=None), generation(3, verdict=None), used, *since, *waiting]
    left = steps(ONLY_NEWEST, *unproven, resumed_from=used)
    assert (left[3], left[1]) == ("before the resume", "before the resume"), "should the nearer one fail its proof"
    assert 2 not in left
    assert 3 not in steps(ONLY_NEWEST, *unproven, resumed_from=used, room=False)
    younger = [generation(1, verdict=None), generation(2), used, *since, *waiting]
    assert 1 not in steps(ONLY_NEWEST, *younger, resumed_from=used), "it is older than a proven one"


VERDICTS = st.sampled_from([Verdict.PROVEN, Verdict.REJECTED, None])
FOUND = st.lists(st.tuples(VERDICTS, st.integers(1, 1000), st.integers(0, 100_000)), max_size=30)


POLICIES = st.builds(
    Policy,
    keep_newest=st.integers(1, 5),
    keep_hourly=st.integers(0, 5),
    keep_best=st.integers(0, 3),
    limit_bytes=st.integers(1, 3000),
)


@given(FOUND, POLICIES, st.booleans())
def test_the_newest_proven_one_is_never_released(
    rows: list[tuple[Verdict | None, int, int]], policy: Policy, room: bool
) -> None:
    found = [generation(n, at, verdict=verdict, size=size) for n, (verdict, size, at) in enumerate(rows)]
    words = kept(found, policy, room=room)
    proven = [match for match in found if match.verdict is Verdict.PROVEN]
    if proven:
        last = max(proven, key=lambda item: item.step or 0)
        assert last.key in words
    left = [match for match in found if match.key in words]
    assert all(rest.verdict is not Verdict.REJECTED for rest in left)
    assert sum(rest.fingerprint.size_bytes for rest in left) <= policy.limit_bytes or len(left) == 1
