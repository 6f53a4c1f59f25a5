"""Switches the hooks of harness exec off and on by turns, and times its own steps: what do they add to each?

Without harness exec nothing is switched. A line of JSON says what each turn took.
"""

import argparse
import json
import sys
import time
from itertools import islice

import item_each_step
import torch

WARM, SKIPPED = 60, 3  # steps before the first turn, and at the beginning of each


def timed_ms(training, steps, on_gpu):
    """Return milliseconds a step, with all that the device was asked to do."""
    list(islice(training, SKIPPED))
    if on_gpu:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    list(islice(training, steps))
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turn", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    hooks = sys.modules.get("_harness_agent.guard")
    training = item_each_step.train(False, torch.device(given.device))
    list(islice(training, WARM))
    for number in range(given.rounds):
        for on in (False, True) if number % 2 == 0 else (True, False):
            if hooks is not None:
                hooks.on = on
            ms = timed_ms(training, given.turn, given.device == "cuda")
            print(json.dumps({"watched": on and hooks is not None, "ms": ms}), flush=True)
    if hooks is not None:
        hooks.on = True
