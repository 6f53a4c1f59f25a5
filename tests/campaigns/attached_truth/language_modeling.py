"""What run_clm.py of transformers' examples needs to run offline as it is: a text, a tokenizer, a small model.

Every line of the text has 40 words, and every word is a token. With --streaming the script tokenizes 1,000 lines at a
time while it trains, and leaves 20 of each 100 lines to the validation: 1,250 lines make 40,000 tokens, 20 batches.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SCRIPT = "run_clm.py"
LINES, LINE_WORDS, WORDS = 10_000, 40, 200
BATCH, LENGTH = 8, 250
BATCHES_AT_ONCE = 1000 * LINE_WORDS // (BATCH * LENGTH)  # that --streaming makes of what it tokenizes at a time
AHEAD = 1  # accelerate fetches a batch ahead of its step
SETTINGS = (
    "--model_type gpt2 --config_overrides n_embd=64,n_layer=2,n_head=2,n_positions=256,vocab_size=256 --block_size "
    f"{LENGTH} --per_device_train_batch_size {BATCH} --do_train --use_cpu --report_to none --save_strategy no "
    "--logging_strategy no --disable_tqdm True --validation_split_percentage 19"
)
STREAMING = "--streaming --max_train_samples 100000"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def prepare(folder: Path) -> Mapping[str, str]:
    """Write text and tokenizer into ``folder``; the variables with which the script runs there."""
    folder.mkdir(parents=True)
    words = [f"w{number}" for number in range(WORDS)]
    of_words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(["[UNK]", *words])}, "[UNK]"))
    of_words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_words, unk_token="[UNK]", model_max_length=1024)
    tokenizer.save_pretrained(folder / "tokenizer")
    chosen = random.Random(0)
    lines = [" ".join(chosen.choices(words, k=LINE_WORDS)) + "\n" for _ in range(LINES)]
    (folder / "train.txt").write_text("".join(lines))
    return {**OFFLINE, "HF_HOME": str(folder / "cache")}


def command(examples: Path, steps: int, workers: int, streaming: bool) -> list[str]:
    """The script's command in a folder that is prepared. ``examples``: the folder that holds it."""
    words = [sys.executable, str(examples / SCRIPT), *SETTINGS.split(), *(STREAMING.split() if streaming else [])]
    files = ["--tokenizer_name", "tokenizer", "--train_file", "train.txt", "--output_dir", "out"]
    return [*words, *files, "--max_steps", str(steps), "--dataloader_num_workers", str(workers)]


def blob(examples: Path) -> str:
    """What git names the script's content by, so that anybody can find the commits that hold it."""
    content = (examples / SCRIPT).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
