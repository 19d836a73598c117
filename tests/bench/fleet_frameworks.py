"""Deterministic trainings of other frameworks that shard weights or moments, each with the framework's own checkpoints.

    fleet_frameworks.py fsdp1|lightning|zero1|zero2|zero3|accelerate --steps N [--step-s S]
    fleet_frameworks.py trainer --steps N [--steps-in FILE] [--step-s S]

What it resumes from is named by the supervisor's variable. Batches depend on step and rank alone; those of `trainer`,
which is Hugging Face's and saves nothing by itself, are drawn as its loader draws them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OWN = Path("own")
EVERY = 20
"""Steps between two saves."""
KEPT = 3
RESUME_FROM = os.environ.get("ROCM_SUPERVISOR_RESUME_FROM") or None


def make_model() -> torch.nn.Module:
    """Return the same weights on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def draw(step: int) -> torch.Tensor:
    """Return the batch of this rank at a step."""
    torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.randn(16, 64)


def save_as(step: int, write: Callable[[Path], object]) -> None:
    """Save a folder that has its name once all of it is there, and keep the newest ones."""
    part, place = OWN / "part", OWN / f"step-{step:012d}"
    write(part)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(place, ignore_errors=True)  # saved before by a launch that this one did not go on from
        part.rename(place)
        for path in sorted(OWN.glob("step-*"))[:-KEPT]:
            shutil.rmtree(path)
    dist.barrier()


def begin() -> None:
    """Remove what an earlier launch has not finished to save."""
    if dist.get_rank() == 0:
        shutil.rmtree(OWN / "part", ignore_errors=True)
        OWN.mkdir(exist_ok=True)
    dist.barrier()


