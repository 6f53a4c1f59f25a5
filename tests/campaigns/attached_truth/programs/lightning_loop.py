"""Lightning."""

import sys

import lightning
import torch
from slow_data import BATCH, Collate, Texts
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
workers, steps = int(sys.argv[1]), int(sys.argv[2])


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=2))

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


loader = torch.utils.data.DataLoader(Texts(), batch_size=BATCH, num_workers=workers, collate_fn=Collate())
trainer = lightning.Trainer(
    max_steps=steps,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), loader)
