"""A loop that changes its weights itself, with no optimizer."""

import torch

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
for _ in range(25):
    model.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
print("ENDED", flush=True)
