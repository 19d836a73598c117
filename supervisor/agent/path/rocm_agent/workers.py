"""Reports the worker processes of a training's data loaders, and when they end."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any, List, Optional, Tuple

from . import claim, events
from .fence import fenced

_loaders = 0
drawn_from: Optional[int] = None
"""The identity of the iterator that the training drew its last batch from."""
_drawn_workers: Optional[int] = None


def install(torch: Any) -> None:
    """Watch every loader iterator with processes that is made from now on."""
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    begin, shut_down = kind.__init__, kind._shutdown_workers

    @wraps(begin)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - takes that method's place
        begin(self, loader, *args, **kwargs)
        _report_begun(self)

    @wraps(shut_down)
    def _shutdown_workers(self: Any) -> Any:
        # An interpreter that ends sets the names of a module to None before it clears iterators away.
        if _report_ended is not None:
            _report_ended(self)
        return shut_down(self)

    kind.__init__, kind._shutdown_workers = __init__, _shutdown_workers


@fenced
def draws(iterator: Any) -> None:
    """The training draws from another iterator than the one `drawn_from` names: from `iterator`."""
    global drawn_from, _drawn_workers
    drawn_from = id(iterator)
    pids = _worker_pids(iterator)
    if len(pids) != _drawn_workers and claim.is_reporting(claim.EXPLICIT):
        _drawn_workers = len(pids)
        _, number = _loader_identity(iterator) or (0, 0)
        events.write("workers", loader=number, pids=pids, training=True, iterable=_is_iterable(iterator))


@fenced
def _report_begun(iterator: Any) -> None:
    global _loaders
    if claim.is_reporting(claim.EXPLICIT):
        _loaders += 1
        iterator._rocm_agent_loader = (os.getpid(), _loaders)
        events.write(
            "workers", loader=_loaders, pids=_worker_pids(iterator), training=False, iterable=_is_iterable(iterator)
        )


@fenced
def _report_ended(iterator: Any) -> None:
    """Report it once, and not from a worker, which inherits the parent's iterator."""
    process, number = _loader_identity(iterator) or (0, 0)
    if process == os.getpid():
        iterator._rocm_agent_loader = None
        events.write("workers", loader=number, pids=[], ended=True)


def _loader_identity(iterator: Any) -> Optional[Tuple[int, int]]:
    return getattr(iterator, "_rocm_agent_loader", None)


def _worker_pids(iterator: Any) -> List[int]:
    return [worker.pid for worker in getattr(iterator, "_workers", ())]


def _is_iterable(iterator: Any) -> bool:
    """Whether each worker has its own end of data, and ends while the others continue."""
    return getattr(iterator, "_dataset_kind", 0) != 0  # _DatasetKind.Map
