"""CPU time of the other threads of this process: a library may hand what it is asked for to threads of its own.

SentencePiece does so with each list of texts, even where it is told to use one thread, and so does ``data.tokenize:
threads``. The thread that asked waits meanwhile: by its own CPU time alone the stage would sleep, as one does that
waits for a disk, and would take no core from anybody.
"""

from time import process_time_ns, thread_time_ns

STAGES = frozenset({"tokenize"})  # that may use other threads, while nothing else in this process runs


def cpu_ns() -> int:
    """CPU time of this process less that of the calling thread."""
    return process_time_ns() - thread_time_ns()


def since_ns(begun_ns: int) -> int:
    """What that grew by; two clocks that are not read at once may differ by less than nothing."""
    return max(0, cpu_ns() - begun_ns)
