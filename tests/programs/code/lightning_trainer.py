"""Lightning's own BoringModel under its Trainer; it goes on from the last of its own checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import death
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

FOLDER = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
NODES = int(os.environ["OCIDIST_NODES"])
BATCH = 4

seed_everything(7)


class Dies(Callback):
    def on_train_batch_end(self, trainer, *_):
        death.at(trainer.global_step)


class Model(BoringModel):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(RandomDataset(32, 256), batch_size=BATCH)

    def training_step(self, _, number):
        # Lightning winds no loader forward when it goes on: what is learned in a step depends on the step alone.
        draws = torch.Generator().manual_seed(self.global_step * NODES + self.global_rank)
        return super().training_step(torch.randn(BATCH, 32, generator=draws), number)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


begun = max(FOLDER.glob("*.ckpt"), key=lambda path: int(path.stem.partition("step=")[2]), default=None)
model = Model()
trainer = Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=NODES,
    strategy="ddp",
    max_steps=death.STEPS,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    limit_val_batches=0,
    callbacks=[Dies(), ModelCheckpoint(FOLDER, every_n_train_steps=death.EVERY, save_top_k=-1)],
)
trainer.fit(model, ckpt_path=begun)
death.show(begun, model)
