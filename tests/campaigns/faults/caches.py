"""``python -m tests.campaigns faults.caches``.

Damages every file of a small cache, and counts what the data commands make of it.

Each call starts from a cache with one damaged file: a command of the command line, or a data preparation with one
epoch of batches. What it prints and yields is compared with that of the undamaged cache. Damage keeps the file's mtime.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.commands import harness
from trainer.config import DataConfig
from trainer.data.dataset import Epoch
from trainer.data.prepare import prepare

PATHS = ("text-padded", "text-stream", "tokens-padded", "tokens-stream", "tokens-mmap")
OTHERS, MANIFEST = "others", "manifest.json"
SAID = re.compile("damaged in the cache: .*; (built|computed) again")


@dataclass(frozen=True)
class Damage:
    """One way to spoil a file; it is given the file, and chance for where."""

    name: str
    apply: Callable[[Path, random.Random], None]


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(1, path.stat().st_size))


def other_json(path: Path, _: random.Random) -> None:
    path.write_text("[1, 2]")


def swap(path: Path, _: random.Random) -> None:
    """Put an entry of the same kind into the place of the file's entry: whole, and of another key."""
    entry = path if path.parent.name == "facts" else path.parent
    kind = entry.parent
    one = next(one for one in (kind.parent.parent / OTHERS / kind.name).iterdir() if _like(one, entry))
    if entry.is_dir():
        shutil.rmtree(entry)
        shutil.copytree(one, entry)
    else:
        shutil.copy(one, entry)


def _like(one: Path, entry: Path) -> bool:
    """Whether an entry holds the same: padded rows or lists of tokens, in the case of pretokenized files."""
    manifests = [json.loads(path.read_text()) for path in (one / MANIFEST, entry / MANIFEST) if path.is_file()]
    return len({manifest["format"] for manifest in manifests}) < 2


def to_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


DAMAGES = (
    *(Damage(f"bit flipped ({number})", flip) for number in range(6)),
    Damage("truncated", truncate),
    Damage("emptied", lambda path, _: os.truncate(path, 0)),
    Damage("another value", other_json),
    Damage("a folder in its place", to_folder),
    Damage("removed", lambda path, _: path.unlink()),
    Damage("swapped with another entry of its kind", swap),
)


@dataclass(frozen=True)
class Result:
    """What a call came to: an exit code, what it printed, and what the batches held."""

    code: int
    printed: str
    errors: str
    content: str = ""


def scenario(folder: Path, pretrained: bool = False, documents: int = 40) -> Path:
    """A scenario over a small corpus with every path's needs, written into ``folder`` with the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(f"word{number * at % 31}" for at in range(3 + number % 17)) for number in range(documents)]
    pq.write_table(pa.table({"text": texts}), folder / "corpus.parquet")
    tokenizer = f"pretrained: {_pretrained(folder, texts)}" if pretrained else "train: {kind: bpe, vocab_size: 300}"
    file = folder / "scenario.yaml"
    file.write_text(
        f"""name: caches
question: does damage show?
base:
  data:
    corpus: {{parquet: {folder}/corpus.parquet}}
    tokenizer: {{{tokenizer}}}
    sequence_length: 16
    batch_size: 4
  steps: 2
arms:
  one: {{}}
"""
    )
    return file


def _pretrained(folder: Path, texts: list[str]) -> Path:
    """A tokenizer as transformers saves one."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "word1": 1, "word2": 2}, "<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.train_from_iterator(texts, tokenizers.trainers.WordLevelTrainer(special_tokens=["<unk>"]))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(folder / "pretrained")
    return folder / "pretrained"


def calls(file: Path) -> dict[str, Callable[[], Result]]:
    """The calls of the campaign, by name, over the cache that HARNESS_CACHE names."""

    def command(*words: str) -> Callable[[], Result]:
        def call() -> Result:
            done = harness(*words)
            return Result(done.returncode, done.stdout, done.stderr)

        return call

    def batches() -> Result:
        return _prepared(file)

    return {
        "data pretokenize": command("data", "pretokenize", str(file)),
        "data verify": command("data", "verify", str(file)),
        "prepare and read": batches,
    }


def _prepared(file: Path) -> Result:
    import contextlib
    import io

    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan
    from trainer.errors import InputError

    base = make_plan(load_scenario(file), str(file)).arms[0].config.data
    seen, errors = hashlib.sha256(), io.StringIO()
    facts = []
    with contextlib.redirect_stderr(errors):
        try:
            for path in PATHS:
                config: DataConfig = base.model_copy(update={"path": path, "workers": 0})
                prepared = prepare(config)
                facts.append(f"{path}: {prepared}")
                for batch in Epoch(config, prepared, seed=1):
                    seen.update(batch.input_ids.numpy().tobytes() + batch.labels.numpy().tobytes())
        except InputError as error:
            return Result(2, "", str(error))
    return Result(0, "\n".join(facts), errors.getvalue(), seen.hexdigest())


def outcome(found: Result, right: Result) -> str:
    """What a call made of the damage."""
    if found.code == 2 and len(found.errors.strip().splitlines()) == 1:
        return "refused"
    if (found.code, found.printed, found.content) != (right.code, right.printed, right.content):
        return "wrong result"
    return "built again" if SAID.search(found.errors) else "not needed"


def files(cache: Path) -> list[Path]:
    """Every file of the cache, by its path in it."""
    return sorted(path.relative_to(cache) for path in cache.rglob("*") if path.is_file())


def campaign(work: Path, seed: int, share: float, pretrained: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield (file, damage, call, outcome) of each call; ``share`` of them is drawn."""
    file, other = scenario(work, pretrained), scenario(work / "other", pretrained, documents=30)
    pristine, cache = work / "pristine", work / "cache"
    os.environ["HARNESS_CACHE"] = str(work / OTHERS)
    _prepared(other)
    os.environ["HARNESS_CACHE"] = str(cache)
    for call in calls(file).values():  # the first builds
        assert call().code == 0
    right = {name: call() for name, call in calls(file).items()}
    shutil.rmtree(pristine, ignore_errors=True)
    cache.rename(pristine)
    chance = random.Random(seed)
    for path in files(pristine):
        for damage in DAMAGES:
            for name, call in calls(file).items():
                if chance.random() >= share:
                    continue
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(pristine, cache, symlinks=True)  # copies mtimes too
                before = (cache / path).stat()
                damage.apply(cache / path, chance)
                if (cache / path).exists():
                    os.utime(cache / path, ns=(before.st_atime_ns, before.st_mtime_ns))
                try:
                    result = outcome(call(), right[name])
                except (Exception, SystemExit):
                    result = "traceback"
                    print(f"{path}, {damage.name}, {name}\n{traceback.format_exc(limit=-1)}", file=sys.stderr)
                except BaseException as error:  # a panic of a Rust library is no Exception
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    result = "traceback"
                left = [one for one in cache.rglob(".*") if one.name.endswith(".tmp")]
                yield str(path), damage.name, name, "left temporary files" if left else result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of all calls (default: all)")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-caches-") as folder:
        for kind in ("trained", "pretrained"):
            for path, damage, call, result in campaign(
                Path(folder) / kind, arguments.seed, arguments.share, kind == "pretrained"
            ):
                counts[result] += 1
                if result not in ("built again", "not needed", "refused"):
                    bad.append(f"{result}: {kind}: {path}, {damage}, {call}")
    print("\n".join(bad))
    print(f"{counts.total()} calls: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
