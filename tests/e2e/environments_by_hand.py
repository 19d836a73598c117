"""A torch training that saves at step 10 and that one torch, named by `BREAKS`, cannot run beyond step 20."""

import os
import pathlib
import sys

import torch

folder, resume_from = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.01)
begin = 0
if resume_from is not None:
    saved = torch.load(resume_from, map_location="cpu")
    begin = saved["step"]
    with torch.no_grad():
        weight.copy_(saved["weight"])
sys.stdout.write(f"torch {torch.__version__} from step {begin}, in {os.environ.get('PLACE', 'its own')}\n")
for step in range(begin, 60):
    loss = ((weight - 1) ** 2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step + 1 == 10:
        torch.save({"step": step + 1, "weight": weight.detach()}, folder / "last.tmp")
        (folder / "last.tmp").replace(folder / "last.pt")
    if step + 1 == 20 and torch.__version__.startswith(os.environ["BREAKS"]):
        raise RuntimeError("this torch cannot compute step 20")
