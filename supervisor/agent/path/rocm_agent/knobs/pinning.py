"""Pinned batches for a loader's iterator under way: no worker is exchanged, and no batch waits longer for it.

What the workers have made passes through a thread that copies it into pinned memory, as torch's own loader does it
from an iterator's beginning. Torch's own thread drops the batch that it holds when it is ended; this one hands over
all. It is AHEAD batches ahead at most: torch's pins all that there are, for which memory is allocated for seconds.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable

from . import Refused

JOIN_S = 20.0
AHEAD = 2
LOOK_S = 0.1
UNBOUNDED = 1 << 30
THREAD = "rocm_agent pinning"
NEEDED = ("_worker_result_queue", "_data_queue", "_task_info", "_tasks_outstanding", "_pin_memory")


def begin(torch: Any, iterator: Any, pin: Callable[[Any], Any]) -> None:
    """Pass all further batches of an iterator through `pin`; raise Refused for an iterator of an unknown kind."""
    if not hasattr(iterator, "_worker_result_queue"):  # it fetches by itself
        iterator._pin_memory = True
        return
    if not all(hasattr(iterator, name) for name in NEEDED) or iterator._data_queue is not iterator._worker_result_queue:
        raise Refused("an iterator of this kind is not known")
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    ready: Any = queue.Queue(AHEAD)
    torchs_end, ending = threading.Event(), threading.Event()

    def hand_over() -> None:
        torch.set_num_threads(1)  # of this thread alone
        if device is not None:
            torch.cuda.set_device(device)
        while True:
            number, batch = made.get()
            if number is None:
                return
            pinned = batch if ending.is_set() or torchs_end.is_set() else _pin(torch, batch, pin)
            while not torchs_end.is_set():
                try:
                    ready.put((number, pinned), timeout=LOOK_S)
                    break
                except queue.Full:
                    continue

    made = iterator._worker_result_queue
    thread = threading.Thread(target=hand_over, name=THREAD, daemon=True)
    iterator._pin_memory_thread_done_event = torchs_end
    iterator._rocm_agent_pinning_ends = ending
    iterator._pin_memory_thread = thread
    iterator._data_queue = ready
    iterator._pin_memory = True
    thread.start()


def end(iterator: Any) -> None:
    """Have an iterator hand its batches over as its workers made them; those pinned already come first."""
    iterator._pin_memory = False
    thread = iterator.__dict__.pop("_pin_memory_thread", None)
    if thread is None:
        return
    ready, iterator._data_queue = iterator._data_queue, iterator._worker_result_queue
    iterator._rocm_agent_pinning_ends.set()
    with ready.mutex:
        ready.maxsize = UNBOUNDED
        ready.not_full.notify_all()
    iterator._worker_result_queue.put((None, None))
    thread.join(JOIN_S)
    if thread.is_alive():
        raise Refused("the thread that pins its batches does not end")
    while not ready.empty():
        number, batch = ready.get()
        iterator._task_info[number] += (batch,)
        iterator._tasks_outstanding -= 1


def is_on(iterator: Any) -> bool:
    """Whether an iterator pins its batches, by this module or as its loader was made."""
    return bool(getattr(iterator, "_pin_memory", False))


def _pin(torch: Any, batch: Any, pin: Callable[[Any], Any]) -> Any:
    """Return a batch pinned; an exception of a worker as it is, one of pinning as torch hands them over."""
    wrapper = torch._utils.ExceptionWrapper
    if isinstance(batch, wrapper):
        return batch
    try:
        return pin(batch)
    except Exception:
        return wrapper(where="in the thread that pins batches")
