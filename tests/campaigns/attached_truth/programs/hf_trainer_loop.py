"""transformers' Trainer."""

import sys
import tempfile

import torch
from slow_data import BATCH, Collate, Texts
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
workers, steps = int(sys.argv[1]), int(sys.argv[2])
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=64, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=BATCH,
    dataloader_num_workers=workers,
    report_to=[],
    save_strategy="no",
    logging_strategy="no",
    remove_unused_columns=False,
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=Texts(), data_collator=Collate()).train()
