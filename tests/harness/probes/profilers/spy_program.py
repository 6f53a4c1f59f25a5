"""A small trainer that knows where each of its moments went, run under PySpy: see test_py_spy.py.

python spy_program.py FOLDER '{"workers": 2, "settings": {...}, "refused": false}' writes into FOLDER what PySpy writes,
and truth.json: its facts and problems, and the spans of its main thread and workers.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from time import monotonic_ns

from harness.machine.tracing import allow_tracing
from harness.probes.ledger.recorders import BareRecorder
from harness.probes.profilers.py_spy import PySpy, PySpySettings

TEXT = "def tokenize(text): return [token for token in text.split() if token not in stop_words]\n"


def known_read():
    spin_ms(8)  # most samples fall into it even where they come some milliseconds late


def known_pack():
    spin_ms(8)


def known_forward():
    spin_ms(6)


def known_optimizer():
    time.sleep(0.012)  # one call that waits: nothing of the stack changes for many samples


def spin_ms(duration):
    end = monotonic_ns() + duration * 1_000_000
    while monotonic_ns() < end:
        pass


def make_tokenizer(folder):
    import tokenizers

    from trainer.data.cache import file_fingerprint
    from trainer.data.tokenizers import TokenizerInfo, keep_single_threaded

    keep_single_threaded()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    made.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False))
    file = folder / "tokenizer.json"
    made.save(str(file))
    return TokenizerInfo("bpe", str(file), 300, None, None, None, file_fingerprint(file), "tokenizers")


def make_batch(tokenizer, spans, role):
    for name, work in (
        ("read", known_read),
        ("tokenize", lambda: tokenizer.encode_batch([TEXT * 40] * 30)),
        ("pack", known_pack),
    ):
        start = monotonic_ns()
        work()
        spans.append((os.getpid(), role, name, start, monotonic_ns()))


def worker(info, batches, number):
    from trainer.data.tokenizers import load_tokenizer

    allow_tracing()
    tokenizer = load_tokenizer(info)
    while True:
        spans = []
        make_batch(tokenizer, spans, f"loader-{number}")
        batches.put(spans)


def main(folder, order):
    info = make_tokenizer(folder)
    context = multiprocessing.get_context(order.get("start_method", "fork"))
    batches = context.Queue(maxsize=2)
    workers = [context.Process(target=worker, args=(info, batches, k), daemon=True) for k in range(order["workers"])]
    for one in workers:
        one.start()
    from trainer.data.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(info)
    spans = []

    def phase(name, work):
        start = monotonic_ns()
        work()
        spans.append((os.getpid(), "main", name, start, monotonic_ns()))

    def wait_for_batch():
        if workers:
            spans.extend(batches.get())
        else:
            make_batch(tokenizer, spans, "main")

    steps = 0

    def next_step():
        nonlocal steps
        steps += 1
        phase("fetch", wait_for_batch)
        phase("forward", known_forward)
        phase("optimizer", known_optimizer)
        return steps

    if order.get("refused"):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE 0: now only CAP_SYS_PTRACE may trace this process
    spy = PySpy(PySpySettings.from_json(order["settings"]), folder)
    allow_tracing()
    spy.run_window(next_step, BareRecorder())
    next_step()  # the run goes on
    truth = {"facts": spy.facts(), "problems": spy.problems, "spans": spans, "steps": steps, "pid": os.getpid()}
    truth["children_left"] = sorted(set(children()) - {one.pid for one in workers})
    (folder / "truth.json").write_text(json.dumps(truth))
    for one in workers:
        one.kill()


def children():
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
