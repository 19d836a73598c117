"""The random states of a loader's workers in a snapshot, and the iterator of a resumed pass that goes on with them.

Batch after batch goes to the next worker in turn. A snapshot holds the seed of the iterator, whose turn the next batch
is, and how every worker stood before its next one; the resumed iterator has the same seed, begins with that worker, and
each begins with those states. So the workers draw what they would have drawn, without loading a batch twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from rocm_agent.fence import fenced

from .worker_notes import BEFORE_ALL, RUN, STATE_BYTES, Board, Worker

AHEAD = 4
"""So many batches of a worker more than it prefetches are known: a loader around torch's holds some back."""
CYCLE = "_worker_queue_idx_cycle"
"""Of an iterator: the workers in turn."""
SEED = "_base_seed"
_INSTALLED = "_rocm_worker_random"


class Account:
    """What is known of the workers of one iterator over a `Positioned`."""

    def __init__(self, torch: Any, loader: Any, skipped: int, *, is_endless: bool, resumed: Any) -> None:
        """`skipped` batches are passed over behind the `Positioned`; one without an end has all passes in one.

        `resumed` is what `at` returned, None where the iterator begins afresh.
        """
        from multiprocessing.sharedctypes import RawArray  # noqa: PLC0415 - few trainings need it

        self._torch, self._workers, self._is_endless = torch, loader.num_workers, is_endless
        slots = (getattr(loader, "prefetch_factor", None) or 2) + AHEAD
        self._board = Board(RawArray("B", Board.bytes_for(self._workers, slots)), self._workers, slots)
        self._skipped, self._turn, self._passes, self._given_out = skipped, 0, 0, 0
        self._seed: Optional[int] = None
        self._first_states: List[bytes] = [bytes(STATE_BYTES)] * self._workers
        """In turn; zeros where a worker begins by its seed."""
        self._begun: Dict[int, Tuple[int, int]] = {}
        """By the number of a pass of the `Positioned`: the pass of the iterator, and its batch that is that one's 0."""
        self._is_resumed = resumed is not None
        self._undraw: Optional[Callable[[Any], Any]] = None
        if resumed is not None:
            self._turn, self._seed = resumed["turn"], resumed["seed"]
            self._first_states = [bytes(state.tolist()) for state in resumed["states"]]

    @contextmanager
    def making(self, kind: Any) -> Iterator[None]:
        """Have an iterator of the class `kind` that is made meanwhile start workers that take notes."""
        from torch.utils.data._utils import worker  # noqa: PLC0415 - the program's own

        run = getattr(worker, RUN)
        in_turn = {(self._turn + number) % self._workers: state for number, state in enumerate(self._first_states)}
        setattr(worker, RUN, Worker(run, self._board, self._seed, {w: s for w, s in in_turn.items() if s[0]}))
        setattr(kind, CYCLE, _WhenSet(CYCLE, lambda cycle: [next(cycle) for _ in range(self._turn)]))
        if self._undraw is not None:
            setattr(kind, SEED, _WhenSet(SEED, self._undraw))
        try:
            yield
        finally:
            setattr(worker, RUN, run)
            delattr(kind, CYCLE)
            if self._undraw is not None:
                delattr(kind, SEED)

    def put_back_generator(self, loader: Any) -> None:
        """Have what draws the workers' seed put back to where it is now: workers that stay draw none."""
        source = loader.generator or self._torch.default_generator
        before = source.get_state()
        self._undraw = lambda _: source.set_state(before)

    @fenced
    def note_seed(self, iterator: Any) -> None:
        """Note the seed of the iterator that was made."""
        self._seed = iterator._base_seed if self._seed is None else self._seed

    def pass_begins(self, number: int, first: int) -> None:
        """The pass `number` of the `Positioned` begins with its batch `first`."""
        self._passes += 1
        in_iterator = 1 if self._is_endless else self._passes
        behind = self._given_out if self._is_endless else 0
        self._begun[number] = (in_iterator, behind - first - (self._skipped if self._passes == 1 else 0))

    def batch_begins(self) -> None:
        """One more batch is given out to a worker."""
        self._given_out += 1

    @fenced
    def at(self, number: int, made: int) -> Optional[Dict[str, Any]]:
        """Return how the workers go on behind `made` batches of a pass; None where that is not known."""
        if number not in self._begun or self._seed is None:
            return None
        in_iterator, zero = self._begun[number]
        following = self._following(in_iterator, zero + made)
        return following and {"batch": made, **following}

    @fenced
    def at_its_end(self) -> Optional[Dict[str, Any]]:
        """Return how the workers go on in another pass, whose first batch goes to the first of them."""
        found = self._following(1, self._given_out - self._skipped)
        return found and {**found, "states": found["states"].roll(found["turn"], 0), "turn": 0}

    @property
    def stood_in(self) -> bool:
        """Whether the iterator was that of a loader for the rest of a resumed pass alone."""
        return self._skipped > 0 and self._is_resumed

    def _following(self, in_iterator: int, first: int) -> Optional[Dict[str, Any]]:
        """Return whose turn the batch `first` of a pass is and how all stand before it, None where it is not known."""
        turn = self._turn if in_iterator == 1 else 0
        batches = range(first, first + self._workers)
        states = [self._state_before(in_iterator, batch, (batch + turn) % self._workers) for batch in batches]
        joined = bytearray().join([state for state in states if state is not None])
        if len(joined) != self._workers * STATE_BYTES:
            return None
        return {
            "turn": (first + turn) % self._workers,
            "seed": self._seed,
            "states": self._torch.frombuffer(joined, dtype=self._torch.uint8).view(self._workers, STATE_BYTES),
        }

    def _state_before(self, in_iterator: int, batch: int, worker: int) -> Optional[bytes]:
        if batch >= self._workers:
            return self._board.read(worker, (in_iterator, batch - self._workers))
        if in_iterator == 1:
            return self._first_states[batch] if batch >= 0 else None
        return self._board.read(worker, (in_iterator, BEFORE_ALL))


