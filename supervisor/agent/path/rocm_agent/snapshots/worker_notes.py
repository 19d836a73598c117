"""What a loader's worker notes of its random generators, in memory that it shares with the training.

It runs in the workers: behind each batch the states of Python's, NumPy's and torch's generators go into one of a few
slots in turn, with the number of the batch. A worker is ahead of the training, whose snapshot finds there how each
stood behind its last batch that the training was given.
"""

from __future__ import annotations

import inspect
import random
import struct
import sys
from array import array
from typing import Any, Dict, Optional, Tuple

from . import randomness

WORDS = 625
"""Of Python's generator, with its place; NumPy's has one less, and its place."""
HEAD = struct.Struct("<4B4xddq")
"""Whether there is a state, Python's has a Gaussian number left, NumPy is there and has one; the two; NumPy's place."""
TORCH_BYTES = 5056
STATE_BYTES = HEAD.size + WORDS * 4 + (WORDS - 1) * 4 + TORCH_BYTES
KEY = struct.Struct("<qq")
"""The pass of the iterator, from 1, and the batch."""
SLOT_BYTES = KEY.size + STATE_BYTES
BEFORE_ALL = -1
"""The batch before the first of a pass."""
RUN = "_worker_loop"


def pack_state(torch: Any) -> bytes:
    """Return the states of this process; raise ValueError where a generator is of another kind."""
    version, words, gauss = random.getstate()
    numpy = sys.modules.get("numpy")
    name, numbers, place, has_gauss, left = ("", None, 0, 0, 0.0) if numpy is None else numpy.random.get_state()
    tensor = torch.get_rng_state()
    if version != 3 or name not in ("", "MT19937") or tensor.numel() != TORCH_BYTES:
        raise ValueError("a random generator of another kind is not noted")
    head = HEAD.pack(1, gauss is not None, bool(name), has_gauss, gauss or 0.0, left, place)
    of_numpy = bytes((WORDS - 1) * 4) if numbers is None else numbers.tobytes()
    return b"".join((head, array("I", words).tobytes(), of_numpy, _bytes_of(tensor)))


def unpack_state(torch: Any, packed: bytes) -> Dict[str, Any]:
    """Return what was packed, as `randomness.restore` takes it."""
    _, has_gauss, has_numpy, numpy_has_gauss, gauss, left, place = HEAD.unpack_from(packed)
    words = array("I", packed[HEAD.size : HEAD.size + WORDS * 4]).tolist()
    numbers = array("I", packed[HEAD.size + WORDS * 4 : -TORCH_BYTES]).tolist()
    return {
        "python": (3, words, gauss if has_gauss else None),
        "numpy": ("MT19937", numbers, place, numpy_has_gauss, left) if has_numpy else None,
        "torch": torch.tensor(list(packed[-TORCH_BYTES:]), dtype=torch.uint8),
        "cuda": None,
    }


def _bytes_of(tensor: Any) -> bytes:
    try:
        return bytes(tensor.numpy().data)
    except RuntimeError:  # without NumPy
        return bytes(tensor.tolist())


class Board:
    """The slots of all workers, some for its batches and one for the beginning of a pass to each."""

    def __init__(self, memory: Any, workers: int, slots: int) -> None:
        self.memory, self.workers, self._slots = memory, workers, slots

    @staticmethod
    def bytes_for(workers: int, slots: int) -> int:
        """Return the memory that it takes."""
        return workers * (slots + 1) * SLOT_BYTES

    def write(self, worker: int, key: Tuple[int, int], state: bytes) -> None:
        """Note the states of a worker behind a batch; in between its key is none."""
        view, start = memoryview(self.memory).cast("B"), self._start(worker, key[1])
        view[start : start + KEY.size] = bytes(KEY.size)
        view[start + KEY.size : start + SLOT_BYTES] = state
        view[start : start + KEY.size] = KEY.pack(*key)

    def read(self, worker: int, key: Tuple[int, int]) -> Optional[bytes]:
        """Return the states of a worker behind a batch, None where they are not there or no longer."""
        view, start = memoryview(self.memory).cast("B"), self._start(worker, key[1])
        found = bytes(view[start : start + SLOT_BYTES])
        is_same = bytes(view[start : start + KEY.size]) == found[: KEY.size] == KEY.pack(*key)
        return found[KEY.size :] if is_same else None

    def _start(self, worker: int, batch: int) -> int:
        slot = self._slots if batch == BEFORE_ALL else batch // self.workers % self._slots
        return (worker * (self._slots + 1) + slot) * SLOT_BYTES


class Worker:
    """Takes the place of the function that torch runs in a worker, and has that note its states."""

    def __init__(self, run: Any, board: Board, seed: Optional[int], states: Dict[int, bytes]) -> None:
        """`seed` is that of the loader, None for its own; `states` are by worker what it begins with."""
        self._run: Any = run
        self._board, self._seed, self._states = board, seed, states

    def __getstate__(self) -> Dict[str, Any]:
        """Leave torch's function away: it cannot be pickled while another has its place."""
        return {**vars(self), "_run": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's function with its queue followed; as it is where it takes other arguments."""
        import torch  # noqa: PLC0415 - a worker that was not forked has yet to import it
        from torch.utils.data._utils import worker  # noqa: PLC0415 - the same

        run = self._run or getattr(worker, RUN)
        try:
            bound = inspect.signature(run).bind(*args, **kwargs)
            given = bound.arguments
            notes = _Notes(torch, self._board, given["worker_id"], self._states.get(given["worker_id"]))
            given.update(init_fn=notes.behind(given["init_fn"]), data_queue=_Followed(given["data_queue"], notes))
            given.update({} if self._seed is None else {"base_seed": self._seed})
        except (KeyError, TypeError, ValueError):
            return run(*args, **kwargs)
        return run(*bound.args, **bound.kwargs)


class _Notes:
    def __init__(self, torch: Any, board: Board, worker: int, state: Optional[bytes]) -> None:
        self._torch, self._worker, self._state, self._pass = torch, worker, state, 1
        self._board: Optional[Board] = board

    def behind(self, init_fn: Any) -> Any:
        """Return the program's function for a worker that begins, behind which the states are put back."""

        def begin(worker_id: int) -> None:
            if init_fn is not None:
                init_fn(worker_id)
            if self._state is not None:
                randomness.restore(self._torch, unpack_state(self._torch, self._state))

        return begin

    def made(self, batch: Any) -> None:
        """Note the states behind a batch, or before the first one of another pass."""
        if not isinstance(batch, int):
            self._pass, batch = self._pass + 1, BEFORE_ALL
        if self._board is None:
            return
        try:
            self._board.write(self._worker, (self._pass, batch), pack_state(self._torch))
        except Exception:  # the fence: the worker loads on, and is resumed with other random numbers
            self._board = None


class _Followed:
    """A queue that has what goes into it noted first."""

    def __init__(self, queue: Any, notes: _Notes) -> None:
        self._queue, self._notes = queue, notes

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        self._notes.made(item[0])
        self._queue.put(item, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_queue"], name)
