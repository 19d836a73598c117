"""A rank of a training on gloo that misses a collective after some steps: it does nothing any more."""

from __future__ import annotations

import sys
import time

import rocm_agent
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1000):
    rocm_agent.step(loss=1.0)
    if dist.get_rank() == 1 and step == int(sys.argv[1]):
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
