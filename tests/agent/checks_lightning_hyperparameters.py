"""A Lightning module that keeps a class of its own among its hyperparameters, as many do."""

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel


class Normalizer:
    def __init__(self, scale: float) -> None:
        self.scale = scale


class Normalized(BoringModel):
    def __init__(self, normalizer: Normalizer) -> None:
        super().__init__()
        self.save_hyperparameters()


torch.manual_seed(1)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, limit_train_batches=8, limit_val_batches=0,
)  # fmt: skip
trainer.fit(Normalized(Normalizer(2.0)))
print("ENDED", trainer.global_step, flush=True)
