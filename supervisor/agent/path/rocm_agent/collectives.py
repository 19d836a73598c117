"""Notes each second how many collectives of all ranks this one has begun, as its process group counts them.

A rank that missed a collective has a lower number than those that wait in it, whatever it does meanwhile. The thread
waits nearly always; while the training holds Python's lock the number stays what it was, which is no more than it is.

Only of gloo, whose ranks wait for each step's collectives themselves. NCCL counts what was given to the GPU: ranks that
do not wait for its results run ahead of one that reads its loss, which would be taken for the one that is late.
"""

from __future__ import annotations

import _thread
import sys
from time import monotonic_ns, sleep

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Callable, Optional

    from .recorder import Recorder

LOOK_S = 1.0
BACKEND = "gloo"
HOST_MEANS = __name__.rpartition(".")[0] + ".ranks.host_mean"
"""Its means are collectives too."""


def begin(recorder: Recorder, holding: Callable[[], Optional[Recorder]]) -> None:
    """Look from now on, for as long as this process holds the recorder."""
    _thread.start_new_thread(_watch, (recorder, holding))


def _watch(recorder: Recorder, holding: Callable[[], Optional[Recorder]]) -> None:
    """End at the first error: a version without that number, or a process that ends."""
    noted = 0
    try:
        while holding() is recorder:
            sleep(LOOK_S)
            number = _read_number()
            if number != noted:
                noted = number
                recorder.note_collective(number, monotonic_ns())
    except Exception:
        return


def _read_number() -> int:
    """Return the number of the last collective of the default group; 0 where it has none, or none that it can say."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized() or distributed.get_backend() != BACKEND:
        return 0
    means = sys.modules.get(HOST_MEANS)
    begun = 0 if means is None else means.begun
    return int(distributed._get_default_group()._get_sequence_number_for_group()) + begun
