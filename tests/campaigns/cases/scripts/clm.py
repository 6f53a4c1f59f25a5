"""A run in the style of transformers' run_clm.py: grouped blocks, Trainer with evaluation, logging and saves."""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator


class Blocks(Dataset):
    """Blocks of 64 tokens, as group_texts leaves them."""

    def __init__(self, count):
        ids = torch.randint(0, 500, (count, 64), generator=torch.Generator().manual_seed(1))
        self.rows = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in ids]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


with tempfile.TemporaryDirectory() as folder:
    Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=2)),
        args=TrainingArguments(
            folder,
            max_steps=200,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            dataloader_num_workers=int(sys.argv[1]) if sys.argv[1:] else 0,
            eval_strategy="steps",
            eval_steps=100,
            save_steps=100,
            logging_steps=10,
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=Blocks(4000),
        eval_dataset=Blocks(64),
        data_collator=default_data_collator,
    ).train()
