"""A Lightning module, recorded by a callback. Needs lightning."""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from harness import LightningCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", default="results")
arguments = parser.parse_args()


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))

    def training_step(self, batch, _number):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


callback = LightningCallback(out=arguments.out)
lightning.Trainer(
    max_steps=arguments.steps,
    accelerator="auto",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[callback],
).fit(Net(), DataLoader(TensorDataset(torch.randn(8192, 64), torch.randn(8192, 1)), batch_size=32))
print(f"study: {callback.study}")
