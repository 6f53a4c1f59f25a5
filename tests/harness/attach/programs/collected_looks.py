"""Looks at its main thread as fast as it can, as the agent does, while that collects garbage and starts threads.

Prints how many looks there were.
"""

import _thread
import gc
import sys
from time import monotonic, monotonic_ns

from harness.attach import hooks

hooks._agent()
from _harness_agent import own_time, phases  # noqa: E402

SECONDS = 3


def callback(phase, information):
    for _ in range(3000):  # Python code lets go of the interpreter's lock
        pass


def work(kept):
    _thread.start_new_thread(len, ((),))  # needs the lock of the list of all threads
    kept.append([])
    if len(kept) > 100_000:
        kept.clear()
    for _ in range(100):
        pass


def look(sampler):
    last_ns = monotonic_ns()
    while True:
        last_ns = sampler._look(last_ns, last_ns)


gc.callbacks.append(callback)
gc.set_threshold(own_time.SPARE_OBJECTS + 20)
sys.setswitchinterval(1e-5)
phases.recorded_thread = _thread.get_ident()
sampler = own_time._Sampler()
_thread.start_new_thread(look, (sampler,))
until, kept = monotonic() + SECONDS, []
while monotonic() < until:
    work(kept)
print(len(sampler.looks))
