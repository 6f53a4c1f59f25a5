"""harness data dedup: removes near-duplicates from a corpus, on this machine or on Spark."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import PATHS_NOTE, add_upload
from harness.commands.data_needs import add_documents, add_engine, check_engine, corpus_setting, validated
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import write_text

if TYPE_CHECKING:
    from harness.show.dedup import DedupPage
    from trainer.data.corpus import Corpus
    from trainer.data.corpus.dedup.run import DedupOutcome, SparkOptions
    from trainer.data.corpus.dedup.sketches import DedupSettings

_SIZES = {"word": 5, "char": 9}
# Options that do not go with --make-labelled, which takes only the seed.
_OTHERS = (
    "corpus", "column", "shingles", "shingle_size", "unicode", "case", "threshold", "permutations",
    "bands", "rows", "engine", "workers", "master", "timeout", "labels", "json", "upload",
)  # fmt: skip
_STAGES = {
    "sketch": "sketching documents",
    "identical": "finding documents with the same shingles",
    "pairs": "pairing documents that share a band",
    "verify": "verifying pairs",
    "decide": "deciding which documents are kept",
    "write": "writing kept and removed documents",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    add_documents(parser)
    parser.add_argument("--out", metavar="DIR", help="a new folder: kept/, removed/, dedup.md, dedup.json, s-curve.png")
    parser.add_argument(
        "--shingles", choices=tuple(_SIZES), default="word", help="runs of words or characters (default: %(default)s)"
    )
    parser.add_argument(
        "--shingle-size", type=int, metavar="N", help="words or characters in a run (default: 5 words, 9 characters)"
    )
    parser.add_argument(
        "--unicode", choices=("nfc", "nfkc", "none"), default="nfc",
        help="Unicode form for the comparison: NFC, NFKC (also plain letters for ligatures and wide letters), or "
        "unchanged (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--case", choices=("lower", "fold", "keep"), default="lower",
        help="compare lower case, case-folded texts, or texts as they are (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=float, default=0.8, metavar="S",
        help="Jaccard similarity of shingles from which on documents are near-duplicates (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--permutations", type=int, metavar="N", help="hashes per document, split into bands of rows (default: 128)"
    )
    parser.add_argument(
        "--bands", type=int, metavar="N", help="number of bands; with --rows (default: fitted to the threshold)"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="rows of each band; with --bands")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the hashes, or of --make-labelled")
    add_engine(parser, "compare", "task")
    parser.add_argument(
        "--labels",
        metavar="FILE",
        help="report precision and recall: of --make-labelled, or a table with cluster and id or row",
    )
    parser.add_argument(
        "--make-labelled", type=int, metavar="N", help="only make a labelled corpus of N documents in --out"
    )
    add_upload(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, one line")


def dedup(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Remove near-duplicates from the corpus. Return the exit code. With --make-labelled: only make a corpus of which
    the near-duplicates are known.
    """
    from trainer.data.corpus.places import scheme_of

    if arguments.out is None:
        raise InputError("data dedup: give --out DIR")
    if scheme_of(arguments.out) is not None:
        raise InputError(
            f"--out {arguments.out}: a URL; allowed: a folder of this machine; --upload {arguments.out} copies it there"
        )
    if not -(2**63) <= arguments.seed < 2**63:
        raise InputError(f"--seed {arguments.seed}: allowed: whole numbers of 64 bits")
    if arguments.make_labelled is not None:
        return _make(arguments)
    if arguments.corpus is None:
        raise InputError("data dedup: give --corpus, or --make-labelled N")
    settings = _settings(arguments)
    spark = _spark(arguments)
    return _dedup(arguments, settings, spark)


def _make(arguments: argparse.Namespace) -> int:
    from harness.launch.progress import announced
    from trainer.data.corpus.dedup.labelled import CORPUS_FILE, LABELS_FILE, check_count, write_labelled
    from trainer.files import check_new

    for name, value in vars(arguments).items():
        if name in _OTHERS and value != arguments.parser.get_default(name):
            raise InputError(f"--{name.replace('_', '-')}: cannot be combined with --make-labelled")
    check_count(arguments.make_labelled)
    check_new(Path(arguments.out))
    with announced(f"making {arguments.make_labelled:,} labelled documents"):
        write_labelled(Path(arguments.out), arguments.make_labelled, arguments.seed)
    folder = Path(arguments.out)
    say(f"written to {folder}: {CORPUS_FILE}, {LABELS_FILE}")
    corpus, labels = shlex.quote(str(folder / CORPUS_FILE)), shlex.quote(str(folder / LABELS_FILE))
    say(f"next: harness data dedup --corpus {corpus} --labels {labels} --out DIR")
    return 0


