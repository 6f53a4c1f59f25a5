"""A dataset, a tokenizer and a collation, each as much slower as the environment says; they write down how long.

SLOW="read=8" (milliseconds a batch), SLOW_LOG=FILE: one line a pause, "stage nanoseconds process".
"""

import os
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BATCH, LENGTH, BATCHES = 4, 32, 2000
SLOW = dict(one.split("=") for one in os.environ.get("SLOW", "").split(",") if one)
TEXT = "a training text of some forty letters"


def pause(stage, parts=1):
    wanted_ms = float(SLOW.get(stage, 0)) / parts
    if wanted_ms:
        begun_ns = time.monotonic_ns()
        time.sleep(wanted_ms / 1e3)
        took_ns = time.monotonic_ns() - begun_ns
        log = os.open(os.environ["SLOW_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(log, f"{stage} {took_ns} {os.getpid()}\n".encode())
        os.close(log)


class SlowTokenizer(PreTrainedTokenizerFast):
    def _encode_plus(self, *given, **named):
        pause("tokenize")
        return super()._encode_plus(*given, **named)


def make_tokenizer():
    letters = Tokenizer(models.WordLevel({"[UNK]": 0, **{chr(97 + i): i + 1 for i in range(26)}}, unk_token="[UNK]"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return SlowTokenizer(tokenizer_object=letters, unk_token="[UNK]", pad_token="[UNK]")


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, index):
        pause("read", BATCH)
        return TEXT


class Collate:
    def __init__(self):
        self.tokenizer = make_tokenizer()

    def __call__(self, texts):
        ids = self.tokenizer(texts, truncation=True, max_length=LENGTH, return_tensors="pt")["input_ids"]
        pause("collate")
        return {"input_ids": ids, "labels": ids}
