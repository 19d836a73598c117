"""Lightning raises in its fifth batch; the script catches that and ends well, or with `again` trains once more."""

import sys

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel


class Raising(BoringModel):
    def training_step(self, batch, index):
        if index == 4 and self.raises:
            raise ValueError("the fifth batch")
        return super().training_step(batch, index)


for raises in (True, False) if "again" in sys.argv else (True,):
    model = Raising()
    model.raises = raises
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_train_batches=8, limit_val_batches=0,
    )  # fmt: skip
    try:
        trainer.fit(model)
    except ValueError:
        print("CAUGHT", flush=True)
