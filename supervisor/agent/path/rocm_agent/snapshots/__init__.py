"""Lets a training loop of one's own go on in mid-epoch: two lines, which do next to nothing where no supervisor is.

    import rocm_agent.snapshots as snapshots

    state = snapshots.restore(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in range(state.epoch, EPOCHS):
        for batch in loader:
            ...
            optimizer.step()
            snapshots.step(state, loss=loss)
        scheduler.step()

Call `restore` once, last thing before the loop, and `step` after every step of the optimizer. Every named part has
`state_dict` and `load_state_dict`, or is a dict of plain values, which is filled again. The loader gives the rest of
the epoch's batches first, in the order that they would have had; no batch comes twice.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any

    from .loop import State

__all__ = ["restore", "step"]


def restore(*, loader: Any = None, **parts: Any) -> State:
    """Return where the loop stands; where it is resumed, every part, the loader and all random states are put back.

    Raises ValueError where the snapshot to resume from is damaged or belongs to other parts: a training that cannot go
    on must not start again silently.
    """
    from . import loop  # noqa: PLC0415 - it needs torch, which the program has by then

    return loop.restore(loader, parts)


def step(state: State, loss: Any = None, lr: Any = None) -> None:
    """Count and record one step, and take a snapshot where one is due; `loss` and `lr` as for `rocm_agent.step`.

    Where the supervisor asked for a save it is made here, and where it wants the process to stop this ends it.
    """
    from . import loop  # noqa: PLC0415 - the same

    loop.step(state, loss, lr)
