"""A training loop over torch's DataLoader: every batch is tokenized as it is made."""

import argparse

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 64
TEXTS = [f"def function_{i}(x): return x + {i}  # adds {i} to x and gives it back\n" * 8 for i in range(512)]

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--workers", type=int, default=0)
arguments = parser.parse_args()
torch.manual_seed(0)

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, show_progress=False))


class Texts(Dataset):
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return TEXTS[index]


def collate(texts):
    return torch.tensor([one.ids[:LENGTH] for one in tokenizer.encode_batch(texts)])


model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Texts(), batch_size=8, shuffle=True, num_workers=arguments.workers, collate_fn=collate)
step = 0
while step < arguments.steps:
    for ids in loader:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if step == arguments.steps:
            break
