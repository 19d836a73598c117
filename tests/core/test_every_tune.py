"""Tables of a tune, word for word: at which harm an arm is refused or doubted, and what a tune does block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from supervisor.core.tuning.guards import Block, Memory, find_doubt, find_harm, most_workers
from supervisor.core.tuning.knob import Facts, Kind, Knob, NotTried, Phase
from supervisor.core.tuning.session import Session, begin_session

from .transcripts import read, show

GB = 1_000_000_000
MEMORY = Memory(card_bytes=16 * GB, host_bytes=32 * GB)
SWITCH = Knob(name="switch", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))
COUNT = Knob(name="count", phase=Phase.DATA, kind=Kind.NUMERICS, values=lambda _: (2, 4, 8), stop_after_loss=True)
OTHER = Knob(name="other", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: ("a", "b"))


def noise(number: int) -> float:
    """Return a number from -1 to 1 that follows no course: the same for the same number."""
    return 2 * (math.sin(12.9898 * (number + 1)) * 43758.5453 % 1.0) - 1


def losses(first: int, count: int, *, level: float = 2.0, fall: float = 0.0, width: float = 0.1) -> tuple[float, ...]:
    """Return losses that fall with the steps and vary around their course."""
    return tuple(level - fall * step + width * noise(step) for step in range(first, first + count))


Pair = tuple[list[Block], list[Block]]


def blocks(rounds: int = 1, count: int = 20, *, apart: float = 0.0, wider: float = 1.0, **course: float) -> Pair:
    """Return blocks of the owner and of an arm in the order A B B A; the arm's losses lie higher or spread wider."""
    owner: list[Block] = []
    arm: list[Block] = []
    for number in range(4 * rounds):
        first = number * 2 * count
        is_arm = number % 4 in (1, 2)
        level, width = course.get("level", 2.0) + apart * is_arm, course.get("width", 0.1) * (wider if is_arm else 1.0)
        made = losses(first, count, level=level, width=width, fall=course.get("fall", 0.0))
        (arm if is_arm else owner).append(Block(first_step=first, losses=made))
    return owner, arm


def limit(holds: Callable[[float], bool], high: float) -> str:
    """Return up to which number, from 0 to `high`, something does not hold."""
    if not holds(high):
        return f"not at {high:g}"
    low, top = 0.0, high
    for _ in range(24):
        middle = (low + top) / 2
        low, top = (low, middle) if holds(middle) else (middle, top)
    return f"{top:.5g}"


def as_norms(pair: Pair) -> Pair:
    """Return the same values as gradient norms."""
    owner, arm = ([replace(block, losses=(), grad_norms=block.losses) for block in kind] for kind in pair)
    return owner, arm


COURSES: dict[str, dict[str, float]] = {
    "level": {},
    "falling": {"fall": 0.002},
    "rising": {"fall": -0.01},
    "far from zero": {"level": 500.0},
    "hardly moving": {"width": 1e-6},
    "narrow and falling": {"width": 0.01, "fall": 0.005},
    "below zero": {"level": -3.0},
    "around zero": {"level": 0.0},
    "without any spread": {"width": 0.0},
    "nothing at all": {"level": 0.0, "width": 0.0},
}


def find_limits(make: Callable[..., Pair], rounds: int, count: int, course: dict[str, float]) -> Iterator[str]:
    """Yield from which shift and which spread of an arm's values on it is refused, and doubted."""

    def judge(judged: Callable[..., str | None], **arm: float) -> bool:
        return judged(*make(rounds, count, **arm, **course)) is not None

    higher = limit(lambda x: judge(find_harm_in, apart=x), 5.0), limit(lambda x: judge(find_doubt, apart=x), 5.0)
    wider = limit(lambda x: judge(find_harm_in, wider=x), 50.0), limit(lambda x: judge(find_doubt, wider=x), 50.0)
    yield f"  higher by {higher[0]}, doubted at {higher[1]}; wider by {wider[0]}, doubted at {wider[1]}"
    for apart, times in ((0.0, 1.0), (1.0, 1.0), (0.0, 9.0)):
        pair = make(rounds, count, apart=apart, wider=times, **course)
        yield f"  {apart:g} {times:g}: {find_harm_in(*pair)}; {find_doubt(*pair)}"


def find_harm_in(owner: Sequence[Block], arm: Sequence[Block]) -> str | None:
    """Return the harm on a machine whose memory is known."""
    return find_harm(owner, arm, MEMORY)


def tell_limits() -> Iterator[str]:
    """Yield the limits of losses by their course, and of gradient norms."""
    for name, course in COURSES.items():
        for rounds, count in ((1, 10), (2, 7)):
            yield f"{name}, {rounds} x {count}"
            yield from find_limits(blocks, rounds, count, course)
    yield "gradient norms, 1 x 20"
    yield from find_limits(lambda *made, **more: as_norms(blocks(*made, **more)), 1, 20, {})


