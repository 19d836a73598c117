"""A torch training that runs out of the card's memory until its batch is small enough; it can halve it itself."""

import sys

import rocm_agent
import torch

KIND = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)
batch = int(16 * rocm_agent.setting("batch_factor", 1.0))
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.01)
for step in range(int(sys.argv[1])):
    loss = ((weight - 1) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5 and batch > 4:
        text = f"HIP out of memory. Tried to allocate {200 * batch} MiB. GPU 0 has 6 GiB"
        raise KIND(sys.argv[2] if len(sys.argv) > 2 else text)
sys.stdout.write(f"trained with a batch of {batch}\n")
