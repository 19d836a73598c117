"""Trains one model in a plain loop, with or without snapshots, and prints how long its steps took."""

import argparse
import json
import time

import torch
from rocm_agent import snapshots

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=["yolov8n", "adamw"])
parser.add_argument("--parameters", type=float, default=0.6e9)
parser.add_argument("--device", default="cpu")
parser.add_argument("--seconds", type=float, default=20.0)
asked = parser.parse_args()
device = torch.device(asked.device)


def yolo():
    """Return YOLOv8n with its average, as ultralytics trains it, and its loss."""
    from copy import deepcopy

    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov8n.yaml", verbose=False).to(device).train()
    images = torch.rand(2, 3, 160, 160, device=device)
    average = deepcopy(model)

    def loss():
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.01)
        found = model(images)
        found = found.get("feats", list(found.values())) if isinstance(found, dict) else found
        return sum(match.float().square().mean() for match in found)

    return model, torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9), loss, {"ema": average}


def transformer():
    """Return linear layers of so many parameters in all, and their loss."""
    width = 2048
    layers = max(1, round(asked.parameters / (width * width)))
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
    words = torch.randn(256, width, device=device)
    return model, torch.optim.AdamW(model.parameters(), 1e-5), lambda: model(words).square().mean(), {}


model, optimizer, loss_of, more = yolo() if asked.model == "yolov8n" else transformer()
state = snapshots.restore(model=model, optimizer=optimizer, **more)
steps = []
end = time.perf_counter() + asked.seconds
while time.perf_counter() < end:
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    snapshots.step(state)
    if device.type == "cuda":
        torch.cuda.synchronize()
    steps.append((time.monotonic(), time.perf_counter() - began))
print("STEPS", json.dumps(steps))