def tell_outliers() -> Iterator[str]:
    """Yield what a hard batch, values that are no numbers and rounds that are not complete come to."""
    owner, arm = blocks(2, 10)
    hard = [replace(block, losses=(*block.losses[:-1], 100.0)) for block in arm]
    for name, pair in {
        "hard batches of the arm": (owner, hard),
        "hard batches of the owner": (hard, owner),
        "a round less": (owner[:-1], arm[:-1]),
        "a block less": (owner, arm[:-1]),
        "nothing seen": ([Block()] * 4, [Block()] * 4),
        "no losses of the owner": ([Block()] * 3, arm[:3]),
        "no losses of the arm": (owner[:3], [Block()] * 3),
        "no arm": (owner, []),
        "neither": ([], []),
        "9 losses": tuple([replace(kind[0], losses=kind[0].losses[1:]), kind[1]] for kind in blocks(1, 5, apart=1.0)),
        "nan": (owner, [replace(arm[0], losses=(math.nan, *arm[0].losses)), *arm[1:]]),
        "nan of both": tuple([replace(kind[0], losses=(math.nan, 2.0)), *kind[1:]] for kind in (owner, arm)),
        "inf norm": (owner, [replace(arm[0], grad_norms=(1.0, math.inf)), *arm[1:]]),
    }.items():  # fmt: skip
        yield f"{name}: {find_harm_in(*pair)}; {find_doubt(*pair)}"


def seen(*of_owner: Block) -> Callable[..., str | None]:
    """Return what judges blocks of an arm beside these of the owner."""

    def judge(*of_arm: Block, memory: Memory = MEMORY) -> str | None:
        return find_harm(of_owner, of_arm, memory)

    return judge


def gpu_grown(grown: float) -> Block:
    return Block(gpu_bytes=(GB, 5, GB + int(grown)))


def host_grown(grown: float) -> Block:
    return Block(rss_bytes=(GB, GB + int(grown)))


def find_leak(grown: Callable[[float], Block], owner_grows: float) -> Iterator[str]:
    """Yield from which growth in each block on it is a leak, beside an owner whose blocks grow once."""
    of_owner = seen(Block(), grown(owner_grows), grown(0))
    found = limit(lambda x: of_owner(Block(), grown(0), grown(x), grown(x)) is not None, 2.0 * GB)
    yield f"  {found}; {of_owner(grown(GB), grown(1.5 * GB))}"
    yield f"  once: {of_owner(grown(GB))}; {of_owner(grown(GB), grown(0))}; {of_owner(grown(0), grown(GB))}"


