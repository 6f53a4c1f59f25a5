"""Makes what transformers' run_clm.py, unmodified, reads, tokenizes and collates with slower. See slow_data.py.

SLOW="read=8" (milliseconds a pause), SLOW_LOG=FILE: one line a pause, "stage nanoseconds process". It reads rows of a
datasets.Dataset: a batch at once or, with --streaming, one by one, ROWS of them for what it tokenizes at a time
(language_modeling.py).

SLOW_BY_TURNS=1, with --streaming: what it tokenizes at a time, and the batches made of that, are slower every other
time only, beginning with the second. One run then holds both, and whatever the machine does meanwhile is in both.
"""

import itertools
import os
import sys
import time

ROWS = 1250
BATCHES = 20  # that it makes of them
BY_TURNS = bool(os.environ.get("SLOW_BY_TURNS"))


def _pause(stage):
    begun_ns = time.monotonic_ns()
    time.sleep(WANTED_S)
    took_ns = time.monotonic_ns() - begun_ns
    log = os.open(os.environ["SLOW_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(log, f"{stage} {took_ns} {os.getpid()}\n".encode())
    os.close(log)


def _paused(owner, name, stage, calls=1):
    """``calls`` of it belong to one turn."""
    usual = getattr(owner, name)
    made = itertools.count()

    def slow(*given, **named):
        if next(made) // calls % 2 or not BY_TURNS:
            _pause(stage)
        return usual(*given, **named)

    setattr(owner, name, slow)


def _read(module):
    usual = module.Dataset.__iter__

    def rows(self):
        for number, row in enumerate(usual(self)):
            if number % ROWS == ROWS // 2 and (number // ROWS % 2 or not BY_TURNS):  # in the middle
                _pause("read")
            yield row

    _paused(module.Dataset, "__getitems__", "read")
    module.Dataset.__iter__ = rows


SLOWED = {
    "read": ("datasets.arrow_dataset", _read),
    "tokenize": (
        "transformers.tokenization_utils_tokenizers",
        lambda module: _paused(module.PreTrainedTokenizerFast, "_encode_plus", "tokenize"),
    ),
    "collate": (
        "transformers.data.data_collator",
        lambda module: _paused(module, "torch_default_data_collator", "collate", BATCHES),
    ),
}


class _After:
    """Changes a module once it has been imported."""

    def __init__(self, name, change):
        self.name, self.change, self.asking = name, change, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.asking:
            return None
        self.asking = True
        try:
            specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((one for one in specs if one is not None), None)
        finally:
            self.asking = False
        if spec is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("SLOW"):
    _stage, _, _ms = os.environ["SLOW"].partition("=")
    WANTED_S = float(_ms) / 1e3
    sys.meta_path.insert(0, _After(*SLOWED[_stage]))
