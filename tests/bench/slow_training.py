"""Trainings as two of the documents describe them, with settings that hold a GPU back; nothing here knows of a tuner.

    python tests/bench/slow_training.py resnet|decoder|yolo|yolo_defaults cuda|cpu full|tiny FOLDER

`resnet` is torchvision's ResNet-50 under Lightning: one loader worker decodes, crops and flips JPEGs, nothing is
pinned, everything is computed in single precision without TF32 and without channels_last. `decoder` is a Qwen3 of
0.6 billion weights under transformers' Trainer: two rows of 512 words times four, single precision, eager attention,
checkpointing, no loader worker. `yolo` is YOLOv8n under ultralytics, without half precision and channels_last, with one
loader worker that reads, warps and joins pictures of 640 x 640; `yolo_defaults` is the same with what ultralytics sets
by itself, but for its check of half precision, which takes weights from the network. Pictures and words are generated.
`tiny` is what a processor can do in seconds.
"""

# ruff: noqa: PLC0415 - each training imports only what it uses

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = 1_000_000
KINDS = 100


class Jpegs(Dataset):  # type: ignore[type-arg, misc, unused-ignore] # torch is not there where types are checked
    """JPEGs in memory, decoded, cropped, flipped and normalised at each look, as torchvision's reference does."""

    def __init__(self, samples: int, files: int, stored: int, size: int) -> None:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
        from torchvision import transforms  # type: ignore[import-not-found, unused-ignore]

        self._open, self._samples = Image.open, samples
        chance = random.Random(0)
        self._files = []
        for _ in range(files):
            small = Image.frombytes("RGB", (16, 16), chance.randbytes(16 * 16 * 3))
            file = io.BytesIO()
            small.resize((stored * 4 // 3, stored)).save(file, "JPEG", quality=90)
            self._files.append(file.getvalue())
        self._change = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        number = index % len(self._files)
        picture = self._open(io.BytesIO(self._files[number])).convert("RGB")
        return self._change(picture), number % KINDS


class Words(Dataset):  # type: ignore[type-arg, misc, unused-ignore] # as above
    """Rows of words of which each follows from the one before, most of the time."""

    def __init__(self, samples: int, words: int, length: int) -> None:
        self._samples, self._words, self._length = samples, words, length

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        chance = torch.Generator().manual_seed(index)
        row = torch.randint(0, self._words, (self._length,), generator=chance)
        row[1::2] = (7 * row[::2] + 3) % self._words
        return {"input_ids": row, "labels": row.clone()}


def build_tiny() -> nn.Module:
    """Return a net of the same kinds of layers that a processor trains in milliseconds."""
    convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, KINDS))


def train_resnet(device: str, *, tiny: bool) -> None:
    """Train a net for pictures under Lightning."""
    import lightning  # type: ignore[import-not-found, unused-ignore]
    from torchvision.models import resnet50  # type: ignore[import-not-found, unused-ignore]

    class Net(lightning.LightningModule):  # type: ignore[misc, unused-ignore] # as above
        def __init__(self) -> None:
            super().__init__()
            self.net = build_tiny() if tiny else resnet50(num_classes=KINDS)

        def training_step(self, batch: Any, _: int) -> Any:
            pictures, kinds = batch
            return nn.functional.cross_entropy(self.net(pictures), kinds)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    batch = 8 if tiny else 64
    data = Jpegs(STEPS * batch, 64, 64, 32) if tiny else Jpegs(STEPS * batch, 400, 400, 224)
    loader = DataLoader(data, batch_size=batch, num_workers=0 if tiny else 1, shuffle=False)
    trainer = lightning.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_steps=STEPS,
        precision="32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), loader)


