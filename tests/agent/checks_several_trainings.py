"""A script that trains three models one after another, as of folds, by `lightning` or the Trainer of `transformers`.

One that is trained in a loop by hand may come before them.
"""

# ruff: noqa: PLC0415 - a test imports one of the two

import argparse
import hashlib
import itertools
import os
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=["lightning", "transformers"])
parser.add_argument("--folder", required=True)
parser.add_argument("--die-after", type=int, default=0, help="this number of steps, over all trainings")
parser.add_argument("--by-hand", type=int, default=0, help="this number of steps, in a loop before them")
asked = parser.parse_args()
STEPS = (6, 12, 3)
numbers = itertools.count(1)


def count_step(*_: object) -> None:
    time.sleep(0.02)  # so long that a snapshot can be written
    if next(numbers) == asked.die_after:
        os._exit(9)


register_optimizer_step_post_hook(count_step)


def train_by_lightning(steps: int) -> torch.nn.Module:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    model = BoringModel()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_train_batches=steps, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(model)
    return model


def train_by_transformers(steps: int) -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

    model = BertForMaskedLM(
        BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    words = [{"input_ids": torch.full((6,), index % 20), "labels": torch.full((6,), index % 20)} for index in range(48)]
    arguments = TrainingArguments(
        output_dir=os.path.join(asked.folder, "out"), max_steps=steps, per_device_train_batch_size=4, seed=steps,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=words).train()
    return model


def train_by_hand(steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


train_by_hand(asked.by_hand)
for number, steps in enumerate(STEPS):
    torch.manual_seed(number)
    model = train_by_lightning(steps) if asked.framework == "lightning" else train_by_transformers(steps)
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values()))
    print("TRAINED", number, digest.hexdigest(), flush=True)
