"""A tiny language model under the Hugging Face Trainer, with masks drawn while batches are loaded."""

import argparse
import hashlib
import os
import random

import torch
from exact_dying import Dying, tell
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--die-after", type=int, default=0)
parser.add_argument("--folder", required=True)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--gpus", action="store_true")
parser.add_argument("--workers", type=int, default=0, help="processes that load the batches")
parser.add_argument("--saves", action="store_true")
parser.add_argument("--holds", action="store_true", help="the state holds the model, as in versions up to 4.49")
asked = parser.parse_args()


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 46

    def __getitem__(self, index):
        words = torch.full((12,), index % 50 + 5)
        labels = words.clone()
        words[random.randrange(12)] = 3
        words[torch.rand(12) < 0.1] = 4
        return {"input_ids": words, "labels": labels}


class Following(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if asked.holds:
            state.model, state.optimizer = model, optimizer

    def on_step_end(self, args, state, control, **kwargs):
        dying.batch()


torch.manual_seed(5)
torch.use_deterministic_algorithms(True, warn_only=True)
dying = Dying(asked.die_after)
config = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=16,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir=os.path.join(asked.folder, "out"), num_train_epochs=3, per_device_train_batch_size=4, seed=11,
    gradient_accumulation_steps=asked.accumulate, save_strategy="epoch" if asked.saves else "no",
    eval_strategy="epoch" if asked.saves else "no", report_to=[], use_cpu=not asked.gpus,
    disable_tqdm=True, logging_steps=1, dataloader_num_workers=asked.workers, learning_rate=1e-3, warmup_steps=5,
)  # fmt: skip
trainer = Trainer(
    BertForMaskedLM(config), arguments, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[Following()]
)
trainer.train()
digest = hashlib.sha256()
for value in trainer.model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
for state in trainer.optimizer.state_dict()["state"].values():
    for value in state.values():
        digest.update(value.cpu().numpy().tobytes())
tell(digest, trainer.state.global_step)
