from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Allocates 160 MB as a step does, from many blocks, and frees it; prints the page faults of the third time.
STEPS = """
import ctypes, resource, sys
from trainer.compute.host_memory import keep_freed_memory
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
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_pages_are_found_again() -> None:
    assert faults("kept") < 100
    assert faults("given back") > 1000
