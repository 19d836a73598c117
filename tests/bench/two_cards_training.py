"""A rank that trains networks for images under DDP, one after the other, and prints how many images it makes a second.

    torchrun --nproc_per_node 2 two_cards_training.py '{"cases": [["resnet50", 256]], "steps": 20, "digest": false}'

Asks for NCCL, as training scripts do. Needs torchvision and a GPU a rank; the batches lie on the GPU.
"""

import faulthandler
import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 6
LIMIT_S = 150
faulthandler.dump_traceback_later(LIMIT_S, exit=True)
asked = json.loads(sys.argv[1])
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.backends.cudnn.benchmark = not asked["digest"]
torch.use_deterministic_algorithms(asked["digest"])


def train(name, batch):
    torch.manual_seed(1)
    model = getattr(torchvision.models, name)(weights=None).cuda().to(memory_format=torch.channels_last)
    size = sum(weights.numel() * weights.element_size() for weights in model.parameters())
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(2 + rank)
    images = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    for step in range(WARM_UP + asked["steps"]):
        if step == WARM_UP:
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    dist.barrier()
    took_s = (time.perf_counter() - began) / asked["steps"]
    found = {"network": name, "batch": batch, "ms": took_s * 1e3, "images_per_s": ranks * batch / took_s, "bytes": size}
    if asked["digest"]:
        weights = b"".join(item.detach().cpu().numpy().tobytes() for item in model.parameters())
        found["digest"] = hashlib.sha256(weights).hexdigest()
    return found


for name, batch in asked["cases"]:
    row = train(name, batch)
    if rank == 0:
        print("FOUND" + json.dumps(row), flush=True)
    torch.cuda.empty_cache()
dist.destroy_process_group()