class _WhenSet:
    """Stands in for an attribute of an iterator while that is made, and has a function do something where it is set."""

    def __init__(self, name: str, does: Callable[[Any], Any]) -> None:
        self._name, self._does = name, does

    def __get__(self, iterator: Any, kind: Any = None) -> Any:
        return vars(iterator)[self._name]

    def __set__(self, iterator: Any, value: Any) -> None:
        self._does(value)
        vars(iterator)[self._name] = value


@fenced
def install(torch: Any, positioned: type) -> None:
    """Have every iterator with workers over an object of the class `positioned` keep account of them."""
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    if vars(kind).get(_INSTALLED):
        return
    begin = kind.__init__

    @wraps(begin)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - takes that method's place
        account = _account_of(torch, loader, positioned)
        if account is None:
            begin(self, loader, *args, **kwargs)
            return
        with account.making(kind):
            begin(self, loader, *args, **kwargs)
        account.note_seed(self)

    kind.__init__ = __init__
    setattr(kind, _INSTALLED, True)


@fenced
def _account_of(torch: Any, loader: Any, positioned: type) -> Optional[Account]:
    """Return that of an iterator which is about to be made; None where it needs none."""
    outer = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    found, skipped, is_endless = outer, 0, False
    if not isinstance(outer, positioned):
        # accelerate passes over batches behind the sampler; that of ultralytics repeats it without an end.
        skipped, is_endless = getattr(outer, "skip_batches", 0), not hasattr(outer, "skip_batches")
        found = getattr(outer, "sampler" if is_endless else "batch_sampler", None)
    if not isinstance(found, positioned):
        return None
    if not getattr(loader, "in_order", True):  # whoever is ready has the next batch
        found.workers = None
        return None
    before, stay = found.workers, None
    resumed = found.workers_resumed(loader.num_workers, skipped)
    if resumed is None and before is not None and before.stood_in and loader.persistent_workers:
        stay = before.at_its_end()
        stay = stay if stay is not None and len(stay["states"]) == loader.num_workers else None
    found.workers = Account(torch, loader, skipped, is_endless=is_endless, resumed=resumed or stay)
    if stay is not None:
        found.workers.put_back_generator(loader)
    return found.workers