def tell_memory() -> Iterator[str]:
    """Yield at which bytes an arm is refused."""
    idle = Block(gpu_bytes=(4 * GB, 4 * GB), available_bytes=20 * GB, rss_bytes=(2 * GB, 2 * GB))
    beside = seen(idle)
    full = limit(lambda x: beside(Block(gpu_bytes=(0, int(x), 0))) is not None, 16.0 * GB)
    yield f"reserved: {full}; {beside(Block(gpu_bytes=(15 * GB,)))}"
    owners = seen(Block(gpu_bytes=(int(15.5 * GB), 0)))
    full = limit(lambda x: owners(Block(gpu_bytes=(0, int(x), 0))) is not None, 16.0 * GB)
    yield f"beside an owner of 15.5 GB: {full}"
    left = limit(lambda x: beside(Block(available_bytes=int(4 * GB - x))) is not None, 4.0 * GB)
    yield f"available, below 4 GB: {left}; {beside(Block(available_bytes=GB))}; {beside(Block(available_bytes=0))}"
    poor = seen(Block(available_bytes=2 * GB), Block(available_bytes=GB), Block())
    for bytes_left in (2 * GB, GB, GB - 1):
        yield f"beside an owner that leaves 1 GB, {bytes_left}: {poor(Block(), Block(available_bytes=bytes_left))}"
    yield f"of an owner that is not known: {seen()(Block(available_bytes=GB))}; {seen()(Block(gpu_bytes=(15 * GB,)))}"
    for name, grown in {"gpu": gpu_grown, "host": host_grown}.items():
        for owner_grows in (0.0, 0.1 * GB):
            yield f"{name} leaks beside {owner_grows:g}"
            yield from find_leak(grown, owner_grows)
    for memory in (Memory(), Memory(card_bytes=GB), Memory(host_bytes=GB), Memory(card_bytes=0, host_bytes=0)):
        judged = beside(Block(gpu_bytes=(GB, 3 * GB), rss_bytes=(GB, 2 * GB), available_bytes=1), memory=memory)
        twice = [Block(gpu_bytes=(0, GB // 2), rss_bytes=(GB, 2 * GB))] * 2
        yield f"{show(memory)}: {judged}; {beside(*twice, memory=memory)}"
    for words in (
        (2, GB, 64 * GB, 32 * GB),
        (8, GB // 10, 64 * GB, GB),
        (2, 0, GB, GB),
        (0, 5, 90, 40),
        (1, GB, GB, GB),
    ):
        yield f"workers for {words}: {most_workers(*words)}"


def tell_harms() -> str:
    return "\n".join([*tell_limits(), *tell_outliers(), *tell_memory(), ""])


def tell_tune(
    session: Session, times: dict[str, float], harmed: Sequence[str] = (), doubted: Sequence[str] = ()
) -> list[str]:
    """Return the blocks of a tune: a block takes what its settings take, by the words for what is on."""
    lines = [f"  queue {show(session.queue)}, left {show(session.left)}"]
    for number in range(400):
        trial, wanted = session.trial, session.wanted
        if trial is None or wanted is None:
            break
        name = " ".join(f"{knob}={value}" for knob, value in wanted.items())
        if not lines[-1].startswith(f"  {session.tried}:"):
            lines.append(f"  {session.tried}:")
        width = 3.0 if name in doubted else 0.1
        level = 9.0 if name in harmed else 2.0
        block = Block(first_step=20 * number, losses=losses(20 * number, 10, level=level, width=width))
        took_s = times[name] * (1 + 0.01 * noise(number))
        session = session.after_block(took_s, block, MEMORY)
        lines[-1] += f" {'B' if trial.is_arms_turn else 'A'}{trial.block}"
    else:
        raise AssertionError("the tune does not end")
    return [*lines, *(f"  {row}" for row in tell_end(session))]


def tell_end(session: Session) -> Iterator[str]:
    yield from (f"adopted {show(row)}" for row in session.adopted)
    yield from (f"refused {show(row)}" for row in session.refused)
    yield f"{show(session.before_s)} s before, {show(session.after_s)} s after, {show(session.confirmed)}"
    yield f"settings {show(session.settings)}, trying {session.tried}, wanted {show(session.wanted)}"


def tell_tunes() -> str:
    """Return tunes from their first block to their last."""
    facts = Facts()
    nothing = begin_session((), (NotTried(knob="switch", why="already set"),), facts)
    alone = begin_session((SWITCH,), (), facts)
    three = begin_session((COUNT, SWITCH, OTHER), (), facts)
    gains = {"": 1.0, "switch=True": 0.8}
    counts = {"": 1.0, "count=2": 0.9, "count=4": 0.8, "count=8": 0.8, "count=8 switch=True": 0.7}
    counts |= {"count=4 switch=True": 0.7, "count=4 switch=True other=a": 0.9, "count=4 switch=True other=b": 0.6}
    counts |= {"switch=True other=b": 0.9}
    apart = {"": 1.0, "count=2": 1.3, "switch=True": 0.8, "switch=True other=a": 0.7, "switch=True other=b": 0.74}
    lines: list[str] = []
    for name, tune in {
        "nothing to try": tell_tune(nothing, {}),
        "a gain": tell_tune(alone, gains),
        "a small gain": tell_tune(alone, {**gains, "switch=True": 0.94}),
        "no gain": tell_tune(alone, {**gains, "switch=True": 1.0}),
        "a loss": tell_tune(alone, {**gains, "switch=True": 1.1}),
        "harm": tell_tune(alone, gains, harmed=("switch=True",)),
        "a doubt": tell_tune(alone, {**gains, "": 0.83}, doubted=("switch=True",)),
        "a doubt of both": tell_tune(alone, gains, doubted=("", "switch=True")),
        "three knobs": tell_tune(three, counts),
        "three knobs, and the first of no use": tell_tune(three, apart),
        "harm that shows late": tell_tune(three, apart, harmed=("switch=True other=a",)),
    }.items():
        lines += [name, *tune]
    lines += ["ends", *(f"  {row}" for ended in ends(three) for row in tell_end(ended))]
    return "\n".join([*lines, ""])


def ends(session: Session) -> Iterator[Session]:
    """Yield a tune that ends early, each in its own way."""
    yield session.without_more("the time is over")
    yield session.after_refusal("it cannot be set")
    adopted = session
    while not adopted.adopted:
        adopted = adopted.after_block(1.0 if adopted.wanted == {} else 0.7)
    yield adopted
    yield adopted.without_more("the time is over")
    yield adopted.without_more("the time is over").after_refusal("it cannot be set again")
    yield adopted.without_more("the time is over").without_more("twice")
    yield adopted.after_refusal("a second value cannot be set")


TRANSCRIPTS = {"harms": tell_harms, "tunes": tell_tunes}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_table_of_a_tune_reads_as_it_was_reviewed(name: str) -> None:
    assert TRANSCRIPTS[name]() == read(name)


def test_a_tune_that_has_ended_takes_no_block_and_no_refusal() -> None:
    ended = begin_session((), (), Facts())
    with pytest.raises(ValueError, match=r"^the tune has ended: no block was wanted$"):
        ended.after_block(1.0)
    assert ended.after_refusal("late") == ended
