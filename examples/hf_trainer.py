"""transformers' Trainer, recorded by a callback. Needs accelerate, as the Trainer does."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from harness import HarnessCallback

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", default="results")
arguments = parser.parse_args()


class Windows(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = torch.arange(index, index + 64) % 256
        return {"input_ids": ids, "labels": ids}


with tempfile.TemporaryDirectory() as folder:
    callback = HarnessCallback(out=arguments.out)
    Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2)),
        args=TrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=8,
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        ),
        train_dataset=Windows(),
        callbacks=[callback],
    ).train()
print(f"study: {callback.study}")