def train_decoder(device: str, *, tiny: bool, folder: str) -> None:
    """Train a decoder under transformers' Trainer."""
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        Qwen3Config,
        Qwen3ForCausalLM,
        Trainer,
        TrainingArguments,
    )

    words, length = (256, 32) if tiny else (151_936, 512)
    layers, width, heads = (2, 64, 2) if tiny else (28, 1024, 16)
    config = Qwen3Config(
        vocab_size=words,
        max_position_embeddings=length,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128 if not tiny else 32,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    given = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        learning_rate=1e-4,
        optim="adamw_torch",
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=device == "cpu",
    )
    Trainer(Qwen3ForCausalLM(config), given, train_dataset=Words(STEPS, words, length)).train()


def write_pictures(folder: Path, count: int, size: int) -> Path:
    """Write pictures with boxes, unless they are there; return the description that ultralytics reads."""
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    described = folder / "data.yaml"
    if described.exists():
        return described
    chance = random.Random(0)
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        small = Image.frombytes("RGB", (16, 16), chance.randbytes(16 * 16 * 3))
        small.resize((size, size)).save(folder / "images" / f"{number}.jpg", quality=90)
        boxes = [[chance.uniform(0.2, 0.8), chance.uniform(0.2, 0.8), 0.2, 0.3] for _ in range(4)]
        rows = [f"{number % 3} " + " ".join(f"{part:.4f}" for part in box) for box in boxes]
        (folder / "labels" / f"{number}.txt").write_text("\n".join(rows) + "\n")
    described.write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [a, b, c]\n")
    return described


def train_yolo_by_defaults(device: str, *, tiny: bool, folder: str) -> None:
    """Train a detector under ultralytics with its own settings."""
    from ultralytics.engine import trainer  # type: ignore[import-not-found, unused-ignore]
    from ultralytics.models.yolo.detect import (  # type: ignore[import-not-found, unused-ignore]
        DetectionTrainer,
    )

    trainer.check_amp = lambda _: True
    data = write_pictures(Path(folder).absolute(), 64 if tiny else 1024, 64 if tiny else 640)
    given = {"model": "yolov8n.yaml", "data": str(data), "epochs": 100_000, "project": folder, "name": "run"}
    if tiny:
        given.update(imgsz=64, batch=4, workers=0)
    else:
        given["imgsz"] = 640
    place = {"device": "0" if device == "cuda" else "cpu", "val": False, "save": False, "plots": False}
    DetectionTrainer(overrides={**given, **place, "exist_ok": True}).train()


def train_yolo(device: str, *, tiny: bool, folder: str) -> None:
    """Train a detector under ultralytics."""
    from ultralytics.cfg import get_cfg  # type: ignore[import-not-found, unused-ignore]
    from ultralytics.models.yolo.detect import (  # type: ignore[import-not-found, unused-ignore]
        DetectionTrainer,
    )

    size, batch = (64, 4) if tiny else (640, 32)
    data = write_pictures(Path(folder).absolute(), 64 if tiny else 1024, size)
    given = {
        "model": "yolov8n.yaml",
        "data": str(data),
        "epochs": 100_000,
        "imgsz": size,
        "batch": batch,
        "nbs": batch,
        "device": "0" if device == "cuda" else "cpu",
        "workers": 0 if tiny else 1,
        "amp": False,
        "optimizer": "SGD",
        "lr0": 0.001,
        "warmup_epochs": 0,
        "close_mosaic": 0,
        "val": False,
        "save": False,
        "plots": False,
        "seed": 3,
        "deterministic": False,
        "project": folder,
        "name": "run",
        "exist_ok": True,
    }
    if "channels_last" in vars(get_cfg()):
        given["channels_last"] = False
    DetectionTrainer(overrides=given).train()


def main() -> None:
    """Train until killed."""
    kind, device, size = sys.argv[1:4]
    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)
    if kind == "yolo_defaults":
        train_yolo_by_defaults(device, tiny=size == "tiny", folder=sys.argv[4])
        return
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if kind == "resnet":
        train_resnet(device, tiny=size == "tiny")
    elif kind == "yolo":
        train_yolo(device, tiny=size == "tiny", folder=sys.argv[4])
    else:
        train_decoder(device, tiny=size == "tiny", folder=sys.argv[4])


if __name__ == "__main__":
    main()
