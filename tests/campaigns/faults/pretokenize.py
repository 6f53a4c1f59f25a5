"""Kills during pretokenization: SIGKILL at random moments; then the same command must come to the same bytes.

``python -m tests.campaigns faults.pretokenize --kills 20``. Asked: no kill leaves a folder that looks finished, what
was finished is kept, and every file is, byte for byte, that of a pretokenization that nobody disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.campaigns.faults.common import Counts, finish, harness_words, kill_all, run, start, tree, workplace
from trainer.data.formats.flat import JOURNAL
from trainer.files import partial_path

FORMATS = ("flat", "token-list", "padded")
LIMIT_S = 400.0
WORDS = ("tokens", "über", "naïve", "漢字", "def", "return", "(x)", "🙂", "latency", "\n\n", "of", "the", "a", "memory")


def corpus_of(folder: Path, documents: int) -> Path:
    """Documents of 0 to 400 words, some of them equal."""
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randrange(400))) for _ in range(documents)]
    path = folder / "corpus.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=300)
    return path


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def words_of(corpus: Path, format: str, out: Path, workers: int) -> list[str]:
    inputs = ("--corpus", str(corpus), "--tokenizer", "bpe:600", "--sequence-length", "128")
    return harness_words(
        "data", "pretokenize", *inputs, "--format", format, "--out", str(out), "--workers", str(workers)
    )


def kept_groups(out: Path) -> int:
    """How many groups of documents the journal of a killed process speaks of."""
    path = partial_path(out) / ".journal" / JOURNAL
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.is_file() else 0


def one_kill(command: list[str], out: Path, after_s: float, what: str, counts: Counts) -> bool:
    """Whether it came in time."""
    process = start(command)
    time.sleep(after_s)
    kill_all(tree(process.pid))
    ended = finish(process, LIMIT_S)
    if ended.problem is not None:
        counts.bad(ended.problem, f"{what}\n{ended.err[-2000:]}")
    elif ended.code == 0:
        counts.good("killed too late: it had ended")
    elif not out.exists():
        groups = kept_groups(out)
        counts.good("killed before the first group was written" if not groups else "killed with groups kept")
    else:
        counts.good("killed after the folder was in its place")
    return ended.code != 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=20, metavar="N", help="in all (default: %(default)s)")
    options.add_argument(
        "--documents", type=int, default=6000, metavar="N", help="of the corpus (default: %(default)s)"
    )
    options.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other moments (default: 0)")
    arguments = options.parse_args()
    counts, chance = Counts("kills during pretokenization"), random.Random(arguments.seed)
    with workplace() as folder:
        corpus = corpus_of(folder, arguments.documents)
        expected, seconds = {}, {}
        for format in FORMATS:
            for round in ("prepared", "timed"):  # the first trains the tokenizer, too
                shutil.rmtree(folder / "whole", ignore_errors=True)
                begun = time.monotonic()
                ended = run(words_of(corpus, format, folder / "whole", 2), LIMIT_S)
                seconds[format] = time.monotonic() - begun
                if ended.code != 0:
                    sys.exit(f"it does not even work undisturbed ({round}): {ended.err[-2000:]}")
            expected[format] = digests(folder / "whole" / format)
        left = arguments.kills
        while left:
            format, out = chance.choice(FORMATS), folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            for _ in range(min(left, chance.randint(1, 3))):  # one after the other, in the same place
                after_s = chance.uniform(0.3, 1.0) * seconds[format]
                command = words_of(corpus, format, out, chance.randint(1, 3))
                left -= one_kill(command, out / format, after_s, f"{format} after {after_s:.1f} s", counts)
            if not counts.of(run(words_of(corpus, format, out, chance.randint(1, 3)), LIMIT_S), {0}, f"then {format}"):
                continue
            if digests(out / format) != expected[format]:
                counts.bad("other bytes", f"{format}: {sorted(digests(out / format))}")
            elif [path.name for path in out.iterdir()] != [format]:
                counts.bad("left behind", f"{format}: {sorted(path.name for path in out.iterdir())}")
            else:
                counts.good("identical to the undisturbed one")
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
