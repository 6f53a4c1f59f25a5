"""Hugging Face datasets: map(batched=True, num_proc=N), then save_to_disk ("Process text data", "Process")."""

from __future__ import annotations

import numpy as np
from common import Clock, job, report
from datasets import load_dataset, load_from_disk
from transformers import PreTrainedTokenizerFast


def main() -> None:
    given, clock = job(), Clock()
    with clock.work():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=given.tokenizer)

        def tokenize(examples: dict) -> dict:
            encoded = tokenizer(
                examples["text"], add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False
            )
            return {"input_ids": [[*ids, given.eos_id] for ids in encoded["input_ids"]]}

        texts = load_dataset("parquet", data_files=given.texts, split="train", cache_dir=f"{given.out}/cache")
        tokens = texts.map(tokenize, batched=True, num_proc=given.processes, remove_columns=texts.column_names)
        tokens.save_to_disk(f"{given.out}/tokens", num_proc=given.processes)
    table = load_from_disk(f"{given.out}/tokens").data
    report(clock, (np.asarray(chunk.flatten()) for chunk in table.column("input_ids").chunks))


if __name__ == "__main__":
    main()
