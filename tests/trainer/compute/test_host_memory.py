from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.commands import ROOT

# Allocates 160 MB as a step does, from many blocks, and frees it; prints the page faults of the third time.
STEPS = """
import ctypes, resource, sys
from trainer.compute.build import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
size = 8 * 2**20
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [library.malloc(ctypes.c_size_t(size)) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in reversed(blocks):
        library.free(ctypes.c_void_p(block))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_pages_are_found_again() -> None:
    assert faults("kept") < 100
    assert faults("given back") > 1000


# Trains a small model whose logits take 16 MB; prints how many of the last 20 of 60 steps needed new memory for them.
TRAINS = """
import itertools, resource, torch
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.loop import train
model = {"layers": 2, "width": 64, "heads": 2, "ffn_width": 256, "vocab_size": 4096}
config = TrainerConfig.model_validate({
    "model": model, "data": {"sequence_length": 128, "batch_size": 8}, "compute": {"device": "cpu", "threads": 1},
    "log_every": 1000,
})
ids = torch.zeros(8, 128, dtype=torch.int64)
faults = []
batches = itertools.repeat(Batch(ids, ids, None, 8, 8, 8))
for step in itertools.islice(train(config, build_compute(config, 4096), batches), 61):
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(sum(now - then > 1000 for then, now in itertools.pairwise(faults[40:])))
"""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_leaves_nothing_behind_that_lies_in_the_way_of_the_next_one(tmp_path: Path) -> None:
    """Losses were kept as tensors until they were logged: most steps took some thousand pages more."""
    program = tmp_path / "trains.py"
    program.write_text(TRAINS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with warm.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        printed, _ = process.communicate(timeout=300)
    assert int(printed.splitlines()[-1]) <= 5