def _settings(arguments: argparse.Namespace) -> DedupSettings:
    """Return the definition of a near-duplicate from the options. Raises InputError for impossible values."""
    from trainer.data.corpus.dedup.shingles import Shingling
    from trainer.data.corpus.dedup.sketches import (
        PERMUTATIONS,
        DedupSettings,
        banding_for,
        check_threshold,
        given_banding,
    )

    size = _SIZES[arguments.shingles] if arguments.shingle_size is None else arguments.shingle_size
    shingling = Shingling(arguments.shingles, size, arguments.unicode, arguments.case)
    check_threshold(arguments.threshold)
    if (arguments.bands is None) != (arguments.rows is None):
        raise InputError("--bands and --rows: give both, or --permutations")
    if arguments.bands is None:
        permutations = PERMUTATIONS if arguments.permutations is None else arguments.permutations
        banding = banding_for(arguments.threshold, permutations)
    elif arguments.permutations is not None:
        raise InputError("--permutations: cannot be combined with --bands and --rows (there are bands x rows)")
    else:
        banding = given_banding(arguments.bands, arguments.rows)
    return DedupSettings(shingling, arguments.threshold, banding, arguments.seed)


def _spark(arguments: argparse.Namespace) -> SparkOptions | None:
    """Return Spark's options; None for the local engine. Raises InputError if options do not go together."""
    from trainer.data.corpus.dedup.run import SparkOptions

    check_engine(arguments)
    if arguments.workers is not None and not 1 <= arguments.workers <= 256:
        raise InputError(f"--workers {arguments.workers}: allowed: 1 to 256")
    if arguments.engine == "local":
        return None
    from trainer.data.shares import DEFAULT_TIMEOUT_S

    return SparkOptions(arguments.master, arguments.timeout or DEFAULT_TIMEOUT_S)


def _dedup(arguments: argparse.Namespace, settings: DedupSettings, spark: SparkOptions | None) -> int:
    from harness.commands.upload import finish_upload, uploader_of
    from harness.show import dedup as report
    from harness.show.drawing import write_picture
    from trainer.config import CorpusConfig
    from trainer.data.corpus import prepare_corpus
    from trainer.data.corpus.dedup.quality import Labels, cluster_quality, quality_of, read_labels
    from trainer.data.corpus.dedup.run import deduplicate
    from trainer.files import check_new

    out = Path(arguments.out)
    check_new(out)
    uploader = None if arguments.upload is None else uploader_of(out, arguments.upload)
    corpus = prepare_corpus(validated(CorpusConfig, corpus_setting(arguments), "data.corpus"))
    labels = None if arguments.labels is None else read_labels(Path(arguments.labels), corpus)
    pages: list[DedupPage] = []

    def finish(folder: Path, outcome: DedupOutcome) -> None:
        quality = quality_of(labels, outcome.removed, outcome.kept) if isinstance(labels, Labels) else None
        clusters = None
        if labels is not None and outcome.edges is not None:
            truth = labels.clusters if isinstance(labels, Labels) else labels
            clusters = cluster_quality(truth, outcome.edges, settings.threshold)
        page = report.DedupPage(settings, outcome.result, quality, clusters)
        pages.append(page)
        write_picture(folder / report.PICTURE, report.picture(settings))
        write_text(folder / "dedup.json", json.dumps(report.as_json(page)) + "\n")
        write_text(folder / "dedup.md", report.page(page, report.PICTURE))

    with _shown(corpus) as (stage, progress):
        deduplicate(
            corpus,
            settings,
            out,
            workers=arguments.workers,
            spark=spark,
            with_edges=labels is not None,
            finish=finish,
            stage=stage,
            progress=progress,
        )
    if arguments.json:
        print(json.dumps(report.as_json(pages[0])))
    else:
        say(report.page(pages[0]))
        say(f"written to {out}: kept/, removed/, dedup.md, dedup.json, {report.PICTURE}")
    return 0 if uploader is None or finish_upload(out, uploader, json=arguments.json) else 1


@contextmanager
def _shown(corpus: Corpus) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """Show a status line, and yield callbacks that update it: with the name of a stage, with a number of documents."""
    from harness.launch.progress import SignsOfLife

    task = f"removing near-duplicates from {corpus.name}: {corpus.documents:,} documents"
    doing, done = "starting", 0

    def line() -> str:
        return f"{task}; {doing}" + (f", {done:,} done" if done else "")

    def stage(name: str) -> None:
        nonlocal doing, done
        doing, done = _STAGES.get(name, "joining groups"), 0

    def progress(documents: int) -> None:
        nonlocal done
        done = documents

    with SignsOfLife(line) as signs:
        signs.show(task)
        yield stage, progress
