"""Runs the training scripts of this folder: ``SCRIPT.py slow``, ``SCRIPT.py fixed``, or both by turns, timed.

    python turns.py item_each_step micro_batches

Each script has a generator ``train(slow, device)`` that ends a step with each value; its two versions train the same
model on as many tokens. By turns, both stay alive in one process. A line of JSON says what each turn took. A script
that fails is reported so, and the next one runs.
"""

import argparse
import gc
import importlib
import json
import sys
import time
import traceback
from itertools import islice

import torch
from torch._dynamo.utils import counters

VERSIONS = ("slow", "fixed")
LOGGED = 20  # steps from one printed loss to the next
TURN, ROUNDS = 20, 6  # steps of a turn, and turns of each version
# Whole periods of what these scripts repeat; each turn of the first takes a compilation.
PERIODS = {"recompiling_lengths": (10, 2), "allocator_retries": (10, ROUNDS)}


def main(train):
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("version", choices=VERSIONS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    step = 0
    try:
        for step, loss in enumerate(islice(train(given.version == "slow", torch.device(given.device)), given.steps), 1):
            if step % LOGGED == 0:
                print(f"step {step}: loss {float(loss.detach()):.4f}", flush=True)
    finally:
        print(f"trained {step} steps", flush=True)


def by_turns(name, device, steps, rounds):
    """Yield what each turn took."""
    train = importlib.import_module(name).train
    running = {version: train(version == "slow", device) for version in VERSIONS}
    for version in VERSIONS:
        _take(running[version], steps)
    for number in range(rounds):
        for version in VERSIONS if number % 2 == 0 else VERSIONS[::-1]:
            _wait(device)
            before, begun = _counts(device), time.perf_counter()
            _take(running[version], steps)
            _wait(device)
            ms = (time.perf_counter() - begun) / steps * 1e3
            counts = {count: (after - before[count]) / steps for count, after in _counts(device).items()}
            yield {"script": name, "version": version, "ms": ms, **counts}


def _take(training, steps):
    if len(list(islice(training, steps))) < steps:
        raise RuntimeError("the data ended")


def _wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def _counts(device):
    """Return how often an allocation had to free all cached blocks first, and how often a graph was compiled."""
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0) if device.type == "cuda" else 0
    return {"allocator_retries": retries, "compilations": counters["stats"]["unique_graphs"]}


def _clean_up(device):
    """Leave the next script a device as a new process has it."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turn", type=int, help=f"steps of each (default: {TURN}, or a script's own)")
    parser.add_argument("--rounds", type=int, help=f"(default: {ROUNDS}, or a script's own)")
    given = parser.parse_args()
    on, failed = torch.device(given.device), 0
    for script in given.scripts:
        own_turn, own_rounds = PERIODS.get(script, (TURN, ROUNDS))
        try:
            for one in by_turns(script, on, given.turn or own_turn, given.rounds or own_rounds):
                print(json.dumps(one), flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            print(json.dumps({"script": script, "problem": f"{type(error).__name__}: {error}"[:300]}), flush=True)
        _clean_up(on)
    sys.exit(1 if failed else 0)
