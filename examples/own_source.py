"""A dataset of one's own, for a scenario's data.source: it tokenizes each document as it is asked for."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset

TEXTS = [f"def function_{i}(x): return x + {i}  # adds {i} to x and gives it back\n" * 60 for i in range(512)]


class Documents(Dataset):
    def __init__(self, length):
        self.length = length
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
        self.tokenizer.train_from_iterator(TEXTS[:50], trainers.BpeTrainer(vocab_size=300, show_progress=False))

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return torch.tensor(self.tokenizer.encode(TEXTS[index]).ids[: self.length])


def make(batch_size, sequence_length):
    return DataLoader(Documents(sequence_length), batch_size=batch_size, shuffle=True)