def show_digest(tensors: list[torch.Tensor]) -> None:
    """Print a hash of all weights; every rank has them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    sys.stdout.write(f"DIGEST {dist.get_rank()} {found.hexdigest()}\n")  # at once: all ranks write into one pipe
    sys.stdout.flush()


def train_fsdp1(asked: argparse.Namespace) -> None:
    """FullyShardedDataParallel with full state dicts."""
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType  # noqa: PLC0415
    from torch.distributed.fsdp.api import FullOptimStateDictConfig  # noqa: PLC0415

    dist.init_process_group("gloo")
    begin()
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    whole = (StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig())
    first = 0
    with FullyShardedDataParallel.state_dict_type(model, *whole):
        if RESUME_FROM:
            state = torch.load(Path(RESUME_FROM) / "state.pt", weights_only=True)
            model.load_state_dict(state["model"])
            moments = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, state["optimizer"])
            optimizer.load_state_dict(moments)
            first = state["step"]
        for step in range(first + 1, asked.steps + 1):
            loss = model(draw(step)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == 0:
                weights, moments = model.state_dict(), FullyShardedDataParallel.optim_state_dict(model, optimizer)
                state = {"model": weights, "optimizer": moments, "step": step}
                save_as(step, partial(write_whole, state=state))
            time.sleep(asked.step_s)
        show_digest(list(model.state_dict().values()))


def write_whole(part: Path, state: dict[str, Any]) -> None:
    """Write what every rank has, once."""
    if dist.get_rank() == 0:
        part.mkdir()
        torch.save(state, part / "state.pt")


def train_zero(asked: argparse.Namespace, stage: int) -> None:
    """DeepSpeed with weights, gradients or moments partitioned."""
    import deepspeed  # type: ignore[import-not-found]  # noqa: PLC0415 - of an environment of its own

    deepspeed.init_distributed("gloo")
    begin()
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    model = make_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    first = 0
    if RESUME_FROM:
        place = Path(RESUME_FROM)
        engine.load_checkpoint(str(place.parent), tag=place.name)
        first = engine.global_steps
    for step in range(first + 1, asked.steps + 1):
        engine.backward(engine(draw(step)).pow(2).mean())
        engine.step()
        if step % EVERY == 0:
            save_as(step, lambda part: engine.save_checkpoint(str(part.parent), tag=part.name, save_latest=False))
        time.sleep(asked.step_s)
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        show_digest(list(engine.module.parameters()))


def train_lightning(asked: argparse.Namespace) -> None:
    """Lightning's Trainer with FSDP2."""
    import lightning.pytorch as pl  # type: ignore[import-not-found]  # noqa: PLC0415 - not in every environment
    from lightning.pytorch.strategies import ModelParallelStrategy  # type: ignore[import-not-found]  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def configure_model(self) -> None:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, _: torch.Tensor) -> torch.Tensor:
            time.sleep(asked.step_s)
            return self.model(draw(self.trainer.global_step + 1)).pow(2).mean()  # of no order that a loader keeps

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.001)

    class Save(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            if trainer.global_step % EVERY == 0:
                save_as(trainer.global_step, trainer.save_checkpoint)

    nodes = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=nodes,
        strategy=ModelParallelStrategy(data_parallel_size=int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1),
        max_steps=asked.steps,
        callbacks=[Save()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )
    OWN.mkdir(exist_ok=True)
    module = Module()
    steps = torch.utils.data.DataLoader(torch.arange(1, asked.steps + 1), batch_size=None)
    trainer.fit(module, steps, ckpt_path=RESUME_FROM)
    show_digest([weights.full_tensor() for weights in module.parameters()])


def train_accelerate(asked: argparse.Namespace) -> None:
    """Accelerate's replicas on a CPU, with its own `save_state`.

    Asked for FSDP it trains replicas there all the same, as the Trainer does, without a message; without `cpu` each
    process trains for itself.
    """
    from accelerate import Accelerator  # type: ignore[import-not-found]  # noqa: PLC0415 - not in every environment

    accelerator = Accelerator(cpu=True)
    begin()
    model = make_model()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.001))
    first = 0
    if RESUME_FROM:
        accelerator.load_state(RESUME_FROM)
        first = int(Path(RESUME_FROM).name.removeprefix("step-"))
    for step in range(first + 1, asked.steps + 1):
        accelerator.backward(model(draw(step)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0:
            save_as(step, lambda part: accelerator.save_state(str(part)))
        time.sleep(asked.step_s)
    show_digest(list(accelerator.get_state_dict(model).values()))


def train_trainer(asked: argparse.Namespace) -> None:
    """Hugging Face's Trainer, with dropout and random masks."""
    from transformers import (  # type: ignore[import-not-found]  # noqa: PLC0415 - not in every environment
        BertConfig,
        BertForMaskedLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Sentences(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 62

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            words = torch.full((12,), index % 50 + 5)
            labels = words.clone()
            words[torch.rand(12) < 0.2] = 4
            return {"input_ids": words, "labels": labels}

    class Slow(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: object, **__: object) -> None:
            time.sleep(asked.step_s)

    torch.manual_seed(5)
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    steps = int(asked.steps_in.read_text()) if asked.steps_in and asked.steps_in.exists() else asked.steps
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=steps,
        per_device_train_batch_size=4,
        seed=11,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=50,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        fsdp="full_shard" if asked.fsdp else None,
    )
    trainer = Trainer(BertForMaskedLM(config), arguments, train_dataset=Sentences(), callbacks=[Slow()])
    trainer.train()
    moments = [value for state in trainer.optimizer.state_dict()["state"].values() for value in state.values()]
    show_digest([*trainer.model.state_dict().values(), *moments])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("fsdp1", "lightning", "zero1", "zero2", "zero3", "accelerate", "trainer"))
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--steps-in", type=Path, help="a file with their number, for a launch, in its place")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--fsdp", action="store_true", help="have the Trainer asked for FSDP")
    asked = parser.parse_args()
    match asked.kind:
        case "fsdp1":
            train_fsdp1(asked)
        case "lightning":
            train_lightning(asked)
        case "accelerate":
            train_accelerate(asked)
        case "trainer":
            train_trainer(asked)
        case _:
            train_zero(asked, int(asked.kind[-1]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
