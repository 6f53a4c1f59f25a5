"""A Lightning module under its Trainer: validation, checkpoints, logger and progress bar as they come."""

import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(500, 128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 500)
        )

    def loss_of(self, batch):
        (ids,) = batch
        return torch.nn.functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten())

    def training_step(self, batch, _number):
        loss = self.loss_of(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _number):
        self.log("val_loss", self.loss_of(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


ids = torch.randint(0, 500, (4000, 64), generator=torch.Generator().manual_seed(1))
with tempfile.TemporaryDirectory() as folder:
    lightning.Trainer(
        max_steps=250, accelerator="cpu", default_root_dir=folder, logger=lightning.pytorch.loggers.CSVLogger(folder)
    ).fit(
        Module(), DataLoader(TensorDataset(ids), batch_size=16, shuffle=True), DataLoader(TensorDataset(ids[:160]), 16)
    )
