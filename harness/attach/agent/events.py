"""Define what the agent writes: frames, the events of steps, and notes. The agent and its readers import this module.

A file of the agent holds frames. A frame is its length (LENGTH_BYTES, little endian) and the marshal of (word,
content):

    PROCESS   facts of the process (``ProcessFacts`` in ``attach/frames.py``), first in a file
    BATCH     (worker, number, pieces of stages, items) of a batch that a loader worker made
    EVENTS    events of whole steps, oldest first; the last frame may end within a step
    NOTE      (kind of the note, content)

An event is a tuple that begins with its kind. Times are CLOCK_MONOTONIC nanoseconds. Events of the first group have
the numbers of ``harness.probes.ledger.rows``, which the ledger reads (``tests/harness/attach/test_agent.py``):

    ENTER, EXIT         (kind, phase, time, CPU time of the thread)
    STEP                (kind, time, run-queue reading, number, repetition, warmup): a step begins, the last one ends
    PAUSE               (kind, time, run-queue reading): the last step ends
    RECEIVED            (kind, trace, tokens, items, samples): a training batch arrived. ``trace``: its maker.
                        ``attach/steps.py`` replaces the items by the ledger's tokens without padding
    UNPACKED            (kind, arrival, end of unpacking, True if waited for), before its RECEIVED

Events of the second group are the agent's own. ``attach/totals.py`` adds them up; the ledger does not see them:

    EVALUATION          (kind, True if the model made graphs): an evaluation batch was fetched; the step is not measured
    INTERRUPTED         (kind,): a signal handler of the program raised within a hook; the step is not measured
    TOKENIZED           (kind, ns): a tokenizer ran in the training loop, outside a fetch
    ITERATED            (kind, ns): a DataLoader of training data made an iterator, outside a fetch
    BEGUN_ANEW          (kind, early): the next batch is the first after its loader was restarted, perhaps early
    NOT_FINITE          (kind,): the loss of this step and of those before it is NaN or infinite
    DEVICE_WORK         (kind, name, launch start, launch end, start, end); the last two in ns of the device's clock
    COUNTED             (kind, RETRIES or COMPILED, count in the step that ends)
    SAMPLED             (kind, phase or "", number of the place (0: unknown), EXACT, LATE or FORCED, ns, looks)
    OTHER_RAN           (kind, number of the place, ns that another thread ran there, ns of these with the lock)
    DEMAND              (kind, ns for which other threads and child processes ran or waited for a core, elapsed ns)
    COLLECTED           (kind, garbage collections, ns, number of the place of the longest)
    MEMORY_READ         (kind, bytes of this process, bytes of its children, free bytes)
    PADDED              (kind, positions, padding, padding in columns of padding only, 1 if every batch is counted)

Events of the third group stay within the agent, until it is known what they were (``batches.py``, ``boundaries.py``):

    UNKNOWN_FETCH       (kind, time, run-queue reading): wait for a batch that is for training or for evaluation
    POSSIBLE_STEP       (kind, time, run-queue reading): a step began, if no optimizer ever appears
"""

from __future__ import annotations

from marshal import dumps
from typing import Any

PROCESS, BATCH, EVENTS, NOTE = "process", "batch", "events", "note"  # words of frames
LENGTH_BYTES = 4  # before each frame, little endian
SUFFIX = ".frames"  # suffix of a file of frames
ATTACHED = "attached"  # file that exists once a process of the command has imported torch
SETTINGS_FILE = "settings.json"  # the launcher's settings of the agent

MOST_PROFILE_STEPS = 100  # of one profile, which stays in the memory of the program until it ends
# A request of `harness profile` to a process, and its answers (``on_demand.py``), are files beside the frames.
PROFILE_ASKED, PROFILE_READY, PROFILE_OVER, PROFILE_DONE = (
    f"profile.{what}" for what in ("asked", "ready", "over", "done")
)

ENTER, EXIT, STEP, PAUSE, RECEIVED, UNPACKED = 0, 1, 2, 3, 4, 11
EVALUATION, TOKENIZED, DEVICE_WORK, INTERRUPTED = 6, 7, 9, 10
NOT_FINITE, BEGUN_ANEW, COUNTED, SAMPLED, COLLECTED, PADDED, OTHER_RAN, MEMORY_READ, DEMAND, ITERATED = range(13, 23)
POSSIBLE_STEP, UNKNOWN_FETCH = 8, 12

EXCLUDING = frozenset({EVALUATION, INTERRUPTED})  # a step with one of these is not measured
OWN = frozenset({
    TOKENIZED, ITERATED, BEGUN_ANEW, NOT_FINITE, DEVICE_WORK, COUNTED, SAMPLED, OTHER_RAN, DEMAND, COLLECTED,
    MEMORY_READ, PADDED,
})  # the other events that the ledger does not handle  # fmt: skip

ENDED = -2  # number of a batch in a trace: the wait ended with the data, without a batch
UNKNOWN_NUMBER = -1  # unknown number of a batch in a trace
RETRIES, COMPILED = "retries", "compiled"  # counted by COUNTED: retries of the allocator, compiled graphs
EXACT, LATE, FORCED = range(3)  # method by which a look of SAMPLED found its place, see own_time.py
HOOKS = "gradient hooks"  # phase of SAMPLED: program code that a backward pass runs
# Phase of SAMPLED: place of another thread, which may hold the lock that the recorded thread waits for; no looks.
HOLDER = "lock holder"


def framed(content: tuple[str, Any]) -> bytes:
    """Return the bytes of a frame. ``content``: (kind of frame, plain data), such as ("note", ("device", "cuda"))."""
    frame = dumps(content, 4)  # format 4 is readable by every Python 3, and writes a repeated word as a reference
    return len(frame).to_bytes(LENGTH_BYTES, "little") + frame
