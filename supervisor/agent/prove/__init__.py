"""Proves that a checkpoint is complete and its numbers finite, without running anything that it contains.

    python -I prove/__main__.py CHECKPOINT [MEMORY_LIMIT_BYTES [CPU_LIMIT_S [SHARE SHARES]]]

One JSON line comes out: verdict ("proven", "rejected"), reason, epoch, step, tensors, non_finite, kind, fitness, and
its profile: name, shape and a few figures of each tensor, by which it can be held against another. It reads
torch's zip and legacy formats and safetensors with the standard library alone, so it answers the same for every
torch, needs none, and takes a fraction of the time of importing one. A torch checkpoint is a pickle, that is, a
program. Here every class and function that it names is an inert stand-in: the program runs to its end and nothing is
called. Should the reading itself have a hole, the process has given everything away before the first byte is read: it
can open no file and no socket, start no program and write nothing but its answer.

All of it is imported before it gives anything away, and it imports nothing that is not of this folder or of Python.
"""

from __future__ import annotations

from .fence import confine
from .program import prove

__all__ = ["confine", "prove"]
